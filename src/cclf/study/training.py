"""How well methods did while they learned: the mean return over all evaluations of a run."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from cclf.study import load, statistics
from cclf.study.groups import Group
from cclf.study.load import Row
from cclf.study.page import Cell
from cclf.study.tabular import Table, number
from cclf.study.verdict import MIN_SEEDS

MIN_EVALUATIONS = 8  # of a run: fewer say little about the time between them
RIVALS = ("cclf", "curl")  # the method of the paper, and what is left of it without curiosity
COLUMNS = (
    *("task", "profile", "method", "seeds", "mean", "low", "high"),
    *(f"{rival}_less_it{part}" for rival in RIVALS for part in ("", "_low", "_high")),
)


def training_table(group: Group) -> Table:
    """Tasks where two methods or more have two seeds or more, evaluated at the same steps."""
    shown, data = [], []
    for task in group.tasks:
        means = _means(group, task)
        if len(means) < 2:
            continue
        for method, scores in means.items():
            interval = statistics.interval(scores, statistics.mean)
            mean, low, high = (float(value) for value in interval)
            cells = [Cell(method), Cell(task.partition("/")[2]), Cell(str(len(scores)))]
            cells.append(Cell(number(mean), (f"[{number(low)}, {number(high)}]",)))
            numbers: list[object] = [task, group.profile, method, len(scores), mean, low, high]
            for rival in RIVALS:
                cell, found = _less(means.get(rival), scores, is_itself=rival == method)
                cells.append(cell)
                numbers += found
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


def _less(ours: np.ndarray | None, theirs: np.ndarray, is_itself: bool) -> tuple[Cell, list[float]]:
    if ours is None or is_itself:
        return Cell("–"), [float("nan")] * 3
    interval = statistics.compare(
        [ours, theirs], lambda parts: statistics.mean(parts[0]) - statistics.mean(parts[1])
    )
    estimate, low, high = (float(value) for value in interval)
    apart = min(len(ours), len(theirs)) >= MIN_SEEDS and not low <= 0 <= high
    note = f"[{number(low)}, {number(high)}]"
    return Cell(number(estimate), (note,), "best" if apart else ""), [estimate, low, high]


def _means(group: Group, task: str) -> dict[str, np.ndarray]:
    """By method, (runs, 1): of finished runs that were evaluated when most of them were."""
    finished = {
        name: readings
        for name, readings in load.runs(group.rows).items()
        if name.task == task and readings[-1].state == "done"
    }
    schedules = Counter(_schedule(readings) for readings in finished.values())
    usual = schedules.most_common(1)[0][0] if schedules else ()
    if len(usual) < MIN_EVALUATIONS:
        return {}
    means: dict[str, list[list[float]]] = {method: [] for method in group.methods}
    for name, readings in finished.items():
        if _schedule(readings) == usual:
            means[name.method].append([float(np.mean([row.return_mean for row in readings]))])
    return {method: np.array(runs) for method, runs in means.items() if len(runs) > 1}


def _schedule(readings: Sequence[Row]) -> tuple[int, ...]:
    return tuple(row.env_steps for row in readings)
