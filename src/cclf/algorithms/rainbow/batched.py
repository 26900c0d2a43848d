"""Many Rainbow runs as one: each is a row of parameters, over which the loss of one is mapped.

One update of one run keeps a GPU busy for microseconds, so launching it costs more than computing
it. Here S runs (games x seeds) share every kernel. What one run does is in `turn.py`, and each run
of a stack does the same: losses are summed, so each gradient is its own; the gradient norm is
clipped row by row; Adam works on each number by itself. Runs move in step, and differ in game and
seed. On a GPU one run is a stack of one.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from cclf.algorithms.rainbow import equations
from cclf.algorithms.rainbow.networks import HeadNoise
from cclf.algorithms.rainbow.noise import NoiseSampler, UniformNumbers
from cclf.algorithms.rainbow.parameter_rows import NETWORKS, FlatParameters
from cclf.algorithms.rainbow.rainbow import LossOutput, RainbowLoss, RainbowNet, RainbowNoise
from cclf.algorithms.rainbow.replay import NStepReplay
from cclf.types import GameBatch, Metrics

Compiler = Callable[[Any], Any]


class RainbowKernels(NamedTuple):
    """How the parts of a turn are computed: as written below, or compiled (`make_kernels`)."""

    act: "Callable[[BatchedRainbow, Tensor, Tensor, Tensor], Tensor]"
    losses: "Callable[[BatchedRainbow, GameBatch, RainbowNoise, Tensor, Tensor], LossOutput]"
    descend: "Callable[[BatchedRainbow, Tensor], Tensor]"
    prepare: "Callable[[BatchedRainbow, NStepReplay, Tensor], tuple[GameBatch, RainbowNoise]]"
    conclude: Callable[[NStepReplay, Tensor, Tensor, "MetricSums", Metrics], None]


def uncompiled(function: Any) -> Any:
    return function


def make_kernels(wrap: Compiler = uncompiled, wrap_replay: Compiler = uncompiled) -> RainbowKernels:
    """Each part wrapped, by a compiler for example.

    Those that touch replay have a wrapper of their own: replay may be on another device.
    """
    return RainbowKernels(
        *map(wrap, (act, compute_losses, descend)), *map(wrap_replay, (sample_batch, write_back))
    )


class MetricSums(NamedTuple):
    """Metrics of each run summed up until they are reported."""

    names: tuple[str, ...]
    values: Tensor  # (names, S)


class BatchedRainbow:
    """S runs of one method. They may differ in their number of actions and in weights."""

    def __init__(
        self,
        modules: Sequence[RainbowLoss],
        template: RainbowLoss,
        keys: Sequence[int],
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        compute: RainbowKernels | None = None,
    ):
        """`modules` are the runs as they begin; `keys` seed their random numbers.

        `template` is a run with as many actions as any of them; its weights do not matter.
        """
        self.template = template.to(device, dtype)
        self.layouts = {group: FlatParameters(template, group) for group in NETWORKS}
        self.num_actions = [module.online.head.num_actions for module in modules]
        places = torch.arange(template.online.head.num_actions)
        self.valid = torch.stack([(places < count).to(dtype) for count in self.num_actions]).to(
            device
        )  # (S, A)
        self.device, self.settings, self.metric_names = (
            device,
            template.settings,
            template.metric_names,
        )
        self.draws = NoiseSampler(template, keys, device, dtype)
        self.compute = compute or make_kernels()

        rows = {
            group: [layout.row(dict(module.named_parameters())) for module in modules]
            for group, layout in self.layouts.items()
        }
        self.rows = {group: torch.stack(row).to(device, dtype) for group, row in rows.items()}
        self.rows["online"].requires_grad_(True)
        self.maxima = {
            f"framework.{name}": torch.stack(
                [getattr(module.framework, name) for module in modules]
            ).to(device, dtype)
            for name in ("reward_max", "bonus_max")
        }
        coefficients = [module.contrastive_coefficient for module in modules]
        # in which games differ
        self.differing = {"contrastive_coefficient": torch.stack(coefficients).to(device, dtype)}
        self.sources = {
            group: self.layouts[group].source(self.layouts["online"])
            for group in ("target", "momentum")
        }
        self.moments = {
            name: torch.zeros_like(self.rows["online"], requires_grad=False)
            for name in ("mean", "square")
        }
        # a tensor: a CUDA graph would freeze a number
        self.adam_steps = torch.zeros((), dtype=torch.float64, device=device)
        self.runs = [RunView(self, index) for index in range(len(modules))]

    def draw(self, moment: Tensor) -> tuple[UniformNumbers, RainbowNoise]:
        """All random numbers of a moment: uniform ones by name (S, ...), and an update's noise."""
        return self.draws.at(moment)

    def act(self, observation: Tensor, moment: Tensor, epsilon: Tensor) -> Tensor:
        """Actions (S,) for frames (S, F, H, W): the best under this moment's noise.

        With probability `epsilon` it is a random one.
        """
        return self.compute.act(self, observation, moment, epsilon)

    def update(
        self, batch: GameBatch, noise: RainbowNoise, env_steps: Tensor, beta: Tensor
    ) -> tuple[Metrics, Tensor]:
        """One update of every run: metrics (S,) each, and new priorities (S, B)."""
        step = self.compute.losses(self, batch, noise, env_steps, beta)
        (gradient,) = torch.autograd.grad(step.loss.sum(), self.rows["online"])
        norm = self.compute.descend(self, gradient)
        return step.metrics | {"gradient_norm": norm}, step.priority.detach()

    def values(self, row: Tensor, images: Tensor, noise: HeadNoise, valid: Tensor) -> Tensor:
        """Q values (n, A) of one run, whose parameters are `row`."""
        named = self.layouts["online"].named(row)
        own = {
            name.removeprefix("online."): p
            for name, p in named.items()
            if name.startswith("online.")
        }
        values: Tensor = functional_call(self.template.online, own, (images, noise, valid))
        return values

    @torch.no_grad()
    def copy_target(self) -> None:
        self.rows["target"].copy_(self.rows["online"][:, self.sources["target"]])

    def network(self, run: int) -> RainbowNet:
        """The online network of one run by itself.

        Its parameters are views of the run's row, so it learns with the stack.
        """
        network = copy.deepcopy(self.template.online).requires_grad_(False)
        for name, value in self.layouts["online"].named(self.rows["online"].detach()[run]).items():
            if name.startswith("online."):
                network.get_parameter(name.removeprefix("online.")).data = value
        return network


