"""Copies between host and GPU that wait for themselves alone.

An ordinary copy waits until the GPU has done all it was asked for before, an update of milliseconds
among it. These take their place in the GPU's work and let the host go on.
"""

import numpy as np
import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    if device.type == "cuda" and not tensor.is_cuda:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


class AsyncHostCopy:
    """A tensor on its way to the host: asked for at once, waited for when it is needed."""

    def __init__(self, tensor: Tensor):
        self._host = tensor.to("cpu", non_blocking=True)  # into pinned memory
        self._event = (
            torch.cuda.current_stream(tensor.device).record_event() if tensor.is_cuda else None
        )

    def arrived(self) -> bool:
        return self._event is None or self._event.query()

    def numpy(self) -> np.ndarray:
        if self._event is not None:
            self._event.synchronize()
        return self._host.numpy()
