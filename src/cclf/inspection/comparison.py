"""Two measures of curiosity on the same transitions, as one self-contained page and as numbers for
programs."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from cclf.analysis import figures, page
from cclf.analysis.page import Cell, escape
from cclf.analysis.statistics import Interval
from cclf.analysis.tabular import number
from cclf.inspection.cards import STYLE, percent, signed
from cclf.inspection.correlation import Correlation, correlate, ranks, words
from cclf.inspection.page import origin
from cclf.inspection.records import Gallery, Measure

SHOWN = 8  # transitions that change places most, either way
HOW_TO_READ = """<details><summary>How to read this page</summary>
<p>A measure of curiosity says how much the agent should care for a transition. The two here were read with the networks of one
checkpoint, on the same transitions in the same batches. The number of a transition is what its bonus pays for, Eq. (9): for the
paper's <b>belief</b> that is (c + c′)/2.</p>
<p>Two measures may differ in scale, so only places count: all transitions are put in order by each measure, and a place of 90 %
means that nine tenths arouse less. <b>shuffled</b> and <b>even</b> are controls: the first has the beliefs in a random
order of each batch, the second their mean, so that no transition is told from another of its batch.</p></details>"""


class Comparison(NamedTuple):
    names: tuple[str, str]
    galleries: tuple[Gallery, Gallery]  # of the same samples in the same order

    @property
    def readings(self) -> tuple[np.ndarray, np.ndarray]:
        first, second = (
            gallery.curiosity if gallery.reading is None else gallery.reading
            for gallery in self.galleries
        )
        return first, second

    @property
    def measures(self) -> list[Measure]:
        """What either may follow; views are chosen by the measure, and so not the same for both."""
        first, second = ([*gallery.measures, *gallery.also] for gallery in self.galleries)
        return [
            one
            for one, other in zip(first, second, strict=True)
            if np.array_equal(one.values, other.values, equal_nan=True)
        ]


def places(values: np.ndarray) -> np.ndarray:
    """The share of the others that lie below, ties counted half.

    >>> places(np.array([0.3, 0.1, 0.2])).tolist()
    [1.0, 0.0, 0.5]
    """
    return ranks(values) / max(1, len(values) - 1)


def moved(comparison: Comparison) -> tuple[list[int], list[int]]:
    """Samples that the second measure lifts most, and those that it lowers most; none whose
    picture is shown already."""
    first, second = map(places, comparison.readings)
    order = np.argsort(first - second, kind="stable")
    up = [row for row in order.tolist() if second[row] > first[row]]
    down = [row for row in order[::-1].tolist() if second[row] < first[row]]
    return _distinct(comparison, up), _distinct(comparison, down)


def _distinct(comparison: Comparison, order: Iterable[int]) -> list[int]:
    picture = comparison.galleries[0].picture
    seen: dict[bytes, int] = {}
    for row in order:
        if len(seen) == SHOWN:
            break
        seen.setdefault(b"%d" % row if picture is None else picture(row).tobytes(), row)
    return list(seen.values())


def facts(comparison: Comparison) -> dict[str, Any]:
    """The numbers of the page for programs."""
    about = comparison.galleries[0].about
    first, second = map(places, comparison.readings)
    up, down = moved(comparison)

    def numbers(found: Correlation) -> dict[str, float | None]:
        return {
            name: value if math.isfinite(value) else None for name, value in found._asdict().items()
        }

    def of(reading: np.ndarray, gallery: Gallery) -> dict[str, Any]:
        return {
            "mean": float(reading.mean()),
            "std": float(reading.std()),
            "again": None if gallery.again is None else numbers(correlate(gallery.again, reading)),
            "follows": {
                measure.name: numbers(correlate(measure.values, reading))
                for measure in comparison.measures
            },
        }

    read = zip(comparison.readings, comparison.galleries, strict=True)
    return {
        "run": str(about.folder),
        **about.origin,
        "samples": len(first),
        "measures": {name: of(*pair) for name, pair in zip(comparison.names, read, strict=True)},
        "agreement": numbers(correlate(*comparison.readings)),
        "moved": {
            way: [{"sample": row, "places": [first[row], second[row]]} for row in rows]
            for way, rows in (("up", up), ("down", down))
        },
    }


def html(comparison: Comparison) -> str:
    one, other = comparison.names
    gallery, (up, down) = comparison.galleries[0], moved(comparison)
    parts = [
        f"<h1>{escape(one)} or {escape(other)}: two measures of curiosity</h1>",
        f'<p class="soft">{escape(gallery.about.heading)}. {escape(gallery.drawn)}</p>',
        page.tiles(_tiles(comparison)),
        _short(comparison),
        HOW_TO_READ,
        '<h2 id="follows">What does each follow?</h2>',
        page.legend(figures.in_turn(comparison.names)),
        page.panels(
            [figures.inline_svg(_correlations(comparison), "what each measure follows")],
            "A measure that finds the new rises with rarity and falls with age and copies. One "
            "that finds what is still to be learned rises with the TD error. Bars: 95 % intervals.",
        ),
        _follows_table(comparison),
        "<h2>How do they go together?</h2>",
        page.legend(figures.in_turn(comparison.names)),
        page.panels(
            list(_panels(comparison)),
            "The samples: a place is the share of all transitions that arouse less. A line is the "
            "median along the way, its band the middle half.",
        ),
        f"<h2>More curious by {escape(other)}</h2>",
        _strip(comparison, up),
        f"<h2>Less curious by {escape(other)}</h2>",
        _strip(comparison, down),
        origin(gallery),
    ]
    return page.page(f"{one} or {other}: {gallery.about.heading}", parts, STYLE)


def _tiles(comparison: Comparison) -> list[tuple[str, str, str]]:
    agreement = correlate(*comparison.readings).rank
    first, second = map(places, comparison.readings)
    return [
        (_rank(agreement), "rank correlation of the two", ""),
        (percent(float(np.abs(first - second).mean())), "places moved, on average", ""),
        *(
            (_rank(correlate(gallery.again, reading).rank), f"{name}, read twice", "")
            for name, gallery, reading in zip(
                comparison.names, comparison.galleries, comparison.readings, strict=True
            )
            if gallery.again is not None
        ),
        (f"{len(first):,}", "transitions looked at", ""),
    ]


def _rank(value: float) -> str:
    return signed(value) if math.isfinite(value) else "–"


def _short(comparison: Comparison) -> str:
    lines = []
    for measure in comparison.measures:
        if measure.novelty:
            said = []
            for name, reading in zip(comparison.names, comparison.readings, strict=True):
                found = correlate(measure.values, reading)
                sense = words(found)
                towards = ""
                if sense.startswith(("rises", "falls")):
                    as_novelty = sense.startswith("rises") == (measure.novelty > 0)
                    towards = ", as novelty would" if as_novelty else ", the opposite of novelty"
                said.append(f"{name} {sense} ({_rank(found.rank)}{towards})")
            lines.append(f"With {measure.name} ({measure.meaning}) {'; '.join(said)}.")
    return f'<ul class="short">{"".join(f"<li>{escape(line)}</li>" for line in lines)}</ul>'


def _follows_table(comparison: Comparison) -> str:
    rows = []
    tenth = max(1, len(comparison.readings[0]) // 10)
    for measure in comparison.measures:
        cells = []
        for reading in comparison.readings:
            found = correlate(measure.values, reading)
            order = np.argsort(reading, kind="stable")
            most = measure.values[order[-tenth:]]
            known = most[np.isfinite(most)]
            notes = [words(found)]
            if math.isfinite(found.rank):
                notes.insert(0, f"[{signed(found.low)}, {signed(found.high)}]")
            cells += [
                Cell(_rank(found.rank), tuple(notes)),
                Cell(number(float(known.mean())) if len(known) else "–"),
            ]
        rows.append((Cell(measure.name, (measure.meaning,), "word"), *cells))
    header = [Cell("with")]
    for name in comparison.names:
        header += [Cell(name, ("rank correlation",)), Cell("mean of its most curious tenth")]
    return page.table(tuple(header), rows, stacked=True)


def _correlations(comparison: Comparison) -> Any:
    def interval(measure: Measure, reading: np.ndarray) -> Interval:
        found = correlate(measure.values, reading)
        return Interval(*(np.array(value) for value in (found.rank, found.low, found.high)))

    named = list(zip(comparison.names, comparison.readings, strict=True))
    return figures.correlations(
        {
            measure.name: {name: interval(measure, reading) for name, reading in named}
            for measure in comparison.measures
        }
    )


def _panels(comparison: Comparison) -> Iterable[str]:
    (one, other), (first, second) = comparison.names, comparison.readings
    if np.ptp(first) > 0.0:
        drawing = figures.cloud(
            places(first), places(second), "places by each", f"place by {one}", f"place by {other}"
        )
        yield figures.inline_svg(drawing, f"places by {other} against places by {one}")
    named = figures.in_turn(comparison.names).items()
    for (name, style), reading in zip(named, comparison.readings, strict=True):
        told = ("what its bonus pays for", "transitions", style.colour)
        drawing = figures.histogram(reading, name, *told)
        yield figures.inline_svg(drawing, f"histogram of {name}")
    for measure in comparison.measures:
        known = np.isfinite(measure.values)
        if known.sum() < 2 or np.ptp(measure.values[known]) == 0.0:
            continue
        by_each = {
            name: places(reading)[known]
            for name, reading in zip(comparison.names, comparison.readings, strict=True)
        }
        drawing = figures.trends(measure.values[known], by_each, measure.name, "place among all")
        yield figures.inline_svg(drawing, f"places by each along {measure.name}")


def _strip(comparison: Comparison, rows: list[int]) -> str:
    picture = comparison.galleries[0].picture
    if not rows or picture is None:
        return '<p class="soft">None changes its place that way, or there is no picture of it.</p>'
    first, second = map(places, comparison.readings)
    captions = [f"{100 * first[row]:.0f} → {100 * second[row]:.0f} %" for row in rows]
    strip = page.picture_strip([picture(row) for row in rows], captions)
    names = ", then by ".join(comparison.names)
    return f'{strip}<p class="soft">{escape(f"Places among all by {names}.")}</p>'
