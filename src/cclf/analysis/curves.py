"""The data of learning curves: the curve of each method, panels of curves, and axis limits that
panels share."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cclf.analysis.published import published_curves
from cclf.analysis.runs import ResultRow, group_by, lowest_returns, runs
from cclf.analysis.statistics import mean_interval
from cclf.analysis.suites import profile_order, task_order
from cclf.analysis.verdicts import MIN_SEEDS


class Scale(NamedTuple):
    """The limits of the axes of a panel."""

    x: tuple[float, float]
    y: tuple[float, float]


class Curve(NamedTuple):
    """The runs of one method on one task, at the steps at which all of them were evaluated."""

    env_steps: np.ndarray  # (P,)
    returns: np.ndarray  # (seeds, P)
    seeds: list[int]

    @property
    def has_interval(self) -> bool:
        """Whether there are enough seeds for an interval; fewer are drawn as one line per run."""
        return len(self.seeds) >= MIN_SEEDS

    @property
    def extent(self) -> np.ndarray:
        """The lower and upper limit of the interval of the mean (2, P), or every run (seeds, P)."""
        return np.stack(mean_interval(self.returns)[1:]) if self.has_interval else self.returns


Series = tuple[np.ndarray, np.ndarray]  # x and y of a line
Panels = Mapping[str, Mapping[str, Curve]]  # by title and method


def curves(rows: Sequence[ResultRow]) -> dict[str, Curve]:
    """The curve of each method on one task under one profile.

    A failed run continues at the lowest return of the task. Unfinished runs are included only if
    the method has no other run.
    """
    settings = {(row.task, row.profile) for row in rows}
    if len(settings) > 1:
        raise ValueError(
            f"one panel shows one task and profile, got {sorted(settings)}: select rows first"
        )
    lowest = lowest_returns(rows)
    by_run, result = runs(rows), {}
    for method, keys in group_by(by_run, lambda key: key.method).items():
        states = {key: by_run[key][-1].state for key in keys}
        drawn = [key for key in keys if states[key] != "unfinished"] or keys
        returns = {
            key: {row.env_steps: row.return_mean for row in by_run[key] if row.episodes}
            for key in drawn
        }
        complete = [set(returns[key]) for key in drawn if states[key] != "failed"]
        common = sorted(set.intersection(*complete) if complete else set().union(*returns.values()))
        values = [[returns[key].get(step, lowest[key.task]) for step in common] for key in drawn]
        result[method] = Curve(np.array(common), np.array(values), [key.seed for key in drawn])
    return result


def panels(rows: Sequence[ResultRow], methods: Sequence[str] = ()) -> Panels:
    """The curves of each task under each profile, titled "task, profile"; only those of `methods`,
    in their order, if given."""
    result = {}
    settings = {(row.task, row.profile) for row in rows}
    for task, profile in sorted(settings, key=lambda s: (*profile_order(s[1]), *task_order(s[0]))):
        drawn = curves([row for row in rows if (row.task, row.profile) == (task, profile)])
        if methods:
            drawn = {method: drawn[method] for method in methods if method in drawn}
        result[f"{task}, {profile}"] = drawn
    return result


def with_published(panels: Panels) -> Panels:
    """The panels with the published curve of each method added, up to the last step of the
    panel."""
    result = {}
    for title, methods in panels.items():
        known = {}
        last_step = max((int(curve.env_steps[-1]) for curve in methods.values()), default=0)
        for method, (steps, returns) in published_curves(_task(title)).items():
            reached = steps <= last_step
            if method in methods and reached.any():
                seeds = list(range(1, len(returns) + 1))
                known[f"{method}, published"] = Curve(steps[reached], returns[:, reached], seeds)
        result[title] = {**methods, **known}
    return result


def shared_scales(panels: Panels) -> dict[str, Scale]:
    """The scale of each panel, by title; panels of one task share a scale."""
    lines: dict[str, list[Series]] = {}
    for title, methods in panels.items():
        series = [(curve.env_steps, curve.extent) for curve in methods.values()]
        lines.setdefault(_task(title), []).extend(series)
    scales = {task: scale_of(series) for task, series in lines.items() if series}
    return {title: scales[_task(title)] for title in panels if _task(title) in scales}


def _task(title: str) -> str:
    return title.partition(", ")[0]


def scale_of(lines: Sequence[Series]) -> Scale:
    """Limits that contain all finite points of these lines (x, y), with a margin of 4 %.

    >>> long, short = (np.array([0.0, 100.0]), np.array([1.0, 3.0])), (np.ones(1), np.full(1, 5.0))
    >>> scale_of([long, short])
    Scale(x=(-4.0, 104.0), y=(0.84, 5.16))
    >>> scale_of([long, (np.array([50.0, np.inf]), np.array([np.nan, 5.0]))])
    Scale(x=(-4.0, 104.0), y=(0.84, 5.16))
    """
    return Scale(*(_limits(values) for values in zip(*lines, strict=True)))


def _limits(parts: Sequence[np.ndarray]) -> tuple[float, float]:
    """The range of the finite values with a margin, or a range around 0 if there is none."""
    numbers = np.concatenate([np.ravel(part) for part in parts])
    finite = numbers[np.isfinite(numbers)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    margin = 0.04 * (high - low) or 0.04 * (abs(high) or 1.0)
    return low - margin, high + margin
