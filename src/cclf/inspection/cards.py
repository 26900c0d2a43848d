"""Cards of the curiosity gallery: a transition that reads as a sentence, with its frames, views and
beliefs."""

from collections.abc import Sequence

from cclf.analysis import page
from cclf.analysis.page import escape
from cclf.inspection.records import ShownObservation, ShownSample

STYLE = """
nav { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; font-size: .9rem; margin: .8rem 0 0; } nav a, a { color: inherit; }
:root { --anchor: #2f6db5; --chosen: #c93a4e; --other: #8b8f98; --card: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --anchor: #7fb2ef; --chosen: #ff7d8c; --other: #868c98; --card: #1c1f26; } }
.tiles { grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); } .tiles span { display: block; line-height: 1.3; }
.tiles b { white-space: nowrap; } .short { padding-left: 1.2rem; } .short li { max-width: 46rem; margin: .25rem 0; }
details { margin: 1rem 0; } summary { cursor: pointer; font-weight: 600; }
.looks { display: grid; gap: 1rem; margin: 1rem 0; }
.looks.plain { grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr)); }
.look { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .8rem 1rem 1rem; min-width: 0; }
.look h3 { display: flex; align-items: center; gap: .7rem; margin: 0; font-size: 1rem; font-variant-numeric: tabular-nums; }
.anchor { --mark: var(--anchor); } .chosen { --mark: var(--chosen); } details b.anchor, details b.chosen { color: var(--mark); }
.look h3 small { color: var(--soft); font-weight: 400; }
.meter { flex: 1; max-width: 14rem; height: .45rem; border-radius: 3px; overflow: hidden; }
.meter, .bar { background: color-mix(in srgb, var(--ink) 12%, transparent); }
.meter i { display: block; height: 100%; background: var(--chosen); }
.look p { margin: .35rem 0 .7rem; font-size: .94rem; max-width: 50rem; } .look p b { font-variant-numeric: tabular-nums; }
.glance { display: grid; grid-template-columns: 12.5rem minmax(0, 34rem) 6.4rem; gap: .3rem 1.2rem; align-items: end; }
.looks:not(.plain) .glance + .glance { margin-top: .9rem; padding-top: .9rem; border-top: 1px dashed var(--line); }
.glance h4 { grid-column: 1 / -1; margin: 0; font-size: .85rem; font-weight: 600; color: var(--soft); }
.look img { display: block; width: 100%; image-rendering: pixelated; border-radius: 3px; }
.whole { display: flex; gap: .4rem; }
.whole .older { width: 2.9rem; display: grid; gap: .3rem; align-content: end; opacity: .75; }
.frame { position: relative; flex: 1; min-width: 0; }
.frame svg { position: absolute; inset: 0; height: 100%; overflow: visible; }
.frame rect { fill: none; stroke: #d5d8de; stroke-width: 1; opacity: .75; }
.frame rect { vector-effect: non-scaling-stroke; pointer-events: all; }
.frame rect.anchor { stroke: #4d9bff; stroke-width: 2; opacity: 1; }
.frame rect.chosen { stroke: #ff4d64; stroke-width: 2; opacity: 1; }
.views { list-style: none; margin: 0; padding: 0; display: grid; gap: .5rem;
         grid-template-columns: repeat(5, minmax(0, 1fr)); align-items: end; }
.views li { border: 2px solid transparent; border-radius: 6px; padding: .25rem; min-width: 0; }
.views li, .taken { font-size: .76rem; line-height: 1.35; }
.views li.anchor { border-color: var(--anchor); } .views li.chosen { border-color: var(--chosen); }
.views li span { display: block; color: var(--soft); white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.views li b { font-variant-numeric: tabular-nums; } .anchor b { color: var(--anchor); } .chosen b { color: var(--chosen); }
.bar { height: .35rem; margin: .3rem 0 .15rem; border-radius: 2px; overflow: hidden; }
.bar i { display: block; height: 100%; background: var(--other); } .chosen .bar i { background: var(--chosen); }
.taken { color: var(--soft); border-left: 1px solid var(--line); padding: .25rem 0 .25rem .8rem; }
.taken img { margin-bottom: .25rem; } .taken b { color: var(--ink); font-variant-numeric: tabular-nums; display: block; }
.plain .look { display: grid; grid-template-columns: 1fr 1fr; gap: .3rem .9rem; align-content: start; }
.plain .look h3, .plain .look p { grid-column: 1 / -1; } .plain .glance { display: block; }
.plain .glance .whole { max-width: none; } .plain .glance .views { display: block; }
.plain .glance .views li { border: 0; padding: .2rem 0 0; }
.strip { grid-template-columns: repeat(auto-fill, minmax(4.6rem, 1fr)); }
@media (max-width: 40rem) {
  .looks:not(.plain) .glance { grid-template-columns: minmax(0, 1fr) auto; } .glance .whole { max-width: 15rem; }
  .glance .views { grid-column: 1 / -1; grid-row: 3; gap: .2rem; } .views li { padding: .12rem; font-size: .7rem; }
  .taken { width: 6.4rem; } .stacked td { text-align: left; } .look { padding: .7rem .7rem .9rem; }
}
""" + "".join(
    f".glance:has(.v{n}:hover) rect.v{n} {{ stroke-width: 4; opacity: 1; }} "
    f".glance:has(rect.v{n}:hover) li.v{n} img "
    "{ outline: 3px solid var(--other); }\n"
    for n in range(10)
)


