"""Copies between host and GPU that wait for themselves alone.

An ordinary copy waits until the GPU has done all it was asked for before, an update of milliseconds among it. These take their
place in the GPU's work and let the host go on.
"""

import numpy as np
import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    if device.type == "cuda" and not tensor.is_cuda:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


class ToHost:
    """A tensor on its way to the host: asked for at once, waited for when it is needed."""

    def __init__(self, tensor: Tensor):
        self._arrived: torch.cuda.Event | None = None
        self._host = tensor
        if tensor.is_cuda:
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()  # type: ignore[no-untyped-call]

    def numpy(self) -> np.ndarray:
        if self._arrived is not None:
            self._arrived.synchronize()  # type: ignore[no-untyped-call]
        return self._host.numpy()
