"""Estimates with intervals. Scores are matrices (runs, tasks); a run is one seed of a method on a
task.

An estimator maps (..., runs, tasks) to (...), so the same function is applied to the scores and to
all their resamples. Intervals are percentile intervals of a stratified bootstrap (Agarwal et al.
2021): runs are resampled within each task, tasks are not resampled. Intervals of few runs are too narrow;
`cclf.analysis.verdicts` expands them. If a method has a single run on each of several tasks, tasks
are resampled instead, the same for all methods (`resampled_unit`).
"""

import functools
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

Estimator = Callable[[np.ndarray], np.ndarray]  # (..., runs, tasks) -> (...)
RESAMPLES = 2_000
TAIL = 0.025  # probability on each side of a 95 % interval


class Interval(NamedTuple):
    """An estimate with the limits of its 95 % interval."""

    estimate: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def floats(self) -> tuple[float, float, float]:
        """The estimate and the limits of a single number."""
        return float(self.estimate), float(self.low), float(self.high)

    def columns(self, name: str = "estimate") -> dict[str, float]:
        """The estimate and the limits of a single number, as columns of a table."""
        return dict(zip((name, "low", "high"), self.floats(), strict=True))


def mean(scores: np.ndarray) -> np.ndarray:
    """Mean over tasks of the mean over runs.

    >>> float(mean(np.array([[1.0, 10.0], [3.0, 30.0]])))  # (2 + 20) / 2
    11.0
    """
    return np.asarray(scores.mean(axis=(-2, -1)))


def std(scores: np.ndarray) -> np.ndarray:
    """Standard deviation across runs (n - 1 in the denominator), averaged over tasks.

    >>> float(std(np.array([[1.0], [3.0], [5.0]])))  # sqrt((4 + 0 + 4) / 2)
    2.0
    """
    runs = scores.shape[-2]
    return np.asarray(scores.std(axis=-2, ddof=min(1, runs - 1)).mean(axis=-1))


def median(scores: np.ndarray) -> np.ndarray:
    """Median over tasks of the mean over runs.

    >>> float(median(np.array([[1.0, 10.0, 0.0], [3.0, 30.0, 0.0]])))  # of 2, 20 and 0
    2.0
    """
    return np.asarray(np.median(scores.mean(axis=-2), axis=-1))


def iqm(scores: np.ndarray) -> np.ndarray:
    """Interquartile mean: the mean of the middle half of all runs of all tasks.

    >>> float(iqm(np.array([[0.0, 4.0], [1.0, 5.0], [2.0, 6.0], [3.0, 100.0]])))  # the middle half is 2, 3, 4, 5
    3.5
    """
    ordered = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)
    cut = int(0.25 * ordered.shape[-1])
    return np.asarray(ordered[..., cut : ordered.shape[-1] - cut].mean(axis=-1))


def optimality_gap(scores: np.ndarray, target: float = 1.0) -> np.ndarray:
    """Mean distance of runs to `target`; it is 0 for scores above `target`.

    >>> float(optimality_gap(np.array([[0.5, 3.0], [1.0, 0.0]])))  # (0.5 + 0 + 0 + 1) / 4
    0.375
    """
    return np.asarray(target - np.minimum(scores, target).mean(axis=(-2, -1)))


def mean_difference(samples: Sequence[np.ndarray]) -> np.ndarray:
    """Difference of the means of two methods."""
    return np.asarray(mean(samples[0]) - mean(samples[1]))


def iqm_difference(samples: Sequence[np.ndarray]) -> np.ndarray:
    """Difference of the interquartile means of two methods."""
    return np.asarray(iqm(samples[0]) - iqm(samples[1]))


def probability_of_improvement(samples: Sequence[np.ndarray]) -> np.ndarray:
    """Of two methods, how often a run of the first beats a run of the second on the same task; a
    tie is half a win. Mean over tasks.

    >>> float(probability_of_improvement([np.array([[1.0], [3.0]]), np.array([[2.0], [3.0]])]))  # 1<2, 1<3, 3>2, 3=3
    0.375
    """
    x, y = samples
    shares = []
    for task in range(x.shape[-1]):  # a loop, since pairs of runs on all tasks take much memory
        ours, theirs = x[..., :, None, task], y[..., None, :, task]
        shares.append(((ours > theirs) + 0.5 * (ours == theirs)).mean(axis=(-2, -1)))
    return np.asarray(np.mean(shares, axis=0))


def resampled_unit(samples: Sequence[np.ndarray]) -> str:
    """The unit that intervals of these scores resample: "runs"; "tasks" if a method has a single
    run on each of several tasks; "" if there is a single run on a single task.

    >>> several, single = np.zeros((5, 2)), np.zeros((1, 2))
    >>> resampled_unit([several]), resampled_unit([several, single]), resampled_unit([np.zeros((1, 1))])
    ('runs', 'tasks', '')
    """
    if all(len(scores) > 1 for scores in samples):
        return "runs"
    return "tasks" if samples[0].shape[1] > 1 else ""


def _resample(samples: Sequence[np.ndarray], resamples: int, seed: int) -> list[np.ndarray]:
    """The resamples (resamples, runs, tasks) of each method. Runs are drawn with replacement,
    independently for each task and method. Tasks are drawn once for all methods."""
    random = np.random.default_rng(seed)
    if resampled_unit(samples) == "tasks":
        indices = random.integers(0, samples[0].shape[1], (resamples, samples[0].shape[1]))
        return [scores[:, indices].swapaxes(0, 1) for scores in samples]
    draws = []
    for scores in samples:
        indices = random.integers(0, len(scores), (resamples, *scores.shape))
        draws.append(np.take_along_axis(scores[None], indices, axis=1))
    return draws


