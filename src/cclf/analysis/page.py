"""One self-contained HTML page: no outside request, light and dark, readable on a phone. All text
from runs is escaped."""

import base64
import html
import io
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

STYLE = """
:root { color-scheme: light dark; --ink: #1d2330; --soft: #5c6575; --paper: #fbfaf7; --line: #dcd9d0;
        --good: #1f7a4d; --bad: #b3382c; --link: #2458a6; --shade: #1d233038; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e4de; --soft: #9aa3b2; --paper: #16181d; --line: #343842;
        --good: #62c596; --bad: #f08a7d; --link: #8db4f0; --shade: #0009; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 66rem; padding: 2rem 1.2rem 4rem; background: var(--paper); color: var(--ink);
       font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; } h2 { font-size: 1.15rem; margin: 2.4rem 0 .4rem; }
p, figcaption { max-width: 44rem; } .soft, figcaption { color: var(--soft); font-size: .92rem; }
figure { margin: 1rem 0; } svg { width: 100%; height: auto; color: var(--ink); } svg text { font-family: inherit; }
table { border-collapse: collapse; margin: .6rem 0; font-size: .95rem; }
.wide { overflow-x: auto; container-type: inline-size; background:
        linear-gradient(90deg, var(--paper) 40%, transparent) left / 3rem 100% no-repeat local,
        linear-gradient(-90deg, var(--paper) 40%, transparent) right / 3rem 100% no-repeat local,
        linear-gradient(90deg, var(--shade), transparent) left / .9rem 100% no-repeat scroll,
        linear-gradient(-90deg, var(--shade), transparent) right / .9rem 100% no-repeat scroll; }
.across { width: fit-content; min-width: 100%; }
/* as high as a line where the table is wider than its place, and nothing where it is not */
.hint { position: sticky; left: 0; width: 100cqw; height: 0; overflow: hidden; color: var(--soft); font-size: .8rem;
        line-height: 1.3rem; text-align: right; padding: 0 .2rem clamp(0px, (100% - 100cqw) * 40, 1.3rem) 0; }
th, td { text-align: right; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--line);
         font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; } th { font-weight: 600; font-size: .85rem; color: var(--soft); }
.strip { display: grid; grid-template-columns: repeat(auto-fill, minmax(6.5rem, 1fr)); gap: .5rem; }
.strip img, video { width: 100%; border-radius: 4px; image-rendering: pixelated; display: block; }
.strip span { font-size: .78rem; color: var(--soft); } video { max-width: 20rem; }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(17rem, 100%), 1fr)); gap: 1rem; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; list-style: none; padding: 0; margin: .8rem 0; font-size: .88rem; }
.legend i { display: inline-block; width: 2rem; height: .2rem; margin-right: .4rem; vertical-align: middle; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(6.2rem, 1fr)); gap: .6rem; margin: 1.2rem 0; }
.tiles div { border: 1px solid var(--line); border-radius: 6px; padding: .5rem .8rem; }
.tiles b { display: block; font-size: 1.35rem; line-height: 1.3; font-variant-numeric: tabular-nums; }
.tiles span, small { color: var(--soft); font-size: .8rem; } td small, th small { display: block; white-space: nowrap; }
th small { font-weight: 400; } th { vertical-align: bottom; }
td { vertical-align: top; white-space: nowrap; } td.best { font-weight: 600; } td.best small { font-weight: 400; }
td.word, td.word small { white-space: normal; overflow-wrap: anywhere; text-align: left; } td.word { min-width: 11rem; }
td.held, td.not-held, td.open { text-align: left; min-width: 11rem; } table:has(td.word) th { text-align: left; }
.wide td:first-child, .wide th:first-child { position: sticky; left: 0; background: var(--paper); }
td.held, .held b { color: var(--good); } td.not-held, .not-held b { color: var(--bad); } td.open, .open b { color: var(--soft); }
td.held, td.not-held { font-weight: 600; } .held small, .not-held small, .open small { font-weight: 400; white-space: normal; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)); gap: 1rem; }
code { font-size: .88em; background: color-mix(in srgb, var(--ink) 8%, transparent); padding: .1em .35em; border-radius: 3px; }
pre { overflow-x: auto; background: color-mix(in srgb, var(--ink) 6%, transparent); padding: .7rem .9rem; border-radius: 4px; }
pre code { background: none; padding: 0; }
figcaption { margin-top: .5rem; } .caption { margin: 1.8rem 0 .2rem; } .caption b { color: var(--ink); display: block; }
 h3 { font-size: 1.05rem; margin: 2rem 0 .4rem; }
h2.part { font-size: 1.35rem; margin-top: 3.2rem; padding-top: .8rem; border-top: 2px solid var(--line); }
a { color: var(--link); text-underline-offset: .15em; text-decoration-thickness: 1px; }
nav { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(17rem, 100%), 1fr)); gap: .4rem 1.5rem; }
nav { font-size: .92rem; } nav ul { list-style: none; padding: 0; margin: .1rem 0 .8rem; }
nav div:only-child ul { columns: 17rem auto; }
.panels:has(> :only-child) { grid-template-columns: minmax(0, 32rem); }
.up { font-size: .88rem; }
@media (max-width: 40rem) {
  pre { white-space: pre-wrap; overflow-wrap: anywhere; }
  .wide td:first-child { max-width: 10rem; white-space: normal; overflow-wrap: break-word; }
  .stacked thead { display: none; } .stacked td { display: block; border: 0; padding: .1rem 0; }
  .stacked td:first-child { max-width: none; position: static; }
  .stacked td, .stacked small { white-space: normal; }
  .stacked td:not([class]) small { display: inline-block; margin-left: .4rem; }
  .stacked td + td:not([data-label=""])::before { content: attr(data-label) ": "; color: var(--soft); font-weight: 400; }
  .stacked tr { display: block; padding: .5rem 0; border-bottom: 1px solid var(--line); }
}
"""


