"""Learning curves as numbers: those of each method, panels of them, and scales that panels
share."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cclf.analysis.published import seeds_of
from cclf.analysis.runs import EvaluationRow, group_by, lowest_returns, runs
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
        """Whether there are enough seeds for an interval; fewer are drawn as single runs."""
        return len(self.seeds) >= MIN_SEEDS

    @property
    def outline(self) -> np.ndarray:
        """The ends of the interval of the mean (2, P), or the single runs (seeds, P)."""
        return np.stack(mean_interval(self.returns)[1:]) if self.has_interval else self.returns


def curves(rows: Sequence[EvaluationRow]) -> dict[str, Curve]:
    """The curve of each method on one task under one profile.

    A failed run continues at the lowest return of the task. Unfinished runs are included only if
    the method has no other run.
    """
    kinds = {(row.task, row.profile) for row in rows}
    if len(kinds) > 1:
        raise ValueError(
            f"one panel shows one task and profile, got {sorted(kinds)}: select rows first"
        )
    lowest = lowest_returns(rows)
    by_run, result = runs(rows), {}
    for method, keys in group_by(by_run, lambda key: key.method).items():
        seeds = {key.seed: by_run[key] for key in keys}
        ended = {
            seed: evaluations
            for seed, evaluations in seeds.items()
            if evaluations[-1].state != "unfinished"
        } or seeds
        points = {
            seed: {row.env_steps: row.return_mean for row in evaluations if row.episodes}
            for seed, evaluations in ended.items()
        }
        whole = [set(points[seed]) for seed in ended if ended[seed][-1].state != "failed"]
        common = sorted(
            set.intersection(*whole)
            if whole
            else set.union(*(set(reached) for reached in points.values()))
        )
        floor = lowest[ended[min(ended)][0].task]
        values = np.array(
            [[reached.get(step, floor) for step in common] for _, reached in sorted(points.items())]
        )
        result[method] = Curve(np.array(common), values, sorted(points))
    return result


def panels(
    rows: Sequence[EvaluationRow], methods: Sequence[str] = ()
) -> dict[str, dict[str, Curve]]:
    """The curves of each task under each profile, titled "task, profile"; only those of `methods`,
    in their order, if given."""
    result = {}
    kinds = {(row.task, row.profile) for row in rows}
    for kind in sorted(kinds, key=lambda kind: (*profile_order(kind[1]), *task_order(kind[0]))):
        found = curves([row for row in rows if (row.task, row.profile) == kind])
        if methods:
            found = {method: found[method] for method in methods if method in found}
        result[", ".join(kind)] = found
    return result


def with_published(
    panels: Mapping[str, Mapping[str, Curve]],
) -> dict[str, dict[str, Curve]]:
    """The same with the published curve of each method, up to the last step of ours."""
    result = {}
    for title, methods in panels.items():
        known = {}
        for method, (steps, returns) in seeds_of(_task(title)).items():
            reached = steps <= max((int(c.env_steps[-1]) for c in methods.values()), default=0)
            if method in methods and reached.any():
                seeds = list(range(1, len(returns) + 1))
                known[f"{method}, published"] = Curve(steps[reached], returns[:, reached], seeds)
        result[title] = dict(methods) | known
    return result


def shared_scales(panels: Mapping[str, Mapping[str, Curve]]) -> dict[str, Scale]:
    """The scale of each panel, by title; panels of one task share a scale."""
    reach: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for title, methods in panels.items():
        for curve in methods.values():
            reach.setdefault(_task(title), []).append((curve.env_steps, curve.outline))
    scales = {task: scale_of(lines) for task, lines in reach.items()}
    return {title: scales[_task(title)] for title in panels if _task(title) in scales}


def _task(title: str) -> str:
    return title.partition(", ")[0]


def scale_of(lines: Sequence[tuple[np.ndarray, np.ndarray]]) -> Scale:
    """Limits that contain all finite points of these lines (x, y), with a margin of 4 %.

    >>> long, short = (np.array([0.0, 100.0]), np.array([1.0, 3.0])), (np.ones(1), np.full(1, 5.0))
    >>> scale_of([long, short])
    Scale(x=(-4.0, 104.0), y=(0.84, 5.16))
    >>> scale_of([long, (np.array([50.0, np.inf]), np.array([np.nan, 5.0]))])
    Scale(x=(-4.0, 104.0), y=(0.84, 5.16))
    """
    (left, right), (low, high) = (_ends(values) for values in zip(*lines, strict=True))
    around = [
        0.04 * (end - start) or 0.04 * (abs(end) or 1.0)
        for start, end in ((left, right), (low, high))
    ]
    return Scale((left - around[0], right + around[0]), (low - around[1], high + around[1]))


def _ends(parts: Sequence[np.ndarray]) -> tuple[float, float]:
    """The smallest and the largest finite value; zeros if there is none."""
    numbers = np.concatenate([np.ravel(part) for part in parts])
    finite = numbers[np.isfinite(numbers)]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
