"""S Rainbow runs with one update: the parameters of each run are flattened into rows, one row for each
of its networks, and `torch.func.vmap` maps the loss of one run over the rows.

One update of one run occupies a GPU for microseconds, so launching its kernels takes longer than
computing them; S runs share every kernel. The runs do not influence each other: losses are summed,
so each run has its own gradient; gradient norms are clipped row by row; Adam is elementwise. All
runs are at the same step. They may differ in task and seed, and S may be 1.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.nn import functional as F

from cclf.algorithms.rainbow import equations
from cclf.algorithms.rainbow.config import RainbowConfig
from cclf.algorithms.rainbow.networks import HeadNoise
from cclf.algorithms.rainbow.noise import NoiseSampler, noise_key
from cclf.algorithms.rainbow.rainbow import (
    LossOutput,
    RainbowLoss,
    RainbowNoise,
    RunParameters,
    make_rainbow,
)
from cclf.config import Config
from cclf.training.cuda_graphs import Compiler, uncompiled
from cclf.types import GameBatch, Metrics, StateDict

# The networks of a run and the prefixes of their parameter names. Each network is stored as one row.
NETWORKS = {"online": ("framework.", "online."), "target": ("target_",), "momentum": ("momentum_",)}
ALIGNMENT = 64  # parameters begin at multiples of this, as tensor cores and vector loads require


class FlatParameters:
    """The position of each parameter of one network in its row. The gradient of a row is one tensor, so
    clipping, Adam and the moving average of the momentum network are one operation each.

    Each parameter is zero-padded to the alignment and, in a batch of runs, to the largest number of
    actions. The padding stays zero.
    """

    def __init__(self, module: RainbowLoss, prefixes: tuple[str, ...]):
        """The network has the parameters of `module` whose names begin with one of `prefixes`."""
        named = module.named_parameters()
        self.shapes = {name: p.shape for name, p in named if name.startswith(prefixes)}
        self.sizes = [-(-shape.numel() // ALIGNMENT) * ALIGNMENT for shape in self.shapes.values()]

    def flatten(self, named: dict[str, Tensor]) -> Tensor:
        """A row (P,) of parameters by name. Those of a run with fewer actions are padded."""
        values = [named[name].detach().flatten() for name in self.shapes]
        parts = zip(values, self.sizes, strict=True)
        return torch.cat([F.pad(value, (0, size - len(value))) for value, size in parts])

    def unflatten(self, row: Tensor) -> dict[str, Tensor]:
        """Views of a row (P,), by name."""
        parts = zip(self.shapes.items(), torch.split(row, self.sizes), strict=True)
        return {name: part[: shape.numel()].view(shape) for (name, shape), part in parts}

    def slice_in_online(self, online: "FlatParameters") -> slice:
        """The part of an online row that is copied to this network. It is contiguous because of the order
        of modules in `RainbowNet`."""
        _, _, first = next(iter(self.shapes)).partition("_")
        start = sum(online.sizes[: list(online.shapes).index(f"online.{first}")])
        return slice(start, start + sum(self.sizes))


class BatchedRainbow:
    """Networks, optimizer state and updates of S runs of one method."""

    def __init__(
        self,
        configs: Sequence[Config[RainbowConfig]],
        num_actions: Sequence[int],
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        compiler: Compiler = uncompiled,
    ):
        """`configs` differ in task and seed alone. `num_actions` holds one number for each run's game."""
        self._act, self._compute_losses = compiler(act), compiler(compute_losses)
        self._optimizer_step = compiler(optimizer_step)
        modules = [
            make_rainbow(config, count) for config, count in zip(configs, num_actions, strict=True)
        ]
        # The architecture for the largest number of actions. Its weights are not used.
        self.module = make_rainbow(configs[0], max(num_actions)).to(device, dtype)
        self.layouts = {
            network: FlatParameters(self.module, prefixes) for network, prefixes in NETWORKS.items()
        }
        counts = torch.tensor(num_actions)[:, None]
        self.action_mask = (torch.arange(max(num_actions)) < counts).to(device, dtype)  # (S, A)
        self.device, self.settings = device, self.module.settings
        self.metric_names = (*self.module.metric_names, "gradient_norm")
        self.noise = NoiseSampler(
            self.module, [noise_key(config) for config in configs], device, dtype
        )

        self.rows = {
            network: torch.stack(
                [layout.flatten(dict(module.named_parameters())) for module in modules]
            ).to(device, dtype)
            for network, layout in self.layouts.items()
        }
        self.rows["online"].requires_grad_(True)

        def stacked(name: str) -> Tensor:
            """A buffer of all runs, (S,)."""
            return torch.stack([module.get_buffer(name) for module in modules]).to(device, dtype)

        maxima = ("framework.reward_max", "framework.bonus_max")
        self.running_maxima = {name: stacked(name) for name in maxima}
        self.per_run_constants = {"contrastive_coefficient": stacked("contrastive_coefficient")}
        self.copied_slices = {
            network: self.layouts[network].slice_in_online(self.layouts["online"])
            for network in ("target", "momentum")
        }
        self.adam_moments = {
            name: torch.zeros_like(self.rows["online"], requires_grad=False)
            for name in ("mean", "square")
        }
        # A tensor, because a CUDA graph would not see a Python number change.
        self.adam_steps = torch.zeros((), dtype=torch.float64, device=device)
        self.runs = [RunView(self, index, module) for index, module in enumerate(modules)]

    def act(self, observation: Tensor, update_index: Tensor, epsilon: Tensor) -> Tensor:
        """Actions (S,) for frame stacks (S, F, H, W): greedy with the noisy layers' noise of this update,
        or random with probability `epsilon`."""
        return self._act(self, observation, update_index, epsilon)

    def update(
        self, batch: GameBatch, noise: RainbowNoise, env_steps: Tensor, beta: Tensor
    ) -> tuple[Metrics, Tensor]:
        """One update of every run: metrics (S,) each, and new priorities (S, B)."""
        output = self._compute_losses(self, batch, noise, env_steps, beta)
        (gradient,) = torch.autograd.grad(output.loss.sum(), self.rows["online"])
        norm = self._optimizer_step(self, gradient)
        return output.metrics | {"gradient_norm": norm}, output.priority.detach()

    def q_values(self, row: Tensor, images: Tensor, noise: HeadNoise, mask: Tensor) -> Tensor:
        """Q values (n, A) of one run with the parameters `row` (P,)."""
        named = self.layouts["online"].unflatten(row)
        parameters = {
            name.removeprefix("online."): p
            for name, p in named.items()
            if name.startswith("online.")
        }
        values: Tensor = functional_call(self.module.online, parameters, (images, noise, mask))
        return values

    @torch.no_grad()
    def update_target(self) -> None:
        self.rows["target"].copy_(self.rows["online"][:, self.copied_slices["target"]])


