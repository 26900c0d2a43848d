"""One self-contained HTML page: no outside request, light and dark, readable on a phone. All text from runs is escaped."""

import base64
import html
import io
from collections.abc import Sequence

import numpy as np

STYLE = """
:root { color-scheme: light dark; --ink: #1d2330; --soft: #5c6575; --paper: #fbfaf7; --line: #dcd9d0; --accent: #d1495b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e4de; --soft: #9aa3b2; --paper: #16181d; --line: #343842; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 2rem 1.2rem 4rem; background: var(--paper); color: var(--ink);
       font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; } h2 { font-size: 1.15rem; margin: 2.4rem 0 .4rem; }
p, figcaption { max-width: 44rem; } .soft, figcaption { color: var(--soft); font-size: .92rem; }
.scroll { overflow-x: auto; } .scroll svg { min-width: 34rem; }
figure { margin: 1rem 0; } svg { width: 100%; height: auto; color: var(--ink); } svg text { font-family: inherit; }
table { border-collapse: collapse; margin: .6rem 0; } .wide { overflow-x: auto; }
th, td { text-align: right; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--line);
         font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; } th { font-weight: 600; font-size: .85rem; color: var(--soft); }
.strip { display: grid; grid-template-columns: repeat(auto-fill, minmax(6.5rem, 1fr)); gap: .5rem; }
.strip img, video { width: 100%; border-radius: 4px; image-rendering: pixelated; display: block; }
.strip span { font-size: .78rem; color: var(--soft); } video { max-width: 20rem; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)); gap: 1rem; }
code { font-size: .88em; background: color-mix(in srgb, var(--ink) 8%, transparent); padding: .1em .35em; border-radius: 3px; }
pre { overflow-x: auto; background: color-mix(in srgb, var(--ink) 6%, transparent); padding: .7rem .9rem; border-radius: 4px; }
pre code { background: none; padding: 0; }
"""


def escape(text: object) -> str:
    return html.escape(str(text), quote=True)


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def figure(svg: str, caption: str, wide: bool = False) -> str:
    """A figure with its caption; a wide one scrolls on a phone instead of shrinking until nobody can read it."""
    kind = ' class="scroll"' if wide else ""
    return f"<figure><div{kind}>{svg}</div><figcaption>{escape(caption)}</figcaption></figure>"


def picture_strip(pictures: Sequence[np.ndarray], captions: Sequence[str]) -> str:
    """Pictures (H, W, 3) side by side, as PNG inside the page."""
    from PIL import Image

    items = []
    for picture, caption in zip(pictures, captions, strict=True):
        buffer = io.BytesIO()
        Image.fromarray(picture).save(buffer, format="PNG")
        data = base64.b64encode(buffer.getvalue()).decode()
        items.append(f'<div><img alt="{escape(caption)}" src="data:image/png;base64,{data}"><span>{escape(caption)}</span></div>')
    return f'<div class="strip">{"".join(items)}</div>'


def video(mp4: bytes, label: str) -> str:
    data = base64.b64encode(mp4).decode()
    return f'<video controls loop muted playsinline aria-label="{escape(label)}" src="data:video/mp4;base64,{data}"></video>'


def page(title: str, parts: Sequence[str]) -> str:
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    return (
        f'<!doctype html><html lang="en"><head>{head}<title>{escape(title)}</title><style>{STYLE}</style></head>'
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )
