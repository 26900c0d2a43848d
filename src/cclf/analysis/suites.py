"""Results of one suite under one profile: scores at the step counts that are reported, for each task
and averaged across tasks."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from cclf.algorithms.registry import algorithms
from cclf.analysis import runs
from cclf.analysis.published import Published, normalized, published, score_range
from cclf.analysis.runs import ResultRow, StepBudget, StepUnit
from cclf.envs.registry import known_tasks, suites


@dataclass(frozen=True)
class SuiteResults:
    """The results of one suite under one profile, which belong in one table."""

    suite: str
    profile: str
    rows: Sequence[ResultRow]
    by_task: Mapping[str, Sequence[ResultRow]]  # in the order in which suites list their tasks
    runs_by_task: Mapping[str, runs.Runs]
    report_steps: Mapping[str, Sequence[StepBudget]]
    methods: Sequence[str]

    @property
    def name(self) -> str:
        return f"{self.suite}, {self.profile}"

    @cached_property
    def scores_at_steps(self) -> "list[ScoresAtStep]":
        """The scores on each task at each reported step count. On Atari also those of the best
        evaluation of each run, which some published columns hold and are compared with only."""
        entries = []
        for task, rows in self.by_task.items():
            known = _published(task, self.methods)
            for budget in self.report_steps[task]:
                scores = runs.score_matrix(rows, self.methods, {task: budget})
                at_budget = {
                    row.method: row
                    for row in known
                    if row.budget == budget and "best" not in row.source
                }
                entries.append(ScoresAtStep(task, f"at {budget}", budget, scores, at_budget))
            scores = runs.best_scores(rows, self.methods, [task])
            if self.suite == "atari" and any(map(len, scores.values())):
                best = {row.method: row for row in known if "best" in row.source}
                entries.append(ScoresAtStep(task, "best evaluation", None, scores, best))
        return entries


class ScoresAtStep(NamedTuple):
    """Scores on a task at one step count, or of the best evaluations, by method."""

    task: str
    label: str
    budget: StepBudget | None  # None: the best evaluation of each run
    scores: dict[str, np.ndarray]  # (runs, 1)
    published: dict[str, Published]


def group_rows(rows: Iterable[ResultRow]) -> list[SuiteResults]:
    groups = runs.group_by(rows, lambda row: (row.task.split("/")[0], row.profile))
    results = []
    for suite, profile in sorted(groups, key=lambda key: (key[0], *profile_order(key[1]))):
        group = groups[suite, profile]
        by_task = runs.group_by(sorted(group, key=lambda row: task_order(row.task)), _task)
        runs_by_task = {task: runs.runs(rows_of_task) for task, rows_of_task in by_task.items()}
        steps = {task: report_steps(by_run, task) for task, by_run in runs_by_task.items()}
        methods = sort_methods(suite, (row.method for row in group))
        results.append(SuiteResults(suite, profile, group, by_task, runs_by_task, steps, methods))
    return results


def _task(row: ResultRow) -> str:
    return row.task


def profile_order(profile: str) -> tuple[int, str]:
    """Sort key of profiles: by length, then by name, so that entropy-0.01 precedes
    entropy-0.001."""
    return len(profile), profile


def task_order(task: str) -> tuple[int, str]:
    known = list(known_tasks())
    return (known.index(task) if task in known else len(known), task)


def sort_methods(suite: str, methods: Iterable[str]) -> list[str]:
    """The methods in the order of the base algorithms that support the suite; a variant follows its
    method, and unknown methods come last, by name."""
    known = [
        name
        for base in algorithms().values()
        if suite in suites() and not suites()[suite].kinds.isdisjoint(base.supported_tasks)
        for name in base.methods
    ]

    def place(method: str) -> tuple[int, str]:
        name = method.partition(", ")[0]
        return (known.index(name) if name in known else len(known), method)

    return sorted(set(methods), key=place)


def methods_in_order(keys: Iterable[runs.RunKey]) -> list[str]:
    """The methods of runs on any suites, each once."""
    by_suite = runs.group_by(keys, lambda key: key.task.split("/")[0])
    ordered = (sort_methods(suite, (k.method for k in own)) for suite, own in by_suite.items())
    return list(dict.fromkeys(method for methods in ordered for method in methods))


def report_steps(by_run: runs.Runs, task: str) -> list[StepBudget]:
    """The step counts at which a task is reported: those of published numbers that were reached,
    and the last steps of runs."""
    unit: StepUnit = "agent_steps" if task.startswith("atari/") else "env_steps"
    counter, histories = StepBudget(unit, 0), list(by_run.values())
    final_steps = {
        counter.steps_of(evaluations[-1])
        for evaluations in histories
        if evaluations[-1].state == "done"
    }
    if not final_steps:  # nothing is finished: the step that all runs have reached
        final_steps = {min(counter.steps_of(evaluations[-1]) for evaluations in histories)}
    known = _published(task, {key.method for key in by_run})
    budgets = {StepBudget(unit, steps) for steps in final_steps if steps}
    budgets |= {row.budget for row in known if row.budget}
    return sorted(
        budget
        for budget in budgets
        if any(runs.evaluation_at(evaluations, budget) for evaluations in histories)
    )


PAPER_AND_RERUNS = {"dmc": ("dmc", "ablation"), "atari": ("atari", "atari_reruns")}
OTHER_STUDIES = {"dmc": ("drqv2",)}  # included if one of their methods was run


def _published(task: str, methods: Collection[str]) -> list[Published]:
    suite = task.split("/")[0]
    rows = [row for name in PAPER_AND_RERUNS.get(suite, ()) for row in published(name)]
    for name in OTHER_STUDIES.get(suite, ()):
        rows += published(name) if {row.method for row in published(name)} & {*methods} else ()
    return [row for row in rows if row.task == task]


class Aggregate(NamedTuple):
    """Scores across the tasks of one suite under one profile, normalized by task, of the methods
    that were run on every task."""

    suite: str
    profile: str
    when: str
    scores: dict[str, np.ndarray]  # (runs, tasks)
    excluded: list[str]

    @property
    def about(self) -> str:
        return f"{self.suite}, {self.profile}, {self.when}"

    @property
    def name(self) -> str:
        """The name of the files of its table and figures."""
        return f"across {self.suite} {self.profile} {self.when}"


def aggregate_scores(group: SuiteResults) -> list[Aggregate]:
    """The scores across tasks at each step count that all tasks share; if they share none, at the
    end of each task. Tasks without a scale are excluded."""
    budgets = {
        task: steps
        for task in group.by_task
        if score_range(task) and (steps := group.report_steps[task])
    }
    if len(budgets) < 2:
        return []
    shared = sorted(set.intersection(*map(set, budgets.values())))
    plans = [(f"at {budget}", dict.fromkeys(budgets, budget)) for budget in shared]
    plans = plans or [
        ("at the end of each task", {task: steps[-1] for task, steps in budgets.items()})
    ]
    matrices = [(when, runs.score_matrix(group.rows, group.methods, plan)) for when, plan in plans]
    if group.suite == "atari":
        best = runs.best_scores(group.rows, group.methods, list(budgets))
        matrices.append(("best evaluation of each run", best))
    aggregates = []
    for when, scores in matrices:
        scaled = {m: normalized(s, list(budgets)) for m, s in scores.items() if len(s)}
        excluded = [method for method in group.methods if method not in scaled]
        if scaled:
            aggregates.append(Aggregate(group.suite, group.profile, when, scaled, excluded))
    return aggregates
