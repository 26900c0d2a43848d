"""Means of metrics between two rows of train.csv."""

import torch

from cclf.storage.safe_loading import check_data
from cclf.types import Metrics, StateDict


class MetricAccumulator:
    """Means of metrics over many updates. The values stay on their device until the mean is taken,
    so no update waits for the device."""

    def __init__(self) -> None:
        self._values: dict[str, list[torch.Tensor]] = {}

    def add(self, metrics: Metrics) -> None:
        for name, value in metrics.items():
            values = self._values.setdefault(name, [])
            if values and values[0].device != value.device:  # loaded from a checkpoint
                values[:] = [old.to(value.device) for old in values]
            values.append(value)

    def mean_and_reset(self) -> dict[str, float]:
        means = {
            name: float(torch.stack(values).double().mean())
            for name, values in self._values.items()
        }
        self._values.clear()
        return means

    def state_dict(self) -> StateDict:
        return {name: torch.stack(values) for name, values in self._values.items()}

    def load_state_dict(self, state: StateDict) -> None:
        for name, values in state.items():
            fits = (
                isinstance(values, torch.Tensor)
                and values.ndim == 1
                and len(values)
                and values.is_floating_point()
            )
            check_data(fits, f"averages/{name} is not a vector of numbers")
        self._values = {name: list(values) for name, values in state.items()}
