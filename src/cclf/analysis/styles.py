"""Colors and dashes of methods in figures: a method has the same style in every figure, and methods
that are drawn together have different ones."""

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypedDict

# Each has a contrast ratio of at least 3:1 to light and to dark pages.
RED, BLUE, GREEN, ORANGE, PURPLE = "#d1495b", "#4878c0", "#3a9a5f", "#cb7a12", "#9055b8"
TEAL, BROWN, GREY, PINK, OLIVE = "#1b98a8", "#8c6d4a", "#808080", "#cf63a6", "#8a8d2b"
PALETTE = (RED, BLUE, GREEN, ORANGE, PURPLE, TEAL, BROWN, GREY, PINK, OLIVE)
SOLID, DASHED, DOTTED, DASH_DOT = (), (4.5, 1.8), (1.2, 1.3), (6.0, 1.6, 1.2, 1.6)
# Pairs that are hard to tell apart with deuteranopia; they need different dash patterns.
SIMILAR_COLORS = {
    frozenset(pair)
    for pair in (
        (RED, GREEN),
        (RED, BROWN),
        (GREEN, BROWN),
        (BLUE, PURPLE),
        (TEAL, PINK),
        (GREY, PINK),
    )
}
DASHES: tuple[tuple[float, ...], ...] = (SOLID, DASHED, DOTTED, DASH_DOT)


class LineStyle(TypedDict, total=False):
    """Arguments of matplotlib that draw a line."""

    color: str
    ls: str | tuple[float, tuple[float, ...]]
    lw: float


class Style(NamedTuple):
    """How the line of a method is drawn."""

    color: str
    dashes: tuple[float, ...] = SOLID  # lengths on and off, in line widths

    @property
    def line(self) -> LineStyle:
        """As arguments of matplotlib."""
        return {"color": self.color, "ls": (0, self.dashes) if self.dashes else "-"}


STYLES = {
    "cclf": Style(RED),
    "cclf-distinct": Style(ORANGE, DASHED),
    "cclf-shuffled": Style(BLUE, DASHED),
    "cclf-even": Style(BROWN, DOTTED),
    "cclf-ranks": Style(GREEN, DASH_DOT),
    "cclf-debiased": Style(OLIVE, DASHED),
    "cclf-cancelled": Style(PURPLE, DOTTED),
    "cclf-particles": Style(PINK, DASHED),
    "re3+cclf": Style(PURPLE),
    "re3+cclf-distinct": Style(PINK, DASH_DOT),
    "curl": Style(TEAL),
    "re3+curl": Style(TEAL, DASHED),
    "curl+": Style(PURPLE, DASH_DOT),
    "curl++": Style(PINK, DOTTED),
    "a2c": Style(BLUE, DASH_DOT),
    "re3": Style(GREEN, DASHED),
    "drq": Style(BLUE),
    "drq-v2": Style(GREEN, DOTTED),
    "rad": Style(OLIVE, DASH_DOT),
    "sac-pixel": Style(GREY),
    "rainbow": Style(GREY, DASHED),
}
Styles = Mapping[str, Style]


def alike(one: Style, other: Style) -> bool:
    """Whether the two are hard to tell apart."""
    same = one.color == other.color or {one.color, other.color} in SIMILAR_COLORS
    return same and one.dashes == other.dashes


def styles(methods: Iterable[str]) -> dict[str, Style]:
    """A style for each method, all different. Methods in STYLES have that style; others get colors
    and dashes that few others have, chosen by a hash of their names.

    >>> styles(["cclf", "mine"])["cclf"] == STYLES["cclf"]
    True
    """
    names = list(dict.fromkeys(methods))
    chosen = {name: STYLES[name] for name in names if name in STYLES}
    for name in names:
        if name not in chosen:
            chosen[name] = _least_used_style(zlib.crc32(name.encode()), list(chosen.values()))
    return {name: chosen[name] for name in names}


def _least_used_style(name_hash: int, taken: list[Style]) -> Style:
    colors = Counter(style.color for style in taken)
    dashes = Counter(style.dashes for style in taken)
    every = [Style(color, dash) for color in PALETTE for dash in DASHES]
    free = [style for style in every if not any(alike(style, other) for other in taken)] or every

    def usage(style: Style) -> tuple[int, int, int]:
        place = (PALETTE.index(style.color) - name_hash) % len(PALETTE)
        return colors[style.color], dashes[style.dashes], place

    return min(free, key=usage)
