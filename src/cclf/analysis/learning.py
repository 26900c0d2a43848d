"""Learning curves as numbers, before they are drawn: those of each method, panels of them, and the
scales that panels share."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cclf.analysis.evaluations import Row, lowest_returns, runs
from cclf.analysis.published import seeds_of
from cclf.analysis.statistics import mean_interval
from cclf.analysis.verdict import MIN_SEEDS
from cclf.envs.registry import known_tasks


class Scale(NamedTuple):
    """What the axes of a panel reach over."""

    x: tuple[float, float]
    y: tuple[float, float]


class Curve(NamedTuple):
    """The runs of one method on one task, on the clock readings that all of them have."""

    env_steps: np.ndarray  # (P,)
    returns: np.ndarray  # (seeds, P)
    seeds: list[int]

    @property
    def is_drawn_run_by_run(self) -> bool:
        """An interval of so few would be too narrow."""
        return len(self.seeds) < MIN_SEEDS

    @property
    def outline(self) -> np.ndarray:
        """(any, P): the runs themselves, or the ends of the interval of their mean."""
        return (
            self.returns if self.is_drawn_run_by_run else np.stack(mean_interval(self.returns)[1:])
        )


def curves(rows: Sequence[Row]) -> dict[str, Curve]:
    """By method. Rows of several tasks or profiles are an error: their clocks and returns do not
    belong in one panel.

    A failed run goes on at the lowest return of the task; one that is still on its way joins only
    where no other is further.
    """
    kinds = {(row.task, row.profile) for row in rows}
    if len(kinds) > 1:
        raise ValueError(
            f"one panel shows one task and profile, got {sorted(kinds)}: select rows first"
        )
    lowest = lowest_returns(rows)
    by_method: dict[str, dict[int, list[Row]]] = {}
    for name, readings in runs(rows).items():
        by_method.setdefault(name.method, {})[name.seed] = readings
    result = {}
    for method, seeds in by_method.items():
        ended = {
            seed: readings for seed, readings in seeds.items() if readings[-1].state != "unfinished"
        } or seeds
        points = {
            seed: {row.env_steps: row.return_mean for row in readings if row.episodes}
            for seed, readings in ended.items()
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


def panels(rows: Sequence[Row], methods: Sequence[str] = ()) -> dict[str, dict[str, Curve]]:
    """Curves of each task under each profile, titled by both; only `methods`, in their order, where
    given."""
    result = {}
    known = list(known_tasks())
    kinds = {(row.task, row.profile) for row in rows}
    for task, profile in sorted(
        kinds,
        key=lambda kind: (
            len(kind[1]),
            kind[1],
            known.index(kind[0]) if kind[0] in known else 0,
            kind[0],
        ),
    ):
        found = curves([row for row in rows if (row.task, row.profile) == (task, profile)])
        chosen = (
            {method: found[method] for method in methods if method in found} if methods else found
        )
        result[f"{task}, {profile}"] = chosen
    return result


def with_published(
    panels: Mapping[str, Mapping[str, Curve]],
) -> dict[str, dict[str, Curve]]:
    """The same, and beside each method its published seeds, as far as ours were trained."""
    result = {}
    for title, methods in panels.items():
        told = {}
        for method, (steps, returns) in seeds_of(_task(title)).items():
            reached = steps <= max((int(c.env_steps[-1]) for c in methods.values()), default=0)
            if method in methods and reached.any():
                seeds = list(range(1, len(returns) + 1))
                told[f"{method}, published"] = Curve(steps[reached], returns[:, reached], seeds)
        result[title] = dict(methods) | told
    return result


def shared_scales(panels: Mapping[str, Mapping[str, Curve]]) -> dict[str, Scale]:
    """Of each panel, titled "task, profile": those of one task have the same, to be compared."""
    reach: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for title, methods in panels.items():
        for curve in methods.values():
            reach.setdefault(_task(title), []).append((curve.env_steps / 1e3, curve.outline))
    scales = {task: scale_of(lines) for task, lines in reach.items()}
    return {title: scales[_task(title)] for title in panels if _task(title) in scales}


def _task(title: str) -> str:
    return title.partition(", ")[0]


def scale_of(lines: Sequence[tuple[np.ndarray, np.ndarray]]) -> Scale:
    """A little more than all of these lines (x, y) need; what is no finite number needs nothing.

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
    """The least and the largest finite number; zeros where there is none."""
    numbers = np.concatenate([np.ravel(part) for part in parts])
    finite = numbers[np.isfinite(numbers)]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
