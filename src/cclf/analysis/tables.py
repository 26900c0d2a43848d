"""The tables of a report, made from tidy rows and set beside what was published."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cclf.analysis import load, statistics
from cclf.analysis.load import Clock, Row
from cclf.analysis.page import Cell
from cclf.analysis.published import Published, published, score_range
from cclf.analysis.tabular import Table, number
from cclf.analysis.verdict import Claim, Verdict
from cclf.config import ConfigError
from cclf.presets import METHODS, SUITES, TASKS

NEAR_BEST = 0.9
PUBLISHED_COLUMNS = ("published_mean", "published_std", "published_source")


class Group(NamedTuple):
    """Rows that belong in one table: one suite under one profile."""

    suite: str
    profile: str
    rows: list[Row]

    @property
    def tasks(self) -> list[str]:
        known = list(TASKS)
        return sorted(
            {row.task for row in self.rows}, key=lambda task: (known.index(task) if task in known else len(known), task)
        )

    @property
    def methods(self) -> list[str]:
        return in_order(self.suite, (row.method for row in self.rows))


def groups(rows: Iterable[Row]) -> list[Group]:
    by_kind: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        by_kind.setdefault((row.task.split("/")[0], row.profile), []).append(row)
    return [Group(*kind, by_kind[kind]) for kind in sorted(by_kind, key=lambda kind: (kind[0], *profile_order(kind[1])))]


def profile_order(profile: str) -> tuple[int, str]:
    """entropy-0.01 before entropy-0.001, as in the figures."""
    return len(profile), profile


def in_order(suite: str, methods: Iterable[str]) -> list[str]:
    """As the presets of the suite list them; others by name after them."""
    known = list(METHODS[SUITES[suite].base]) if suite in SUITES else []
    return sorted(set(methods), key=lambda name: (known.index(name) if name in known else len(known), name))


def clocks_of(rows: Sequence[Row], task: str) -> list[Clock]:
    """The moments at which a task is reported: those of published numbers that were reached, and the ends of runs."""
    unit: load.ClockUnit = "agent_steps" if task.startswith("atari/") else "env_steps"
    by_run = [readings for name, readings in load.runs(rows).items() if name.task == task]
    ends = {getattr(readings[-1], unit) for readings in by_run if readings[-1].state == "done"}
    if not ends:  # nothing is finished: where all of them are by now
        ends = {min(getattr(readings[-1], unit) for readings in by_run)}
    moments = {Clock(unit, steps) for steps in ends if steps} | {row.clock for row in _published(task) if row.clock}
    return sorted(moment for moment in moments if any(load.at(readings, moment) for readings in by_run))


def _published(task: str) -> list[Published]:
    files = {"dmc": ("dmc", "ablation"), "atari": ("atari", "atari_reruns")}.get(task.split("/")[0], ())
    return [row for name in files for row in published(name) if row.task == task]


def score_table(group: Group) -> Table:
    """Mean ± std at each moment, its interval, and what was published for it."""
    rows, tasks, own = group.rows, group.tasks, group.methods
    failed = {(name.method, name.task) for name, readings in load.runs(rows).items() if readings[-1].state == "failed"}
    known = {(row.task, row.clock, row.method): row for task in tasks for row in _published(task)}
    moments = [(task, clock) for task in tasks for clock in clocks_of(rows, task)]
    others = [method for task, clock, method in known if (task, clock) in moments]
    methods = [*own, *(method for method in in_order(group.suite, others) if method not in own)]
    shown, data = [], []
    for task, clock in moments:
        found = {method: scores for method, scores in load.scores(rows, own, {task: clock}).items() if len(scores)}
        best = max(found, key=lambda method: float(statistics.mean(found[method])), default=None)
        cells = [Cell(_short(task), (f"at {clock}",))]
        for method in methods:
            paper = known.get((task, clock, method))
            notes = () if paper is None else (f"published {_plus_minus(paper.mean, paper.std)}",)
            if method not in found:
                cells.append(Cell("–", notes))
                continue
            scores = found[method]
            interval = statistics.interval(scores, statistics.mean)
            low, high = float(interval.low), float(interval.high)
            mean, std = float(interval.estimate), float(statistics.std(scores))
            seeds = _seeds(len(scores)) + (", some failed" if (method, task) in failed else "")
            small = (f"[{number(low)}, {number(high)}]", seeds) if len(scores) > 1 else (seeds,)
            cells.append(
                Cell(_plus_minus(mean, std if len(scores) > 1 else None), small + notes, "best" if method == best else "")
            )
            told = ("", "", "") if paper is None else (paper.mean, paper.std, paper.source)
            data.append((task, group.profile, *clock, method, len(scores), mean, std, low, high, *told))
        shown.append(tuple(cells))
    columns = ("task", "profile", "clock", "steps", "method", "seeds", "mean", "std", "low", "high", *PUBLISHED_COLUMNS)
    caption = f"{group.suite}, {group.profile}: mean return ± deviation over seeds, 95 % interval of the mean; bold: best mean."
    return Table(f"returns-{group.suite}-{group.profile}", caption, ("task", *methods), shown, columns, data)


def _short(task: str) -> str:
    """Without its suite, which the table is about anyway."""
    return task.partition("/")[2] or task


def _seeds(count: int) -> str:
    return f"{count} seed{'s' * (count > 1)}"


def _plus_minus(mean: float, std: float | None) -> str:
    return number(mean) if std is None else f"{number(mean)} ± {number(std)}"


class Aggregate(NamedTuple):
    """Several tasks of one suite under one profile: normalised scores by method, for methods that have every task."""

    suite: str
    profile: str
    when: str
    scores: dict[str, np.ndarray]  # (runs, tasks)
    left_out: list[str]


def aggregates(group: Group) -> list[Aggregate]:
    """At each moment that all tasks of the group share, or, where they share none, at the end of each."""
    clocks = {task: moments for task in group.tasks if (moments := clocks_of(group.rows, task))}
    if len(clocks) < 2:
        return []
    shared = sorted(set.intersection(*(set(moments) for moments in clocks.values())))
    plans = [(f"at {moment}", dict.fromkeys(clocks, moment)) for moment in shared]
    plans = plans or [("at the end of each task", {task: moments[-1] for task, moments in clocks.items()})]
    low, high = np.transpose([score_range(task) for task in clocks])
    found = []
    for when, plan in plans:
        scores = load.scores(group.rows, group.methods, plan)
        normalised = {method: (scores[method] - low) / (high - low) for method in group.methods if len(scores[method])}
        left_out = [method for method in group.methods if method not in normalised]
        if normalised:
            found.append(Aggregate(group.suite, group.profile, when, normalised, left_out))
    return found


ESTIMATORS = {
    "IQM": statistics.iqm,
    "median": statistics.median,
    "mean": statistics.mean,
    "optimality gap": statistics.optimality_gap,
}


def aggregate_table(aggregate: Aggregate) -> Table:
    shown, data = [], []
    for method, scores in aggregate.scores.items():
        cells = [Cell(method, (f"{_seeds(len(scores))} × {scores.shape[1]} tasks",))]
        for name, estimator in ESTIMATORS.items():
            interval = statistics.interval(scores, estimator)
            estimate, low, high = (float(value) for value in interval)
            cells.append(Cell(number(estimate), (f"[{number(low)}, {number(high)}]",) if len(scores) > 1 else ()))
            data.append((aggregate.suite, aggregate.profile, aggregate.when, method, name, len(scores), estimate, low, high))
        shown.append(tuple(cells))
    if aggregate.suite == "atari":
        shown += _published_aggregates()
    caption = f"{aggregate.suite}, {aggregate.profile}, {aggregate.when}. {_scale(aggregate.suite)}"
    if aggregate.left_out:
        caption += f" Not on every task, so left out: {', '.join(aggregate.left_out)}."
    columns = ("suite", "profile", "when", "method", "estimator", "seeds", "estimate", "low", "high")
    name = f"across {aggregate.suite} {aggregate.profile} {aggregate.when}"
    return Table(name, caption, ("method", *ESTIMATORS), shown, columns, data)


def _published_aggregates() -> list[tuple[Cell, ...]]:
    told: dict[str, dict[str, Published]] = {}
    for row in published("atari_aggregates"):
        told.setdefault(row.method, {})[row.quantity] = row
    lines = []
    for method, quantities in told.items():
        source = "re-run" if quantities["hns-mean"].source.startswith("re-run") else "published"
        values = [number(quantities[key].mean) if key in quantities else "–" for key in ("hns-iqm", "hns-median", "hns-mean")]
        lines.append((Cell(method, (source,)), *(Cell(value) for value in values), Cell("–")))
    return lines


def _scale(suite: str) -> str:
    scales = {"atari": "0 is a random agent, 1 a human.", "dmc": "Returns over 1,000."}
    return scales.get(suite, "Returns as they are.")


def steps_table(group: Group) -> Table:
    """Median steps until a run is near the best, how many got there, and how many lost it again."""
    rows, methods, profile = group.rows, group.methods, group.profile
    lowest = load.lowest_returns(rows)
    shown, data = [], []
    for task in group.tasks:
        clocks = clocks_of(rows, task)
        if not clocks:
            continue
        part = [row for row in rows if row.task == task]
        try:
            load.refuse_other_spacing(part)
        except ConfigError as error:
            shown.append((Cell(_short(task), (str(error),), "word"), *(Cell("–") for _ in methods)))
            continue
        finals = load.scores(part, methods, {task: clocks[-1]})
        best = max(float(statistics.mean(scores)) for scores in finals.values() if len(scores))
        near, half = (lowest[task] + share * (best - lowest[task]) for share in (NEAR_BEST, 0.5))
        cells = [Cell(_short(task), (f"to a return of {number(near)}",))]
        for method in methods:
            runs = [
                readings
                for name, readings in load.runs(part).items()
                if name.method == method and (load.at(readings, clocks[-1]) or readings[-1].state == "failed")
            ]
            if not runs:
                cells.append(Cell("–"))
                continue
            steps = [_steps(readings, near) for readings in runs]
            reached = sum(np.isfinite(steps))
            ended_low = [readings[-1].state == "failed" or readings[-1].return_mean < half for readings in runs]
            lost = sum(low for low, step in zip(ended_low, steps, strict=True) if np.isfinite(step))
            median = float(np.median(steps))
            share = statistics.rate_interval(int(reached), len(runs))
            notes = [f"{reached} of {len(runs)} runs"] + [f"{lost} lost it again"] * bool(lost)
            cells.append(Cell(number(median), tuple(notes)))
            data.append((task, profile, near, method, len(runs), median, reached, float(share.low), float(share.high), lost))
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
    caption = (
        f"{group.suite}, {profile}: median environment steps to nine tenths of the way from the task's lowest return to the best "
        "method's final mean; a run that never got there counts as infinity. Lost: ended below half of that way."
    )
    return Table(f"steps-{group.suite}-{profile}", caption, ("task", *methods), shown, columns, data)


def _steps(readings: Sequence[Row], threshold: float) -> float:
    steps, returns = np.array([(row.env_steps, row.return_mean) for row in readings]).T
    return statistics.steps_to_threshold(steps, returns, threshold)


def cost_table(group: Group) -> Table:
    """Wall seconds of whole runs, evaluation included, and what they did in them."""
    by_machine: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for name, readings in load.runs(group.rows).items():
        if readings[-1].state == "done" and readings[-1].wall_seconds > 0:
            by_machine.setdefault((name.task, readings[-1].device), {}).setdefault(name.method, []).append(readings[-1])
    methods = in_order(group.suite, (method for found in by_machine.values() for method in found))
    shown, data = [], []
    for (task, device), found in sorted(by_machine.items()):
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
            cells.append(Cell(f"{number(seconds)} s", (f"{number(updates)} updates/s", f"{number(steps)} env steps/s")))
            data.append((task, group.profile, device, method, len(ends), seconds, updates, steps))
        shown.append(tuple(cells))
    columns = ("task", "profile", "device", "method", "runs", "median_wall_seconds", "updates_per_second", "env_steps_per_second")
    caption = f"{group.suite}, {group.profile}: median of finished runs, evaluation included; a row is one kind of machine."
    return Table(f"cost-{group.suite}-{group.profile}", caption, ("task", *methods), shown, columns, data)


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
        cells = [Cell(claim.text, (claim.source,), "word")]
        for profile in judged:
            verdict = verdicts[profile][1]
            cells.append(Cell(verdict.state, (verdict.text,), KINDS[verdict.state]))
            values = (verdict.estimate, verdict.low, verdict.high, verdict.seeds, verdict.text)
            data.append((table, claim.name, profile, verdict.state, *values, claim.text, claim.source))
        shown.append(tuple(cells))
    columns = ("table", "claim", "profile", "verdict", "estimate", "low", "high", "seeds", "why", "text", "source")
    caption = "Held: the whole 95 % interval lies on the claimed side, and reaches a claimed size. Undecided: it does not say."
    return Table(f"verdicts-{table}", caption, ("claim", *judged), shown, columns, data, stacked=True)


def runs_table(rows: Sequence[Row], reasons: Mapping[load.RunName, str]) -> Table:
    """The runs that are not done."""
    shown, data = [], []
    for name, readings in load.runs(rows).items():
        last = readings[-1]
        if last.state != "done":
            told = (*name, last.state, last.env_steps, reasons.get(name, ""))
            shown.append(
                (Cell(f"{name.task} {name.method}", (f"{name.profile}, seed {name.seed}",)), *(Cell(f"{v}") for v in told[4:]))
            )
            data.append(told)
    columns = ("task", "method", "profile", "seed", "state", "env_steps", "reason")
    caption = "Failed runs count in every statistic, as the lowest return of their task; unfinished ones where they got to."
    return Table("not-done", caption, ("run", "state", "env steps", "reason"), shown, columns, data, stacked=True)
