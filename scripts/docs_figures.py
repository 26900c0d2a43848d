"""Draw the figures of docs/ that are neither learning curves nor figures of `cclf report`.

.venv/bin/python scripts/docs_figures.py
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cclf.analysis import figures, load
from cclf.analysis.comparisons import means_over_training, pooled_deviation
from cclf.analysis.figures import settings
from cclf.analysis.published import score_range
from cclf.analysis.runs import ResultRow
from cclf.analysis.statistics import Interval, bootstrap_statistic, mean_difference
from cclf.analysis.styles import styles
from cclf.analysis.suites import group_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
RESULTS, OUT = ROOT / "results", ROOT / "docs" / "figures"
MIN_SEEDS = 2  # of each method: one has no standard deviation
MARKERS = "oDs^vP"  # color alone does not distinguish the methods


def effect_sizes(rows: Sequence[ResultRow], method: str, baseline: str) -> dict[str, Interval]:
    """The difference in mean return of two methods on each task and profile, divided by the pooled
    standard deviation across seeds, with a 95 % interval.

    It compares means over training if runs were evaluated often enough, else the last evaluations;
    the label then says `end`.
    """
    sizes = {}
    for group in group_rows(rows):
        last = {at.task: at.scores for at in group.scores_at_steps if at.budget}
        for task in group.by_task:
            when, scores = "", means_over_training(group, task)
            if not {method, baseline} <= scores.keys():
                when, scores = ", end", last.get(task, {})
            ours, theirs = (scores.get(name, np.empty((0, 1))) for name in (method, baseline))
            if min(len(ours), len(theirs)) < MIN_SEEDS:
                continue
            deviation = pooled_deviation(ours, theirs)
            if deviation == 0:
                continue
            seeds = " and ".join(dict.fromkeys(str(len(part)) for part in (ours, theirs)))
            label = f"{task.partition('/')[2]}, {group.profile} ({seeds}{when})"
            difference = bootstrap_statistic([ours, theirs], mean_difference)
            sizes[label] = Interval(*(value / deviation for value in difference))
    return sizes


def final_scores(
    rows: Sequence[ResultRow], methods: Sequence[str]
) -> dict[str, dict[str, dict[str, np.ndarray]]]:
    """The last return of each run on the scale of its task, by suite and profile, task and method.
    Tasks with the highest mean score come first; tasks without a scale are excluded."""
    by_suite = {}
    for group in group_rows(rows):
        last = {at.task: at.scores for at in group.scores_at_steps if at.budget}
        tasks = {}
        for task, scores in last.items():
            bounds = score_range(task)
            scaled = {
                method: (scores[method][:, 0] - bounds[0]) / (bounds[1] - bounds[0])
                for method in methods
                if bounds and len(scores.get(method, ()))
            }
            if scaled:
                tasks[task] = scaled
        if tasks:
            means = {
                task: np.mean([score.mean() for score in scores.values()])
                for task, scores in tasks.items()
            }
            by_suite[group.name] = {
                task: tasks[task] for task in sorted(tasks, key=lambda task: -means[task])
            }
    return by_suite


@settings()
def scores_by_task(
    tasks: Mapping[str, Mapping[str, np.ndarray]], title: str, xlabel: str
) -> "Figure":
    """One line per task with the score of every run of each method: a small marker per run, a large
    one for their mean. Scores of 0 and 1 have a dashed line."""
    methods = list(dict.fromkeys(method for scores in tasks.values() for method in scores))
    figure = figures.new_figure(figsize=(7.0, 0.3 * len(tasks) + 1.2))
    axis = figure.subplots()
    for number, method in enumerate(methods):
        marker, color = MARKERS[number % len(MARKERS)], styles(methods)[method].color
        offset = 0.7 * ((number + 0.5) / len(methods) - 0.5)
        for place, scores in enumerate(tasks.values()):
            if method in scores:
                runs, at = scores[method], place + offset
                axis.plot(runs, [at] * len(runs), marker, color=color, ms=3, alpha=0.45, mew=0)
                axis.plot([runs.mean()], [at], marker, color=color, ms=5)
        axis.plot([], [], marker, color=color, ms=5, label=method)
    for place in range(0, len(tasks), 2):
        axis.axhspan(place - 0.5, place + 0.5, color="#888888", alpha=0.08, lw=0)
    for score in (0.0, 1.0):
        axis.axvline(score, color="#888888", lw=0.8, ls=(0, (4, 3)))
    axis.set_yticks(range(len(tasks)), [task.partition("/")[2] for task in tasks])
    axis.set_ylim(len(tasks) - 0.5, -0.5)
    axis.legend(frameon=False, fontsize=8, ncols=4, loc="lower left", bbox_to_anchor=(0.0, 1.0))
    figures.style_axis(axis, xlabel)
    axis.set_title(title, fontsize=10, loc="right")
    axis.grid(False, axis="y")
    return figure


def draw_effect_sizes(rows: Sequence[ResultRow], method: str, baseline: str) -> "Figure":
    sizes = effect_sizes(rows, method, baseline)
    words = (
        f"{method} − {baseline} in standard deviations across seeds; 0: no difference\n"
        "(in brackets: seeds; “end”: of the last evaluation,\nelse of the mean over training)"
    )
    method_styles = dict.fromkeys(sizes, styles([method])[method])
    return figures.intervals(sizes, words, 0.0, method_styles, inches=7.0)


def draw_final_scores(
    rows: Sequence[ResultRow], methods: Sequence[str], profile: str, scale: str
) -> "Figure":
    scores = final_scores([row for row in rows if row.profile == profile], methods)
    ((title, tasks),) = scores.items()
    return scores_by_task(tasks, title, f"{scale} (small: runs, large: their mean)")


def main() -> None:
    rows = [row for name in ("curiosity", "dmc") for row in load.read(RESULTS / name)]
    drawings = {
        "shuffled.svg": draw_effect_sizes(rows, "cclf", "cclf-shuffled"),
        "atari.svg": draw_final_scores(
            load.read(RESULTS / "atari"),
            ("rainbow", "curl", "cclf", "cclf-shuffled"),
            "released-tf32",
            "score: 0 a random agent, 1 a human",
        ),
        "dmc-tasks.svg": draw_final_scores(
            load.read(RESULTS / "dmc"), ("drq", "cclf"), "released-bf16", "score"
        ),
    }
    for name, drawing in drawings.items():
        figures.save(drawing, OUT / name)
        print(OUT / name)


if __name__ == "__main__":
    main()