def looks(anchor: str, title: str, shown: Sequence[ShownSample]) -> str:
    return f'<h2 id="{anchor}">{escape(title)}</h2>{cards(shown)}'


def cards(shown: Sequence[ShownSample]) -> str:
    kind = "" if any(look.now.views for look in shown) else " plain"
    each = "".join(_card(rank, look) for rank, look in enumerate(shown, 1))
    return f'<div class="looks{kind}">{each}</div>'


def _card(rank: int, look: ShownSample) -> str:
    share = f"{100 * min(1.0, max(0.0, look.curiosity)):.1f}%"
    amount = f"{probability(look.curiosity)} <small>curiosity</small>"
    return (
        f'<article class="look"><h3>{rank} <span class="meter"><i style="width:{share}"></i></span> '
        f"{amount}</h3><p>{sentence(look)}</p>"
        f"{_glance(look.now, 'what it saw')}"
        f"{_glance(look.following, _later(look))}</article>"
    )


def _later(look: ShownSample) -> str:
    return (
        "what came next"
        if look.steps_between == 1
        else f"what came {look.steps_between} steps later"
    )


def sentence(look: ShownSample) -> str:
    """What happened, what the belief made of it, and what follows from that; escaped."""
    where = []
    if look.step is not None:
        where.append(
            f"Step {look.step} of its episode"
            + (f", {look.age:,} steps ago" if look.age is not None else "")
        )
    where.append(
        f"{'action' if where else 'Action'} {look.action}, reward {signed(look.reward, '.3g')}"
    )
    told = [f"{escape('; '.join(where))}."]
    if look.new_episode:
        told.append("The episode ended here: what came next is the first of another.")
    if look.ended_between:
        told.append(
            f"The episode ended within {look.steps_between} steps: what came then is blank."
        )
    if look.copies is not None:
        copies, batch = look.copies
        there = (
            f"{copies} times in its batch of {batch}: no belief can pass {probability(1 / copies)}."
        )
        told.append(
            f"Seen {there}" if copies > 1 else f"The only one of its kind in its batch of {batch}."
        )
    if look.now.views:
        told.append(
            f"Chosen beside the anchor: view {look.now.chosen}, believed with "
            f"{probability(look.now.belief)}, so "
            f"<b>c = {probability(look.now.curiosity)}</b>; of what came next view "
            f"{look.following.chosen}, with "
            f"{probability(look.following.belief)}, so <b>c′ = "
            f"{probability(look.following.curiosity)}</b>."
        )
    else:
        told.append(
            f"Its belief was {probability(look.now.belief)}: <b>c = "
            f"{probability(look.now.curiosity)}</b>, and of what came next "
            f"<b>c′ = {probability(look.following.curiosity)}</b>."
        )
    follows = []
    if look.second_weight is not None and look.next_second_weight is not None:
        follows.append(
            f"the chosen views carry {percent(look.second_weight)} of the Q loss and "
            f"{percent(look.next_second_weight)} of its "
            "target"
        )
    if look.priority is not None:
        often = (
            f", drawn {look.draws:.2f} times as often as the average"
            if look.draws is not None
            else ""
        )
        follows.append(
            f"its priority goes from {look.priority[0]:.4f} to {look.priority[1]:.4f}{often}"
        )
    if look.bonus is not None:
        follows.append(f"it is paid a bonus of {_bonus(look.bonus)}")
    if follows:
        told.append(f"So {escape('; '.join(follows))}.")
    return " ".join(told)


