"""The page of `cclf inspect`, and its numbers as JSON."""

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from cclf.analysis import figures, load, render
from cclf.analysis.figures import Draw, FigureGrid
from cclf.analysis.table import MISSING, Cell, Entry, Table, format_number
from cclf.analysis.tables import origin_table
from cclf.inspection.cards import describe, percent, probability, with_minus_sign
from cclf.inspection.correlation import correlate, describe_correlation
from cclf.inspection.records import Gallery, Measure, ShownObservation, ShownSample

CARDS_WITH_VIEWS, PLAIN_CARDS = (
    2,
    3,
)  # of the most curious samples, and as many of the least; further cards are folded
MEDIAN_CAPTION = "The line is the median along the axis, the band the middle half."
Facts = dict[str, object]


def to_html(report: Gallery) -> str:
    has_views = any(sample.now.views for sample in report.most)
    return render.render(
        "inspect.html",
        title=f"Curiosity: {report.about.heading}",
        report=report,
        tiles=_tiles(report),
        findings=[*_novelty(report), *report.remarks],
        num_open=CARDS_WITH_VIEWS if has_views else PLAIN_CARDS,
        correlations=_correlation_table(report),
        follows=_scatter_plots(report),
        training=_training(report.about.folder),
        priorities_text=_priorities_text(report),
        priorities=_priority_figures(report),
        origin=origin_table({name: {str(value)} for name, value in report.about.origin.items()}),
        probability=probability,
        describe=describe,
    )


def to_json(report: Gallery) -> Facts:
    """The numbers of the page."""
    shares = (0.0, 0.25, 0.5, 0.75, 1.0)
    quantiles = {f"{share:g}": float(np.quantile(report.curiosity, share)) for share in shares}
    return {
        "run": str(report.about.folder),
        **report.about.origin,
        "samples": len(report.curiosity),
        "curiosity": {
            "of": report.curiosity_name,
            "mean": float(report.curiosity.mean()),
            "quantiles": quantiles,
        },
        "follows": {
            measure.name: _correlation_facts(report, measure) for measure in report.measures
        },
        "remarks": list(report.remarks),
        "most": [_sample_facts(sample) for sample in report.most],
        "least": [_sample_facts(sample) for sample in report.least],
    }


def _correlation_facts(report: Gallery, measure: Measure) -> dict[str, float | None]:
    correlation = correlate(measure.values, report.curiosity)._asdict()
    return {name: value if math.isfinite(value) else None for name, value in correlation.items()}


def _sample_facts(sample: ShownSample) -> Facts:
    numbers = sample._asdict()
    now, following = numbers.pop("now"), numbers.pop("following")
    return numbers | {"now": _observation_facts(now), "next": _observation_facts(following)}


def _observation_facts(shown: ShownObservation) -> Facts:
    return {
        "chosen": shown.chosen,
        "beliefs": [view.belief for view in shown.views[1:]] or [shown.belief],
        "origins": [view.origin for view in shown.views],
        "curiosity": shown.curiosity,
    }


def _tiles(report: Gallery) -> list[tuple[str, str, str]]:
    """Number, label and CSS class of each tile of the summary."""
    low, high = np.quantile(report.curiosity, (0.25, 0.75))
    numbers = {
        "mean curiosity": probability(float(report.curiosity.mean())),
        "middle half": f"{low:.3f}–{high:.3f}",
        "transitions sampled": f"{len(report.curiosity):,}",
    }
    if report.priorities is not None:
        numbers["in replay"] = f"{len(report.priorities):,}"
    return [(number, label, "") for label, number in numbers.items()]


def _novelty(report: Gallery) -> Iterator[str]:
    """How curiosity relates to the quantities that measure novelty."""
    for measure in report.measures:
        if not measure.novelty:
            continue
        correlation = correlate(measure.values, report.curiosity)
        relation = describe_correlation(correlation)
        text = f"Curiosity {relation} with {measure.name} ({measure.meaning})"
        if math.isfinite(correlation.rank):
            interval = f"[{with_minus_sign(correlation.low)}, {with_minus_sign(correlation.high)}]"
            text += f": rank correlation {with_minus_sign(correlation.rank)} {interval}"
        if relation.startswith(("rises", "falls")):
            agrees = relation.startswith("rises") == (measure.novelty > 0)
            text += f". A measure of novelty would do the {'same' if agrees else 'opposite'}"
        yield f"{text}."


