"""The content of a report about runs or results files; `report_files` writes it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cclf.analysis import comparisons, curves, figures, load, statistics, tables, verdicts
from cclf.analysis.figures import Draw, FigureGrid
from cclf.analysis.load import RunData
from cclf.analysis.runs import ResultRow, Runs, group_by, runs, with_common_episode_count
from cclf.analysis.styles import Styles, styles
from cclf.analysis.suites import (
    Aggregate,
    SuiteResults,
    aggregate_scores,
    group_rows,
    methods_in_order,
    profile_order,
)
from cclf.analysis.table import Table
from cclf.analysis.tables import ClaimResults
from cclf.errors import ConfigError, did_you_mean
from cclf.storage.atomic_files import find_files

CURIOSITY_METRICS = {  # columns of train.csv, with their axis labels
    "curiosity_mean": "curiosity 1 − IB, Eq. (3)",
    "bonus_mean": "bonus, Eq. (9)",
}
MAX_OPEN_PANELS = 9  # a section with more panels is collapsed when the page opens
PROFILE_THRESHOLDS = 101


class Section(NamedTuple):
    """A titled section of the page. A section without figures and tables is not shown."""

    title: str
    text: str = ""
    figures: Sequence[FigureGrid] = ()
    tables: Sequence[Table] = ()
    is_open: bool = False


class ReportPart(NamedTuple):
    """Runs or results that are compared with each other."""

    name: str  # empty if a report has a single part
    runs: Runs
    claims: Mapping[str, ClaimResults]  # by the table of claims, a key of `verdicts.TABLES`
    sections: Sequence[Section]

    @property
    def tables(self) -> list[Table]:
        return [table for section in self.sections for table in section.tables]

    @property
    def figure_files(self) -> dict[str, Draw]:
        grids = [grid for section in self.sections for grid in section.figures]
        return {name: draw for grid in grids for name, draw in grid.files.items()}


class ReportContent(NamedTuple):
    title: str
    parts: Sequence[ReportPart]


def build_report(source: Path, methods: Sequence[str] = ()) -> ReportContent:
    """Evaluate the runs or results at `source`; only `methods` if given. If `source` holds several
    folders with results, each becomes a part of the report, and methods are compared within a part
    only."""
    sources = {}
    for name, path in _result_folders(source):
        with _prefix_errors(name):
            sources[name] = load.read_source(path)
    known = methods_in_order(runs(row for data in sources.values() for row in data.rows))
    for method in methods:
        if method not in known:
            raise ConfigError(f"{source} holds no results of {method}{did_you_mean(method, known)}")
    method_styles = styles(method for method in known if not methods or method in methods)
    parts = []
    for name, data in sources.items():
        rows = [row for row in with_common_episode_count(data.rows) if row.method in method_styles]
        run_data = [run for run in data.runs if run.key.method in method_styles]
        if rows:
            with _prefix_errors(name):
                parts.append(_build_part(name, rows, run_data, method_styles))
    return ReportContent(f"Report on {source.resolve().name}", parts)


@contextmanager
def _prefix_errors(part: str) -> Iterator[None]:
    """Prefix the messages of ConfigErrors with the name of a part."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{part}: {error}" if part else str(error)) from error


def _result_folders(source: Path) -> list[tuple[str, Path]]:
    """The name and the path of each part of the report."""
    if source.is_dir() and not load.has_runs(source) and not any(source.glob("*.csv")):
        folders = sorted(path for path in source.iterdir() if path.is_dir())
        with_results = [path for path in folders if any(find_files(path, "*.csv"))]
        if len(with_results) > 1:
            return [(path.name, path) for path in with_results]
    return [("", source)]


def _build_part(
    name: str,
    rows: Sequence[ResultRow],
    run_data: Sequence[RunData],
    method_styles: Styles,
) -> ReportPart:
    by_run, groups = runs(rows), group_rows(rows)
    claims = {table: _evaluate_claims(table, groups) for table in verdicts.TABLES}
    costs = [table for table in map(tables.cost_table, groups) if table.entries]
    sections = [
        _verdict_section(claims, groups),
        _curves_section(rows, method_styles),
        _scores_section(groups, is_open=not name),
        _across_tasks_section(groups, method_styles),
        _curiosity_section(run_data, method_styles),
        Section("Cost", tables=costs),
        _failures_section(by_run, run_data),
        _origin_section(rows, run_data),
    ]
    shown = [section for section in sections if section.figures or section.tables]
    return ReportPart(name, by_run, claims, shown)


