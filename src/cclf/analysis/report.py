"""`cclf report`: what it says about runs or results; `report_files` writes it."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cclf.analysis import (
    differences,
    evaluations,
    figures,
    learning,
    load,
    over_training,
    page,
    statistics,
    steps,
    tables,
    verdict,
)
from cclf.analysis.evaluations import Row, RunName
from cclf.analysis.groups import Aggregate, Group, aggregates, group_rows, in_order, profile_order
from cclf.analysis.styles import Style, Styles, styles
from cclf.analysis.tabular import Table
from cclf.errors import ConfigError, did_you_mean
from cclf.storage.atomic_files import find_files

LOGGED = {"curiosity_mean": "curiosity 1 − IB, Eq. (3)", "bonus_mean": "intrinsic reward, Eq. (9)"}


class Drawing(NamedTuple):
    """Panels for the page, which a phone stacks; `files` are what papers print."""

    caption: str
    styles: Styles  # of the methods that are drawn
    panels: Sequence[tuple[str, Callable[[], Any]]]  # label, and what draws it
    files: Mapping[str, Callable[[], Any]]


class Section(NamedTuple):
    title: str
    text: str
    items: Sequence[Table | Drawing]


Judged = Mapping[str, Mapping[str, Sequence[tuple[verdict.Claim, verdict.Verdict]]]]


class Part(NamedTuple):
    """Runs or results that are compared with each other, and what is said about them."""

    name: str  # empty where a report has one part only
    rows: Sequence[Row]
    judged: Judged
    sections: Sequence[Section]

    @property
    def tables(self) -> list[Table]:
        items = [item for section in self.sections for item in section.items]
        return [item for item in items if isinstance(item, Table)]

    @property
    def drawings(self) -> list[Drawing]:
        items = [item for section in self.sections for item in section.items]
        return [item for item in items if isinstance(item, Drawing)]


class Report(NamedTuple):
    title: str
    facts: Sequence[tuple[str, str, str]]
    parts: Sequence[Part]


def compose(source: Path, methods: Sequence[str] = ()) -> Report:
    """Everything a report says about the runs or results at `source`, of `methods` alone where some
    are named. Folders of results beside each other are parts of one report: the same method may be
    in several of them, and is compared within each."""
    places = {name: (path, _of_part(name, load.read, path)) for name, path in _places(source)}
    looks = styles(_chosen(source, methods, [row for _, rows in places.values() for row in rows]))
    parts = []
    for name, (path, rows) in places.items():
        chosen = [row for row in rows if row.method in looks]
        if chosen:
            parts.append(_of_part(name, _part, name, path, chosen, looks))
    return Report(f"Report on {source.resolve().name}", _facts(parts), parts)


def _of_part(name: str, do: Callable[..., Any], *arguments: Any) -> Any:
    """An error says in which part it was."""
    try:
        return do(*arguments)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}" if name else str(error)) from error


def _chosen(source: Path, methods: Sequence[str], rows: Sequence[Row]) -> list[str]:
    found = _in_order(evaluations.runs(rows))
    for method in methods:
        if method not in found:
            raise ConfigError(f"{source} holds no results of {method}{did_you_mean(method, found)}")
    return [method for method in found if not methods or method in methods]


def _places(source: Path) -> list[tuple[str, Path]]:
    if source.is_dir() and not load.run_folders(source) and not any(source.glob("*.csv")):
        folders = sorted(path for path in source.iterdir() if path.is_dir())
        with_results = [path for path in folders if any(find_files(path, "*.csv"))]
        if len(with_results) > 1:
            return [(path.name, path) for path in with_results]
    return [("", source)]


def _part(name: str, source: Path, rows: Sequence[Row], looks: Styles) -> Part:
    found = _folders(source) if source.is_dir() else {}
    folders = {run: folder for run, folder in found.items() if run.method in looks}
    judged = {table: _judge_all(table, rows) for table in verdict.TABLES}
    groups = group_rows(rows)
    sections = [
        _verdict_section(judged, rows),
        _curves_section(rows, looks),
        _scores_section(groups),
        _across_section(groups, looks),
        _curiosity_section(folders, looks),
        Section("Cost", "", [table for table in map(tables.cost_table, groups) if table.rows]),
        _runs_section(rows, folders),
        _origin_section(rows, folders),
    ]
    return Part(name, rows, judged, [section for section in sections if section.items])


def _facts(parts: Sequence[Part]) -> list[tuple[str, str, str]]:
    runs = [item for part in parts for item in evaluations.runs(part.rows).items()]
    states = [
        found.state
        for part in parts
        for profiles in part.judged.values()
        for pairs in profiles.values()
        for _, found in pairs
    ]
    failed = sum(readings[-1].state == "failed" for _, readings in runs)
    return [
        (str(len(runs)), "runs", ""),
        (str(len({name.method for name, _ in runs})), "methods", ""),
        (str(len({name.task for name, _ in runs})), "tasks", ""),
        (str(failed), "failed runs", "not-held" if failed else ""),
        *(
            (str(sum(found == state for found in states)), f"verdicts: {state}", kind)
            for state, kind in tables.KINDS.items()
            if states
        ),
    ]


def _folders(source: Path) -> dict[RunName, Path]:
    runs = load.run_configs(source)
    return {load.run_name(config): run for run, config in runs}


def _judge_all(
    table: str, rows: Sequence[Row]
) -> dict[str, list[tuple[verdict.Claim, verdict.Verdict]]]:
    """By profile, where it has all methods of a claim: the claims of which some profile has."""
    claims = verdict.claims(table)
    judged = {}
    for profile in sorted({row.profile for row in rows}, key=profile_order):
        part = [row for row in rows if row.profile == profile]
        if any(
            row.task in claim.tasks and row.method in claim.methods
            for claim in claims
            for row in part
        ):
            judged[profile] = [(claim, verdict.judge(claim, part)) for claim in claims]
    seen = {
        claim.name for found in judged.values() for claim, judgement in found if judgement.seeds
    }
    return {
        profile: [pair for pair in found if pair[0].name in seen]
        for profile, found in judged.items()
        if any(judgement.seeds for _, judgement in found)
    }


def _verdict_section(judged: Judged, rows: Sequence[Row]) -> Section:
    items = [tables.verdict_table(table, pairs) for table, pairs in judged.items() if pairs]
    text = (
        "The paper says it, or this package asks it; do these runs? Held: the whole 95 % interval "
        "lies on the claimed side; the words say where a claimed size lies. Did not hold: it lies "
        "on the other side, or falls short of that size. Undecided: neither. In a ratio of steps, "
        "0 is a rival whose median run never got there, and ∞ a method whose own did not."
    )
    suites = {row.task.split("/")[0] for row in rows}
    missing = []
    for table, pairs in judged.items():
        about = [c for c in verdict.claims(table) if c.tasks[0].split("/")[0] in suites]
        if left := len(about) - len(next(iter(pairs.values()), [])):
            missing.append(f"{left} on {tables.TABLE_TITLES[table]}")
    if missing:
        text += f" Claims that need runs which are not here: {', '.join(missing)}."
    return Section("Did the claims hold?", text, items)


def _curves_section(rows: Sequence[Row], looks: Styles) -> Section:
    panels = {
        title: curves
        for title, curves in learning.panels(rows).items()
        if any(len(c.env_steps) > 1 for c in curves.values())
    }
    names = evaluations.runs(rows)
    seeds = Counter(name[:3] for name in names)
    few = sorted({name.method for name in names if 1 < seeds[name[:3]] < verdict.MIN_SEEDS})
    caption = "Mean over seeds; the band is its 95 % bootstrap interval."
    if few:
        caption += f" Thin lines are runs, where a method has fewer than {verdict.MIN_SEEDS}: {', '.join(few)}."
    if not panels:
        return Section("Learning curves", "", [])
    draw = partial(figures.learning_curves, looks=looks, scales=learning.shared_scales(panels))
    single = [
        (title, partial(draw, {title: curves}, legend=False)) for title, curves in panels.items()
    ]
    drawn = {method for curves in panels.values() for method in curves}
    methods = [method for method in _in_order(evaluations.runs(rows)) if method in drawn]
    files = {"learning-curves": partial(draw, panels)}
    drawing = Drawing(caption, _only(looks, methods), single, files)
    return Section("Learning curves", "", [drawing])


def _only(looks: Styles, methods: Iterable[str]) -> dict[str, Style]:
    return {method: looks[method] for method in methods}


def _in_order(names: Iterable[RunName]) -> list[str]:
    by_suite: dict[str, list[str]] = {}
    for name in names:
        by_suite.setdefault(name.task.split("/")[0], []).append(name.method)
    return list(
        dict.fromkeys(
            method for suite, methods in by_suite.items() for method in in_order(suite, methods)
        )
    )


def _scores_section(groups: Sequence[Group]) -> Section:
    items = [
        table
        for group in groups
        for table in (
            *tables.score_tables(group),
            differences.differences_table(group),
            steps.steps_table(group),
            over_training.over_training_table(group),
        )
    ]
    return Section(
        "Returns and steps, beside the paper's", "", [item for item in items if item.data]
    )


def _across_section(groups: Sequence[Group], looks: Styles) -> Section:
    items: list[Table | Drawing] = []
    for aggregate in (aggregate for group in groups for aggregate in aggregates(group)):
        both = (tables.aggregate_table(aggregate), differences.across_table(aggregate))
        items += [table for table in both if table.data]
        items.append(_across_drawing(aggregate, both[0].name, looks))
    text = (
        "Scores of all tasks together. IQM: the mean of the middle half of all runs; optimality "
        "gap: what is missing to 1; performance profile: how many runs are above each score."
    )
    return Section("Across tasks", text, items)


def _across_drawing(aggregate: Aggregate, name: str, looks: Styles) -> Drawing:
    """IQM, profiles and chances to win, of methods with two seeds or more; where there are none, of
    all, with intervals over tasks. Beside intervals over seeds those would look like the same
    thing."""
    scores = {
        method: values for method, values in aggregate.scores.items() if len(values) > 1
    } or aggregate.scores
    single = [method for method in aggregate.scores if method not in scores]
    top = max(1.0, *(float(values.max()) for values in scores.values()))
    thresholds = np.linspace(
        min(0.0, *(float(values.min()) for values in scores.values())), top, 101
    )
    ours = "cclf" if "cclf" in scores else next(iter(scores))
    iqms = {
        method: statistics.interval(values, statistics.iqm) for method, values in scores.items()
    }
    better = {
        m: statistics.probability_of_improvement(scores[ours], v)
        for m, v in scores.items()
        if m != ours
    }
    shares = {
        method: statistics.performance_profile(values, thresholds)
        for method, values in scores.items()
    }
    panels: dict[str, Callable[[], Any]] = {
        "IQM": lambda: figures.intervals(iqms, "IQM of scores", looks=looks),
        "performance profiles": lambda: figures.profiles(thresholds, shares, "score", looks),
    }
    if better:
        words = f"chance that a run of {ours} beats one of the method"
        panels["probability of improvement"] = lambda: figures.intervals(better, words, 0.5, looks)
    files = {f"{name} {label}": draw for label, draw in panels.items()}
    caption = f"{aggregate.suite}, {aggregate.profile}, {aggregate.when}: {', '.join(panels)}, with 95 % intervals."
    if statistics.over(list(scores.values())) == "tasks":
        caption += " One seed of each: the intervals redraw the tasks, not the seeds."
    if single:
        caption += f" One seed, so not drawn: {', '.join(single)}."
    return Drawing(caption, _only(looks, scores), list(panels.items()), files)


def _curiosity_section(folders: Mapping[RunName, Path], looks: Styles) -> Section:
    """What train.csv holds of curiosity, by task and profile; nothing where results files are
    reported."""
    series: dict[tuple[str, str, str], dict[str, list[tuple[np.ndarray, np.ndarray]]]] = {}
    for name, run in folders.items():
        for column in LOGGED:
            log = load.read_train(run, (column,))
            if len(log["env_steps"]) and np.any(log[column]):
                lines = series.setdefault((name.task, name.profile, column), {}).setdefault(
                    name.method, []
                )
                lines.append((log["env_steps"], log[column]))
    ordered = sorted(series.items(), key=lambda item: item[0][:2])
    by_task: dict[tuple[str, str], list[tuple[np.ndarray, np.ndarray]]] = {}
    for (task, _, column), methods in ordered:
        by_task.setdefault((task, column), []).extend(chain(*methods.values()))
    scales = {kind: learning.scale_of(lines) for kind, lines in by_task.items()}
    panels: list[tuple[str, Callable[[], Any]]] = [
        (
            f"{LOGGED[column]} on {task}",
            partial(
                figures.over_training,
                methods,
                f"{task}, {profile}",
                LOGGED[column],
                looks,
                scales[task, column],
            ),
        )
        for (task, profile, column), methods in ordered
    ]
    names = [f"{column} {task} {profile}" for (task, profile, column), _ in ordered]
    files = {name: draw for name, (_, draw) in zip(names, panels, strict=True)}
    drawn = _in_order(
        name for name in folders if any(name.method in lines for lines in series.values())
    )
    text = "Curiosity is how badly the agent recognises its own observations; the intrinsic reward pays it for that, and fades."
    caption = "Means over the batches between two log lines, one line per run."
    drawing = Drawing(caption, _only(looks, drawn), panels, files)
    return Section("Curiosity", text, [drawing] if panels else [])


def _runs_section(rows: Sequence[Row], folders: Mapping[RunName, Path]) -> Section:
    reasons = {}
    for name, run in folders.items():
        if (run / "failure" / "failure.json").exists():
            facts = load.read_json(run / "failure" / "failure.json")
            reasons[name] = f"{facts.get('metric')} was {facts.get('value')}"
    table = tables.runs_table(rows, reasons)
    runs = evaluations.runs(rows)
    failed = sum(readings[-1].state == "failed" for readings in runs.values())
    rate = statistics.rate_interval(failed, len(runs))
    share, low, high = (f"{float(value):.1%}" for value in rate)
    text = f"{failed} of {len(runs)} runs failed: {share}, 95 % interval {low} to {high}."
    return Section("Runs that are not done", text, [table] if table.rows else [])


def _origin_section(rows: Sequence[Row], folders: Mapping[RunName, Path]) -> Section:
    """Machines, commits and versions; more than a few different values are counted."""
    facts: dict[str, set[str]] = {
        "device": {row.device for row in rows},
        "commit": {row.commit for row in rows},
    }
    for run in folders.values():
        manifest = load.read_manifest(run)
        for entry in (manifest, *manifest.get("history", [])):
            for key, value in entry.items():
                if isinstance(value, (str, int, float)) and key not in (
                    "device",
                    "commit",
                    "from_env_steps",
                ):
                    facts.setdefault(str(key), set()).add(str(value))
    lines = [
        (key, ", ".join(sorted(values)) if len(values) <= 6 else f"{len(values)} different")
        for key, values in facts.items()
    ]
    shown = [(page.Cell(key), page.Cell(value, kind="word")) for key, value in lines]
    return Section(
        "Where this comes from",
        "",
        [Table("origin", "", ("fact", ""), shown, ("fact", "value"), lines, stacked=True)],
    )
