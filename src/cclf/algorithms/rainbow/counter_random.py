"""Random numbers computed from a key and a clock: no generator has a state, so there is none to
save, to advance or to share.

Why not `torch.Generator`: a stack of 104 runs would need hundreds of them, each started by a kernel
of its own and registered with every CUDA graph. Here one pass of integer arithmetic serves all runs
at once. A number depends on the run's key, the moment and its own place, and on nothing else: not
on the size of the stack, the place in it, the device, or on what was drawn before.

The arithmetic is SplitMix64 (Steele, Lea and Flood, 2014): a Weyl sequence with a finishing mix of
shifts and products.
"""

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor

_WEYL, _FIRST, _SECOND = (
    value - (1 << 64) for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_PLACES = 1 << 24  # numbers that one name may have
_NAMES = 1 << 8  # names that one moment may have


def mix(state: Tensor) -> Tensor:
    """SplitMix64's finish of 64-bit integers; products wrap, and torch's right shift drags the
    sign, which is masked off.

    >>> [value % 2**64 for value in mix(torch.tensor([0, _WEYL])).tolist()]
    [0, 16294208416658607535]
    """
    state = (state ^ ((state >> 30) & 0x3FFFFFFFF)) * _FIRST
    state = (state ^ ((state >> 27) & 0x1FFFFFFFFF)) * _SECOND
    return state ^ ((state >> 31) & 0x1FFFFFFFF)


class CounterBasedRNG:
    """Uniform numbers in (0, 1) by name, for S runs at a time; `shapes` are those of one run.

    A name's numbers are counted from a place of its own, so that one run may have more of the last
    axis than another (games differ in their number of actions) and still share the numbers they
    have in common.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], device: torch.device):
        assert len(shapes) < _NAMES, "too many names"
        self.shapes = dict(shapes)
        self.sizes = [prod(shape) for shape in self.shapes.values()]
        assert max(self.sizes) < _PLACES, "too many numbers of one name"
        places = [torch.arange(size) + name * _PLACES for name, size in enumerate(self.sizes)]
        self._places = torch.cat(places).to(device)

    def uniform(self, keys: Tensor, moment: Tensor) -> Tensor:
        """Keys (S,) and the moment (), both int64, to float64 numbers (S, all of a run's); 32 bits
        each, never 0 or 1."""
        counter = moment * (_PLACES * _NAMES) + self._places
        bits = mix(keys[:, None] + (counter + 1) * _WEYL)
        return (((bits >> 32) & 0xFFFFFFFF).double() + 0.5) * 2.0**-32

    def named(self, numbers: Tensor) -> dict[str, Tensor]:
        """The numbers (S, ...), or what was made of them one by one, as views (S, *shape) by
        name."""
        parts = torch.split(numbers, self.sizes, dim=1)
        return {
            name: part.view(-1, *shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }


def normal(uniform: Tensor) -> Tensor:
    """Standard normal numbers from uniform ones, by the inverse of the distribution.

    >>> normal(torch.tensor([0.5, 0.975], dtype=torch.float64))
    tensor([0.0000, 1.9600], dtype=torch.float64)
    """
    numbers: Tensor = torch.special.ndtri(uniform)
    return numbers


def integers(uniform: Tensor, below: int) -> Tensor:
    """Integers from 0 to `below` - 1.

    >>> integers(torch.tensor([0.1, 0.5, 0.99]), 4)
    tensor([0, 2, 3])
    """
    return (uniform * below).long()
