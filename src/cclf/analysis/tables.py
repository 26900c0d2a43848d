"""The tables of a report, made from tidy rows and set beside what was published."""

from collections.abc import Mapping, Sequence

import numpy as np

from cclf.analysis import evaluations, statistics
from cclf.analysis.evaluations import Row
from cclf.analysis.groups import Aggregate, Group, Moment, in_order, moments
from cclf.analysis.page import Cell
from cclf.analysis.published import Published, published
from cclf.analysis.tabular import Table, number
from cclf.analysis.verdict import MIN_SEEDS, Claim, Verdict

BOLD = (
    "In bold: a mean whose interval lies above those of all other methods on the task, if each "
    f"has {MIN_SEEDS} seeds or more."
)
PUBLISHED_COLUMNS = ("published_mean", "published_std", "published_source")


def score_tables(group: Group) -> list[Table]:
    """Mean ± std at each moment, its interval, and what was published for it; best evaluations in a
    table of their own."""
    found = moments(group)
    last, best = (
        [line for line in found if (line.clock[0] == "best") == flag] for flag in (False, True)
    )
    bold = f" {BOLD}" if len(group.methods) > 1 else ""
    words = f"mean return ± deviation over seeds, 95 % interval of the mean.{bold}"
    flattering = (
        "the best evaluation of each run during training, as CURL's paper reports it, ± deviation "
        f"over seeds, 95 % interval of the mean.{bold}"
    )
    tables = [
        _score_table(group, f"returns-{group.suite}-{group.profile}", last, words),
        _score_table(group, f"best-evaluations-{group.suite}-{group.profile}", best, flattering),
    ]
    return [table for table in tables if table.rows]


def _score_table(group: Group, name: str, lines: Sequence[Moment], caption: str) -> Table:
    failed = {
        (name.method, name.task)
        for name, readings in evaluations.runs(group.rows).items()
        if readings[-1].state == "failed"
    }
    methods = [*group.methods, *_published_again(group.methods, lines)]
    shown, data = [], []
    for line in lines:
        found = {method: scores for method, scores in line.scores.items() if len(scores)}
        best = _clearly_best(found)
        cells = [Cell(_short(line.task), (line.label,))]
        for method in methods:
            paper = line.told.get(method)
            notes = () if paper is None else (f"published {_plus_minus(paper.mean, paper.std)}",)
            if method not in found:
                cells.append(Cell("–", notes))
                continue
            scores = found[method]
            interval = statistics.interval(scores, statistics.mean)
            low, high = float(interval.low), float(interval.high)
            mean, std = float(interval.estimate), float(statistics.std(scores))
            seeds = _seeds(len(scores)) + (", some failed" if (method, line.task) in failed else "")
            several_seeds = len(scores) > 1
            small = (f"[{number(low)}, {number(high)}]", seeds) if several_seeds else (seeds,)
            text = _plus_minus(mean, std if several_seeds else None)
            cells.append(Cell(text, small + notes, "best" if method == best else ""))
            told = ("", "", "") if paper is None else (paper.mean, paper.std, paper.source)
            spread = (std, low, high) if several_seeds else ("", "", "")
            data.append(
                (line.task, group.profile, *line.clock, method, len(scores), mean, *spread, *told)
            )
        shown.append(tuple(cells))
    columns = (
        "task",
        "profile",
        "clock",
        "steps",
        "method",
        "seeds",
        "mean",
        "std",
        "low",
        "high",
        *PUBLISHED_COLUMNS,
    )
    title = "Best evaluations" if name.startswith("best") else "Returns"
    header = ("task", *methods)
    return Table(name, caption, header, shown, columns, data, title=title, about=group.name)


def _published_again(methods: Sequence[str], lines: Sequence[Moment]) -> list[str]:
    """Re-runs of methods that were run here, which are named after them (curl-rliable-final);
    columns of methods that nobody ran would fill the table."""
    told = dict.fromkeys(method for line in lines for method in line.told)
    return [
        name
        for name in told
        if name not in methods and any(name.startswith(f"{method}-") for method in methods)
    ]


