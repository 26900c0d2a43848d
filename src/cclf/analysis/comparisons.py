"""Tables that compare methods: differences in return, at the end and over training, and steps to a
return."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from cclf.analysis import runs, statistics
from cclf.analysis.runs import ResultRow, StepBudget
from cclf.analysis.statistics import Interval, mean_difference
from cclf.analysis.suites import Aggregate, SuiteResults
from cclf.analysis.table import Cell, Entry, Record, Table, format_number, interval_cell
from cclf.analysis.tables import budget_columns, short_task
from cclf.analysis.verdicts import MIN_SEEDS, TABLES, claims
from cclf.errors import ConfigError

REFERENCE_METHOD = "cclf"
MIN_EVALUATIONS = 8  # of a run, to compute its mean return over training
NEAR_BEST = 0.9  # fraction of the difference between the lowest return and the best final mean
BOLD = f"In bold: 0 is outside the interval, and both methods have {MIN_SEEDS} seeds or more."


def difference_cell(
    difference: Interval, ours: np.ndarray, theirs: np.ndarray, *notes: str
) -> Cell:
    """The difference with its interval, in bold if it is significant."""
    enough_seeds = min(len(ours), len(theirs)) >= MIN_SEEDS
    significant = enough_seeds and not difference.low <= 0 <= difference.high
    return interval_cell(difference, *notes, style="best" if significant else "")


def cohens_d(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The difference of the means of two score arrays (runs, 1), divided by their pooled standard
    deviation; nan if that is 0.

    >>> cohens_d(np.array([[2.0], [4.0]]), np.array([[1.0], [3.0]]))  # 1 / sqrt((2 + 2) / 2)
    0.7071067811865475
    """
    deviation = pooled_deviation(ours, theirs)
    return float((ours.mean() - theirs.mean()) / deviation) if deviation else float("nan")


