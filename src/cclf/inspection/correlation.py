"""Rank correlation of two quantities with an interval, and its size in words."""

import math
from typing import NamedTuple

import numpy as np


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks, with the mean rank for equal values.

    >>> ranks(np.array([10.0, 30.0, 10.0, 20.0])).tolist()
    [0.5, 3.0, 0.5, 2.0]
    """
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts + 1) / 2.0)[group])


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Pearson's correlation of two quantities that are not constant.

    >>> round(pearson(np.array([1.0, 2.0, 3.0]), np.array([1.0, 0.0, 2.0])), 4)
    0.5
    """
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / np.sqrt((x**2).sum() * (y**2).sum()))


class Correlation(NamedTuple):
    """Correlation of two quantities; nan if one is constant, or if fewer than five pairs are
    known."""

    rank: float  # Spearman's
    low: float  # its 95 % interval
    high: float
    linear: float  # Pearson's


def correlate(x: np.ndarray, y: np.ndarray) -> Correlation:
    """Correlation of the known pairs; the interval by Fisher's z with Bonett and Wright's variance.

    >>> c = correlate(np.arange(8.0), np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 6.0]))
    >>> [round(value, 3) for value in c]  # 1 - 6 * 2 / (8 * 63)
    [0.976, 0.816, 0.997, 0.976]
    """
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if len(x) < 5 or np.ptp(x) == 0.0 or np.ptp(y) == 0.0:
        return Correlation(math.nan, math.nan, math.nan, math.nan)
    rho = pearson(ranks(x), ranks(y))
    z = math.atanh(max(-1.0 + 1e-12, min(1.0 - 1e-12, rho)))
    half_width = 1.96 * math.sqrt((1.0 + rho**2 / 2.0) / (len(x) - 3))
    return Correlation(rho, math.tanh(z - half_width), math.tanh(z + half_width), pearson(x, y))


def describe_correlation(correlation: Correlation) -> str:
    """The size of a correlation in words.

    >>> describe_correlation(Correlation(-0.45, -0.5, -0.4, -0.4))
    'falls clearly'
    >>> describe_correlation(Correlation(0.02, -0.02, 0.06, 0.1))
    'shows no relation'
    """
    if math.isnan(correlation.rank):
        return "has no known relation"
    if correlation.low <= 0.0 <= correlation.high:
        return "shows no relation"
    size = abs(correlation.rank)
    how = (
        "very little"
        if size < 0.1
        else "a little"
        if size < 0.3
        else "clearly"
        if size < 0.7
        else "strongly"
    )
    return f"{'rises' if correlation.rank > 0 else 'falls'} {how}"
