"""Saving and loading what optimisers remember."""

import copy
from typing import Any

import torch


def moments(optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """What an optimiser remembers of each parameter, by its number; the settings belong to the config."""
    return {str(number): state for number, state in optimiser.state_dict()["state"].items()}


def load_moments(optimiser: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Takes a copy: PyTorch would share the tensors and move them under the feet of whoever gave them."""
    numbered = {int(number): copy.deepcopy(value) for number, value in state.items()}
    optimiser.load_state_dict(optimiser.state_dict() | {"state": numbered})
