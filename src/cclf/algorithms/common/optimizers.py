"""Optimizers: Adam, RMSprop, and the updates of target networks.

PyTorch's own optimizer classes import its compiler, which delays a start by a second or more, so
these classes call functions. To add an optimizer, subclass `Optimizer` (docs/design.md).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.optim.adam import adam as fused_adam_step
from torch.optim.rmsprop import rmsprop as rmsprop_step

from cclf.storage.safe_loading import check_same_structure
from cclf.training.cuda_graphs import Compiler
from cclf.types import StateDict


class Optimizer(ABC):
    """Updates parameters. The state of a parameter is created at its first update."""

    state_names: ClassVar[tuple[str, ...]]
    """Names of the tensors in the state of a parameter, which have the shape of the parameter."""

    def __init__(self, parameters: Iterable[Tensor], lr: float):
        self.parameters, self.lr = list(parameters), lr
        self.state: dict[int, dict[str, Tensor]] = {}  # by the parameter's position
        self._positions = {parameter: i for i, parameter in enumerate(self.parameters)}

    @abstractmethod
    def apply(
        self,
        parameters: list[Tensor],
        gradients: list[Tensor],
        states: list[list[Tensor]],  # one list for each of `state_names`
        steps: list[Tensor],  # for each parameter a scalar: its number of updates so far
    ) -> None:
        """Update parameters, states and steps in place."""

    @torch.no_grad()
    def step(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Update `parameters`, which are some or all of the optimizer's."""
        positions = [self._positions[parameter] for parameter in parameters]
        for position in positions:
            if position not in self.state:
                self.state[position] = self._initial_state(position)
        states = [self.state[position] for position in positions]
        self.apply(
            list(parameters),
            [_match_strides(*pair) for pair in zip(parameters, gradients, strict=True)],
            [[state[name] for state in states] for name in self.state_names],
            [state["step"] for state in states],
        )

    def _initial_state(self, position: int) -> dict[str, Tensor]:
        parameter = self.parameters[position].detach()
        zeros = {name: torch.zeros_like(parameter) for name in self.state_names}
        return {"step": torch.zeros((), device=parameter.device), **zeros}

    def state_dict(self) -> StateDict:
        """The state of each parameter that was updated, by its position. Hyperparameters are not
        included, since the config holds them."""
        return {str(position): state for position, state in sorted(self.state.items())}

    def load_state_dict(self, state: StateDict) -> None:
        """Copy the state, so that later steps do not modify the caller's tensors."""
        loaded = {int(position): self._initial_state(int(position)) for position in state}
        check_same_structure(
            {str(position): tensors for position, tensors in loaded.items()}, state, "optimizer"
        )
        for position, tensors in loaded.items():
            for name, tensor in tensors.items():
                tensor.copy_(state[str(position)][name])
        self.state = loaded


class OptimizerFactory(Protocol):
    """The optimizer class of SAC and DrQ-v2: `Adam`, or another class with these arguments."""

    def __call__(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        betas: tuple[float, float] = ...,
        *,
        compiler: Compiler | None,
    ) -> Optimizer: ...


class Adam(Optimizer):
    """Adam as PyTorch computes it.

    By default, PyTorch's fused kernel updates all parameters. If a `compiler` is given,
    `adam_step` is compiled and used instead: on a GPU it takes a third of that kernel's time.
    """

    state_names = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        compiler: Compiler | None = None,
        weight_decay: float = 0.0,
    ):
        """With `weight_decay` it is AdamW: parameters shrink by `lr * weight_decay` before each step."""
        super().__init__(parameters, lr)
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay
        self.compiled_step = None if compiler is None else compiler(adam_step)

    def apply(
        self,
        parameters: list[Tensor],
        gradients: list[Tensor],
        states: list[list[Tensor]],
        steps: list[Tensor],
    ) -> None:
        means, squares = states
        if self.weight_decay:
            torch._foreach_mul_(parameters, 1.0 - self.lr * self.weight_decay)
        if self.compiled_step is not None:
            hyperparameters = (self.lr, *self.betas, self.eps)
            self.compiled_step(parameters, gradients, means, squares, steps, *hyperparameters)
            return
        fused_adam_step(
            parameters,
            gradients,
            means,
            squares,
            [],
            steps,
            fused=True,
            foreach=False,
            capturable=parameters[0].is_cuda,  # the step counts are on the GPU, too
            amsgrad=False,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=self.lr,
            weight_decay=0.0,
            eps=self.eps,
            maximize=False,
        )


class RMSprop(Optimizer):
    """RMSprop as PyTorch computes it."""

    state_names = ("square_avg",)

    def __init__(self, parameters: Iterable[Tensor], lr: float, alpha: float, eps: float):
        super().__init__(parameters, lr)
        self.alpha, self.eps = alpha, eps

    def apply(
        self,
        parameters: list[Tensor],
        gradients: list[Tensor],
        states: list[list[Tensor]],
        steps: list[Tensor],
    ) -> None:
        rmsprop_step(
            parameters,
            gradients,
            states[0],
            [],
            [],
            steps,
            foreach=True,
            weight_decay=0.0,
            momentum=0.0,
            centered=False,
            lr=self.lr,
            alpha=self.alpha,
            eps=self.eps,
        )


def _match_strides(parameter: Tensor, gradient: Tensor) -> Tensor:
    """The gradient in the memory layout of its parameter, which fused kernels need. Gradients of
    convolutions may have another layout."""
    same = gradient.stride() == parameter.stride()
    return gradient if same else torch.empty_like(parameter).copy_(gradient)


def trainable_parameters(network: nn.Module) -> list[Tensor]:
    """The parameters that an optimizer may update. A custom encoder may have frozen parameters."""
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


def backward_and_step(loss: Tensor, *optimizers: Optimizer) -> list[Tensor]:
    """Backpropagate once, then step each optimizer on its own parameters. Returns the gradients."""
    parameters = list(
        dict.fromkeys(each for optimizer in optimizers for each in optimizer.parameters)
    )
    gradients = dict(zip(parameters, torch.autograd.grad(loss, parameters), strict=True))
    for optimizer in optimizers:
        owned = optimizer.parameters
        optimizer.step(owned, [gradients[parameter] for parameter in owned])
    return list(gradients.values())


@torch.no_grad()
def adam_step(
    parameters: list[Tensor],
    gradients: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    steps: list[Tensor],
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
) -> None:
    """`torch.optim.Adam` in operations that a compiler fuses into few kernels. All
    parameters must have had the same number of steps, t.

    m <- m + (1 - beta1) (g - m)        v <- beta2 v + (1 - beta2) g^2
    p <- p - lr / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + eps)
    """
    torch._foreach_add_(steps, 1.0)
    torch._foreach_lerp_(means, gradients, 1.0 - beta1)
    torch._foreach_mul_(squares, beta2)
    torch._foreach_addcmul_(squares, gradients, gradients, 1.0 - beta2)
    t, dtype = steps[0].double(), parameters[0].dtype
    step_size = (lr / (1.0 - beta1**t)).to(dtype)
    bias_correction = (1.0 - beta2**t).sqrt().to(dtype)
    roots = torch._foreach_div(torch._foreach_sqrt(squares), bias_correction)
    torch._foreach_add_(roots, eps)
    changes = torch._foreach_mul(torch._foreach_div(means, roots), step_size)
    torch._foreach_sub_(parameters, changes)


@torch.no_grad()
def polyak_update(target: list[Tensor], online: list[Tensor], rate: float) -> None:
    """Update a target network in place: target <- target + rate (online - target)."""
    torch._foreach_lerp_(target, online, rate)