def pooled_deviation(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The pooled standard deviation across seeds of two score arrays (runs, 1).

    >>> pooled_deviation(np.array([[2.0], [4.0]]), np.array([[1.0], [3.0]]))  # sqrt((2 + 2) / 2)
    1.4142135623730951
    """
    squares = sum(float(((part - part.mean()) ** 2).sum()) for part in (ours, theirs))
    return float(np.sqrt(squares / (len(ours) + len(theirs) - 2)))


def differences_table(group: SuiteResults) -> Table:
    """The difference of CCLF to each method with two seeds or more. Empty without such a
    method."""
    entries = []
    for line in group.scores_at_steps:
        ours = line.scores.get(REFERENCE_METHOD, np.empty((0, 1)))
        for baseline in group.methods:
            theirs = line.scores[baseline]
            if baseline == REFERENCE_METHOD or min(len(ours), len(theirs)) < 2:
                continue
            difference, d = (
                statistics.bootstrap_statistic([ours, theirs], mean_difference),
                cohens_d(ours, theirs),
            )
            record: Record = {
                "task": line.task,
                "profile": group.profile,
                **budget_columns(line),
                "method": REFERENCE_METHOD,
                "rival": baseline,
                "seeds": len(ours),
                "rival_seeds": len(theirs),
                **difference.columns("difference"),
                "d": d,
            }
            label = (Cell(short_task(line.task), (line.label,)),)
            cell = difference_cell(difference, ours, theirs, f"d {format_number(d)}")
            entries.append(Entry(label, record, baseline, cell))
    caption = (
        f"difference in mean return, {REFERENCE_METHOD} − each method, with its 95 % interval; d: "
        "the difference divided by the pooled standard deviation across seeds."
    )
    name, title = f"differences-{group.suite}-{group.profile}", "Difference to other methods"
    compared = {entry.column for entry in entries}
    columns = tuple(method for method in group.methods if method in compared)
    return Table(name, entries, ("task",), columns, title, group.name, caption, BOLD)


ACROSS_TASKS = {
    f"IQM, {REFERENCE_METHOD} − method": statistics.iqm_difference,
    "probability of improvement": statistics.probability_of_improvement,
}


def across_tasks_table(aggregate: Aggregate) -> Table:
    """CCLF compared with each method over all tasks, in normalized scores. Empty if
    CCLF was not run."""
    entries: list[Entry] = []
    units: dict[str, str] = {}
    ours = aggregate.scores.get(REFERENCE_METHOD)
    for baseline, theirs in aggregate.scores.items():
        if ours is None or baseline == REFERENCE_METHOD:
            continue
        units[baseline] = statistics.resampled_unit([ours, theirs])
        for quantity, statistic in ACROSS_TASKS.items():
            interval = statistics.bootstrap_statistic([ours, theirs], statistic)
            record: Record = {
                "suite": aggregate.suite,
                "profile": aggregate.profile,
                "when": aggregate.when,
                "method": REFERENCE_METHOD,
                "rival": baseline,
                "seeds": len(ours),
                "rival_seeds": len(theirs),
                "quantity": quantity,
                **interval.columns(),
                "interval_over": units[baseline],
            }
            entries.append(Entry((Cell(baseline),), record, quantity, interval_cell(interval)))
        won = int((ours.mean(axis=0) > theirs.mean(axis=0)).sum())
        cell = Cell(f"{won} of {ours.shape[1]}")
        entries.append(Entry((Cell(baseline),), None, "tasks won", cell))
    caption = (
        f"comparison of {REFERENCE_METHOD} with each method, with 95 % intervals. IQM: the mean of "
        "the middle half of all runs, each on the scale of its task. Probability of improvement: how often a "
        f"run of {REFERENCE_METHOD} has the larger return on the same task; 0.5 is no difference. "
        f"Tasks won: those on which the mean of {REFERENCE_METHOD} is larger."
    )
    if single := [baseline for baseline, unit in units.items() if unit == "tasks"]:
        caption += (
            f" One of the two has one seed, so intervals resample the tasks: {', '.join(single)}."
        )
    name = f"comparison {aggregate.about.replace(',', '')}"  # documents refer to it by this name
    title = f"{REFERENCE_METHOD} and other methods across tasks"
    columns = (*ACROSS_TASKS, "tasks won")
    return Table(name, entries, ("method",), columns, title, aggregate.about, caption)


def steps_table(group: SuiteResults) -> Table:
    """Median steps until runs come near the best final return, how many reach it, and how many of
    those end below the midpoint between the lowest and the best return."""
    lowest, claimed = runs.lowest_returns(group.rows), _claimed_returns(group.suite)
    entries, uncompared = [], []
    for task, by_run in group.runs_by_task.items():
        budgets = group.report_steps[task]
        if not budgets or all(len(evaluations) == 1 for evaluations in by_run.values()):
            continue  # not finished, or evaluated at the end only
        try:
            runs.check_same_evaluation_steps(by_run)
        except ConfigError:
            uncompared.append(short_task(task))
            continue
        final = runs.score_matrix(group.by_task[task], group.methods, {task: budgets[-1]})
        best = max(float(statistics.mean(scores)) for scores in final.values() if len(scores))
        progress = best - lowest[task]
        threshold = claimed.get(task, lowest[task] + NEAR_BEST * progress)
        label = (Cell(short_task(task), (f"to a return of {format_number(threshold)}",)),)
        ended = [
            (key.method, evaluations)
            for key, evaluations in by_run.items()
            if runs.evaluation_at(evaluations, budgets[-1]) or evaluations[-1].state == "failed"
        ]
        for method in group.methods:
            histories = [evaluations for other, evaluations in ended if other == method]
            if not histories:
                continue
            steps = [runs.steps_to(evaluations, threshold) for evaluations in histories]
            reached, median = int(np.isfinite(steps).sum()), float(np.median(steps))
            midpoint = lowest[task] + 0.5 * progress
            lost = sum(
                step < np.inf and (last.state == "failed" or last.return_mean < midpoint)
                for step, (*_, last) in zip(steps, histories, strict=True)
            )
            share = statistics.wilson_interval(reached, len(histories))
            record: Record = {
                "task": task,
                "profile": group.profile,
                "threshold": threshold,
                "method": method,
                "runs": len(histories),
                "median_env_steps": median,
                "reached": reached,
                "reached_low": float(share.low),
                "reached_high": float(share.high),
                "lost": lost,
            }
            notes = (f"{reached} of {len(histories)} runs", *[f"{lost} lost it again"] * bool(lost))
            entries.append(Entry(label, record, method, Cell(format_number(median), notes)))
    name, title = f"steps-{group.suite}-{group.profile}", "Steps to a return"
    way = "of the way from the task's lowest return to the best method's final mean"
    thresholds = ["the one that a claim names"] * bool(claimed)
    thresholds += [f"nine tenths {way}"] * bool(set(group.by_task) - set(claimed))
    caption = (
        f"median environment steps to a return, {', or else '.join(thresholds)}. "
        f"A run that does not reach it counts as infinity. Lost: ended below half {way}."
    )
    if uncompared:
        caption += f" Evaluated at different steps, so not compared: {', '.join(uncompared)}."
    return Table(name, entries, ("task",), tuple(group.methods), title, group.name, caption)


def _claimed_returns(suite: str) -> dict[str, float]:
    """By task the highest return that a claim about steps names, so that the table and the verdicts
    agree."""
    claimed = [
        (task, claim.threshold)
        for table in TABLES
        for claim in claims(table)
        for task in claim.tasks
        if claim.measure == "steps" and claim.threshold and task.startswith(f"{suite}/")
    ]
    return dict(sorted(claimed))  # the highest comes last


REFERENCE_METHODS = ("cclf", "curl")  # CCLF, and the same without curiosity


def over_training_table(group: SuiteResults) -> Table:
    """Mean returns over training, on tasks where at least two methods have two seeds that were
    evaluated at the same steps."""
    entries = []
    for task in group.by_task:
        means = means_over_training(group, task)
        if len(means) < 2:
            continue
        for method, scores in means.items():
            interval = statistics.interval(scores, statistics.mean)
            record: Record = {
                "task": task,
                "profile": group.profile,
                "method": method,
                "seeds": len(scores),
                **interval.columns("mean"),
            }
            seeds = Cell(str(len(scores)))
            label = (Cell(method), Cell(short_task(task)), seeds, interval_cell(interval))
            row = [Entry(label, record)]
            for reference in REFERENCE_METHODS:
                names = [f"{reference}_less_it{end}" for end in ("", "_low", "_high")]
                record |= dict.fromkeys(names, np.nan)
                if reference != method and reference in means:
                    difference = statistics.bootstrap_statistic(
                        [means[reference], scores], mean_difference
                    )
                    record |= zip(names, difference.floats(), strict=True)
                    cell = difference_cell(difference, means[reference], scores)
                    row.append(Entry(label, None, f"{reference} − method", cell))
            entries += row
    caption = (
        "mean return over training (the mean of all evaluations of a run), and the difference of "
        "another method to it, with 95 % intervals."
    )
    labels = ("method", "task", "seeds", "mean over training")
    compared = {entry.column for entry in entries}
    columns = tuple(name for m in REFERENCE_METHODS if (name := f"{m} − method") in compared)
    name, title = f"training-{group.suite}-{group.profile}", "Returns over training"
    return Table(name, entries, labels, columns, title, group.name, caption, BOLD)


def means_over_training(group: SuiteResults, task: str) -> dict[str, np.ndarray]:
    """By method the mean return over training of each run (runs, 1): of runs that were evaluated
    at the most common steps, and of failed runs. Methods with a single run are excluded."""
    by_run = group.runs_by_task[task]
    finished = [
        _steps_of(evaluations) for evaluations in by_run.values() if evaluations[-1].state == "done"
    ]
    most_common = Counter(finished).most_common(1)[0][0] if finished else ()
    if len(most_common) < MIN_EVALUATIONS:
        return {}
    rows = [
        row
        for evaluations in by_run.values()
        if evaluations[-1].state == "failed" or _steps_of(evaluations) == most_common
        for row in evaluations
    ]
    means = runs.mean_returns(rows, group.methods, task, StepBudget("env_steps", most_common[-1]))
    return {method: scores for method, scores in means.items() if len(scores) > 1}


def _steps_of(evaluations: Sequence[ResultRow]) -> tuple[int, ...]:
    return tuple(row.env_steps for row in evaluations)