def _evaluate_claims(table: str, groups: Sequence[SuiteResults]) -> ClaimResults:
    """The verdicts on the claims of one table, by profile. Profiles in which no claim can be
    evaluated, and claims that can be evaluated in no profile, are left out."""
    claims = verdicts.claims(table)
    rows: dict[str, list[ResultRow]] = {}
    for group in sorted(groups, key=lambda group: profile_order(group.profile)):
        rows.setdefault(group.profile, []).extend(group.rows)
    results = {}
    for profile, profile_rows in rows.items():
        present = {(row.task, row.method) for row in profile_rows}
        if any((t, m) in present for claim in claims for t in claim.tasks for m in claim.methods):
            results[profile] = [
                (claim, verdicts.evaluate_claim(claim, profile_rows)) for claim in claims
            ]
    evaluated = {
        claim.name for pairs in results.values() for claim, verdict in pairs if verdict.seeds
    }
    return {
        profile: [pair for pair in pairs if pair[0].name in evaluated]
        for profile, pairs in results.items()
        if any(verdict.seeds for _, verdict in pairs)
    }


def _verdict_section(claims: Mapping[str, ClaimResults], groups: Sequence[SuiteResults]) -> Section:
    text = (
        "Claims of the paper and of this package. Held: the whole 95 % interval is on the claimed "
        "side; the text says whether it contains a claimed size. Did not hold: it is on the other "
        "side, or falls short of that size. Undecided: neither. In a ratio of steps, 0 means that "
        "the median run of the baseline never reached the return, and ∞ that the method's own did "
        "not."
    )
    suites = {group.suite for group in groups}
    missing = []
    for table, results in claims.items():
        relevant = [c for c in verdicts.claims(table) if c.tasks[0].split("/")[0] in suites]
        if unevaluated := len(relevant) - len(next(iter(results.values()), [])):
            missing.append(f"{unevaluated} on {verdicts.TABLES[table]}")
    if missing:
        text += f" Claims that need further runs: {', '.join(missing)}."
    verdict_tables = [
        tables.verdict_table(table, results) for table, results in claims.items() if results
    ]
    return Section("Verdicts", text, tables=verdict_tables)


def _curves_section(rows: Sequence[ResultRow], method_styles: Styles) -> Section:
    panels = {
        title: methods
        for title, methods in curves.panels(rows).items()
        if any(len(curve.env_steps) > 1 for curve in methods.values())
    }
    if not panels:
        return Section("Learning curves")
    drawn = [(method, curve) for methods in panels.values() for method, curve in methods.items()]
    few_seeds = {
        method for method, curve in drawn if len(curve.seeds) > 1 and not curve.has_interval
    }
    several = any(len(curve.seeds) > 1 for _, curve in drawn)
    caption = "Mean over seeds." if several else "One run of each method."
    if any(curve.has_interval for _, curve in drawn):
        caption += " The band is its 95 % bootstrap interval."
    if few_seeds:
        caption += (
            f" Thin lines are single runs, of methods with fewer than {verdicts.MIN_SEEDS} seeds: "
            f"{', '.join(sorted(few_seeds))}."
        )
    scales = curves.shared_scales(panels)
    draw = partial(figures.learning_curves, method_styles=method_styles, scales=scales)
    panel_figures = {
        title: partial(draw, {title: methods}, legend=False) for title, methods in panels.items()
    }
    legend = _styles_of(method_styles, (method for method, _ in drawn))
    grid = FigureGrid(caption, panel_figures, legend, {"learning-curves": partial(draw, panels)})
    return Section("Learning curves", "", [grid], is_open=len(panels) <= MAX_OPEN_PANELS)


def _styles_of(method_styles: Styles, methods: Iterable[str]) -> Styles:
    """The styles of `methods`, in the order of `method_styles`."""
    chosen = set(methods)
    return {method: style for method, style in method_styles.items() if method in chosen}


def _scores_section(groups: Sequence[SuiteResults], is_open: bool) -> Section:
    score_tables = [
        table
        for group in groups
        for table in (
            *tables.score_tables(group),
            comparisons.differences_table(group),
            comparisons.steps_table(group),
            comparisons.over_training_table(group),
        )
        if table.records
    ]
    return Section("Returns and steps", tables=score_tables, is_open=is_open)


def _across_tasks_section(groups: Sequence[SuiteResults], method_styles: Styles) -> Section:
    aggregates = [aggregate for group in groups for aggregate in aggregate_scores(group)]
    across_tables = [
        table
        for aggregate in aggregates
        for table in (tables.aggregate_table(aggregate), comparisons.across_tasks_table(aggregate))
        if table.records
    ]
    text = (
        "Scores of all tasks together. IQM: the mean of the middle half of all runs; optimality "
        "gap: the mean distance to 1; performance profile: the share of runs above each score."
    )
    grids = [_across_tasks_figures(aggregate, method_styles) for aggregate in aggregates]
    return Section("Across tasks", text, grids, across_tables)


