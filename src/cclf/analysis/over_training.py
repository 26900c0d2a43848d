"""How well methods did while they learned: the mean return over all evaluations of a run."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from cclf.analysis import evaluations, statistics
from cclf.analysis.differences import NOTHING_TO_COMPARE, less
from cclf.analysis.evaluations import Clock, Row
from cclf.analysis.groups import Group
from cclf.analysis.page import Cell
from cclf.analysis.tabular import Table, number
from cclf.analysis.verdict import MIN_SEEDS

MIN_EVALUATIONS = 8  # of a run: fewer say little about the time between them
RIVALS = ("cclf", "curl")  # the method of the paper, and what is left of it without curiosity
COLUMNS = (
    *("task", "profile", "method", "seeds", "mean", "low", "high"),
    *(f"{rival}_less_it{part}" for rival in RIVALS for part in ("", "_low", "_high")),
)


def over_training_table(group: Group) -> Table:
    """Tasks where two methods or more have two seeds or more, evaluated at the same steps; failed
    runs count as everywhere."""
    shown, data = [], []
    for task in group.tasks:
        means = means_over_training(group, task)
        if len(means) < 2:
            continue
        for method, scores in means.items():
            interval = statistics.interval(scores, statistics.mean)
            mean, low, high = (float(value) for value in interval)
            cells = [Cell(method), Cell(task.partition("/")[2]), Cell(str(len(scores)))]
            cells.append(Cell(number(mean), (f"[{number(low)}, {number(high)}]",)))
            numbers: list[object] = [task, group.profile, method, len(scores), mean, low, high]
            for rival in RIVALS:
                found = NOTHING_TO_COMPARE
                if rival != method and rival in means:
                    found = less(means[rival], scores)
                cells.append(found.cell)
                numbers += found[:3]
            shown.append(tuple(cells))
            data.append(tuple(numbers))
    caption = (
        "mean return over training (the mean of all evaluations of a run), and by how much that "
        "of another method is larger, with 95 % intervals. In bold: 0 lies outside, and both have "
        f"{MIN_SEEDS} seeds or more."
    )
    differences = [f"{rival} less it" for rival in RIVALS]
    header = ("method", "task", "seeds", "mean over training", *differences)
    name, title = f"training-{group.suite}-{group.profile}", "Returns over training"
    return Table(name, caption, header, shown, COLUMNS, data, title=title, about=group.name)


def means_over_training(group: Group, task: str) -> dict[str, np.ndarray]:
    """By method, (runs, 1): of runs that were evaluated when most of them were, and of those that
    failed. Methods of one run are left out."""
    runs = {
        name: found for name, found in evaluations.runs(group.rows).items() if name.task == task
    }
    finished = [_schedule(found) for found in runs.values() if found[-1].state == "done"]
    usual = Counter(finished).most_common(1)[0][0] if finished else ()
    if len(usual) < MIN_EVALUATIONS:
        return {}
    rows = [
        row
        for found in runs.values()
        if found[-1].state == "failed" or _schedule(found) == usual
        for row in found
    ]
    means = evaluations.mean_returns(rows, group.methods, Clock("env_steps", usual[-1]))
    return {method: scores for method, scores in means.items() if len(scores) > 1}


def _schedule(readings: Sequence[Row]) -> tuple[int, ...]:
    return tuple(row.env_steps for row in readings)
