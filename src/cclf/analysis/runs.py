"""Evaluations of runs, one row each, and the scores of methods computed from them.

Failed runs stay in every statistic: from its failure on, a run scores the lowest return that was
observed on its task. Tasks with different action repeats cannot be compared, which is an error.
"""

import functools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from cclf.console import say
from cclf.errors import ConfigError

FORMULA_PREFIXES = ("=", "+", "-", "@")  # spreadsheets evaluate CSV cells that begin with these

RunState = Literal["done", "failed", "unfinished"]
StepUnit = Literal["env_steps", "agent_steps"]


class ResultRow(NamedTuple):
    """One evaluation of one run; the columns of results files."""

    task: str
    method: str
    profile: str
    seed: int
    env_steps: int
    agent_steps: int
    updates: int
    # nan in the only row, at 0 steps, of a run that failed before its first evaluation
    return_mean: float
    return_std: float
    episodes: int
    wall_seconds: float
    device: str
    commit: str
    state: str = "done"  # of the run when it was read: a RunState


class StepBudget(NamedTuple):
    """A number of steps: "100K" is environment steps on DeepMind Control, agent steps on Atari."""

    unit: StepUnit
    steps: int

    def __str__(self) -> str:
        return f"{self.steps:,} {self.unit.replace('_', ' ')}"

    def steps_of(self, row: ResultRow) -> int:
        """The steps of an evaluation in the unit of this budget."""
        return row.env_steps if self.unit == "env_steps" else row.agent_steps


class RunKey(NamedTuple):
    """Identifies a run: the first four fields of its rows."""

    task: str
    method: str
    profile: str
    seed: int


T = TypeVar("T")
K = TypeVar("K")


def group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The items of each key. Keys and items stay in the order of `items`.

    >>> group_by(["b1", "a1", "b2"], lambda item: item[0])
    {'b': ['b1', 'b2'], 'a': ['a1']}
    """
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


Runs = Mapping[RunKey, Sequence[ResultRow]]

_ORDER = operator.attrgetter(*RunKey._fields, "env_steps", "episodes")


def runs(rows: Iterable[ResultRow]) -> dict[RunKey, list[ResultRow]]:
    """The evaluations of each run, in order of steps. Of two evaluations at the same step, the one
    with more episodes is kept."""
    by_run: dict[tuple[str, str, str, int], dict[int, ResultRow]] = {}
    for row in sorted(rows, key=_ORDER):
        by_run.setdefault(row[:4], {})[row.env_steps] = row
    return {RunKey(*key): list(evaluations.values()) for key, evaluations in by_run.items()}


def describe(row: ResultRow) -> str:
    return f"{row.task} {row.method} {row.profile} seed {row.seed}"


@functools.cache
def warn_once(line: str) -> None:
    """Print a line unless it was printed before, since many tables use the same rows."""
    say(f"cclf: {line}")


def check_names(rows: Iterable[ResultRow]) -> None:
    """Raise ConfigError for names that are unsafe as labels or file names: results may come from
    other people."""
    for text in {text for row in rows for text in (*row[:3], row.device, row.commit)}:
        if text.startswith(FORMULA_PREFIXES):
            raise ConfigError(
                f"a name in these results starts like a spreadsheet formula: {ascii(text)[:80]}"
            )
        if not text.isprintable() or len(text) > 200:
            raise ConfigError(f"a name in these results cannot be printed: {ascii(text)[:80]}")
    for method in {row.method.partition(", ")[0] for row in rows}:
        if not method or "/" in method or method.startswith("."):
            raise ConfigError(f"{method!r} cannot be the name of a method")


def check_comparable(rows: Sequence[ResultRow]) -> None:
    """Raise ConfigError if two runs have the same key, or if runs of one task differ in the number
    of environment steps per agent step: their curves could not be compared."""
    for same in group_by(rows, lambda row: (*row[:5], row.episodes)).values():
        if len(same) > 1:
            raise ConfigError(
                f"two runs are called {describe(same[0])}: keep results of different settings apart"
            )
    evaluated = [row for row in rows if row.agent_steps]
    for task, task_rows in group_by(evaluated, lambda row: row.task).items():
        repeats = group_by(task_rows, lambda row: row.env_steps / row.agent_steps)
        if len(repeats) > 1:
            values = " but ".join(
                f"{repeat:g} in {describe(same[0])}" for repeat, same in sorted(repeats.items())
            )
            raise ConfigError(
                f"runs of {task} differ in env steps per agent step: {values}; report them apart"
            )


def with_common_episode_count(rows: Sequence[ResultRow]) -> list[ResultRow]:
    """The rows without evaluations of more episodes than every run of the task and profile has at
    the same step."""
    common = {}
    steps = group_by(rows, lambda row: (row.task, row.profile, row.env_steps))
    for step, step_rows in steps.items():
        by_run = group_by(step_rows, lambda row: row[:4]).values()
        episodes = [{row.episodes for row in evaluations} for evaluations in by_run]
        longest = max(set.union(*episodes))
        common[step] = max(set.intersection(*episodes), default=longest)
        if common[step] < longest:
            warn_once(
                f"{step[0]} at {step[2]:,} env steps: not every run has an evaluation of "
                f"{longest} episodes, so those of {common[step]} episodes are compared"
            )
    return [row for row in rows if row.episodes <= common[row.task, row.profile, row.env_steps]]


def check_same_evaluation_steps(by_run: Runs) -> None:
    """Raise ConfigError if runs of a task have their first evaluation at different steps: the step
    at which a return is reached could not be compared."""
    first: dict[str, tuple[int, RunKey]] = {}
    for key, (start, *_) in by_run.items():
        if start.env_steps == 0:
            continue  # it failed before its first evaluation
        expected, other = first.setdefault(key.task, (start.env_steps, key))
        if start.env_steps != expected:
            raise ConfigError(
                f"{key.task} is evaluated every {expected:,} env steps in {other.method} and every "
                f"{start.env_steps:,} in {key.method}: runs evaluated at different steps cannot be compared"
            )


def lowest_returns(rows: Iterable[ResultRow]) -> dict[str, float]:
    """The lowest return of any evaluation on each task, or 0 if there is none. It is the score of a
    failed run."""
    lowest = {}
    for task, task_rows in group_by(rows, lambda row: row.task).items():
        returns = (row.return_mean for row in task_rows if math.isfinite(row.return_mean))
        lowest[task] = min(returns, default=0.0)
    return lowest


def evaluation_at(evaluations: Sequence[ResultRow], budget: StepBudget) -> ResultRow | None:
    """The evaluation of one run at `budget`, or up to 1 % later: a run may end slightly after it."""
    last_steps = budget.steps * 1.01
    at_budget = (r for r in evaluations if budget.steps <= budget.steps_of(r) <= last_steps)
    return next(at_budget, None)


def steps_to(
    evaluations: Sequence[ResultRow], threshold: float, unit: StepUnit = "env_steps"
) -> float:
    """The number of steps after which the return of a run first reaches `threshold`, or
    infinity."""
    budget = StepBudget(unit, 0)
    reached = (row for row in evaluations if row.return_mean >= threshold)
    return next((float(budget.steps_of(row)) for row in reached), math.inf)


def score_matrix(
    rows: Sequence[ResultRow], methods: Sequence[str], budgets: Mapping[str, StepBudget]
) -> dict[str, np.ndarray]:
    """The returns (runs, tasks) of each method at the budget of each task. Unfinished runs that have
    not reached the budget are excluded."""
    episodes: dict[str, set[int]] = {}

    def score(evaluations: Sequence[ResultRow]) -> float | None:
        row = evaluation_at(evaluations, budgets[evaluations[0].task])
        if row is None:
            return None
        episodes.setdefault(row.task, set()).add(row.episodes)
        return row.return_mean

    chosen = [row for row in rows if row.task in budgets and row.method in methods]
    scores = scores_by_method(chosen, methods, list(budgets), score, lowest_returns(rows))
    for task, counts in episodes.items():
        if len(counts) > 1:
            lengths = " and ".join(map(str, sorted(counts)))
            warn_once(
                f"{task} at {budgets[task]}: evaluations of {lengths} episodes are compared, "
                "although those of fewer episodes are noisier"
            )
    return scores


def best_scores(
    rows: Sequence[ResultRow], methods: Sequence[str], tasks: Sequence[str]
) -> dict[str, np.ndarray]:
    """The return of the best evaluation of each run during training (runs, tasks), by method. Some
    papers report it although it is biased upwards.

    Longer evaluations at the end are not included, and runs with a single evaluation have no score.
    """
    by_run = group_by(rows, lambda row: row[:4])
    episodes = {key: min(row.episodes for row in run) for key, run in by_run.items()}

    def score(evaluations: Sequence[ResultRow]) -> float | None:
        has_best = evaluations[0].state != "failed" and len(evaluations) > 1
        return max(row.return_mean for row in evaluations) if has_best else None

    during_training = [row for row in rows if row.episodes == episodes[row[:4]]]
    return scores_by_method(during_training, methods, tasks, score, lowest_returns(rows))


def mean_returns(
    rows: Sequence[ResultRow], methods: Sequence[str], task: str, budget: StepBudget
) -> dict[str, np.ndarray]:
    """The mean of all evaluations of each run up to `budget` (runs, 1), by method. Unfinished runs
    that have not reached the budget are excluded."""
    score = functools.partial(mean_return, budget=budget)
    return scores_by_method(rows, methods, [task], score, lowest_returns(rows))


def mean_return(evaluations: Sequence[ResultRow], budget: StepBudget) -> float | None:
    """The mean of all evaluations of a run up to `budget`; None if it has not reached it."""
    last = evaluation_at(evaluations, budget)
    if last is None:
        return None
    return float(np.mean([r.return_mean for r in evaluations if r.env_steps <= last.env_steps]))


# Maps the evaluations of a run, in order of steps, to its score, or to None if it has none.
ScoreFunction = Callable[[Sequence[ResultRow]], float | None]


def scores_by_run(
    rows: Iterable[ResultRow], score: ScoreFunction, failed_scores: Mapping[str, float]
) -> dict[RunKey, float]:
    """The score of each run that has one. A failed run without a score gets that of its task in
    `failed_scores`, if any."""
    scores = {}
    for key, evaluations in runs(rows).items():
        value = score(evaluations)
        if value is None and evaluations[0].state == "failed":
            value = failed_scores.get(key.task)
        if value is not None:
            scores[key] = value
    return scores


def scores_by_method(
    rows: Iterable[ResultRow],
    methods: Sequence[str],
    tasks: Sequence[str],
    score: ScoreFunction,
    failed_scores: Mapping[str, float],
) -> dict[str, np.ndarray]:
    """The scores (runs, tasks) of each method, for the seeds that have a score on every task."""
    by_seed: dict[tuple[str, str], dict[int, float]] = {}
    for key, value in scores_by_run(rows, score, failed_scores).items():
        by_seed.setdefault((key.method, key.task), {})[key.seed] = value
    matrices = {}
    for method in methods:
        by_task = [by_seed.get((method, task), {}) for task in tasks]
        seeds = sorted(set.intersection(*map(set, by_task)))
        values = [[scores[seed] for scores in by_task] for seed in seeds]
        matrices[method] = np.array(values).reshape(len(seeds), len(tasks))
    return matrices
