"""Where runs ended: the last return of each on the scale of its task."""

from collections.abc import Sequence

import numpy as np

from cclf.analysis.evaluations import Row
from cclf.analysis.groups import group_rows, moments
from cclf.analysis.published import score_range

Ends = dict[str, dict[str, np.ndarray]]  # by task and method, a score for each run


def ends(rows: Sequence[Row], methods: Sequence[str] = ()) -> dict[str, Ends]:
    """By suite and profile; tasks without a scale are left out, and so are methods that are not
    asked for. Tasks stand in the order of their mean score, the highest first."""
    found = {}
    for group in group_rows(rows):
        last = {at.task: at.scores for at in moments(group) if at.clock[0] != "best"}
        scaled = {
            task: {
                method: (scores[method][:, 0] - bounds[0]) / (bounds[1] - bounds[0])
                for method in methods or group.methods
                if len(scores.get(method, ()))
            }
            for task, scores in last.items()
            if (bounds := score_range(task))
        }
        tasks = {task: scores for task, scores in scaled.items() if scores}
        if tasks:
            found[group.name] = dict(
                sorted(
                    tasks.items(),
                    key=lambda item: -float(np.mean([s.mean() for s in item[1].values()])),
                )
            )
    return found
