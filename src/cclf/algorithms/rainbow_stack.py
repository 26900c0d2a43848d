"""Many Rainbow runs as one: the parameters of each are a row, and the update of one run is mapped over the rows.

One update of one run keeps a GPU busy for microseconds, so launching it costs more than computing it. Here S runs (games x seeds)
share every kernel. Nothing passes from row to row: losses are summed, so each gradient is its own; the gradient norm is clipped
row by row; Adam works on each number by itself. `cclf train` is a stack of one. Runs move in step, and differ in game and seed.
"""

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.nn import functional as F

from cclf import equations
from cclf.algorithms.rainbow import Rainbow, RainbowNet, RainbowNoise, RainbowStep
from cclf.counter_random import CounterRandom, normal
from cclf.nets_rainbow import HeadNoise, LayerNoise
from cclf.types import GameBatch, Metrics

_PREFIXES = {"online": ("framework.", "online."), "target": ("target_",), "momentum": ("momentum_",)}
_OF_ONLINE = {"target_": "online.", "momentum_": "online."}  # whose copy a parameter is
_ALIGNED = 64  # numbers: each parameter of each row begins where matrix units and wide reads of a GPU want it


class Layout:
    """Where each named parameter lies in a row. Zeros fill it up, which stay zero: to the next whole place, and before that where
    a run has fewer actions than others."""

    def __init__(self, module: Rainbow, group: str):
        self.shapes = {name: p.shape for name, p in module.named_parameters() if name.startswith(_PREFIXES[group])}
        self.sizes = [-(-shape.numel() // _ALIGNED) * _ALIGNED for shape in self.shapes.values()]

    def row(self, named: dict[str, Tensor]) -> Tensor:
        """A row (P,) out of parameters by name."""
        values = [named[name].detach().flatten() for name in self.shapes]
        return torch.cat([F.pad(value, (0, size - len(value))) for value, size in zip(values, self.sizes, strict=True)])

    def named(self, row: Tensor) -> dict[str, Tensor]:
        """Views by name of a row (P,)."""
        parts = zip(self.shapes.items(), torch.split(row, self.sizes), strict=True)
        return {name: part[: shape.numel()].view(shape) for (name, shape), part in parts}


class RainbowStack:
    """S runs of one method. `modules` are the runs as they begin; they may differ in their number of actions and in weights."""

    def __init__(
        self,
        modules: Sequence[Rainbow],
        template: Rainbow,
        keys: Sequence[int],
        device: torch.device,
        *,
        batch_size: int,
        noisy: bool,
        learning_rate: float,
        adam_epsilon: float,
        max_gradient_norm: float,
        key_ema_rate: float,
        dtype: torch.dtype = torch.float32,
    ):
        """`template` is a run with as many actions as any of them, whose weights do not matter; `keys` seed the runs' numbers."""
        self.template = template.to(device, dtype)
        self.layouts = {group: Layout(template, group) for group in _PREFIXES}
        self.num_actions = [module.online.head.num_actions for module in modules]
        places = torch.arange(template.online.head.num_actions)
        self.valid = torch.stack([(places < count).to(dtype) for count in self.num_actions]).to(device)  # (S, A)
        self.keys = torch.tensor(keys, dtype=torch.int64, device=device)
        self.device, self.dtype, self.noisy, self.batch_size = device, dtype, noisy, batch_size
        self.max_gradient_norm, self.key_ema_rate = max_gradient_norm, key_ema_rate
        self.metric_names = template.metric_names

        rows = {
            group: [layout.row(dict(module.named_parameters())) for module in modules] for group, layout in self.layouts.items()
        }
        self.rows = {group: torch.stack(row).to(device, dtype) for group, row in rows.items()}
        self.rows["online"].requires_grad_(True)
        self.maxima = {
            f"framework.{name}": torch.stack([getattr(module.framework, name) for module in modules]).to(device, dtype)
            for name in ("reward_max", "bonus_max")
        }
        coefficients = [module.contrastive_coefficient for module in modules]
        self.settings = {"contrastive_coefficient": torch.stack(coefficients).to(device, dtype)}  # in which games differ
        self._copied = {group: self._source(group) for group in ("target", "momentum")}
        self.adam_step = partial(equations.adam_step, learning_rate=learning_rate, epsilon=adam_epsilon)
        self.moments = {name: torch.zeros_like(self.rows["online"], requires_grad=False) for name in ("mean", "square")}
        self.adam_steps = torch.zeros((), dtype=torch.float64, device=device)  # a tensor: a CUDA graph would freeze a number
        self.random = CounterRandom(self._noise_shapes(), device)
        self.runs = [StackedRun(self, index) for index in range(len(modules))]

    def _source(self, group: str) -> slice:
        """The part of an online row that a target or momentum row copies: they lie together, see `RainbowNet`."""
        layout, online = self.layouts[group], self.layouts["online"]
        prefix = _PREFIXES[group][0]
        names = [name.replace(prefix, _OF_ONLINE[prefix], 1) for name in layout.shapes]
        first = list(online.shapes).index(names[0])
        assert list(online.shapes)[first : first + len(names)] == names, f"the {group} network is no part of an online row"
        start = sum(online.sizes[:first])
        return slice(start, start + sum(layout.sizes))

    def _noise_shapes(self) -> dict[str, tuple[int, ...]]:
        """Uniform numbers of one turn of one run, by name. Those of the views come last: methods share the others."""
        template, batch = self.template, self.batch_size
        shapes: dict[str, tuple[int, ...]] = {"replay": (batch,), "explore": (2,)}
        if self.noisy:
            for network in ("online", "target"):
                for number, (inputs, outputs) in enumerate(template.online.head.noise_shapes()):
                    shapes |= {f"{network}_{number}_inputs": (inputs,), f"{network}_{number}_outputs": (outputs,)}
        if template.augmentation != "none":
            axes = (template.drawn_views, batch, 2, 2 if template.augmentation == "crop-pad-crop" else 1)
            shapes |= {"shifts": axes, "next_shifts": axes}
            if template.intensity_scale:
                shapes |= {"intensity": axes[:2], "next_intensity": axes[:2]}
        return shapes

    def draw(self, moment: Tensor) -> tuple[dict[str, Tensor], RainbowNoise]:
        """All random numbers of the moment: uniform ones by name (S, ...), and what an update needs."""
        numbers = self.random.uniform(self.keys, moment)
        gauss = normal(numbers)  # of all at once: a kernel for each of them would cost more
        factors = self.random.named(equations.noise_factor(gauss).to(self.dtype))
        uniform, normals = self.random.named(numbers), self.random.named(gauss.to(self.dtype))
        none = numbers[:, :1]  # where a method needs none
        return uniform, RainbowNoise(
            online=self._head_noise("online", factors),
            target=self._head_noise("target", factors),
            shifts=uniform.get("shifts", none),
            next_shifts=uniform.get("next_shifts", none),
            intensity=normals.get("intensity", none),
            next_intensity=normals.get("next_intensity", none),
        )

    def _head_noise(self, network: str, factors: dict[str, Tensor]) -> HeadNoise:
        numbers = range(len(self.template.online.head.layers)) if self.noisy else ()
        return tuple(LayerNoise(factors[f"{network}_{n}_inputs"], factors[f"{network}_{n}_outputs"]) for n in numbers)

    @torch.no_grad()
    def act(self, observation: Tensor, moment: Tensor, epsilon: Tensor) -> Tensor:
        """Actions (S,) for stacks (S, F, H, W): the best under this moment's noise, with probability `epsilon` a random one."""
        uniform, noise = self.draw(moment)
        values = vmap(self._values)(self.rows["online"], observation[:, None], noise.online, self.valid)
        best = vmap(equations.best_action)(values, self.valid).squeeze(1)
        chance, which = uniform["explore"].unbind(1)
        return torch.where(chance < epsilon, (which * self.valid.sum(1)).long(), best)

    def _values(self, row: Tensor, images: Tensor, noise: HeadNoise, valid: Tensor) -> Tensor:
        named = {name.removeprefix("online."): p for name, p in self.layouts["online"].named(row).items() if "online." in name}
        values: Tensor = functional_call(self.template.online, named, (images, noise, valid))
        return values

    def run_loss(
        self, rows: dict[str, Tensor], batch: GameBatch, noise: RainbowNoise, env_steps: Tensor, beta: Tensor
    ) -> RainbowStep:
        def one(
            rows: dict[str, Tensor], rest: dict[str, Tensor], batch: GameBatch, noise: RainbowNoise, valid: Tensor
        ) -> RainbowStep:
            named = {name: p for group, row in rows.items() for name, p in self.layouts[group].named(row).items()}
            step: RainbowStep = functional_call(self.template, named | rest, (batch, noise, env_steps, beta, valid))
            return step

        step: RainbowStep = vmap(one)(rows, self.maxima | self.settings, batch, noise, self.valid)
        return step

    def update(self, batch: GameBatch, noise: RainbowNoise, env_steps: Tensor, beta: Tensor) -> tuple[Metrics, Tensor]:
        """One update of every run: metrics (S,) each, and new priorities (S, B)."""
        step = self.run_loss(self.rows, batch, noise, env_steps, beta)
        (gradient,) = torch.autograd.grad(step.loss.sum(), self.rows["online"])
        return step.metrics | {"gradient_norm": self.descend(gradient)}, step.priority.detach()

    @torch.no_grad()
    def descend(self, gradient: Tensor) -> Tensor:
        """Clip each run's gradient, take Adam's step, let the momentum networks follow: the gradients' norms (S,)."""
        norm: Tensor = gradient.norm(dim=1)
        gradient = gradient * (self.max_gradient_norm / (norm + 1e-6)).clamp_max(1.0)[:, None]
        self.adam_steps += 1.0
        online = self.rows["online"].detach()
        self.adam_step(online, gradient, self.moments["mean"], self.moments["square"], self.adam_steps)
        if self.template.contrastive:
            self.rows["momentum"].lerp_(online[:, self._copied["momentum"]], self.key_ema_rate)
        return norm

    @torch.no_grad()
    def copy_target(self) -> None:
        self.rows["target"].copy_(self.rows["online"][:, self._copied["target"]])

    def network(self, run: int) -> RainbowNet:
        """The online network of one run by itself; its parameters are the run's part of the row, so it learns with the stack."""
        network = copy.deepcopy(self.template.online).requires_grad_(False)
        for name, value in self.layouts["online"].named(self.rows["online"].detach()[run]).items():
            if name.startswith("online."):
                network.get_parameter(name.removeprefix("online.")).data = value
        return network


class StackedRun:
    """One run of a stack: it acts for evaluation, and is saved and loaded by itself, into a stack of any other size."""

    def __init__(self, stack: RainbowStack, index: int):
        self.stack, self.index = stack, index
        self.num_actions, self.network = stack.num_actions[index], stack.network(index)

    def evaluation_action(self, observation: Tensor) -> Tensor:
        """The best actions (n,) without noise."""
        return self.evaluation_values(observation).argmax(1)

    @torch.no_grad()
    def evaluation_values(self, observation: Tensor) -> Tensor:
        """Q values (n, A) without noise, for stacks (n, F, H, W)."""
        values: Tensor = self.network(observation, (), self.stack.valid[self.index])
        return values[:, : self.num_actions]

    def parameters(self, group: str = "online") -> dict[str, Tensor]:
        """Its own parameters by name, without what fills them up; a view of the stack's."""
        return self._unfilled(group, self.stack.rows[group].detach())

    def _unfilled(self, group: str, rows: Tensor) -> dict[str, Tensor]:
        return {name: self._own(name, value) for name, value in self.stack.layouts[group].named(rows[self.index]).items()}

    def _own(self, name: str, value: Tensor) -> Tensor:
        """Without the actions of other games: those of `head.layers.1`, the last layer of the advantage stream."""
        head = self.stack.template.online.head
        return value[: self.num_actions * head.atoms] if "head.layers.1." in name else value

    @property
    def networks(self) -> "RunNetworks":
        return RunNetworks(self)

    def state_dict(self) -> dict[str, Any]:
        return {
            "networks": self.networks.state_dict(),
            "maxima": {name: value[self.index] for name, value in self.stack.maxima.items()},
            "moments": {name: self._unfilled("online", rows) for name, rows in self.stack.moments.items()},
            "adam_steps": int(self.stack.adam_steps),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        stack = self.stack
        self.networks.load_state_dict(state["networks"])
        for name, value in stack.maxima.items():
            value[self.index] = state["maxima"][name].to(stack.device)
        for name, rows in stack.moments.items():
            rows[self.index] = stack.layouts["online"].row(state["moments"][name]).to(stack.device)
        stack.adam_steps.fill_(state["adam_steps"])


class RunNetworks(NamedTuple):
    """The weights of one run, of all its networks."""

    run: StackedRun

    def state_dict(self) -> dict[str, Tensor]:
        return {name: p for group in _PREFIXES for name, p in self.run.parameters(group).items()}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        stack = self.run.stack
        for group in _PREFIXES:
            stack.rows[group][self.run.index] = stack.layouts[group].row(state).to(stack.device)
