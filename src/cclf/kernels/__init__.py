"""Fast kernels for computations of `algorithms/common/pixel_encoder.py` and `algorithms/rainbow`. Each has
a reference implementation in plain PyTorch."""

import importlib.util
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class VmapInfo(Protocol):
    """What `torch.func.vmap` passes to the vmap rule of a custom operator."""

    batch_size: int


def use_triton(tensor: Tensor) -> bool:
    """Whether to run a Triton kernel: `tensor` is on a GPU and Triton is installed. Callers import
    the kernel only then."""
    return tensor.is_cuda and importlib.util.find_spec("triton") is not None


def merge_vmap_dims(tensors: Sequence[Tensor], dims: Sequence[int]) -> list[Tensor]:
    """Merge the vmapped dimension `dims[i]` of each tensor with its leading dimension, that of runs."""
    return [tensor.movedim(dim, 0).flatten(0, 1) for tensor, dim in zip(tensors, dims, strict=True)]
