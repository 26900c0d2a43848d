"""Asynchronous host-device copies. An ordinary copy blocks the host until the GPU has finished all
earlier work, for example an update."""

import numpy as np
import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on `device`, by an asynchronous copy from the host to a GPU."""
    if device.type == "cuda" and not tensor.is_cuda:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


class AsyncHostCopy:
    """A copy of a tensor to the host that starts immediately. `numpy()` waits for it."""

    def __init__(self, tensor: Tensor):
        self._host = tensor.to("cpu", non_blocking=True)  # to pinned memory
        self._event = (
            torch.cuda.current_stream(tensor.device).record_event() if tensor.is_cuda else None
        )

    def ready(self) -> bool:
        return self._event is None or self._event.query()

    def numpy(self) -> np.ndarray:
        if self._event is not None:
            self._event.synchronize()
        return self._host.numpy()