def _clearly_best(found: Mapping[str, np.ndarray]) -> str | None:
    """The method whose interval lies above those of all others; intervals of few seeds are too
    narrow to part anything."""
    if len(found) < 2 or any(len(scores) < MIN_SEEDS for scores in found.values()):
        return None
    intervals = {m: statistics.interval(scores, statistics.mean) for m, scores in found.items()}
    best = max(intervals, key=lambda method: float(intervals[method].estimate))
    others = (interval for method, interval in intervals.items() if method != best)
    return best if all(intervals[best].low > other.high for other in others) else None


def _short(task: str) -> str:
    """Without its suite, which the table is about anyway."""
    return task.partition("/")[2] or task


def _seeds(count: int) -> str:
    return f"{count} seed{'s' * (count > 1)}"


def _plus_minus(mean: float, std: float | None) -> str:
    return number(mean) if std is None else f"{number(mean)} ± {number(std)}"


ESTIMATORS = {
    "IQM": statistics.iqm,
    "median": statistics.median,
    "mean": statistics.mean,
    "optimality gap": statistics.optimality_gap,
}


def aggregate_table(aggregate: Aggregate) -> Table:
    shown, data = [], []
    over = {method: statistics.over([scores]) for method, scores in aggregate.scores.items()}
    for method, scores in aggregate.scores.items():
        cells = [Cell(method, (f"{_seeds(len(scores))} × {scores.shape[1]} tasks",))]
        for name, estimator in ESTIMATORS.items():
            interval = statistics.interval(scores, estimator)
            estimate, low, high = (float(value) for value in interval)
            cells.append(Cell(number(estimate), (f"[{number(low)}, {number(high)}]",)))
            group = (aggregate.suite, aggregate.profile, aggregate.when)
            data.append((*group, method, name, len(scores), estimate, low, high, over[method]))
        shown.append(tuple(cells))
    about = f"{aggregate.suite}, {aggregate.profile}, {aggregate.when}"
    caption = _scale(aggregate.suite)
    if aggregate.suite == "atari":
        shown += _published_aggregates(best="best" in aggregate.when)
        caption += " Published lines are of all 26 games."
    if "tasks" in over.values():
        single = ", ".join(method for method, redrawn in over.items() if redrawn == "tasks")
        caption += f" One seed, so intervals redraw the tasks and say nothing of the spread of seeds: {single}."
    if aggregate.left_out:
        caption += f" Not on every task, so left out: {', '.join(aggregate.left_out)}."
    columns = (
        "suite",
        "profile",
        "when",
        "method",
        "estimator",
        "seeds",
        "estimate",
        "low",
        "high",
        "interval_over",
    )
    name = f"across {aggregate.suite} {aggregate.profile} {aggregate.when}"
    header, title = ("method", *ESTIMATORS), "Across tasks"
    return Table(name, caption, header, shown, columns, data, title=title, about=about)


def _published_aggregates(best: bool) -> list[tuple[Cell, ...]]:
    """Those of the best evaluations of training, or those of the last."""
    told: dict[str, dict[str, Published]] = {}
    for row in (row for row in published("atari_aggregates") if ("best" in row.source) == best):
        told.setdefault(row.method, {})[row.quantity] = row
    lines = []
    for method, quantities in told.items():
        source = "re-run" if quantities["hns-mean"].source.startswith("re-run") else "published"
        values = [
            number(quantities[key].mean) if key in quantities else "–"
            for key in ("hns-iqm", "hns-median", "hns-mean")
        ]
        lines.append((Cell(method, (source,)), *(Cell(value) for value in values), Cell("–")))
    return lines


def _scale(suite: str) -> str:
    scales = {"atari": "0 is a random agent, 1 a human.", "dmc": "Returns over 1,000."}
    return scales.get(suite, "Returns as they are.")


