"""Effect sizes of a report: how far CCLF lies above or below each other method."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cclf.analysis import statistics
from cclf.analysis.groups import Aggregate, Group, moments
from cclf.analysis.page import Cell
from cclf.analysis.tabular import Table, number
from cclf.analysis.verdict import MIN_SEEDS

OURS = "cclf"
COLUMNS = (
    "task",
    "profile",
    "clock",
    "steps",
    "method",
    "rival",
    "seeds",
    "rival_seeds",
    "difference",
    "low",
    "high",
    "d",
)


def standardised(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Cohen's d: the difference of means over the pooled deviation of seeds, runs x 1 each; nan
    where no seed differs from another.

    >>> standardised(np.array([[2.0], [4.0]]), np.array([[1.0], [3.0]]))  # 1 / sqrt((2 + 2) / 2)
    0.7071067811865475
    """
    deviation = pooled_deviation(ours, theirs)
    return float((ours.mean() - theirs.mean()) / deviation) if deviation else float("nan")


def pooled_deviation(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Of seeds around the mean of their method, runs x 1 each.

    >>> pooled_deviation(np.array([[2.0], [4.0]]), np.array([[1.0], [3.0]]))  # sqrt((2 + 2) / 2)
    1.4142135623730951
    """
    squares = sum(float(((part - part.mean()) ** 2).sum()) for part in (ours, theirs))
    return float(np.sqrt(squares / (len(ours) + len(theirs) - 2)))


class Difference(NamedTuple):
    """Of two means, with its interval; `cell` shows it, in bold where 0 lies outside the interval
    and both have seeds enough."""

    estimate: float
    low: float
    high: float
    cell: Cell


ACROSS_COLUMNS = (
    "suite",
    "profile",
    "when",
    "method",
    "rival",
    "seeds",
    "rival_seeds",
    "quantity",
    "estimate",
    "low",
    "high",
    "interval_over",
)

NOTHING_TO_COMPARE = Difference(*(np.nan, np.nan, np.nan), Cell("–"))


def less(ours: np.ndarray, theirs: np.ndarray) -> Difference:
    """The mean of `ours` less that of `theirs`, runs x 1 each."""
    interval = statistics.compare(
        [ours, theirs], lambda parts: statistics.mean(parts[0]) - statistics.mean(parts[1])
    )
    estimate, low, high = (float(value) for value in interval)
    apart = min(len(ours), len(theirs)) >= MIN_SEEDS and not low <= 0 <= high
    cell = Cell(number(estimate), (f"[{number(low)}, {number(high)}]",), "best" if apart else "")
    return Difference(estimate, low, high, cell)


def differences_table(group: Group) -> Table:
    """CCLF less each method of two seeds or more; empty where there is none."""
    lines = [line for line in moments(group) if len(line.scores.get(OURS, ())) > 1]
    rivals = [
        method
        for method in group.methods
        if method != OURS and any(len(line.scores[method]) > 1 for line in lines)
    ]
    shown, data = [], []
    for line in lines:
        ours = line.scores[OURS]
        cells = [Cell(line.task.partition("/")[2], (line.label,))]
        for rival in rivals:
            theirs = line.scores[rival]
            if len(theirs) < 2:
                cells.append(Cell("–"))
                continue
            found, d = less(ours, theirs), standardised(ours, theirs)
            cells.append(found.cell._replace(notes=(*found.cell.notes, f"d {number(d)}")))
            where = (line.task, group.profile, *line.clock, OURS, rival)
            data.append((*where, len(ours), len(theirs), *found[:3], d))
        if any(cell.notes for cell in cells[1:]):
            shown.append(tuple(cells))
    caption = (
        f"mean return of {OURS} less that of each method, with its "
        "95 % interval; d: the same over the pooled deviation of seeds. In bold: 0 lies outside "
        f"the interval, and both methods have {MIN_SEEDS} seeds or more."
    )
    name = f"differences-{group.suite}-{group.profile}"
    title = f"{OURS} less the others"
    return Table(
        name, caption, ("task", *rivals), shown, COLUMNS, data, title=title, about=group.name
    )


def _less_of_iqm(pair: Sequence[np.ndarray]) -> np.ndarray:
    return np.asarray(statistics.iqm(pair[0]) - statistics.iqm(pair[1]))


def _beats(pair: Sequence[np.ndarray]) -> np.ndarray:
    return statistics.better_share(pair[0], pair[1])


ACROSS = {f"IQM, {OURS} less it": _less_of_iqm, f"a run of {OURS} beats one of it": _beats}


def across_table(aggregate: Aggregate) -> Table:
    """CCLF beside each method over all tasks at once, on their scales; empty without it."""
    shown, data, redrawn = [], [], {}
    rivals = [each for each in aggregate.scores if each != OURS and OURS in aggregate.scores]
    for rival in rivals:
        ours, theirs = aggregate.scores[OURS], aggregate.scores[rival]
        redrawn[rival] = over = statistics.over([ours, theirs])
        cells = [Cell(rival)]
        for quantity, statistic in ACROSS.items():
            found = statistics.compare([ours, theirs], statistic)
            estimate, low, high = (float(value) for value in found)
            cells.append(Cell(number(estimate), (f"[{number(low)}, {number(high)}]",)))
            where = (aggregate.suite, aggregate.profile, aggregate.when, OURS, rival)
            seeds = (len(ours), len(theirs))
            data.append((*where, *seeds, quantity, estimate, low, high, over))
        won = int((ours.mean(axis=0) > theirs.mean(axis=0)).sum())
        shown.append((*cells, Cell(f"{won} of {ours.shape[1]}")))
    caption = (
        f"what sets {OURS} apart from each method, with 95 % intervals. IQM: the mean of the "
        "middle half of all runs, each on the scale of its task. A run beats another on the same task: 0.5 is a draw. "
        f"Tasks won: where the mean of {OURS} is larger."
    )
    if single := [rival for rival, over in redrawn.items() if over == "tasks"]:
        caption += (
            f" One of the two has one seed, so intervals redraw the tasks: {', '.join(single)}."
        )
    about = f"{aggregate.suite}, {aggregate.profile}, {aggregate.when}"
    name, title = f"beside {about.replace(',', '')}", f"{OURS} and the others across tasks"
    header = ("method", *ACROSS, "tasks won")
    return Table(name, caption, header, shown, ACROSS_COLUMNS, data, title=title, about=about)