@torch.no_grad()
def act(stack: BatchedRainbow, observation: Tensor, moment: Tensor, epsilon: Tensor) -> Tensor:
    uniform, noise = stack.draw(moment)
    values = vmap(stack.values)(
        stack.rows["online"], observation[:, None], noise.online, stack.valid
    )
    best = vmap(equations.best_action)(values, stack.valid).squeeze(1)
    chance, which = uniform["explore"].unbind(1)
    return torch.where(chance < epsilon, (which * stack.valid.sum(1)).long(), best)


def compute_losses(
    stack: BatchedRainbow, batch: GameBatch, noise: RainbowNoise, env_steps: Tensor, beta: Tensor
) -> LossOutput:
    """The loss of one run, mapped over all: each field of the step has S in front."""

    def one(
        rows: dict[str, Tensor],
        rest: dict[str, Tensor],
        batch: GameBatch,
        noise: RainbowNoise,
        valid: Tensor,
    ) -> LossOutput:
        named = {
            name: p
            for group, row in rows.items()
            for name, p in stack.layouts[group].named(row).items()
        }
        step: LossOutput = functional_call(
            stack.template, named | rest, (batch, noise, env_steps, beta, valid)
        )
        return step

    step: LossOutput = vmap(one)(
        stack.rows, stack.maxima | stack.differing, batch, noise, stack.valid
    )
    return step


@torch.no_grad()
def descend(stack: BatchedRainbow, gradient: Tensor) -> Tensor:
    """Clip each run's gradient, take a step of Adam, let the momentum networks follow.

    Returned are the norms (S,) before clipping.
    """
    settings, online = stack.settings, stack.rows["online"].detach()
    norm: Tensor = gradient.norm(dim=1)
    gradient = gradient * (settings.max_gradient_norm / (norm + 1e-6)).clamp_max(1.0)[:, None]
    stack.adam_steps += 1.0
    equations.adam_step(
        online,
        gradient,
        stack.moments["mean"],
        stack.moments["square"],
        stack.adam_steps,
        learning_rate=settings.learning_rate,
        epsilon=settings.adam_epsilon,
    )
    if stack.template.method.contrastive:
        stack.rows["momentum"].lerp_(online[:, stack.sources["momentum"]], settings.key_ema_rate)
    return norm


def sample_batch(
    stack: BatchedRainbow, replay: NStepReplay, moment: Tensor
) -> tuple[GameBatch, RainbowNoise]:
    """What is learned from: a batch out of replay and all random numbers of the update."""
    uniform, noise = stack.draw(moment)
    return replay.sample(uniform["replay"].to(replay.device)), noise


def write_back(
    replay: NStepReplay, slot: Tensor, priority: Tensor, sums: MetricSums, metrics: Metrics
) -> None:
    """What replay and the log keep of an update."""
    replay.set_priorities(slot, priority.to(replay.device))
    none = torch.zeros_like(priority[:, 0])
    sums.values.add_(torch.stack([metrics.get(name, none) for name in sums.names]))


class RunView:
    """One run of a stack, to be saved and loaded by itself: into another stack, or as a run
    alone."""

    def __init__(self, stack: BatchedRainbow, index: int):
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
        return {
            name: self._own(name, value)
            for name, value in self.stack.layouts[group].named(rows[self.index]).items()
        }

    def _own(self, name: str, value: Tensor) -> Tensor:
        """Without the actions of other games, which the last layer of the advantages has."""
        head = self.stack.template.online.head
        return value[: self.num_actions * head.atoms] if "head.layers.1." in name else value

    @property
    def networks(self) -> "RunNetworks":
        return RunNetworks(self)

    def state_dict(self) -> dict[str, Any]:
        return {
            "networks": self.networks.state_dict(),
            "maxima": {name: value[self.index] for name, value in self.stack.maxima.items()},
            "moments": {
                name: self._unfilled("online", rows) for name, rows in self.stack.moments.items()
            },
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

    run: RunView

    def state_dict(self) -> dict[str, Tensor]:
        return {name: p for group in NETWORKS for name, p in self.run.parameters(group).items()}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        stack = self.run.stack
        for group in NETWORKS:
            stack.rows[group][self.run.index] = stack.layouts[group].row(state).to(stack.device)