@torch.no_grad()
def act(
    rainbow: BatchedRainbow, observation: Tensor, update_index: Tensor, epsilon: Tensor
) -> Tensor:
    uniform, noise = rainbow.noise.sample(update_index)
    values = vmap(rainbow.q_values)(
        rainbow.rows["online"], observation[:, None], noise.online, rainbow.action_mask
    )
    best = vmap(equations.best_action)(values, rainbow.action_mask).squeeze(1)
    chance, choice = uniform["explore"].unbind(1)
    random = (choice * rainbow.action_mask.sum(1)).long()
    return torch.where(chance < epsilon, random, best)


def compute_losses(
    rainbow: BatchedRainbow,
    batch: GameBatch,
    noise: RainbowNoise,
    env_steps: Tensor,
    beta: Tensor,
) -> LossOutput:
    """The loss of every run; each field of the output has a leading dimension S."""

    def loss_of_run(
        rows: dict[str, Tensor],
        buffers: dict[str, Tensor],
        batch: GameBatch,
        noise: RainbowNoise,
        action_mask: Tensor,
    ) -> LossOutput:
        parameters = {
            name: p
            for network, row in rows.items()
            for name, p in rainbow.layouts[network].unflatten(row).items()
        }
        output: LossOutput = functional_call(
            rainbow.module, parameters | buffers, (batch, noise, env_steps, beta, action_mask)
        )
        return output

    buffers = rainbow.running_maxima | rainbow.per_run_constants
    output: LossOutput = vmap(loss_of_run)(rainbow.rows, buffers, batch, noise, rainbow.action_mask)
    return output


@torch.no_grad()
def optimizer_step(rainbow: BatchedRainbow, gradient: Tensor) -> Tensor:
    """Clip each run's gradient, take a step of Adam and update the momentum networks. Returns the
    norms (S,) before clipping."""
    settings, online = rainbow.settings, rainbow.rows["online"].detach()
    norm: Tensor = gradient.norm(dim=1)
    gradient = gradient * (settings.max_gradient_norm / (norm + 1e-6)).clamp_max(1.0)[:, None]
    rainbow.adam_steps += 1.0
    equations.adam_step(
        online,
        gradient,
        rainbow.adam_moments["mean"],
        rainbow.adam_moments["square"],
        rainbow.adam_steps,
        learning_rate=settings.learning_rate,
        epsilon=settings.adam_epsilon,
    )
    if rainbow.module.method.contrastive:
        rainbow.rows["momentum"].lerp_(
            online[:, rainbow.copied_slices["momentum"]], settings.key_ema_rate
        )
    return norm


class RunView:
    """One run of a batch. Its state does not depend on the batch, so it can be loaded into a batch of any
    size."""

    def __init__(self, batch: BatchedRainbow, index: int, module: RainbowLoss):
        """`module` has the parameter shapes of this run, whose game may have fewer actions than others."""
        self.batch, self.index = batch, index
        self._lengths = {name: len(p) for name, p in module.named_parameters()}
        self.networks = RunParameters(
            {
                name: value
                for network, rows in batch.rows.items()
                for name, value in self._without_padding(network, rows.detach()).items()
            }
        )

    def _without_padding(self, network: str, rows: Tensor) -> dict[str, Tensor]:
        """Views of this run's row by name, without the actions that only other games have."""
        named = self.batch.layouts[network].unflatten(rows[self.index])
        return {name: value[: self._lengths[name]] for name, value in named.items()}

    def state_dict(self) -> StateDict:
        batch = self.batch
        return {
            "networks": self.networks.state_dict(),
            "maxima": {name: value[self.index] for name, value in batch.running_maxima.items()},
            "moments": {
                name: self._without_padding("online", rows)
                for name, rows in batch.adam_moments.items()
            },
            "adam_steps": int(batch.adam_steps),
        }

    @torch.no_grad()
    def load_state_dict(self, state: StateDict) -> None:
        batch = self.batch
        self.networks.load_state_dict(state["networks"])
        for name, value in batch.running_maxima.items():
            value[self.index] = state["maxima"][name]
        for name, rows in batch.adam_moments.items():
            rows[self.index] = batch.layouts["online"].flatten(state["moments"][name])
        batch.adam_steps.fill_(state["adam_steps"])