def _glance(seen: ShownObservation, title: str) -> str:
    older = "".join(
        page.image(frame, "an earlier frame of the stack") for frame in seen.frames[:-1]
    )
    frame = page.image(seen.frames[-1], title)
    outlines = ""
    if any(view.origin for view in seen.views):
        height, width = seen.frames[-1].shape[:2]
        # the two that count on top
        order = sorted(range(len(seen.views)), key=lambda n: (n in (0, seen.chosen), n))
        outlines = (
            f'<svg viewBox="0 0 {width} {height}">{"".join(_outline(n, seen) for n in order)}</svg>'
        )
    views = "".join(_view(n, seen) for n in range(len(seen.views)))
    if not seen.views:
        belief = f"belief <b>{probability(seen.belief)}</b>"
        views = f'<li class="chosen">{_bar(seen.belief)}<span>{belief}</span></li>'
    taken = ""
    if seen.taken_for is not None:
        picture, share = seen.taken_for
        taken = f'<div class="taken">{page.image(picture, "what it was taken for")}<b>{probability(share)}</b>taken for</div>'
    return (
        f'<div class="glance"><h4>{escape(title)}</h4><div class="whole">{f"<div class=older>{older}</div>" if older else ""}'
        f'<div class="frame">{frame}{outlines}</div></div><ol class="views">{views}</ol>{taken}</div>'
    )


def _role(view: int, seen: ShownObservation) -> str:
    return "anchor" if view == 0 else "chosen" if view == seen.chosen else "other"


def _label(view: int, seen: ShownObservation) -> str:
    shown = seen.views[view]
    place = f" at row {shown.origin[0]}, column {shown.origin[1]}" if shown.origin else ""
    if shown.belief is None:
        return f"anchor{place}"
    return f"view {view}{place}: belief {probability(shown.belief)}{', chosen' if view == seen.chosen else ''}"


def _outline(view: int, seen: ShownObservation) -> str:
    shown = seen.views[view]
    if shown.origin is None:
        return ""
    (y, x), (height, width) = shown.origin, shown.picture.shape[:2]
    return (
        f'<rect class="v{view} {_role(view, seen)}" x="{x}" y="{y}" width="{width}" height="{height}">'
        f"<title>{escape(_label(view, seen))}</title></rect>"
    )


def _view(view: int, seen: ShownObservation) -> str:
    shown, role = seen.views[view], _role(view, seen)
    picture = page.image(shown.picture, _label(view, seen))
    if shown.belief is None:
        text = "<b>anchor</b><span>&nbsp;</span>"
    else:
        text = f"<b>{probability(shown.belief)}</b><span>{'chosen' if role == 'chosen' else f'view {view}'}</span>"
    return f'<li class="v{view} {role}" title="{escape(_label(view, seen))}">{picture}{_bar(shown.belief)}{text}</li>'


def _bar(belief: float | None) -> str:
    if belief is None:
        return '<div class="bar" style="visibility:hidden"></div>'
    return f'<div class="bar"><i style="width:{100 * min(1.0, max(0.0, belief)):.1f}%"></i></div>'


def probability(value: float) -> str:
    """A probability as people read it.

    >>> probability(0.25), probability(3e-9), probability(0.0)
    ('0.250', '3·10⁻⁹', '0')
    """
    return "0" if value <= 0 else f"{value:.3f}" if value >= 5e-4 else power(value, 0)


def power(value: float, digits: int) -> str:
    """A tiny number that no line break parts.

    >>> power(0.0000123, 1)
    '1.2·10⁻⁵'
    """
    mantissa, exponent = f"{value:.{digits}e}".split("e")
    return (
        f"{mantissa}·10{str(int(exponent)).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"
    )


def percent(share: float) -> str:
    """Whole numbers, but for what would round to nothing or to all.

    >>> percent(0.423), percent(0.9979), percent(1.0), percent(0.99999), percent(2e-9)
    ('42 %', '99.8 %', '100 %', 'over 99.9 %', 'under 0.1 %')
    """
    if 0.005 <= share <= 0.995 or share in (0.0, 1.0):
        return f"{100 * share:.0f} %"
    if share > 0.5:
        return f"{100 * share:.1f} %" if share < 0.9995 else "over 99.9 %"
    return f"{100 * share:.1f} %" if share >= 0.0005 else "under 0.1 %"


def signed(value: float, form: str = ".2f") -> str:
    return format(value, form).replace("-", "−")


def _bonus(value: float) -> str:
    return f"{value:.3g}" if value == 0 or abs(value) >= 1e-3 else power(value, 1)