def interval(
    scores: np.ndarray, estimator: Estimator, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """An estimator's value with its 95 % interval.

    >>> interval(np.array([[2.0], [2.0]]), mean)
    Interval(estimate=array(2.), low=array(2.), high=array(2.))
    """
    return bootstrap_statistic([scores], lambda parts: estimator(parts[0]), resamples, seed)


def bootstrap_statistic(
    samples: Sequence[np.ndarray],
    statistic: Callable[[Sequence[np.ndarray]], np.ndarray],
    resamples: int = RESAMPLES,
    seed: int = 0,
    tails: tuple[float, float] = (TAIL, TAIL),
) -> Interval:
    """A statistic of several methods' scores with its 95 % interval, or with other probabilities
    below and above the interval.

    A resample without a value (0 / 0) widens the interval in both directions.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        draws = statistic(_resample(samples, resamples, seed))
        estimate = statistic(samples)
    return percentiles(estimate, draws, tails)


def percentiles(
    estimate: np.ndarray, draws: np.ndarray, tails: tuple[float, float] = (TAIL, TAIL)
) -> Interval:
    """The estimate with the quantiles of `draws` (along their first axis) that cut off the two
    `tails`. Quantiles are not interpolated, so that a limit can be infinite."""
    below, above = tails
    filled = (np.where(np.isnan(draws), fill, draws) for fill in (-np.inf, np.inf))
    low, high = (
        np.quantile(values, q, axis=0, method="inverted_cdf")
        for values, q in zip(filled, (below, 1.0 - above), strict=True)
    )
    return Interval(estimate, np.asarray(low), np.asarray(high))


@functools.cache
def expanded_tail(runs: int, tail: float) -> float:
    """The share of resamples to cut off at one end so that the interval of the mean of n `runs`
    misses the true mean at that end with probability `tail`: the expanded percentile interval of
    Hesterberg (2015). The limits of the percentile interval are about z s / sqrt(n) from the mean,
    with n in the denominator of s, but Student's t s / sqrt(n - 1) is needed.

    >>> [round(expanded_tail(runs, 0.025), 4) for runs in (5, 20, 1000)]
    [0.001, 0.0159, 0.0248]
    """
    if runs < 2:
        return 0.0
    t = t_quantile(1.0 - tail, runs - 1)
    return NormalDist().cdf(-t * float(np.sqrt(runs / (runs - 1))))


def t_quantile(probability: float, degrees_of_freedom: int) -> float:
    """A quantile of Student's t distribution, by numerical integration: the density of the angle
    arctan(t / sqrt(d)) with d degrees of freedom is proportional to cos(angle)^(d - 1).

    >>> round(t_quantile(0.975, 4), 3), round(t_quantile(0.975, 19), 3)
    (2.776, 2.093)
    """
    angles = np.linspace(-np.pi / 2, np.pi / 2, 100_001)
    below = np.cumsum(np.cos(angles) ** (degrees_of_freedom - 1))
    angle = np.interp(probability, below / below[-1], angles)
    return float(np.sqrt(degrees_of_freedom) * np.tan(angle))


def mean_interval(values: np.ndarray, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """Mean of curves (runs, steps) over runs with its 95 % interval, at each step. Whole runs are
    resampled.

    >>> mean_interval(np.array([[1.0], [1.0], [1.0]]))
    Interval(estimate=array([1.]), low=array([1.]), high=array([1.]))
    """
    random = np.random.default_rng(seed)
    draws = values[random.integers(0, len(values), (resamples, len(values)))].mean(axis=1)
    return percentiles(values.mean(axis=0), draws)


def performance_profile(
    scores: np.ndarray, thresholds: np.ndarray, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """The share of runs above each threshold with its 95 % interval.

    >>> performance_profile(np.array([[0.2, 0.9], [0.4, 0.9]]), np.array([0.0, 0.3, 0.9])).estimate
    array([1.  , 0.75, 0.  ])
    """
    (draws,) = _resample([scores], resamples, seed)
    shares = [
        np.stack([(part > threshold).mean(axis=(-2, -1)) for threshold in thresholds], axis=-1)
        for part in (scores, draws)
    ]
    return percentiles(shares[0], shares[1])


def wilson_interval(hits: int, total: int) -> Interval:
    """A proportion, such as that of failed runs, with Wilson's 95 % interval, which is also valid
    for proportions of 0 and 1.

    With z = 1.96:  (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n).  For 0 of 5, the upper limit is 3.84 / 8.84 = 0.434.

    >>> [round(float(value), 3) for value in wilson_interval(0, 5)]
    [0.0, 0.0, 0.434]
    """
    z, share = 1.959964, hits / total
    centre = share + z**2 / (2 * total)
    half_width = z * np.sqrt(share * (1 - share) / total + z**2 / (4 * total**2))
    low, high = ((centre + sign * half_width) / (1 + z**2 / total) for sign in (-1, 1))
    return Interval(np.asarray(share), np.asarray(max(0.0, low)), np.asarray(min(1.0, high)))
