"""A row per evaluation, each with its three clocks, commit and machine; and what is read off many of
them.

What cannot be compared is refused here, in one line: a task on two clocks. Evaluations of different
length are compared, and a line says so. Failed runs stay in the table and in the statistics: from its
failure on a run scores the lowest return seen on its task.
"""

import functools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from cclf.analysis.statistics import steps_to_threshold
from cclf.console import say
from cclf.errors import ConfigError

FORMULA_SIGNS = ("=", "+", "-", "@")  # a spreadsheet that opens a CSV obeys cells that begin so

RunState = Literal["done", "failed", "unfinished"]
ClockUnit = Literal["env_steps", "agent_steps"]


class Row(NamedTuple):
    task: str
    method: str
    profile: str
    seed: int
    env_steps: int
    agent_steps: int
    updates: int
    # nan in the one row, at 0 steps, of a run that failed before its first evaluation
    return_mean: float
    return_std: float
    episodes: int
    wall_seconds: float
    device: str
    commit: str
    state: str = "done"  # of the run, as it stands: a RunState


class Clock(NamedTuple):
    """A moment: "100K" is environment steps on DeepMind Control and agent steps on Atari."""

    unit: ClockUnit
    steps: int

    def __str__(self) -> str:
        return f"{self.steps:,} {self.unit.replace('_', ' ')}"


class RunName(NamedTuple):
    task: str
    method: str
    profile: str
    seed: int


def refuse_odd_names(rows: Iterable[Row]) -> None:
    """Names come from files that others may have written; they become labels, and a method becomes
    a file name."""
    for row in rows:
        for text in (row.task, row.method, row.profile, row.device, row.commit):
            if text.startswith(FORMULA_SIGNS):
                raise ConfigError(
                    "a name in these results begins as a spreadsheet's formula does: "
                    f"{ascii(text)[:80]}"
                )
            if not text.isprintable() or len(text) > 200:
                raise ConfigError(f"a name in these results cannot be printed: {ascii(text)[:80]}")
        if not row.method or "/" in row.method or row.method.startswith("."):
            raise ConfigError(f"{row.method!r} cannot be the name of a method")


_NAME_MOMENT_LENGTH = operator.attrgetter(*RunName._fields, "env_steps", "episodes")


def runs(rows: Iterable[Row]) -> dict[RunName, list[Row]]:
    """Rows by run, in the order of the clock; of two evaluations at one moment the longer one
    stays."""
    by_run: dict[tuple[str, str, str, int], dict[int, Row]] = {}
    for row in sorted(rows, key=_NAME_MOMENT_LENGTH):
        by_run.setdefault(row[:4], {})[row.env_steps] = row
    return {RunName(*name): list(readings.values()) for name, readings in by_run.items()}


def refuse_mixed_clocks(rows: Sequence[Row]) -> None:
    """One action repeat per task: curves over steps of different length would look alike and mean
    different things."""
    repeats: dict[str, dict[float, Row]] = {}
    seen = set()
    for row in rows:
        if (moment := (*row[:5], row.episodes)) in seen:
            raise ConfigError(
                f"two runs are called {called(row)}: keep results of different settings apart"
            )
        seen.add(moment)
        if row.agent_steps:
            repeats.setdefault(row.task, {}).setdefault(row.env_steps / row.agent_steps, row)
    for task, found in repeats.items():
        if len(found) > 1:
            told = " but ".join(
                f"{repeat:g} in {called(row)}" for repeat, row in sorted(found.items())
            )
            raise ConfigError(
                f"{task} is on two clocks: env steps per agent step are {told}; report them apart"
            )


def called(row: Row) -> str:
    return f"{row.task} {row.method} {row.profile} seed {row.seed}"


def of_shared_length(rows: Sequence[Row]) -> list[Row]:
    """Without the longer last evaluations that some runs of a task do not have yet, though they are
    at the same moment."""
    by_moment: dict[tuple[str, str, int], dict[RunName, set[int]]] = {}
    for row in rows:
        by_moment.setdefault((row.task, row.profile, row.env_steps), {}).setdefault(
            RunName(*row[:4]), set()
        ).add(row.episodes)
    longest = {}
    for moment, lengths in by_moment.items():
        shared, known = set.intersection(*lengths.values()), set.union(*lengths.values())
        if shared and max(known) > max(shared):
            longest[moment] = max(shared)
            say_once(
                f"{moment[0]} at {moment[2]:,} env steps: not every run has its evaluation in "
                f"{max(known)} episodes, so all are compared in {max(shared)}"
            )
    return [
        row
        for row in rows
        if row.episodes <= longest.get((row.task, row.profile, row.env_steps), row.episodes)
    ]


@functools.cache
def say_once(line: str) -> None:
    """Many tables are made of the same rows."""
    say(f"cclf: {line}")


