"""Does one quantity follow another? Rank correlation with an interval, and words for it that promise no more than it says."""

import math

import numpy as np

from cclf.analysis.statistics import Interval


def ranks(values: np.ndarray) -> np.ndarray:
    """Places in order, equal values sharing the mean of theirs.

    >>> ranks(np.array([10.0, 30.0, 10.0, 20.0])).tolist()
    [0.5, 3.0, 0.5, 2.0]
    """
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts + 1) / 2.0)[group])


def linear(x: np.ndarray, y: np.ndarray) -> float:
    """Pearson's correlation; nan where one of the two never changes.

    >>> round(linear(np.array([1.0, 2.0, 3.0]), np.array([1.0, 0.0, 2.0])), 4)
    0.5
    """
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x**2).sum() * (y**2).sum()))
    return float((x * y).sum()) / scale if scale > 0.0 else math.nan


def by_rank(x: np.ndarray, y: np.ndarray) -> Interval:
    """Spearman's correlation and its 95 % interval (Fisher's z, Bonett and Wright's variance) over the pairs that are known.

    >>> rho = by_rank(np.arange(8.0), np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 6.0]))
    >>> [round(float(value), 3) for value in rho]  # 1 - 6 * 2 / (8 * 63)
    [0.976, 0.816, 0.997]
    """
    known = np.isfinite(x) & np.isfinite(y)
    rho = linear(ranks(x[known]), ranks(y[known])) if known.any() else math.nan
    if not math.isfinite(rho) or known.sum() < 5:
        return Interval(np.array(math.nan), np.array(-1.0), np.array(1.0))
    z = math.atanh(max(-1.0 + 1e-12, min(1.0 - 1e-12, rho)))
    reach = 1.96 * math.sqrt((1.0 + rho**2 / 2.0) / (known.sum() - 3))
    return Interval(np.array(rho), np.array(math.tanh(z - reach)), np.array(math.tanh(z + reach)))


def words(rho: Interval) -> str:
    """How plainly one follows the other.

    >>> words(Interval(np.array(-0.45), np.array(-0.5), np.array(-0.4)))
    'clearly falls'
    >>> words(Interval(np.array(0.02), np.array(-0.02), np.array(0.06)))
    'does not follow'
    """
    if not math.isfinite(rho.estimate):
        return "cannot be said"
    if rho.low <= 0.0 <= rho.high:
        return "does not follow"
    size = abs(float(rho.estimate))
    how = "hardly" if size < 0.1 else "a little" if size < 0.3 else "clearly" if size < 0.7 else "closely"
    return f"{how} {'rises' if rho.estimate > 0 else 'falls'}"
