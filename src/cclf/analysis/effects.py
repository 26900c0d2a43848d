"""One difference on many tasks: how far a method lies above another, in a unit that tasks share."""

from collections.abc import Sequence

import numpy as np

from cclf.analysis.differences import less, pooled_deviation
from cclf.analysis.evaluations import Row
from cclf.analysis.groups import group_rows, moments
from cclf.analysis.over_training import means_over_training
from cclf.analysis.statistics import Interval

FEWEST = 2  # seeds of each: one has no deviation


def effects(rows: Sequence[Row], method: str, rival: str) -> dict[str, Interval]:
    """Means of `method` less those of `rival` on each task under each profile, in pooled deviations
    of their seeds, with 95 % intervals: of the mean over training where runs were evaluated often
    enough, else at the end. A label names task, profile and seeds, and says `end`."""
    found = {}
    for group in group_rows(rows):
        ends = {at.task: at.scores for at in moments(group) if at.clock[0] != "best"}
        for task in group.tasks:
            when, scores = "", means_over_training(group, task)
            if not {method, rival} <= scores.keys():
                when, scores = ", end", ends.get(task, {})
            ours, theirs = (scores.get(name, np.empty((0, 1))) for name in (method, rival))
            if min(len(ours), len(theirs)) < FEWEST:
                continue
            unit = pooled_deviation(ours, theirs)
            if unit == 0:
                continue
            seeds = " and ".join(dict.fromkeys(str(len(part)) for part in (ours, theirs)))
            label = f"{task.partition('/')[2]}, {group.profile} ({seeds}{when})"
            found[label] = Interval(*(np.asarray(value / unit) for value in less(ours, theirs)[:3]))
    return found
