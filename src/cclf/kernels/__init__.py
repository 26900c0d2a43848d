"""Fast ways to compute what `bases/pixel_encoder.py` and `equations.py` define.

Each file holds a kernel beside its plain reference."""

import importlib.util
from types import ModuleType

from torch import Tensor


def triton_kernels(name: str, tensor: Tensor) -> ModuleType | None:
    """The module of that name in here, if `tensor` is on a GPU and Triton is installed."""
    if tensor.is_cuda and importlib.util.find_spec("triton") is not None:
        return importlib.import_module(f"cclf.kernels.{name}")
    return None
