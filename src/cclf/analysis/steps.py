"""The table of steps to a return: how soon runs got there, how many did, how many lost it again."""

from collections.abc import Mapping

import numpy as np

from cclf.analysis import evaluations, statistics
from cclf.analysis.groups import Group, clocks_of
from cclf.analysis.page import Cell
from cclf.analysis.tabular import Table, number
from cclf.analysis.verdict import TABLES, claims
from cclf.errors import ConfigError

NEAR_BEST = 0.9


def steps_table(group: Group) -> Table:
    """Median steps until a run is near the best, how many got there, and how many lost it again."""
    rows, methods, profile = group.rows, group.methods, group.profile
    lowest, claimed = evaluations.lowest_returns(rows), _claimed_returns(group.suite)
    shown, data = [], []
    for task in group.tasks:
        clocks = clocks_of(rows, task)
        if not clocks:
            continue
        part = [row for row in rows if row.task == task]
        if all(len(readings) == 1 for readings in evaluations.runs(part).values()):
            continue  # evaluated at the end alone: nothing was reached on the way
        try:
            evaluations.refuse_other_spacing(part)
        except ConfigError as error:
            shown.append(
                (Cell(task.partition("/")[2], (str(error),), "word"), *(Cell("–") for _ in methods))
            )
            continue
        finals = evaluations.scores(part, methods, {task: clocks[-1]})
        best = max(float(statistics.mean(scores)) for scores in finals.values() if len(scores))
        way = best - lowest[task]
        near = claimed.get(task, lowest[task] + NEAR_BEST * way)
        half = lowest[task] + 0.5 * way
        cells = [Cell(task.partition("/")[2], (f"to a return of {number(near)}",))]
        for method in methods:
            runs = [
                readings
                for name, readings in evaluations.runs(part).items()
                if name.method == method
                and (evaluations.at(readings, clocks[-1]) or readings[-1].state == "failed")
            ]
            if not runs:
                cells.append(Cell("–"))
                continue
            steps = [evaluations.steps_to(readings, near) for readings in runs]
            reached = sum(np.isfinite(steps))
            ended_low = [
                readings[-1].state == "failed" or readings[-1].return_mean < half
                for readings in runs
            ]
            lost = sum(low for low, step in zip(ended_low, steps, strict=True) if np.isfinite(step))
            median = float(np.median(steps))
            share = statistics.rate_interval(int(reached), len(runs))
            notes = [f"{reached} of {len(runs)} runs"] + [f"{lost} lost it again"] * bool(lost)
            cells.append(Cell(number(median), tuple(notes)))
            data.append(
                (
                    task,
                    profile,
                    near,
                    method,
                    len(runs),
                    median,
                    reached,
                    float(share.low),
                    float(share.high),
                    lost,
                )
            )
        shown.append(tuple(cells))
    columns = (
        "task",
        "profile",
        "threshold",
        "method",
        "runs",
        "median_env_steps",
        "reached",
        "reached_low",
        "reached_high",
        "lost",
    )
    caption = _steps_caption(group, claimed)
    name, header = f"steps-{group.suite}-{profile}", ("task", *methods)
    title = "Steps to a return"
    return Table(name, caption, header, shown, columns, data, title=title, about=group.name)


def _steps_caption(group: Group, claimed: Mapping[str, float]) -> str:
    way = "of the way from the task's lowest return to the best method's final mean"
    named = "the one that a claim names" if claimed else ""
    near = f"nine tenths {way}" if set(group.tasks) - set(claimed) else ""
    return (
        f"median environment steps to a return, "
        f"{', or else '.join(filter(None, (named, near)))}. A run that never got there counts as "
        f"infinity. Lost: ended below half {way}."
    )


def _claimed_returns(suite: str) -> dict[str, float]:
    """By task the highest return that a claim about steps speaks of, so that table and verdicts
    tell the same."""
    found: dict[str, float] = {}
    for claim in (claim for table in TABLES for claim in claims(table)):
        if claim.measure == "steps" and claim.threshold is not None:
            for task in claim.tasks:
                if task.startswith(f"{suite}/"):
                    found[task] = max(claim.threshold, found.get(task, claim.threshold))
    return found
