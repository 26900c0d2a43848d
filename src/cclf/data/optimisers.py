"""One step of several optimisers; saving and loading what they remember."""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cclf.data.from_disk import refuse_unless, refuse_unlike

_MOMENTS: dict[type, tuple[str, ...]] = {
    torch.optim.Adam: ("exp_avg", "exp_avg_sq"),
    torch.optim.RMSprop: ("square_avg",),
}


def adam_on(device: torch.device) -> Callable[..., torch.optim.Adam]:
    """On a GPU one kernel steps all parameters and counts its steps there: a CUDA graph can hold
    it."""
    on_gpu = partial(torch.optim.Adam, fused=True, capturable=True)
    return on_gpu if device.type == "cuda" else torch.optim.Adam


def learned_parameters(network: nn.Module) -> list[Tensor]:
    """The parameters that an optimiser may move: an encoder of the user's own may have others."""
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


Move = Callable[..., None]  # a step of Adam, see `adam_step`


def descend(loss: Tensor, *optimisers: torch.optim.Optimizer, move: Move | None = None) -> None:
    """One backward; then each optimiser moves its own parameters, and none else moves."""
    owned = [
        [parameter for group in optimiser.param_groups for parameter in group["params"]]
        for optimiser in optimisers
    ]
    moved = list(dict.fromkeys(parameter for parameters in owned for parameter in parameters))
    gradients = dict(zip(moved, torch.autograd.grad(loss, moved), strict=True))
    for optimiser, parameters in zip(optimisers, owned, strict=True):
        step(optimiser, parameters, [gradients[parameter] for parameter in parameters], move)


def step(
    optimiser: torch.optim.Optimizer,
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    move: Move | None = None,
) -> None:
    """One step of an optimiser, which moves these of its parameters and no others.

    With `move` that computes it, for an optimiser that is Adam; the first step is always PyTorch's.
    """
    for parameter, gradient in zip(parameters, gradients, strict=True):
        # Convolutions give gradients in their own layout; a fused step wants the parameter's.
        same_layout = gradient.stride() == parameter.stride()
        parameter.grad = gradient if same_layout else torch.empty_like(parameter).copy_(gradient)
    if move is None or any(parameter not in optimiser.state for parameter in parameters):
        optimiser.step()  # it passes by what has no gradient
    else:
        _move(optimiser, parameters, move)
    for parameter in parameters:
        parameter.grad = None


def _move(optimiser: torch.optim.Optimizer, parameters: Sequence[Tensor], move: Move) -> None:
    (group,) = optimiser.param_groups
    states = [optimiser.state[parameter] for parameter in parameters]
    names = ("exp_avg", "exp_avg_sq", "step")
    memory = ([state[name] for state in states] for name in names)
    gradients = [parameter.grad for parameter in parameters]
    move(list(parameters), gradients, *memory, group["lr"], *group["betas"], group["eps"])


@torch.no_grad()
def adam_step(
    parameters: list[Tensor],
    gradients: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    steps: list[Tensor],
    learning_rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
) -> None:
    """What `torch.optim.Adam` does, as one function: a compiler makes few kernels of it that keep a
    GPU busy, where PyTorch's own takes three times as long.

        m <- m + (1 - beta1) (g - m)        v <- beta2 v + (1 - beta2) g^2
        p <- p - lr / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + epsilon)
    """
    torch._foreach_add_(steps, 1.0)
    torch._foreach_lerp_(means, gradients, 1.0 - beta1)
    torch._foreach_mul_(squares, beta2)
    torch._foreach_addcmul_(squares, gradients, gradients, 1.0 - beta2)
    t, dtype = steps[0].double(), parameters[0].dtype
    step_size = (learning_rate / (1.0 - beta1**t)).to(dtype)
    spread = (1.0 - beta2**t).sqrt().to(dtype)
    roots = torch._foreach_div(torch._foreach_sqrt(squares), spread)
    torch._foreach_add_(roots, epsilon)
    changes = torch._foreach_mul(torch._foreach_div(means, roots), step_size)
    torch._foreach_sub_(parameters, changes)


def move_by(wrap: Callable[[Any], Any]) -> Move | None:
    """`adam_step` wrapped, by a compiler for example; None, PyTorch's own step, where nothing is
    gained."""
    move: Move = wrap(adam_step)
    return None if move is adam_step else move


@torch.no_grad()
def follow(slow: list[Tensor], fast: list[Tensor], rate: float) -> None:
    """The target moves towards its network: s <- s + rate (f - s)."""
    torch._foreach_lerp_(slow, fast, rate)


def moments(optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """What an optimiser remembers of each parameter, by its number; the settings belong to the
    config."""
    return {str(number): state for number, state in optimiser.state_dict()["state"].items()}


def load_moments(optimiser: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Takes a copy: PyTorch would share the tensors and move them under the feet of whoever gave
    them."""
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    names = {"step", *_MOMENTS[type(optimiser)]}
    for number, memory in state.items():
        parameter = parameters[int(number)]  # PyTorch looks at none of this until the next step
        like = {name: torch.zeros(()) if name == "step" else parameter.detach() for name in names}
        refuse_unlike(like, memory, f"optimiser/{number}")
        refuse_unless(memory["step"] >= 0.0, f"optimiser/{number}: step is {float(memory['step'])}")
    numbered = {int(number): copy.deepcopy(value) for number, value in state.items()}
    optimiser.load_state_dict(optimiser.state_dict() | {"state": numbered})
