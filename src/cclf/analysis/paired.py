"""Paired comparisons of two methods: the difference of each seed's mean return over training, its
interval, and what so many pairs can detect."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cclf.analysis import load, runs, statistics
from cclf.analysis.figures import REFERENCE_LINE, escape_mathtext, style_axis
from cclf.analysis.load import RunData
from cclf.analysis.plotting import new_figure, settings
from cclf.analysis.runs import StepBudget
from cclf.analysis.styles import BLUE, RED
from cclf.errors import ConfigError

if TYPE_CHECKING:
    from cclf.analysis.plotting import Figure

# The quantiles of the normal distribution for a two-sided test at 5 % and for a power of 80 %.
Z_TEST, Z_POWER = 1.959964, 0.841621
FLIPS = 100_000  # of the permutation test, if there are more ways to flip the signs
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
    detectable: float  # the smallest difference that so many pairs detect with 80 % power
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
    failed: as everywhere, a failed run scores the lowest return that was observed. Tasks with fewer
    than two pairs are left out."""
    found = []
    for task, arms in pairs.items():
        evaluated = [_read(arm) for arm in arms]
        everything = [run for by_seed in evaluated for run in by_seed.values()]
        if not everything:
            continue
        _check_same_steps(everything)
        rows = [row for run in everything for row in run.rows]
        lowest = min(runs.lowest_returns(rows).values())
        budget = StepBudget("env_steps", env_steps[task])
        scores = [
            {seed: _mean_return(run, budget, lowest) for seed, run in by_seed.items()}
            for by_seed in evaluated
        ]
        seeds = [
            seed for seed in arms[0].folders if all(each.get(seed) is not None for each in scores)
        ]
        if len(seeds) >= MIN_PAIRS:
            ours, theirs = ([float(each[seed] or 0.0) for seed in seeds] for each in scores)
            found.append(_difference(task, arms, env_steps[task], seeds, ours, theirs))
    corrected = holm([each.p for each in found])
    return [each._replace(p_holm=p) for each, p in zip(found, corrected, strict=True)]


def _read(arm: Arm) -> dict[int, RunData]:
    """The runs that have begun, by seed."""
    begun = {seed: folder for seed, folder in arm.folders.items() if folder.exists()}
    read = {seed: load.read_run_folders(folder) for seed, folder in begun.items()}
    return {seed: found[0] for seed, found in read.items() if found}


def _check_same_steps(evaluated: Sequence[RunData]) -> None:
    steps = {
        tuple(sorted({row.env_steps for row in run.rows}))
        for run in evaluated
        if run.rows[-1].state == "done"
    }
    if len({each[0] for each in steps}) > 1:
        raise ConfigError(
            f"runs of {evaluated[0].key.task} were evaluated at different steps: their means over "
            "training cannot be compared"
        )


def _mean_return(run: RunData, budget: StepBudget, lowest: float) -> float | None:
    """The mean of all evaluations of a run; None if it is not finished."""
    if run.rows[-1].state == "failed":
        return lowest
    (mean,) = runs.mean_returns(run.rows, [run.key.method], run.key.task, budget).values()
    return float(mean[0, 0]) if len(mean) else None


def _difference(
    task: str,
    arms: tuple[Arm, Arm],
    env_steps: int,
    seeds: Sequence[int],
    ours: Sequence[float],
    theirs: Sequence[float],
) -> PairedDifference:
    differences = np.subtract(ours, theirs)
    estimate, low, high = (
        float(value[0]) for value in statistics.mean_interval(differences[:, None])
    )
    p = sign_flip_p(differences)
    return PairedDifference(
        task,
        arms[0].name,
        arms[1].name,
        env_steps,
        tuple(seeds),
        tuple(ours),
        tuple(theirs),
        estimate,
        low,
        high,
        detectable_difference(differences),
        p,
        p,
    )


def detectable_difference(differences: np.ndarray) -> float:
    """The smallest true mean that pairs with this spread detect with 80 % power in a two-sided test at
    5 %: (1.96 + 0.84) s / sqrt(n), with the normal approximation.

    >>> round(detectable_difference(np.array([0.0, 2.0, 0.0, 2.0])), 3)  # s = 1.1547
    1.617
    """
    spread = differences.std(ddof=1) / np.sqrt(len(differences))
    return float((Z_TEST + Z_POWER) * spread)


def sign_flip_p(differences: np.ndarray, seed: int = 0) -> float:
    """The share of all ways to flip the signs of the differences whose mean is at least as far from 0:
    without a difference between two methods, each sign is as likely. Of many ways, a sample.

    >>> sign_flip_p(np.array([1.0, 2.0, 3.0]))  # +++ and --- of 8
    0.25
    """
    count = len(differences)
    if 2**count <= FLIPS:
        flips = (np.arange(2**count)[:, None] >> np.arange(count)) & 1
    else:
        flips = np.random.default_rng(seed).integers(0, 2, (FLIPS, count))
        flips[0] = 0  # the signs as they are
    means = np.abs(((1 - 2 * flips) * differences).mean(1))
    return float((means >= abs(differences.mean()) - 1e-12).mean())


def holm(p: Sequence[float]) -> list[float]:
    """Holm's correction of the p-values of a family of tests.

    >>> holm([0.01, 0.04, 0.03])  # 3 * 0.01; 2 * 0.03; then not less than that
    [0.03, 0.06, 0.06]
    """
    corrected, most = [0.0] * len(p), 0.0
    for rank, index in enumerate(np.argsort(p, kind="stable")):
        most = max(most, min(1.0, (len(p) - rank) * p[index]))
        corrected[index] = most
    return corrected


@settings()
def figure(found: Sequence[PairedDifference]) -> "Figure":
    """One row per task: a dot for each pair, the mean difference and its 95 % interval."""
    drawing = new_figure(figsize=(6.4, 0.62 * len(found) + 1.0))
    axis = drawing.subplots()
    for place, each in enumerate(found):
        spread = np.linspace(-0.16, 0.16, len(each.seeds))
        axis.plot(each.differences, place + spread, "o", color=BLUE, ms=3.5, alpha=0.45, mew=0)
        axis.plot([each.low, each.high], [place, place], color=RED, lw=5, alpha=0.5)
        axis.plot([each.difference], [place], "o", color=RED, ms=6)
    axis.axvline(0.0, **REFERENCE_LINE)
    names = [f"{each.task.partition('/')[2]}, {len(each.seeds)} pairs" for each in found]
    axis.set_yticks(range(len(found)), [escape_mathtext(name) for name in names])
    axis.set_ylim(len(found) - 0.5, -0.5)
    xlabel = "difference in the mean return over training: pairs, their mean, 95 % interval"
    style_axis(axis, xlabel, title=f"{found[0].method} − {found[0].against}")
    return drawing
