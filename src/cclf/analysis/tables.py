"""Tables of what runs reached: returns at each reported step count and across tasks, training time,
verdicts on claims, and runs that are not finished."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from cclf.analysis import statistics
from cclf.analysis.published import published
from cclf.analysis.runs import RunKey, Runs, group_by
from cclf.analysis.suites import Aggregate, ScoresAtStep, SuiteResults, sort_methods
from cclf.analysis.table import (
    MISSING,
    Cell,
    Entry,
    Record,
    Table,
    format_interval,
    format_number,
    format_seeds,
    interval_cell,
)
from cclf.analysis.verdicts import MIN_SEEDS, TABLES, Claim, Verdict

ClaimResults = Mapping[str, Sequence[tuple[Claim, Verdict]]]  # by profile


BEST_IN_BOLD = (
    "In bold: a mean whose interval is above those of all other methods on the task, if each has "
    f"{MIN_SEEDS} seeds or more."
)


def score_tables(group: SuiteResults) -> list[Table]:
    """Mean ± standard deviation with its interval and the published value; the best evaluations
    of runs in a table of their own."""
    at_steps = [scores for scores in group.scores_at_steps if scores.budget]
    best = [scores for scores in group.scores_at_steps if not scores.budget]
    deviation = "± standard deviation across seeds, 95 % interval of the mean."
    best_caption = "the best evaluation of each run during training, as CURL's paper reports it, "
    tables = [
        _score_table(group, "returns", "Returns", at_steps, f"mean return {deviation}"),
        _score_table(group, "best-evaluations", "Best evaluations", best, best_caption + deviation),
    ]
    return [table for table in tables if table.entries]


def _score_table(
    group: SuiteResults, name: str, title: str, lines: Sequence[ScoresAtStep], caption: str
) -> Table:
    failed = {(row.method, row.task) for row in group.rows if row.state == "failed"}
    entries = []
    for line in lines:
        scores = {method: values for method, values in line.scores.items() if len(values)}
        intervals = {m: statistics.interval(s, statistics.mean) for m, s in scores.items()}
        best = _clearly_best(scores, intervals)
        row = (Cell(short_task(line.task), (line.label,)),)
        for method in dict.fromkeys((*scores, *line.published)):
            paper = line.published.get(method)
            published_note = [f"published {_plus_minus(paper.mean, paper.std)}"] if paper else []
            if method not in scores:
                entries.append(Entry(row, None, method, Cell(MISSING, tuple(published_note))))
                continue
            (mean, *limits), seeds = intervals[method].floats(), len(scores[method])
            std = float(statistics.std(scores[method])) if seeds > 1 else None
            low, high = limits if seeds > 1 else (None, None)
            count = format_seeds(seeds) + ", some failed" * ((method, line.task) in failed)
            own_notes = [format_interval(*limits), count] if seeds > 1 else [count]
            record: Record = {
                "task": line.task,
                "profile": group.profile,
                **budget_columns(line),
                "method": method,
                "seeds": seeds,
                "mean": mean,
                "std": std,
                "low": low,
                "high": high,
                "published_mean": paper and paper.mean,
                "published_std": paper and paper.std,
                "published_source": paper and paper.source,
            }
            style = "best" if method == best else ""
            cell = Cell(_plus_minus(mean, std), (*own_notes, *published_note), style)
            entries.append(Entry(row, record, method, cell))
    columns = (*group.methods, *_published_reruns(group.methods, lines))
    name = f"{name}-{group.suite}-{group.profile}"
    return Table(name, entries, ("task",), columns, title, group.name, caption, BEST_IN_BOLD)


def budget_columns(line: ScoresAtStep) -> Record:
    unit, steps = line.budget or ("best", "")
    return {"clock": unit, "steps": steps}


def _published_reruns(methods: Sequence[str], lines: Iterable[ScoresAtStep]) -> list[str]:
    """Published re-runs of methods that were run here, whose names begin with the method
    (curl-rliable-final). Columns of other methods would be empty."""
    known = dict.fromkeys(method for line in lines for method in line.published)
    return [
        name
        for name in known
        if name not in methods and any(name.startswith(f"{method}-") for method in methods)
    ]


def _clearly_best(
    scores: Mapping[str, np.ndarray], intervals: Mapping[str, statistics.Interval]
) -> str | None:
    """The method whose interval is above those of all others. Intervals of few seeds are too
    narrow to decide."""
    if len(scores) < 2 or any(len(values) < MIN_SEEDS for values in scores.values()):
        return None
    best = max(intervals, key=lambda method: float(intervals[method].estimate))
    others = (interval for method, interval in intervals.items() if method != best)
    return best if all(intervals[best].low > other.high for other in others) else None


def short_task(task: str) -> str:
    """The name of a task without its suite, which the title of the table contains."""
    return task.partition("/")[2] or task


def _plus_minus(mean: float, std: float | None) -> str:
    return format_number(mean) if std is None else f"{format_number(mean)} ± {format_number(std)}"


ESTIMATORS = {
    "IQM": statistics.iqm,
    "median": statistics.median,
    "mean": statistics.mean,
    "optimality gap": statistics.optimality_gap,
}
SCALES = {"atari": "0 is a random agent, 1 a human.", "dmc": "Returns over 1,000."}


def aggregate_table(aggregate: Aggregate) -> Table:
    """Estimates of the normalized scores across tasks, by method."""
    entries = []
    units = {m: statistics.resampled_unit([scores]) for m, scores in aggregate.scores.items()}
    for method, scores in aggregate.scores.items():
        row = (Cell(method, (f"{format_seeds(len(scores))} × {scores.shape[1]} tasks",)),)
        for name, estimator in ESTIMATORS.items():
            interval = statistics.interval(scores, estimator)
            record: Record = {
                "suite": aggregate.suite,
                "profile": aggregate.profile,
                "when": aggregate.when,
                "method": method,
                "estimator": name,
                "seeds": len(scores),
                **interval.columns(),
                "interval_over": units[method],
            }
            entries.append(Entry(row, record, name, interval_cell(interval)))
    caption = SCALES.get(aggregate.suite, "Returns as they are.")
    if aggregate.suite == "atari":
        entries += _published_aggregates(best="best" in aggregate.when)
        caption += " Published rows are of all 26 games."
    if single := [method for method, unit in units.items() if unit == "tasks"]:
        caption += (
            " One seed, so intervals resample the tasks and do not show the variation between "
            f"seeds: {', '.join(single)}."
        )
    if aggregate.excluded:
        caption += f" Not on every task, so excluded: {', '.join(aggregate.excluded)}."
    columns, title = tuple(ESTIMATORS), "Across tasks"
    return Table(aggregate.name, entries, ("method",), columns, title, aggregate.about, caption)


PUBLISHED_QUANTITIES = {"hns-iqm": "IQM", "hns-median": "median", "hns-mean": "mean"}


def _published_aggregates(best: bool) -> list[Entry]:
    """Published aggregates of the best evaluations, or of the last ones."""
    rows = [row for row in published("atari_aggregates") if ("best" in row.source) == best]
    entries = []
    for method, method_rows in group_by(rows, lambda row: row.method).items():
        quantities = {row.quantity: row for row in method_rows}
        is_rerun = quantities["hns-mean"].source.startswith("re-run")
        label = (Cell(method, ("re-run" if is_rerun else "published",)),)
        for quantity, column in PUBLISHED_QUANTITIES.items():
            if quantity in quantities:
                cell = Cell(format_number(quantities[quantity].mean))
                entries.append(Entry(label, None, column, cell))
    return entries


def cost_table(group: SuiteResults) -> Table:
    """Wall time of complete runs, evaluation included, by machine."""
    last = [run[-1] for by_run in group.runs_by_task.values() for run in by_run.values()]
    timed = [row for row in last if row.state == "done" and row.wall_seconds > 0]
    tasks = list(group.by_task)
    by_machine = group_by(timed, lambda row: (tasks.index(row.task), row.device, row.method))
    methods = sort_methods(group.suite, (row.method for row in timed))
    entries = []
    for (task_number, device, method), rows in sorted(
        by_machine.items(), key=lambda item: (*item[0][:2], methods.index(item[0][2]))
    ):
        task = tasks[task_number]
        seconds = float(np.median([row.wall_seconds for row in rows]))
        updates = float(np.median([row.updates / row.wall_seconds for row in rows]))
        steps = float(np.median([row.env_steps / row.wall_seconds for row in rows]))
        record: Record = {
            "task": task,
            "profile": group.profile,
            "device": device,
            "method": method,
            "runs": len(rows),
            "median_wall_seconds": seconds,
            "updates_per_second": updates,
            "env_steps_per_second": steps,
        }
        notes = (f"{format_number(updates)} updates/s", f"{format_number(steps)} env steps/s")
        cell = Cell(f"{format_number(seconds)} s", notes)
        entries.append(Entry((Cell(short_task(task), (device,)),), record, method, cell))
    caption = "median of finished runs, evaluation included; one row per kind of machine."
    name = f"cost-{group.suite}-{group.profile}"
    return Table(name, entries, ("task",), tuple(methods), "Cost", group.name, caption)


def verdict_table(table: str, results: ClaimResults) -> Table:
    """One row per claim, one column per profile."""
    entries = []
    for pairs in zip(*results.values(), strict=True):  # every profile has the same claims
        for profile, (claim, verdict) in zip(results, pairs, strict=True):
            record: Record = {
                "table": table,
                "claim": claim.name,
                "profile": profile,
                "verdict": verdict.state,
                "estimate": verdict.estimate,
                "low": verdict.low,
                "high": verdict.high,
                "seeds": verdict.seeds,
                "why": verdict.text,
                "text": claim.text,
                "source": claim.source,
            }
            label = (Cell(claim.text, (claim.source,), "claim"),)
            cell = Cell(verdict.state, (verdict.text,), verdict.state)
            entries.append(Entry(label, record, profile, cell))
    title, columns = TABLES[table], tuple(results)
    name = f"verdicts-{table}"
    return Table(name, entries, (title,), columns, f"Claims about {title}", stacked=True)


def runs_table(runs: Runs, reasons: Mapping[RunKey, str]) -> Table:
    """The runs that are not finished."""
    entries = []
    for key, evaluations in runs.items():
        last = evaluations[-1]
        if last.state != "done":
            values = (last.state, last.env_steps, reasons.get(key, ""))
            columns = dict(zip(("state", "env_steps", "reason"), values, strict=True))
            label = Cell(f"{key.task} {key.method}", (f"{key.profile}, seed {key.seed}",))
            row = (label, *(Cell(str(value)) for value in values))
            entries.append(Entry(row, key._asdict() | columns))
    caption = (
        "Failed runs count in every statistic, with the lowest return of their task; unfinished "
        "ones up to the step that they reached."
    )
    labels, title = ("run", "state", "env steps", "reason"), "Failed and unfinished runs"
    return Table("not-done", entries, labels, title=title, caption=caption, stacked=True)


def origin_table(facts: Mapping[str, set[str]]) -> Table:
    """Machines, commits and versions; if there are more than six values, their number."""
    entries = []
    for name, values in facts.items():
        text = ", ".join(sorted(values)) if len(values) <= 6 else f"{len(values)} different"
        row = (Cell(name), Cell(text, style="word"))
        entries.append(Entry(row, {"fact": name, "value": text}))
    return Table("origin", entries, ("fact", ""), stacked=True)
