"""One step of several optimisers; saving and loading what they remember."""

import copy
from typing import Any

import torch
from torch import Tensor

from cclf.data.from_disk import refuse_unless, refuse_unlike

_MOMENTS: dict[type, tuple[str, ...]] = {
    torch.optim.Adam: ("exp_avg", "exp_avg_sq"),
    torch.optim.RMSprop: ("square_avg",),
}


def descend(loss: Tensor, *optimisers: torch.optim.Optimizer) -> None:
    """One backward; then each optimiser moves its own parameters, and none else moves."""
    lists = [group["params"] for optimiser in optimisers for group in optimiser.param_groups]
    moved = list(dict.fromkeys(parameter for parameters in lists for parameter in parameters))
    for parameter, gradient in zip(moved, torch.autograd.grad(loss, moved), strict=True):
        # Convolutions give gradients in their own layout; a fused step wants the parameter's.
        same_layout = gradient.stride() == parameter.stride()
        parameter.grad = gradient if same_layout else torch.empty_like(parameter).copy_(gradient)
    for optimiser in optimisers:
        optimiser.step()
    for parameter in moved:
        parameter.grad = None


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
