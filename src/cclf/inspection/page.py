"""The curiosity gallery as one self-contained page, and as numbers for programs."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from cclf.analysis import figures, load, page
from cclf.analysis.page import Cell, escape
from cclf.analysis.tabular import number
from cclf.inspection.cards import STYLE, looks, percent, probability, signed
from cclf.inspection.correlation import correlate, words
from cclf.inspection.records import Gallery, Measure, ShownObservation, ShownSample

HOW_TO_READ = """<details><summary>How to read this page</summary>
<p>The agent makes several views of each observation. One is the <b class="anchor">anchor</b>; for each other view it holds a
<b>belief</b>: how sure it is, among all observations of the batch, that this view and the anchor show the same moment. One view
is <b class="chosen">chosen</b> beside the anchor, in CCLF the one it believes least, Eq. (5), and curiosity is what is missing
there: c = 1 − belief, Eq. (3); c′ is that of the next observation (in games, of the one some steps later).</p>
<p>Each card is one transition: what the agent saw, and what came next. First the whole frame, with the place of every view that
is a crop, then the views, each with its belief as a bar (point at one to find its place). “Taken for” is the other observation of
the batch that fits the anchor best, with the share of belief it drew: to be curious is to take one thing for another. On grids,
whose two views are the same, only the observations and their beliefs are shown.</p>
<p>A transition has no curiosity of its own: it depends on the views drawn and on who else is in the batch. The numbers here come
from batches as large as in training, with the networks of the run's newest checkpoint and the same functions that train them.</p>
</details>"""


def html(gallery: Gallery) -> str:
    parts = [
        "<h1>What the agent was curious about</h1>",
        f'<p class="soft">{escape(gallery.about.heading)}</p>',
        '<nav><a href="#most">most curious</a><a href="#least">least curious</a><a href="#follows">what it follows</a>'
        '<a href="#training">over training</a></nav>',
        page.tiles(_tiles(gallery)),
        _short(gallery),
        HOW_TO_READ,
        "<h2>From the least to the most</h2>",
        page.picture_strip(
            [picture for picture, _ in gallery.ladder],
            [probability(value) for _, value in gallery.ladder],
        ),
        f'<p class="soft">{escape(gallery.drawn)} Evenly spaced from the least to the most curious of them, by '
        f"{escape(gallery.curiosity_name)}.</p>",
        looks("most", "The most curious", gallery.most),
        looks("least", "The least curious", gallery.least),
        '<h2 id="follows">What does curiosity follow?</h2>',
        _follows_table(gallery),
        page.panels(
            list(_follows_panels(gallery)),
            "The samples; the line is the median along the way, the band the middle half.",
        ),
        '<h2 id="training">Over training</h2>',
        _training(gallery.about.folder),
        *_priorities(gallery),
        origin(gallery),
    ]
    return page.page(f"Curiosity: {gallery.about.heading}", parts, STYLE)


def origin(gallery: Gallery) -> str:
    """Which run a page is about."""
    facts = gallery.about.origin.items()
    rows = [(name, Cell(str(value), kind="word")) for name, value in facts]
    return "<h2>Where this comes from</h2>" + page.table(("fact", "value"), rows, stacked=True)


def facts(gallery: Gallery) -> dict[str, Any]:
    """The numbers of the page for programs."""
    quantiles = {
        f"{share:g}": float(np.quantile(gallery.curiosity, share))
        for share in (0.0, 0.25, 0.5, 0.75, 1.0)
    }
    return {
        "run": str(gallery.about.folder),
        **gallery.about.origin,
        "samples": len(gallery.curiosity),
        "curiosity": {
            "of": gallery.curiosity_name,
            "mean": float(gallery.curiosity.mean()),
            "quantiles": quantiles,
        },
        "follows": {measure.name: _related(gallery, measure) for measure in gallery.measures},
        "remarks": list(gallery.remarks),
        "most": [_look_facts(look) for look in gallery.most],
        "least": [_look_facts(look) for look in gallery.least],
    }


def _related(gallery: Gallery, measure: Measure) -> dict[str, float | None]:
    found = correlate(measure.values, gallery.curiosity)._asdict()
    return {name: value if math.isfinite(value) else None for name, value in found.items()}


def _look_facts(look: ShownSample) -> dict[str, Any]:
    def glance(seen: ShownObservation) -> dict[str, Any]:
        beliefs = [view.belief for view in seen.views[1:]] or [seen.belief]
        origins = [view.origin for view in seen.views]
        return {
            "chosen": seen.chosen,
            "beliefs": beliefs,
            "origins": origins,
            "curiosity": seen.curiosity,
        }

    numbers = {
        name: getattr(look, name)
        for name in ShownSample._fields
        if name not in ("now", "following")
    }
    return numbers | {"now": glance(look.now), "next": glance(look.following)}


def _tiles(gallery: Gallery) -> list[tuple[str, str, str]]:
    middle = np.quantile(gallery.curiosity, (0.25, 0.75))
    return [
        (probability(float(gallery.curiosity.mean())), "mean curiosity", ""),
        (f"{middle[0]:.2f}–{middle[1]:.2f}", "its middle half", ""),
        (f"{len(gallery.curiosity):,}", "transitions looked at", ""),
        *(
            [(f"{len(gallery.priorities):,}", "in replay", "")]
            if gallery.priorities is not None
            else []
        ),
    ]


def _short(gallery: Gallery) -> str:
    lines = []
    for measure in gallery.measures:
        if measure.novelty:
            found = correlate(measure.values, gallery.curiosity)
            sense = words(found)
            told = f"Curiosity {sense} with {measure.name} ({measure.meaning})"
            if math.isfinite(found.rank):
                told += f": rank correlation {signed(found.rank)} [{signed(found.low)}, {signed(found.high)}]"
            told += "."
            if sense.startswith(("rises", "falls")):
                towards = sense.startswith("rises") == (measure.novelty > 0)
                told += (
                    " That is what novelty would do."
                    if towards
                    else " That is the opposite of novelty."
                )
            lines.append(told)
    return f'<ul class="short">{"".join(f"<li>{escape(line)}</li>" for line in [*lines, *gallery.remarks])}</ul>'


def _follows_table(gallery: Gallery) -> str:
    rows = []
    tenth = max(1, len(gallery.curiosity) // 10)
    order = np.argsort(gallery.curiosity, kind="stable")
    for measure in gallery.measures:
        found = correlate(measure.values, gallery.curiosity)
        strength = Cell("–")
        if math.isfinite(found.rank):
            notes = (
                f"[{signed(found.low)}, {signed(found.high)}]",
                f"linear {signed(found.linear)}",
            )
            strength = Cell(signed(found.rank), notes)
        ends = [_mean(measure.values[order[part]]) for part in (slice(-tenth, None), slice(tenth))]
        sense = Cell(words(found), (measure.meaning,), "word")
        rows.append((Cell(measure.name, kind="word"), strength, *ends, sense))
    header = (
        "with",
        "rank correlation",
        "mean of the most curious tenth",
        "of the least curious tenth",
        "so curiosity",
    )
    return page.table(header, rows, stacked=True)


def _follows_panels(gallery: Gallery) -> Iterable[str]:
    name = gallery.curiosity_name
    histogram = figures.histogram(gallery.curiosity, "how curious it is", name, "transitions")
    yield figures.inline_svg(histogram, "histogram of curiosity")
    for measure in gallery.measures:
        known = np.isfinite(measure.values)
        if known.sum() > 1 and np.ptp(measure.values[known]) > 0:
            drawing = figures.cloud(
                measure.values[known], gallery.curiosity[known], measure.name, measure.name, name
            )
            yield figures.inline_svg(drawing, f"curiosity against {measure.name}")


# Columns of train.csv that belong in one panel; shares of the chosen view have an even line of
# their own.
TRAINING_PANELS = {
    "curiosity, Eq. (3)": {"curiosity_mean": "c of o(t)", "next_curiosity_mean": "c′ of o(t+1)"},
    "weight of the chosen view, Eq. (7)": {"second_view_weight": "second view"},
    "intrinsic reward, Eq. (9)": {"bonus_mean": "bonus"},
    "priority of the batch, Eq. (6)": {"priority_mean": "priority"},
    "evenness of replay (1 is uniform)": {
        "priority_entropy_share": "entropy over its largest value"
    },
    "which view is chosen, Eq. (5)": {f"chosen_view_{n}": f"view {n}" for n in range(1, 5)},
}


def _training(folder: Path) -> str:
    svgs, caption = [], "Means over the updates between two log lines."
    for title, columns in TRAINING_PANELS.items():
        series = {}
        for column, name in columns.items():
            log = load.read_train(folder, (column,))
            if len(log["env_steps"]) and np.any(log[column]):
                series[name] = (log["env_steps"], log[column])
        if series:
            even = 1.0 / len(series) if len(series) > 2 else None
            caption += " Dashed: what a choice without preference would give." if even else ""
            svgs.append(
                figures.inline_svg(figures.lines(series, title, even), f"{title} over training")
            )
    if not svgs:
        return '<p class="soft">This run has not logged an update yet.</p>'
    return page.panels(svgs, caption)


def _priorities(gallery: Gallery) -> list[str]:
    if gallery.priorities is None or gallery.ages is None:
        return []
    histogram = figures.histogram(
        gallery.priorities, "priorities in replay", "priority, Eq. (6)", "transitions"
    )
    against = figures.cloud(
        gallery.ages.astype(float),
        gallery.priorities,
        "priority against age",
        "agent steps since it happened",
        "priority",
    )
    share = (gallery.priorities < 1.0).mean()
    spread = gallery.priorities.max() / gallery.priorities.min()
    text = (
        "A transition enters with priority 1 and moves only when it is drawn: "
        f"{percent(float(share))} of the "
        f"{len(gallery.priorities):,} in replay have. The likeliest is drawn {spread:.2f} times as "
        "often as the least likely."
    )
    drawn = [
        figures.inline_svg(histogram, "histogram of priorities"),
        figures.inline_svg(against, "priority against age"),
    ]
    caption = (
        "All transitions in replay; the line is the median along the way, the band the middle half."
    )
    return ["<h2>Priorities</h2>", f"<p>{escape(text)}</p>", page.panels(drawn, caption)]


def _mean(values: np.ndarray) -> str:
    known = values[np.isfinite(values)]
    return number(float(known.mean())) if len(known) else "–"
