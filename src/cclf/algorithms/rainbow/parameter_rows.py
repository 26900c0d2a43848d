"""Parameters as rows of numbers: those of one run that learn, its target's, its momentum network's.

In a row the gradient is one tensor, so that clipping, Adam and the running mean of the momentum
network are a line each; and the rows of several runs are a matrix.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from cclf.algorithms.rainbow.rainbow import RainbowLoss

NETWORKS = {"online": ("framework.", "online."), "target": ("target_",), "momentum": ("momentum_",)}
_ALIGNMENT = 64  # numbers: each parameter begins where matrix units and wide reads of a GPU want it


class FlatParameters:
    """Where each named parameter of a group lies in its row.

    Zeros, which stay zero, fill a row up: behind each parameter up to the next aligned place, and
    in a stack also the places of actions that other games have.
    """

    def __init__(self, module: RainbowLoss, group: str):
        self.group = group
        named = module.named_parameters()
        self.shapes = {name: p.shape for name, p in named if name.startswith(NETWORKS[group])}
        self.sizes = [
            -(-shape.numel() // _ALIGNMENT) * _ALIGNMENT for shape in self.shapes.values()
        ]

    def row(self, named: dict[str, Tensor]) -> Tensor:
        """A row (P,) out of parameters by name."""
        values = [named[name].detach().flatten() for name in self.shapes]
        parts = zip(values, self.sizes, strict=True)
        return torch.cat([F.pad(value, (0, size - len(value))) for value, size in parts])

    def named(self, row: Tensor) -> dict[str, Tensor]:
        """Views by name of a row (P,)."""
        parts = zip(self.shapes.items(), torch.split(row, self.sizes), strict=True)
        return {name: part[: shape.numel()].view(shape) for (name, shape), part in parts}

    def source(self, online: "FlatParameters") -> slice:
        """The part of an online row that this group copies: it lies together, see `RainbowNet`."""
        (prefix,) = NETWORKS[self.group]
        names = [name.replace(prefix, "online.", 1) for name in self.shapes]
        first = list(online.shapes).index(names[0])
        together = list(online.shapes)[first : first + len(names)] == names
        assert together, f"the {self.group} network is no part of an online row"
        start = sum(online.sizes[:first])
        return slice(start, start + sum(self.sizes))


def lay_out(module: RainbowLoss, layout: FlatParameters) -> Tensor:
    """Move the parameters of a group into one row: they become views of it, and change with it."""
    row = layout.row(dict(module.named_parameters()))
    for name, view in layout.named(row).items():
        module.get_parameter(name).data = view
    return row