def escape(text: object) -> str:
    return html.escape(str(text), quote=True)


class Cell(NamedTuple):
    """A table cell with small lines under its text; `kind` is a class of STYLE."""

    text: str
    notes: tuple[str, ...] = ()
    kind: str = ""


def table(
    header: Sequence[object],
    rows: Sequence[Sequence[object]],
    stacked: bool = False,
    title: str = "",
    caption: str = "",
) -> str:
    """Any object is a cell by its text. A wide table scrolls on a phone and says so, a stacked one
    becomes a list of its rows. Title and caption stand above."""
    names = [name.text if isinstance(name, Cell) else str(name) for name in header]
    head = "".join(f"<th>{_inner(name)}</th>" for name in header)
    body = "".join(
        "<tr>" + "".join(_cell(cell, name) for cell, name in zip(row, names, strict=True)) + "</tr>"
        for row in rows
    )
    text = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    place = (
        f'<div class="stacked">{text}</div>'
        if stacked
        else f'<div class="wide">{_across(text)}</div>'
    )
    if not (title or caption):
        return place
    words = (f"<b>{escape(title)}</b>" if title else "") + escape(caption)
    return f'<figure class="table"><figcaption class="caption">{words}</figcaption>{place}</figure>'


def _across(text: str) -> str:
    hint = '<div class="hint" aria-hidden="true">scroll sideways →</div>'
    return f'<div class="across">{hint}{text}</div>'


def _cell(cell: object, label: str) -> str:
    kind = cell.kind if isinstance(cell, Cell) else ""
    attribute = f' class="{escape(kind)}"' if kind else ""
    return f'<td{attribute} data-label="{escape(label)}">{_inner(cell)}</td>'


def _inner(cell: object) -> str:
    text, notes, _ = cell if isinstance(cell, Cell) else Cell(str(cell))
    return escape(text) + "".join(f"<small>{escape(note)}</small>" for note in notes)


def legend(styles: Mapping[str, tuple[str, Sequence[float]]]) -> str:
    """Names with the colour and the dashes of their lines."""
    items = (
        f'<li><i style="background:{escape(_stroke(*style))}"></i>{escape(name)}</li>'
        for name, style in styles.items()
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def _stroke(colour: str, dashes: Sequence[float]) -> str:
    """A line as a background, with dashes in lengths on and off.

    >>> _stroke("#000000", (4.0, 2.0))
    'repeating-linear-gradient(90deg, #000000 0px 8px, transparent 8px 12px)'
    """
    ends = [2.0 * length for length in accumulate(dashes, initial=0.0)]
    parts = [
        f"{'transparent' if number % 2 else colour} {begin:g}px {end:g}px"
        for number, (begin, end) in enumerate(pairwise(ends))
    ]
    return f"repeating-linear-gradient(90deg, {', '.join(parts)})" if parts else colour


def panels(svgs: Sequence[str], caption: str) -> str:
    """Small figures side by side, as many as the screen has room for."""
    return f'<figure><div class="panels">{"".join(svgs)}</div><figcaption>{escape(caption)}</figcaption></figure>'


def tiles(facts: Sequence[tuple[str, str, str]]) -> str:
    """Numbers at a glance: (number, what it counts, class)."""
    items = (
        f'<div class="{escape(kind)}"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
        for value, name, kind in facts
    )
    return f'<div class="tiles">{"".join(items)}</div>'


def image(picture: np.ndarray, label: str) -> str:
    """A picture (H, W, 3), as PNG inside the page."""
    return f'<img alt="{escape(label)}" src="{_png(picture)}">'


def _png(picture: np.ndarray) -> str:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def picture_strip(pictures: Sequence[np.ndarray], captions: Sequence[str]) -> str:
    """Pictures (H, W, 3) side by side."""
    named = zip(pictures, captions, strict=True)
    items = (
        f"<div>{image(picture, caption)}<span>{escape(caption)}</span></div>"
        for picture, caption in named
    )
    return f'<div class="strip">{"".join(items)}</div>'


def page(title: str, parts: Sequence[str], style: str = "") -> str:
    """The document; `style` holds rules that this page alone needs."""
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    )
    return (
        f'<!doctype html><html lang="en"><head>{head}<title>{escape(title)}</title><style>{STYLE}{style}</style></head>'
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )
