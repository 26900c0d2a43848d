"""Colours and dashes of methods in figures: a method looks the same in every one of them, and no
two that are drawn together look alike."""

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

# Each stands out on light and on dark pages.
RED, BLUE, GREEN, ORANGE, PURPLE = "#d1495b", "#4878c0", "#3a9a5f", "#cb7a12", "#9055b8"
TEAL, BROWN, GREY, PINK, OLIVE = "#1b98a8", "#8c6d4a", "#808080", "#cf63a6", "#8a8d2b"
PALETTE = (RED, BLUE, GREEN, ORANGE, PURPLE, TEAL, BROWN, GREY, PINK, OLIVE)
SOLID, DASHED, DOTTED, DASH_DOT = (), (4.5, 1.8), (1.2, 1.3), (6.0, 1.6, 1.2, 1.6)
# Eyes that lack green see these pairs as nearly one colour: together they need other dashes.
MIXED_UP = {
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


class Style(NamedTuple):
    """How the line of a method is drawn."""

    colour: str
    dashes: tuple[float, ...] = SOLID  # lengths on and off, in widths of the line

    @property
    def line(self) -> dict[str, Any]:
        """For matplotlib."""
        return {"color": self.colour, "ls": (0, self.dashes) if self.dashes else "-"}


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
    """Whether somebody could take one for the other."""
    same = one.colour == other.colour or {one.colour, other.colour} in MIXED_UP
    return same and one.dashes == other.dashes


def styles(methods: Iterable[str]) -> dict[str, Style]:
    """The style of each method, no two alike: a known one has its own. Others get colours and
    dashes that few others have, their names deciding where to begin.

    >>> styles(["cclf", "mine"])["cclf"] == STYLES["cclf"]
    True
    """
    names = list(dict.fromkeys(methods))
    found = {name: STYLES[name] for name in names if name in STYLES}
    for name in names:
        if name not in found:
            found[name] = _free(zlib.crc32(name.encode()), list(found.values()))
    return {name: found[name] for name in names}


def _free(begin: int, taken: list[Style]) -> Style:
    colours = Counter(style.colour for style in taken)
    dashes = Counter(style.dashes for style in taken)
    every = [Style(colour, dash) for colour in PALETTE for dash in DASHES]
    free = [style for style in every if not any(alike(style, other) for other in taken)] or every

    def crowding(style: Style) -> tuple[int, int, int]:
        place = (PALETTE.index(style.colour) - begin) % len(PALETTE)
        return colours[style.colour], dashes[style.dashes], place

    return min(free, key=crowding)