def _correlation_table(report: Gallery) -> Table:
    entries = []
    tenth = max(1, len(report.curiosity) // 10)
    order = np.argsort(report.curiosity, kind="stable")
    for measure in report.measures:
        correlation = correlate(measure.values, report.curiosity)
        rank_correlation = Cell(MISSING)
        if math.isfinite(correlation.rank):
            interval = f"[{with_minus_sign(correlation.low)}, {with_minus_sign(correlation.high)}]"
            rank_correlation = Cell(
                with_minus_sign(correlation.rank),
                (interval, f"linear {with_minus_sign(correlation.linear)}"),
            )
        means = (_mean(measure.values[order[part]]) for part in (slice(-tenth, None), slice(tenth)))
        relation = Cell(describe_correlation(correlation), (measure.meaning,), "word")
        row = (Cell(measure.name, style="word"), rank_correlation, *map(Cell, means), relation)
        entries.append(Entry(row))
    header = (
        "quantity",
        "rank correlation",
        "mean of the most curious tenth",
        "of the least curious tenth",
        "curiosity",
    )
    return Table("correlations", entries, header, stacked=True)


def _mean(values: np.ndarray) -> str:
    known = values[np.isfinite(values)]
    return format_number(float(known.mean())) if len(known) else MISSING


def _scatter_plots(report: Gallery) -> FigureGrid:
    name = report.curiosity_name
    panels: dict[str, Draw] = {
        "histogram of curiosity": partial(
            figures.histogram, report.curiosity, "distribution", name, "transitions"
        )
    }
    for measure in report.measures:
        known = np.isfinite(measure.values)
        values, curiosity = measure.values[known], report.curiosity[known]
        if len(values) > 1 and np.ptp(values) > 0:
            draw = partial(figures.scatter, values, curiosity, measure.name, measure.name, name)
            panels[f"curiosity against {measure.name}"] = draw
    return FigureGrid(f"The samples. {MEDIAN_CAPTION}", panels)


# By panel, columns of train.csv with their labels. With three views or more, a dashed line marks
# the frequency of each view under uniform selection.
TRAINING_PANELS = {
    "curiosity, Eq. (3)": {"curiosity_mean": "c of o(t)", "next_curiosity_mean": "c′ of o(t+1)"},
    "weight of the selected view, Eq. (7)": {"second_view_weight": "second view"},
    "bonus, Eq. (9)": {"bonus_mean": "bonus"},
    "priority of the batch, Eq. (6)": {"priority_mean": "priority"},
    "entropy of replay sampling (1: uniform)": {"priority_entropy_share": "over its maximum"},
    "selected view, Eq. (5)": {f"chosen_view_{n}": f"view {n}" for n in range(1, 5)},
}


def _training(folder: Path) -> FigureGrid | None:
    """Metrics of curiosity over training; None if none was logged."""
    columns = [column for names in TRAINING_PANELS.values() for column in names]
    log = load.read_train(folder, columns)
    panels: dict[str, Draw] = {}
    caption = "Means over the updates between two rows of the log."
    for title, names in TRAINING_PANELS.items():
        series = {name: [log[column]] for column, name in names.items() if column in log}
        uniform = 1.0 / len(series) if len(series) > 2 else None
        if series:
            draw = partial(figures.over_training, series, title, reference_value=uniform)
            panels[f"{title} over training"] = draw
        if uniform is not None:
            caption += " Dashed: uniform selection."
    return FigureGrid(caption, panels) if panels else None


def _priorities_text(report: Gallery) -> str:
    if report.priorities is None:
        return ""
    share = float((report.priorities < 1.0).mean())
    ratio = report.priorities.max() / report.priorities.min()
    return (
        "A transition is stored with priority 1, which changes only when it is sampled: "
        f"{percent(share)} of the {len(report.priorities):,} in replay have been. The most likely "
        f"one is sampled {ratio:.2f} times as often as the least likely one."
    )


def _priority_figures(report: Gallery) -> FigureGrid | None:
    """None if curiosity does not set the priorities in replay."""
    if report.priorities is None or report.ages is None:
        return None
    label, ages, title = "priority, Eq. (6)", report.ages.astype(float), "priority against age"
    histogram = partial(
        figures.histogram, report.priorities, "priorities in replay", label, "transitions"
    )
    scatter = partial(
        figures.scatter, ages, report.priorities, title, "age in agent steps", "priority"
    )
    panels: dict[str, Draw] = {"histogram of priorities": histogram, title: scatter}
    return FigureGrid(f"All transitions in replay. {MEDIAN_CAPTION}", panels)
