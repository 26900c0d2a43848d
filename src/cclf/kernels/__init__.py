"""Fast ways to compute what `algorithms/common/pixel_encoder.py` and `equations.py` define.

Each file holds a kernel beside its plain reference."""

import importlib.util
from collections.abc import Sequence

from torch import Tensor


def use_triton(tensor: Tensor) -> bool:
    """Whether to run a Triton kernel: `tensor` is on a GPU and Triton is installed. Callers import
    the kernel only then."""
    return tensor.is_cuda and importlib.util.find_spec("triton") is not None


def merge_vmap_dims(tensors: Sequence[Tensor], dims: Sequence[int]) -> list[Tensor]:
    """What is mapped over runs, along `dims`, as more runs at once: in front, with those that were
    there."""
    return [tensor.movedim(dim, 0).flatten(0, 1) for tensor, dim in zip(tensors, dims, strict=True)]
