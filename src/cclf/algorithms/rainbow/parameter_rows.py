"""The parameters of a run, flattened: one vector ("row") for each of its networks.

The gradient of a row is one tensor, so clipping, Adam and the moving average of the momentum network
are one operation each, and the rows of several runs form a matrix.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from cclf.algorithms.rainbow.rainbow import RainbowLoss

# The networks of a run, each of which has one row, and the prefixes of their parameter names.
NETWORKS = {"online": ("framework.", "online."), "target": ("target_",), "momentum": ("momentum_",)}
ALIGNMENT = 64  # a parameter begins at a multiple, as matrix units and wide reads of a GPU need it


class FlatParameters:
    """The position of each parameter of one network in its row.

    Each parameter is zero-padded to the alignment and, in a batch of runs, to the largest number of
    actions. The padding stays zero.
    """

    def __init__(self, module: RainbowLoss, network: str):
        self.network = network
        named = module.named_parameters()
        self.shapes = {name: p.shape for name, p in named if name.startswith(NETWORKS[network])}
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
        """The part of an online row that this network is a copy of. It is contiguous because of the
        order of modules in `RainbowNet`."""
        (prefix,) = NETWORKS[self.network]
        names = [name.replace(prefix, "online.", 1) for name in self.shapes]
        first = list(online.shapes).index(names[0])
        contiguous = list(online.shapes)[first : first + len(names)] == names
        assert contiguous, f"the {self.network} network is not one part of an online row"
        start = sum(online.sizes[:first])
        return slice(start, start + sum(self.sizes))
