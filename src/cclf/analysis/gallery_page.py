"""The curiosity gallery as a page: what an agent's belief made of its own observations, from plain data.

A base algorithm hands over a `Gallery` of `Look`s (`cclf.gallery` does); nothing here knows which algorithm it was.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cclf.analysis import correlation, figures, load, page
from cclf.analysis.page import Cell, escape
from cclf.analysis.tabular import number


class View(NamedTuple):
    """What a network was shown of an observation. The first of several is the anchor, which the others are compared with."""

    picture: np.ndarray  # (h, w, 3)
    origin: tuple[int, int] | None  # top-left corner (y, x) in the frame, where it is a crop
    belief: float | None  # that it and the anchor show the same observation; None for the anchor


class Glance(NamedTuple):
    """One observation and what the belief made of it."""

    frames: Sequence[np.ndarray]  # (H, W, 3) each, the newest last
    views: Sequence[View]  # empty where the observation is duplicated, not augmented
    chosen: int  # number of the view that was chosen beside the anchor
    belief: float  # in the chosen pair
    curiosity: float  # 1 - belief, Eq. (3)
    taken_for: tuple[np.ndarray, float] | None = (
        None  # the other observation of the batch that the anchor fits best, and how well
    )


class Look(NamedTuple):
    """One transition as training sees it. What does not act in this method is None."""

    now: Glance
    following: Glance
    curiosity: float  # what the gallery is ordered by
    action: str
    reward: float
    bonus: float | None  # Eq. (9)
    second_weight: float | None  # of the chosen view in the Q loss, Eq. (7)
    next_second_weight: float | None
    priority: tuple[float, float] | None  # before and after Eq. (6)
    draws: float | None  # its chance to be drawn, over the mean of all
    step: int | None  # agent steps since its episode began
    age: int | None  # agent steps since it happened
    copies: tuple[int, int] | None  # how often the same observation is in the batch, and the size of the batch


class Measure(NamedTuple):
    """Something that curiosity may follow."""

    name: str
    values: np.ndarray  # (N,), nan where unknown
    meaning: str
    novelty: int = 0  # 1 where more of it is more novel, -1 where it is less


class About(NamedTuple):
    """Which run, and when."""

    folder: Path
    heading: str
    origin: Mapping[str, object]


class Gallery(NamedTuple):
    about: About
    drawn: str  # how the samples came about
    curiosity_name: str
    curiosity: np.ndarray  # (N,) of the samples
    measures: Sequence[Measure]
    most: Sequence[Look]
    least: Sequence[Look]
    ladder: Sequence[tuple[np.ndarray, float]]  # pictures from the least to the most curious
    remarks: Sequence[str]
    priorities: np.ndarray | None  # of all transitions in replay, where curiosity sets them
    ages: np.ndarray | None


STYLE = """
nav { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; font-size: .9rem; margin: .8rem 0 0; } nav a, a { color: inherit; }
:root { --anchor: #2f6db5; --chosen: #c93a4e; --other: #8b8f98; --card: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --anchor: #7fb2ef; --chosen: #ff7d8c; --other: #868c98; --card: #1c1f26; } }
.short li { max-width: 46rem; margin: .25rem 0; } details { margin: 1rem 0; } summary { cursor: pointer; font-weight: 600; }
.looks { display: grid; gap: 1rem; margin: 1rem 0; }
.looks.plain { grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr)); }
.look { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .8rem 1rem 1rem; min-width: 0; }
.look h3 { display: flex; align-items: center; gap: .7rem; margin: 0; font-size: 1rem; font-variant-numeric: tabular-nums; }
.look h3 small { color: var(--soft); font-weight: 400; }
.meter { flex: 1; max-width: 14rem; height: .45rem; border-radius: 3px; overflow: hidden; }
.meter, .bar { background: color-mix(in srgb, var(--ink) 12%, transparent); }
.meter i { display: block; height: 100%; background: var(--chosen); }
.look p { margin: .35rem 0 .7rem; font-size: .94rem; max-width: 50rem; } .look p b { font-variant-numeric: tabular-nums; }
.glance { display: grid; grid-template-columns: 10.5rem minmax(0, 1fr) auto; gap: .3rem 1.2rem; align-items: end; }
.glance + .glance { margin-top: .9rem; padding-top: .9rem; border-top: 1px dashed var(--line); }
.glance h4 { grid-column: 1 / -1; margin: 0; font-size: .85rem; font-weight: 600; color: var(--soft); }
.look img { display: block; width: 100%; image-rendering: pixelated; border-radius: 3px; }
.whole { display: flex; gap: .4rem; } .whole .older { width: 2.9rem; display: grid; gap: .3rem; align-content: end; opacity: .75; }
.frame { position: relative; flex: 1; min-width: 0; } .frame svg { position: absolute; inset: 0; height: 100%; overflow: visible; }
.frame rect { fill: none; stroke: #d5d8de; stroke-width: 1; vector-effect: non-scaling-stroke; opacity: .75; pointer-events: all; }
.frame rect.anchor { stroke: #4d9bff; stroke-width: 2; opacity: 1; }
.frame rect.chosen { stroke: #ff4d64; stroke-width: 2; opacity: 1; }
.views { list-style: none; margin: 0; padding: 0; display: grid; gap: .5rem; max-width: 34rem;
         grid-template-columns: repeat(5, minmax(0, 1fr)); align-items: end; }
.views li { border: 2px solid transparent; border-radius: 6px; padding: .25rem; font-size: .76rem; line-height: 1.35; min-width: 0; }
.views li.anchor { border-color: var(--anchor); } .views li.chosen { border-color: var(--chosen); }
.views li span { display: block; color: var(--soft); white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.views li b { font-variant-numeric: tabular-nums; } .anchor b { color: var(--anchor); } .chosen b { color: var(--chosen); }
.bar { height: .35rem; margin: .3rem 0 .15rem; border-radius: 2px; overflow: hidden; }
.bar i { display: block; height: 100%; background: var(--other); } .chosen .bar i { background: var(--chosen); }
.taken { width: 6.2rem; font-size: .76rem; line-height: 1.35; color: var(--soft); }
.key i { display: inline-block; width: .95rem; height: .95rem; border: 2px solid; border-radius: 3px; vertical-align: -.18rem;
         margin-right: .35rem; }
.plain .glance { grid-template-columns: 7rem 1fr; align-items: center; } .plain .glance h4 { grid-column: 2; align-self: end; }
.plain .glance .whole { grid-row: span 2; } .plain .glance .views { grid-column: 2; display: block; align-self: start; }
.strip { grid-template-columns: repeat(auto-fill, minmax(4.6rem, 1fr)); }
@media (max-width: 40rem) {
  .glance { grid-template-columns: minmax(0, 1fr) auto; } .glance .whole { max-width: 15rem; }
  .glance .views { grid-column: 1 / -1; grid-row: 3; gap: .2rem; } .views li { padding: .12rem; font-size: .7rem; }
  .plain .glance .views { grid-column: 2; grid-row: auto; } .look { padding: .7rem .7rem .9rem; }
}
""" + "".join(
    f".glance:has(.v{n}:hover) rect.v{n} {{ stroke-width: 4; opacity: 1; }} .glance:has(rect.v{n}:hover) li.v{n} img "
    "{ outline: 3px solid var(--other); }\n"
    for n in range(10)
)

HOW_TO_READ = """<details><summary>How to read this page</summary>
<p>The agent makes several views of each observation. One is the <b>anchor</b>; for each other view it holds a <b>belief</b>: how
sure it is, among all observations of the batch, that this view and the anchor show the same moment. One view is <b>chosen</b> beside
the anchor, in CCLF the one it believes least, Eq. (5), and curiosity is what is missing there: c = 1 − belief, Eq. (3).</p>
<p>Each card is one transition, above what the agent saw and below what came next. Left the whole frame with the place of every view,
then the views themselves, each with its belief as a bar. “Fits best” is the other observation of the batch that the anchor was taken
for, with the share of belief that went there: a curious transition is one that looks like another to this agent.</p>
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
        page.picture_strip([picture for picture, _ in gallery.ladder], [f"{_belief(value)}" for _, value in gallery.ladder]),
        f'<p class="soft">{escape(gallery.drawn)} Evenly spaced from the least to the most curious of them, by '
        f"{escape(gallery.curiosity_name)}.</p>",
        _looks("most", "The most curious", gallery.most),
        _looks("least", "The least curious", gallery.least),
        '<h2 id="follows">What does curiosity follow?</h2>',
        _follows_table(gallery),
        page.panels(
            list(_follows_panels(gallery)), "The samples; the line is the median along the way, the band the middle half."
        ),
        '<h2 id="training">Over training</h2>',
        _training(gallery.about.folder),
        *_priorities(gallery),
        "<h2>Where this comes from</h2>",
        page.table(
            ("fact", "value"),
            [(name, Cell(str(value), kind="word")) for name, value in gallery.about.origin.items()],
            stacked=True,
        ),
    ]
    return page.page(f"Curiosity: {gallery.about.heading}", parts, STYLE)


def facts(gallery: Gallery) -> dict[str, Any]:
    """The numbers of the page for programs."""
    quantiles = {f"{share:g}": float(np.quantile(gallery.curiosity, share)) for share in (0.0, 0.25, 0.5, 0.75, 1.0)}
    return {
        "run": str(gallery.about.folder),
        **gallery.about.origin,
        "samples": len(gallery.curiosity),
        "curiosity": {"of": gallery.curiosity_name, "mean": float(gallery.curiosity.mean()), "quantiles": quantiles},
        "follows": {measure.name: _related(gallery, measure) for measure in gallery.measures},
        "remarks": list(gallery.remarks),
        "most": [_look_facts(look) for look in gallery.most],
        "least": [_look_facts(look) for look in gallery.least],
    }


def _related(gallery: Gallery, measure: Measure) -> dict[str, float | None]:
    rho = correlation.by_rank(measure.values, gallery.curiosity)
    known = np.isfinite(measure.values)
    linear = correlation.linear(measure.values[known], gallery.curiosity[known]) if known.any() else np.nan
    values = {"rank_correlation": rho.estimate, "low": rho.low, "high": rho.high, "linear_correlation": linear}
    return {name: float(value) if np.isfinite(value) else None for name, value in values.items()}


def _look_facts(look: Look) -> dict[str, Any]:
    def glance(seen: Glance) -> dict[str, Any]:
        beliefs = [view.belief for view in seen.views[1:]] or [seen.belief]
        origins = [view.origin for view in seen.views]
        return {"chosen": seen.chosen, "beliefs": beliefs, "origins": origins, "curiosity": seen.curiosity}

    numbers = {name: getattr(look, name) for name in Look._fields if name not in ("now", "following")}
    return numbers | {"now": glance(look.now), "next": glance(look.following)}


def _tiles(gallery: Gallery) -> list[tuple[str, str, str]]:
    middle = np.quantile(gallery.curiosity, (0.25, 0.75))
    return [
        (_belief(float(gallery.curiosity.mean())), "mean curiosity", ""),
        (f"{_belief(float(middle[0]))}–{_belief(float(middle[1]))}", "the middle half", ""),
        (f"{len(gallery.curiosity):,}", "transitions looked at", ""),
        *([(f"{len(gallery.priorities):,}", "in replay", "")] if gallery.priorities is not None else []),
    ]


def _short(gallery: Gallery) -> str:
    lines = []
    for measure in gallery.measures:
        if measure.novelty:
            rho = correlation.by_rank(measure.values, gallery.curiosity)
            sense = correlation.words(rho)
            told = f"Curiosity {sense} with {measure.name} (rank correlation {_interval(rho)})"
            if "rises" in sense or "falls" in sense:
                towards = ("rises" in sense) == (measure.novelty > 0)
                told += f": it goes {'with' if towards else 'against'} novelty"
            lines.append(f"{told}. {measure.name.capitalize()}: {measure.meaning}.")
    return f'<ul class="short">{"".join(f"<li>{escape(line)}</li>" for line in [*lines, *gallery.remarks])}</ul>'


def _looks(anchor: str, title: str, looks: Sequence[Look]) -> str:
    kind = "" if any(look.now.views for look in looks) else " plain"
    cards = "".join(_card(rank, look) for rank, look in enumerate(looks, 1))
    return f'<h2 id="{anchor}">{escape(title)}</h2><div class="looks{kind}">{cards}</div>'


def _card(rank: int, look: Look) -> str:
    share = f"{100 * min(1.0, max(0.0, look.curiosity)):.1f}%"
    return (
        f'<article class="look"><h3>{rank} <span class="meter"><i style="width:{share}"></i></span> {_belief(look.curiosity)} '
        f"<small>curiosity</small></h3><p>{sentence(look)}</p>"
        f"{_glance(look.now, 'what it saw, o(t)')}{_glance(look.following, 'what came next, o(t+1)')}</article>"
    )


def sentence(look: Look) -> str:
    """What happened, what the belief made of it, and what follows from that; escaped."""
    where = []
    if look.step is not None:
        where.append(f"Step {look.step} of its episode" + (f", {look.age:,} steps ago" if look.age is not None else ""))
    where.append(f"action {look.action}, reward {_signed(look.reward)}")
    told = [f"{escape('; '.join(where))}."]
    if look.copies is not None:
        copies, batch = look.copies
        again = "once" if copies == 1 else f"{copies} times"
        told.append(
            f"The same observation is in its batch of {batch} {again}, so a belief of more than {_belief(1 / copies)} is out of reach."
        )
    if look.now.views:
        told.append(
            f"Chosen beside the anchor: view {look.now.chosen}, believed with {_belief(look.now.belief)}, so "
            f"<b>c = {_belief(look.now.curiosity)}</b>; of what came next view {look.following.chosen}, with "
            f"{_belief(look.following.belief)}, so <b>c′ = {_belief(look.following.curiosity)}</b>."
        )
    else:
        told.append(
            f"It believed {_belief(look.now.belief)}: <b>c = {_belief(look.now.curiosity)}</b>, and of what came next "
            f"<b>c′ = {_belief(look.following.curiosity)}</b>."
        )
    follows = []
    if look.second_weight is not None and look.next_second_weight is not None:
        follows.append(
            f"the chosen views carry {_percent(look.second_weight)} of the Q loss and {_percent(look.next_second_weight)} of the target"
        )
    if look.priority is not None:
        often = f", drawn {look.draws:.2f} times as often as the average" if look.draws is not None else ""
        follows.append(f"its priority goes from {look.priority[0]:.4f} to {look.priority[1]:.4f}{often}")
    if look.bonus is not None:
        follows.append(f"it is paid a bonus of {_small(look.bonus)}")
    if follows:
        told.append(f"So {escape('; '.join(follows))}.")
    return " ".join(told)


def _glance(seen: Glance, title: str) -> str:
    older = "".join(page.image(frame, "an earlier frame of the stack") for frame in seen.frames[:-1])
    frame = page.image(seen.frames[-1], title)
    outlines = ""
    if any(view.origin for view in seen.views):
        height, width = seen.frames[-1].shape[:2]
        order = sorted(range(len(seen.views)), key=lambda n: (n in (0, seen.chosen), n))  # the two that count on top
        outlines = f'<svg viewBox="0 0 {width} {height}">{"".join(_outline(n, seen) for n in order)}</svg>'
    views = "".join(_view(n, seen) for n in range(len(seen.views)))
    if not seen.views:
        views = f'<li class="chosen">{_bar(seen.belief)}<span>belief <b>{_belief(seen.belief)}</b></span></li>'
    taken = ""
    if seen.taken_for is not None:
        picture, share = seen.taken_for
        taken = f'<div class="taken">{page.image(picture, "the other observation it fits best")}fits best: {_belief(share)}</div>'
    return (
        f'<div class="glance"><h4>{escape(title)}</h4><div class="whole">{f"<div class=older>{older}</div>" if older else ""}'
        f'<div class="frame">{frame}{outlines}</div></div><ol class="views">{views}</ol>{taken}</div>'
    )


def _role(view: int, seen: Glance) -> str:
    return "anchor" if view == 0 else "chosen" if view == seen.chosen else "other"


def _label(view: int, seen: Glance) -> str:
    shown = seen.views[view]
    place = f" at row {shown.origin[0]}, column {shown.origin[1]}" if shown.origin else ""
    if shown.belief is None:
        return f"anchor{place}"
    return f"view {view}{place}: belief {_belief(shown.belief)}{', chosen' if view == seen.chosen else ''}"


def _outline(view: int, seen: Glance) -> str:
    shown = seen.views[view]
    if shown.origin is None:
        return ""
    (y, x), (height, width) = shown.origin, shown.picture.shape[:2]
    return (
        f'<rect class="v{view} {_role(view, seen)}" x="{x}" y="{y}" width="{width}" height="{height}">'
        f"<title>{escape(_label(view, seen))}</title></rect>"
    )


def _view(view: int, seen: Glance) -> str:
    shown, role = seen.views[view], _role(view, seen)
    picture = page.image(shown.picture, _label(view, seen))
    if shown.belief is None:
        return f'<li class="v{view} {role}" title="{escape(_label(view, seen))}">{picture}{_bar(None)}<b>anchor</b><span>&nbsp;</span></li>'
    name = "chosen" if role == "chosen" else f"view {view}"
    return (
        f'<li class="v{view} {role}" title="{escape(_label(view, seen))}">{picture}{_bar(shown.belief)}'
        f"<b>{_belief(shown.belief)}</b><span>{name}</span></li>"
    )


def _bar(belief: float | None) -> str:
    if belief is None:
        return '<div class="bar" style="visibility:hidden"></div>'
    return f'<div class="bar"><i style="width:{100 * min(1.0, max(0.0, belief)):.1f}%"></i></div>'


def _follows_table(gallery: Gallery) -> str:
    rows = []
    tenth = max(1, len(gallery.curiosity) // 10)
    order = np.argsort(gallery.curiosity, kind="stable")
    for measure in gallery.measures:
        rho = correlation.by_rank(measure.values, gallery.curiosity)
        known = np.isfinite(measure.values)
        linear = correlation.linear(measure.values[known], gallery.curiosity[known]) if known.any() else np.nan
        notes = (f"[{float(rho.low):.2f}, {float(rho.high):.2f}]", f"linear {linear:.2f}") if np.isfinite(rho.estimate) else ()
        text = f"{float(rho.estimate):.2f}" if np.isfinite(rho.estimate) else "–"
        ends = [_mean(measure.values[order[part]]) for part in (slice(-tenth, None), slice(tenth))]
        sense = Cell(correlation.words(rho), (measure.meaning,), "word")
        rows.append((Cell(measure.name, kind="word"), Cell(text, notes), *ends, sense))
    header = ("with", "rank correlation", "mean of the most curious tenth", "of the least curious tenth", "so curiosity")
    return page.table(header, rows, stacked=True)


def _follows_panels(gallery: Gallery) -> Iterable[str]:
    name = gallery.curiosity_name
    histogram = figures.histogram(gallery.curiosity, "how curious it is", name, "transitions")
    yield figures.inline_svg(histogram, "histogram of curiosity")
    for measure in gallery.measures:
        known = np.isfinite(measure.values)
        if known.sum() > 1 and np.ptp(measure.values[known]) > 0:
            drawing = figures.cloud(measure.values[known], gallery.curiosity[known], measure.name, measure.name, name)
            yield figures.inline_svg(drawing, f"curiosity against {measure.name}")


# Columns of train.csv that belong in one panel; shares of the chosen view have an even line of their own.
TRAINING_PANELS = {
    "curiosity, Eq. (3)": {"curiosity_mean": "c of o(t)", "next_curiosity_mean": "c′ of o(t+1)"},
    "weight of the chosen view, Eq. (7)": {"second_view_weight": "second view"},
    "intrinsic reward, Eq. (9)": {"bonus_mean": "bonus"},
    "priority of the batch, Eq. (6)": {"priority_mean": "priority"},
    "evenness of replay (1 is uniform)": {"priority_entropy_share": "entropy over its largest value"},
    "which view is chosen, Eq. (5)": {f"chosen_view_{n}": f"view {n}" for n in range(1, 5)},
}


def _training(folder: Path) -> str:
    svgs = []
    for title, columns in TRAINING_PANELS.items():
        series = {}
        for column, name in columns.items():
            log = load.read_train(folder, (column,))
            if len(log["env_steps"]) and np.any(log[column]):
                series[name] = (log["env_steps"], log[column])
        if series:
            even = 1.0 / len(series) if len(series) > 2 else None
            svgs.append(figures.inline_svg(figures.lines(series, title, even), f"{title} over training"))
    if not svgs:
        return '<p class="soft">This run has not logged an update yet.</p>'
    return page.panels(svgs, "Means over the updates between two log lines. Dashed: what a choice without preference would give.")


def _priorities(gallery: Gallery) -> list[str]:
    if gallery.priorities is None or gallery.ages is None:
        return []
    histogram = figures.histogram(gallery.priorities, "priorities in replay", "priority, Eq. (6)", "transitions")
    against = figures.cloud(
        gallery.ages.astype(float), gallery.priorities, "priority against age", "agent steps since it happened", "priority"
    )
    share = (gallery.priorities < 1.0).mean()
    spread = gallery.priorities.max() / gallery.priorities.min()
    text = (
        f"A transition enters with priority 1 and moves only when it is drawn: {_percent(float(share))} of the "
        f"{len(gallery.priorities):,} in replay have moved. The likeliest is drawn {spread:.2f} times as often as the least likely."
    )
    drawn = [figures.inline_svg(histogram, "histogram of priorities"), figures.inline_svg(against, "priority against age")]
    caption = "All transitions in replay; the line is the median along the way, the band the middle half."
    return ["<h2>Priorities</h2>", f"<p>{escape(text)}</p>", page.panels(drawn, caption)]


def _mean(values: np.ndarray) -> str:
    known = values[np.isfinite(values)]
    return number(float(known.mean())) if len(known) else "–"


def _interval(rho: correlation.Interval) -> str:
    return "unknown" if not np.isfinite(rho.estimate) else f"{rho.estimate:.2f} [{rho.low:.2f}, {rho.high:.2f}]"


def _belief(value: float) -> str:
    """A probability as people read it.

    >>> _belief(0.25), _belief(3e-9), _belief(0.0)
    ('0.250', '3e-09', '0')
    """
    return "0" if value == 0 else f"{value:.3f}" if value >= 5e-4 else f"{value:.0e}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if 0.005 <= share <= 0.995 or share in (0.0, 1.0) else f"{100 * share:.2f} %"


def _signed(value: float) -> str:
    return f"{value:.3g}".replace("-", "−")


def _small(value: float) -> str:
    return f"{value:.2g}"
