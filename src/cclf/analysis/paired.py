"""Paired comparisons of two methods: the difference of each seed's mean return over training, its
interval, and the smallest difference that this number of pairs can detect."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cclf.analysis import load, runs, statistics
from cclf.analysis.figures import (
    REFERENCE_LINE,
    escape_mathtext,
    new_figure,
    settings,
    style_axis,
)
from cclf.analysis.runs import StepBudget
from cclf.analysis.styles import BLUE, RED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The quantiles of the normal distribution for a two-sided test at 5 % and for a power of 80 %.
Z_TEST, Z_POWER = 1.959964, 0.841621
MAX_SIGN_FLIPS = 100_000  # random sign flips of the permutation test where all 2^n would be more
MIN_PAIRS = 2


class PairedDifference(NamedTuple):
    """On one task, the mean difference over pairs of runs with the same seed."""

    task: str
    method: str
    against: str
    env_steps: int
    seeds: tuple[int, ...]
    method_returns: tuple[float, ...]  # mean over training, by seed
    against_returns: tuple[float, ...]
    difference: float
    low: float  # its 95 % interval, by the bootstrap over pairs
    high: float
    detectable: float  # the smallest difference that this number of pairs detects with 80 % power
    p: float  # two-sided, by flipping the signs of the differences
    p_holm: float  # the same, corrected for the number of tasks

    @property
    def differences(self) -> np.ndarray:
        return np.subtract(self.method_returns, self.against_returns)


class Arm(NamedTuple):
    """The runs of one method on one task."""

    name: str
    folders: Mapping[int, Path]  # by seed


def compare(
    pairs: Mapping[str, tuple[Arm, Arm]], env_steps: Mapping[str, int]
) -> list[PairedDifference]:
    """For each task the difference of its two arms over the seeds that have finished in both, or
    failed: as in every statistic, a failed run scores the lowest return that was observed. Tasks
    with fewer than two pairs are left out."""
    found = []
    for task, arms in pairs.items():
        rows = [
            row._replace(method=arm.name)
            for arm in arms
            for folder in arm.folders.values()
            if folder.exists()  # the run has begun
            for row in load.read_runs(folder)
        ]
        runs.check_same_evaluation_steps(runs.runs(rows))
        budget = StepBudget("env_steps", env_steps[task])
        mean_return = partial(runs.mean_return, budget=budget)
        scores = runs.scores_by_run(rows, mean_return, runs.lowest_returns(rows))
        by_name = {(key.method, key.seed): score for key, score in scores.items()}
        first, second = (arm.name for arm in arms)
        seeds = [s for s in arms[0].folders if {(first, s), (second, s)} <= by_name.keys()]
        if len(seeds) < MIN_PAIRS:
            continue
        ours, theirs = (tuple(by_name[name, seed] for seed in seeds) for name in (first, second))
        differences = np.subtract(ours, theirs)
        mean, low, high = map(float, np.ravel(statistics.mean_interval(differences[:, None])))
        detectable, p = detectable_difference(differences), sign_flip_p(differences)
        found.append(
            PairedDifference(
                task,
                first,
                second,
                env_steps[task],
                tuple(seeds),
                ours,
                theirs,
                mean,
                low,
                high,
                detectable,
                p,
                p_holm=p,
            )
        )
    corrected = holm([each.p for each in found])
    return [each._replace(p_holm=p) for each, p in zip(found, corrected, strict=True)]


def detectable_difference(differences: np.ndarray) -> float:
    """The smallest true mean that pairs with this spread detect with 80 % power in a two-sided test at
    5 %: (1.96 + 0.84) s / sqrt(n), with the normal approximation.

    >>> round(detectable_difference(np.array([0.0, 2.0, 0.0, 2.0])), 3)  # s = 1.1547
    1.617
    """
    standard_error = differences.std(ddof=1) / np.sqrt(len(differences))
    return float((Z_TEST + Z_POWER) * standard_error)


def sign_flip_p(differences: np.ndarray, seed: int = 0) -> float:
    """The fraction of all sign flips of the differences whose mean is at least as far from 0. Under
    the null hypothesis both signs are equally likely. Of more than
    MAX_SIGN_FLIPS a sample is used.

    >>> sign_flip_p(np.array([1.0, 2.0, 3.0]))  # +++ and --- of 8
    0.25
    """
    count = len(differences)
    if 2**count <= MAX_SIGN_FLIPS:
        flips = (np.arange(2**count)[:, None] >> np.arange(count)) & 1
    else:
        flips = np.random.default_rng(seed).integers(0, 2, (MAX_SIGN_FLIPS, count))
        flips[0] = 0  # the signs as they are
    means = np.abs(((1 - 2 * flips) * differences).mean(1))
    return float((means >= abs(differences.mean()) - 1e-12).mean())


def holm(p: Sequence[float]) -> list[float]:
    """Holm's correction of the p-values of a family of tests.

    >>> holm([0.01, 0.04, 0.03])  # 3 * 0.01; 2 * 0.03; 1 * 0.04, raised to the previous 0.06
    [0.03, 0.06, 0.06]
    """
    corrected, largest = [0.0] * len(p), 0.0
    for rank, index in enumerate(np.argsort(p, kind="stable")):
        largest = max(largest, min(1.0, (len(p) - rank) * p[index]))
        corrected[index] = largest
    return corrected


@settings()
def figure(found: Sequence[PairedDifference]) -> "Figure":
    """One row per task: a dot for each pair, the mean difference and its 95 % interval."""
    drawing = new_figure(figsize=(6.4, 0.62 * len(found) + 1.0))
    axis = drawing.subplots()
    for place, each in enumerate(found):
        offsets = np.linspace(-0.16, 0.16, len(each.seeds))
        axis.plot(each.differences, place + offsets, "o", color=BLUE, ms=3.5, alpha=0.45, mew=0)
        axis.plot([each.low, each.high], [place, place], color=RED, lw=5, alpha=0.5)
        axis.plot([each.difference], [place], "o", color=RED, ms=6)
    axis.axvline(0.0, **REFERENCE_LINE)
    names = [f"{each.task.partition('/')[2]}, {len(each.seeds)} pairs" for each in found]
    axis.set_yticks(range(len(found)), [escape_mathtext(name) for name in names])
    axis.set_ylim(len(found) - 0.5, -0.5)
    xlabel = "difference in the mean return over training: pairs, their mean, 95 % interval"
    style_axis(axis, xlabel, title=f"{found[0].method} − {found[0].against}")
    return drawing
