"""What is set beside what: rows of one suite and profile, at moments that were published or
reached, alone and across tasks."""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from cclf.algorithms.registry import algorithms
from cclf.analysis import evaluations
from cclf.analysis.evaluations import Clock, Row
from cclf.analysis.published import Published, published, score_range
from cclf.envs.registry import known_tasks, suites


class Group(NamedTuple):
    """Rows that belong in one table: one suite under one profile."""

    suite: str
    profile: str
    rows: list[Row]

    @property
    def name(self) -> str:
        return f"{self.suite}, {self.profile}"

    @property
    def tasks(self) -> list[str]:
        known = list(known_tasks())
        return sorted(
            {row.task for row in self.rows},
            key=lambda task: (known.index(task) if task in known else len(known), task),
        )

    @property
    def methods(self) -> list[str]:
        return in_order(self.suite, (row.method for row in self.rows))


def group_rows(rows: Iterable[Row]) -> list[Group]:
    by_kind: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        by_kind.setdefault((row.task.split("/")[0], row.profile), []).append(row)
    return [
        Group(*kind, by_kind[kind])
        for kind in sorted(by_kind, key=lambda kind: (kind[0], *profile_order(kind[1])))
    ]


def profile_order(profile: str) -> tuple[int, str]:
    """entropy-0.01 before entropy-0.001, as in the figures."""
    return len(profile), profile


def in_order(suite: str, methods: Iterable[str]) -> list[str]:
    """As the base algorithms that play the suite list them; others by name after them."""
    able = [
        base
        for base in algorithms().values()
        if suite in suites() and not suites()[suite].kinds.isdisjoint(base.supported_tasks)
    ]
    known = [name for base in able for name in base.methods]
    return sorted(
        set(methods), key=lambda name: (known.index(name) if name in known else len(known), name)
    )


def clocks_of(rows: Sequence[Row], task: str) -> list[Clock]:
    """The moments at which a task is reported: those of published numbers that were reached, and
    the ends of runs."""
    unit: evaluations.ClockUnit = "agent_steps" if task.startswith("atari/") else "env_steps"
    named = evaluations.runs(row for row in rows if row.task == task)
    by_run = list(named.values())
    ends = {getattr(readings[-1], unit) for readings in by_run if readings[-1].state == "done"}
    if not ends:  # nothing is finished: where all of them are by now
        ends = {min(getattr(readings[-1], unit) for readings in by_run)}
    methods = {name.method for name in named}
    moments = {Clock(unit, steps) for steps in ends if steps} | {
        row.clock for row in _published(task, methods) if row.clock
    }
    return sorted(
        moment for moment in moments if any(evaluations.at(readings, moment) for readings in by_run)
    )


PAPER_AND_RERUNS = {"dmc": ("dmc", "ablation"), "atari": ("atari", "atari_reruns")}
OTHER_STUDIES = {"dmc": ("drqv2",)}  # they count where one of their methods was run


def _published(task: str, methods: Collection[str]) -> list[Published]:
    suite = task.split("/")[0]
    found = [row for name in PAPER_AND_RERUNS.get(suite, ()) for row in published(name)]
    for name in OTHER_STUDIES.get(suite, ()):
        rows = published(name)
        found += rows if any(row.method in methods for row in rows) else []
    return [row for row in found if row.task == task]


class Moment(NamedTuple):
    """What is known of a task at one moment: scores by method, and what was published."""

    task: str
    label: str
    clock: tuple[str, object]  # unit and steps
    scores: dict[str, np.ndarray]  # (runs, 1)
    told: dict[str, Published]


def moments(group: Group) -> list[Moment]:
    """On Atari also the best evaluation of each run: some published columns are that, and are shown
    there alone."""
    found = []
    for task in group.tasks:
        told: dict[Clock | str | None, dict[str, Published]] = {}
        for row in _published(task, group.methods):
            told.setdefault("best" if "best" in row.source else row.clock, {})[row.method] = row
        for clock in clocks_of(group.rows, task):
            scores = evaluations.scores(group.rows, group.methods, {task: clock})
            found.append(Moment(task, f"at {clock}", clock, scores, told.get(clock, {})))
        if group.suite == "atari":
            scores = evaluations.best_scores(group.rows, group.methods, [task])
            if any(map(len, scores.values())):
                found.append(
                    Moment(task, "best evaluation", ("best", ""), scores, told.get("best", {}))
                )
    return found


class Aggregate(NamedTuple):
    """Several tasks of one suite under one profile: normalised scores by method, for methods that
    have every task."""

    suite: str
    profile: str
    when: str
    scores: dict[str, np.ndarray]  # (runs, tasks)
    left_out: list[str]


def aggregates(group: Group) -> list[Aggregate]:
    """At each moment that all tasks of the group share, or, where they share none, at the end of
    each; tasks without a scale are left out."""
    ranges = {task: bounds for task in group.tasks if (bounds := score_range(task))}
    clocks = {task: found for task in ranges if (found := clocks_of(group.rows, task))}
    if len(clocks) < 2:
        return []
    shared = sorted(set.intersection(*(set(found) for found in clocks.values())))
    plans = [(f"at {moment}", dict.fromkeys(clocks, moment)) for moment in shared]
    plans = plans or [
        ("at the end of each task", {task: found[-1] for task, found in clocks.items()})
    ]
    samples = [(when, evaluations.scores(group.rows, group.methods, plan)) for when, plan in plans]
    if group.suite == "atari":
        samples.append(
            (
                "best evaluation of each run",
                evaluations.best_scores(group.rows, group.methods, list(clocks)),
            )
        )
    low, high = np.transpose([ranges[task] for task in clocks])
    result = []
    for when, scores in samples:
        normalised = {
            method: (scores[method] - low) / (high - low)
            for method in group.methods
            if len(scores[method])
        }
        left_out = [method for method in group.methods if method not in normalised]
        if normalised:
            result.append(Aggregate(group.suite, group.profile, when, normalised, left_out))
    return result