def _across_tasks_figures(aggregate: Aggregate, method_styles: Styles) -> FigureGrid:
    """IQM, performance profiles and probability of improvement of the methods with two seeds or
    more. If no method has two seeds, all methods are drawn, with intervals over tasks, which cannot
    be compared with intervals over seeds."""
    scores = {m: values for m, values in aggregate.scores.items() if len(values) > 1}
    scores = scores or aggregate.scores
    single_seed = [method for method in aggregate.scores if method not in scores]
    pooled = np.concatenate([values.ravel() for values in scores.values()])
    thresholds = np.linspace(min(0.0, pooled.min()), max(1.0, pooled.max()), PROFILE_THRESHOLDS)
    reference = comparisons.REFERENCE_METHOD
    reference = reference if reference in scores else next(iter(scores))
    iqms = {m: statistics.interval(values, statistics.iqm) for m, values in scores.items()}
    shares = {m: statistics.performance_profile(v, thresholds) for m, v in scores.items()}
    panels: dict[str, Draw] = {
        "IQM": partial(figures.intervals, iqms, "IQM of scores", method_styles=method_styles),
        "performance profiles": partial(
            figures.performance_profiles, thresholds, shares, "score", method_styles
        ),
    }
    improvement = {
        method: statistics.bootstrap_statistic(
            [scores[reference], values], statistics.probability_of_improvement
        )
        for method, values in scores.items()
        if method != reference
    }
    if improvement:
        label = f"probability that {reference} is better"
        panels["probability of improvement"] = partial(
            figures.intervals, improvement, label, 0.5, method_styles
        )
    caption = f"{aggregate.about}: {', '.join(panels)}, with 95 % intervals."
    if statistics.resampled_unit(list(scores.values())) == "tasks":
        caption += " One seed of each: the intervals resample the tasks, not the seeds."
    if single_seed:
        caption += f" One seed, so not drawn: {', '.join(single_seed)}."
    files = {f"{aggregate.name} {label}": draw for label, draw in panels.items()}
    return FigureGrid(caption, panels, _styles_of(method_styles, scores), files)


def _curiosity_section(run_data: Sequence[RunData], method_styles: Styles) -> Section:
    """The curiosity metrics in train.csv, by task and profile. Results files have none."""
    logs = [
        (run.key, column, series)
        for run in run_data
        for column, series in load.read_train(run.folder, tuple(CURIOSITY_METRICS)).items()
    ]
    by_task = group_by(logs, lambda log: (log[0].task, log[1]))
    scales = {
        key: curves.scale_of([series for _, _, series in task_logs])
        for key, task_logs in by_task.items()
    }
    panels, files = {}, {}
    by_panel = group_by(logs, lambda log: (log[0].task, log[0].profile, log[1]))
    for (task, profile, column), panel_logs in sorted(
        by_panel.items(), key=lambda item: item[0][:2]
    ):
        by_method = group_by(panel_logs, lambda log: log[0].method)
        curve_data = {m: [series for _, _, series in lines] for m, lines in by_method.items()}
        title, label = f"{task}, {profile}", CURIOSITY_METRICS[column]
        scale = scales[task, column]
        draw = partial(figures.over_training, curve_data, title, label, method_styles, scale)
        panels[f"{label} on {title}"] = files[f"{column} {task} {profile}"] = draw
    text = (
        "Curiosity is 1 minus the belief that the agent recognizes its own observation; the bonus "
        "is proportional to it and decays."
    )
    caption = "Means over the batches between two rows of the log, one line per run."
    legend = _styles_of(method_styles, (key.method for key, _, _ in logs))
    return Section(
        "Curiosity", text, [FigureGrid(caption, panels, legend, files)] if panels else []
    )


def _failures_section(by_run: Runs, run_data: Sequence[RunData]) -> Section:
    reasons = {run.key: run.failure for run in run_data if run.failure}
    table = tables.runs_table(by_run, reasons)
    failed = sum(evaluations[-1].state == "failed" for evaluations in by_run.values())
    rate = statistics.wilson_interval(failed, len(by_run))
    share, low, high = (f"{value:.1%}" for value in rate.floats())
    text = f"{failed} of {len(by_run)} runs failed: {share}, 95 % interval {low} to {high}."
    return Section("Failed and unfinished runs", text, tables=[table] if table.entries else [])


def _origin_section(rows: Sequence[ResultRow], run_data: Sequence[RunData]) -> Section:
    facts: dict[str, set[str]] = {
        "device": {row.device for row in rows},
        "commit": {row.commit for row in rows},
    }
    excluded = {*facts, "from_env_steps"}
    for run in run_data:
        for entry in (run.manifest, *run.manifest.get("history", [])):
            for name, value in entry.items():
                if isinstance(value, str | int | float) and name not in excluded:
                    facts.setdefault(str(name), set()).add(str(value))
    return Section("Origin", tables=[tables.origin_table(facts)])
