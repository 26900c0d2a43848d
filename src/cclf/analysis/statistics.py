"""Estimates with intervals. The unit is a run: a seed of a method on a task."""

from typing import NamedTuple

import numpy as np


class Interval(NamedTuple):
    estimate: np.ndarray
    low: np.ndarray
    high: np.ndarray


def mean_interval(values: np.ndarray, resamples: int = 2_000, level: float = 0.95, seed: int = 0) -> Interval:
    """Mean over the first axis (runs) with a percentile bootstrap interval, for each column.

    >>> mean_interval(np.array([[1.0], [1.0], [1.0]]))
    Interval(estimate=array([1.]), low=array([1.]), high=array([1.]))
    """
    random = np.random.default_rng(seed)
    draws = values[random.integers(0, len(values), (resamples, len(values)))].mean(axis=1)
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return Interval(values.mean(axis=0), low, high)


def steps_to_threshold(env_steps: np.ndarray, returns: np.ndarray, threshold: float) -> float:
    """The first clock reading at which a curve reaches `threshold`; infinity where it never does.

    >>> steps_to_threshold(np.array([10, 20, 30]), np.array([0.1, 0.95, 0.2]), 0.9)
    20.0
    """
    reached = np.flatnonzero(returns >= threshold)
    return float(env_steps[reached[0]]) if len(reached) else float("inf")