def cost_table(group: Group) -> Table:
    """Wall seconds of whole runs, evaluation included, and what they did in them."""
    by_machine: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for name, readings in evaluations.runs(group.rows).items():
        if readings[-1].state == "done" and readings[-1].wall_seconds > 0:
            by_machine.setdefault((name.task, readings[-1].device), {}).setdefault(
                name.method, []
            ).append(readings[-1])
    methods = in_order(group.suite, (method for found in by_machine.values() for method in found))
    shown, data = [], []
    for (task, device), found in sorted(
        by_machine.items(), key=lambda item: (group.tasks.index(item[0][0]), item[0][1])
    ):
        cells = [Cell(_short(task), (device,))]
        for method in methods:
            ends = found.get(method, [])
            if not ends:
                cells.append(Cell("–"))
                continue
            seconds, steps, updates = (
                float(np.median(values))
                for values in (
                    [row.wall_seconds for row in ends],
                    [row.env_steps / row.wall_seconds for row in ends],
                    [row.updates / row.wall_seconds for row in ends],
                )
            )
            cells.append(
                Cell(
                    f"{number(seconds)} s",
                    (f"{number(updates)} updates/s", f"{number(steps)} env steps/s"),
                )
            )
            data.append((task, group.profile, device, method, len(ends), seconds, updates, steps))
        shown.append(tuple(cells))
    columns = (
        "task",
        "profile",
        "device",
        "method",
        "runs",
        "median_wall_seconds",
        "updates_per_second",
        "env_steps_per_second",
    )
    caption = "median of finished runs, evaluation included; a row is one kind of machine."
    table, header = f"cost-{group.suite}-{group.profile}", ("task", *methods)
    return Table(table, caption, header, shown, columns, data, title="Cost", about=group.name)


TABLE_TITLES = {
    "table1": "DeepMind Control",
    "ablation": "the four pieces",
    "atari": "Atari",
    "minigrid": "MiniGrid",
    "cost": "training time",
    "curiosity": "curiosity and its controls (asked by this package)",
    "curiosity-toy": "curiosity and its controls on a toy (asked by this package)",
    "curiosity-re3": "curiosity and its controls on RE3 (asked by this package)",
    "curiosity-drqv2": "curiosity and its controls on DrQ-v2 (asked by this package)",
}
KINDS = {"held": "held", "did not hold": "not-held", "undecided": "open"}


def verdict_table(table: str, judged: Mapping[str, Sequence[tuple[Claim, Verdict]]]) -> Table:
    """Claims down, profiles across."""
    by_claim: dict[str, dict[str, tuple[Claim, Verdict]]] = {}
    for profile, pairs in judged.items():
        for claim, verdict in pairs:
            by_claim.setdefault(claim.name, {})[profile] = (claim, verdict)
    shown, data = [], []
    for verdicts in by_claim.values():
        claim = next(iter(verdicts.values()))[0]
        cells = [Cell(claim.text, (claim.source,), "word claim")]
        for profile in judged:
            verdict = verdicts[profile][1]
            cells.append(Cell(verdict.state, (verdict.text,), KINDS[verdict.state]))
            values = (verdict.estimate, verdict.low, verdict.high, verdict.seeds, verdict.text)
            data.append(
                (table, claim.name, profile, verdict.state, *values, claim.text, claim.source)
            )
        shown.append(tuple(cells))
    columns = (
        "table",
        "claim",
        "profile",
        "verdict",
        "estimate",
        "low",
        "high",
        "seeds",
        "why",
        "text",
        "source",
    )
    header, title = (TABLE_TITLES[table], *judged), f"Claims about {TABLE_TITLES[table]}"
    return Table(f"verdicts-{table}", "", header, shown, columns, data, stacked=True, title=title)


def runs_table(rows: Sequence[Row], reasons: Mapping[evaluations.RunName, str]) -> Table:
    """The runs that are not done."""
    shown, data = [], []
    for name, readings in evaluations.runs(rows).items():
        last = readings[-1]
        if last.state != "done":
            told = (*name, last.state, last.env_steps, reasons.get(name, ""))
            shown.append(
                (
                    Cell(f"{name.task} {name.method}", (f"{name.profile}, seed {name.seed}",)),
                    *(Cell(f"{v}") for v in told[4:]),
                )
            )
            data.append(told)
    columns = ("task", "method", "profile", "seed", "state", "env_steps", "reason")
    caption = "Failed runs count in every statistic, as the lowest return of their task; unfinished ones where they got to."
    return Table(
        "not-done",
        caption,
        ("run", "state", "env steps", "reason"),
        shown,
        columns,
        data,
        stacked=True,
        title="Failed and unfinished runs",
    )