def scores(
    rows: Sequence[Row], methods: Sequence[str], clocks: Mapping[str, Clock]
) -> dict[str, np.ndarray]:
    """Returns at each task's clock as (runs, tasks) by method, for the seeds that a method has on
    every task.

    A failed run counts as `lowest_returns` says; one that is not yet there is left out.
    """
    lowest = lowest_returns(rows)
    found: dict[tuple[str, str], dict[int, float]] = {}
    episodes: dict[str, set[int]] = {}
    for name, readings in runs(
        row for row in rows if row.task in clocks and row.method in methods
    ).items():
        row = at(readings, clocks[name.task])
        if row is not None:
            episodes.setdefault(row.task, set()).add(row.episodes)
            found.setdefault((name.method, name.task), {})[name.seed] = row.return_mean
        elif readings[-1].state == "failed":
            found.setdefault((name.method, name.task), {})[name.seed] = lowest[name.task]
    for task, lengths in episodes.items():
        if len(lengths) > 1:
            counts = " and ".join(map(str, sorted(lengths)))
            say_once(
                f"{task} at {clocks[task]}: evaluations of {counts} episodes count alike: "
                "shorter ones are noisier"
            )
    return {
        method: _matrix([found.get((method, task), {}) for task in clocks]) for method in methods
    }


def steps_to(readings: Sequence[Row], threshold: float, unit: ClockUnit = "env_steps") -> float:
    """The first moment at which a run's return reaches `threshold`; infinity where it never
    does."""
    clock, returns = np.array([(getattr(row, unit), row.return_mean) for row in readings]).T
    return steps_to_threshold(clock, returns, threshold)


def best_scores(
    rows: Sequence[Row], methods: Sequence[str], tasks: Sequence[str]
) -> dict[str, np.ndarray]:
    """The best evaluation of each run during training as (runs, tasks), which flatters: some papers
    report it.

    A longer last evaluation is not among them, a run with a single one has no best, and a failed
    run scores as ever.
    """
    lowest = lowest_returns(rows)
    found: dict[tuple[str, str], dict[int, float]] = {}
    by_run: dict[RunName, list[Row]] = {}
    for row in rows:
        by_run.setdefault(RunName(*row[:4]), []).append(row)
    for name, evaluations in by_run.items():
        usual = min(row.episodes for row in evaluations)
        returns = [row.return_mean for row in evaluations if row.episodes == usual]
        failed = evaluations[-1].state == "failed"
        if failed or len(returns) > 1:
            found.setdefault((name.method, name.task), {})[name.seed] = (
                lowest[name.task] if failed else max(returns)
            )
    return {
        method: _matrix([found.get((method, task), {}) for task in tasks]) for method in methods
    }


def mean_returns(
    rows: Sequence[Row], methods: Sequence[str], clock: Clock
) -> dict[str, np.ndarray]:
    """The mean of all evaluations of each run until `clock` as (runs, 1), of one task; a failed run
    scores as ever, and one that has not got there is left out."""
    lowest = lowest_returns(rows)
    found: dict[str, list[float]] = {method: [] for method in methods}
    for name, readings in runs(rows).items():
        last = at(readings, clock)
        if last is not None:
            seen = [row.return_mean for row in readings if row.env_steps <= last.env_steps]
            found[name.method].append(float(np.mean(seen)))
        elif readings[-1].state == "failed":
            found[name.method].append(lowest[name.task])
    return {method: np.array(means).reshape(-1, 1) for method, means in found.items()}


def _matrix(columns: Sequence[Mapping[int, float]]) -> np.ndarray:
    """(runs, tasks) from a value by seed for each task: the seeds that every task has."""
    seeds = sorted(set.intersection(*(set(column) for column in columns)))
    return np.array([[column[seed] for column in columns] for seed in seeds]).reshape(
        len(seeds), len(columns)
    )


def at(readings: Sequence[Row], clock: Clock) -> Row | None:
    """The evaluation of one run at `clock`: a whole turn may end a little later, up to one part in
    a hundred."""
    for row in readings:
        if clock.steps <= getattr(row, clock.unit) <= clock.steps * 1.01:
            return row
    return None


def refuse_other_spacing(rows: Iterable[Row]) -> None:
    """The moment a threshold is reached can only be compared where evaluations fall on the same
    moments."""
    first: dict[str, tuple[int, RunName]] = {}
    for name, readings in runs(rows).items():
        if readings[0].env_steps == 0:
            continue  # it failed before its first evaluation
        start, other = first.setdefault(name.task, (readings[0].env_steps, name))
        if start != readings[0].env_steps:
            raise ConfigError(
                f"{name.task} is evaluated every {start:,} env steps in {other.method} and every "
                f"{readings[0].env_steps:,} "
                f"in {name.method}: steps to a return cannot be compared"
            )


def lowest_returns(rows: Iterable[Row]) -> dict[str, float]:
    """By task the lowest return of any evaluation in the table: what a failed run scores."""
    lowest: dict[str, float] = {}
    for row in rows:
        value = row.return_mean if math.isfinite(row.return_mean) else math.inf
        lowest[row.task] = min(value, lowest.get(row.task, math.inf))
    return {task: value if math.isfinite(value) else 0.0 for task, value in lowest.items()}
