"""Tables of a report as Markdown, and into the marked places of documents that people write.

    <!-- table minigrid/verdicts-minigrid -->
    what stands here is written by `cclf report results --markdown THIS_FILE`
    <!-- end of table -->

A name is that of the table's CSV file; where a report has several parts, with its part before it.
`verdicts` are those of all parts.
"""

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

from cclf.data.from_disk import read_text
from cclf.errors import ConfigError, nearest
from cclf.study.page import Cell
from cclf.study.tabular import Table, laid_out

CAPTION_COLUMNS = 130
END = "<!-- end of table -->"
_BEGIN = re.compile(r"^<!-- table (\S+) -->\n", re.MULTILINE)
_SIGNS = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "\\|", "*": "\\*", "`": "\\`", "\\": "\\\\"}
)


def written(table: Table) -> str:
    """Caption and table."""
    caption, header, rows = laid_out(table)
    caption = f"{table.about}: {caption}" if table.about else caption
    lines = [header, [Cell("---")] * len(header), *rows]
    text = "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)
    words = textwrap.fill(caption.translate(_SIGNS), CAPTION_COLUMNS)
    return f"{words}\n\n{text}" if words else text


def _cell(cell: Cell) -> str:
    """Small print behind its number; a claim's source is left to the CSV file."""
    text = cell.text.translate(_SIGNS)
    text = f"**{text}**" if cell.kind in ("best", "held") else text
    notes = [note.translate(_SIGNS) for note in cell.notes if cell.kind != "word claim"]
    if cell.kind in ("held", "not-held", "open"):
        return ": ".join([text, *notes])
    beside = [note for note in notes if note.startswith("[")]
    others = ", ".join(note for note in notes if note not in beside)
    return " ".join([text, *beside, *([f"({others})"] if others else [])])


def has_places(text: str) -> bool:
    return _BEGIN.search(text) is not None


def filled(text: str, tables: Mapping[str, str]) -> str:
    """`text` with each marked place holding what its table says now."""
    parts, place = [], 0
    for begin in _BEGIN.finditer(text):
        name, end = begin[1], text.find(END, begin.end())
        if name not in tables:
            raise ConfigError(f"no table is called {name!r} here{nearest(name, tuple(tables))}")
        following = _BEGIN.search(text, begin.end())
        if end < 0 or (following and following.start() < end):
            raise ConfigError(f"the place for table {name} has no end: put {END!r} after it")
        parts += [text[place : begin.end()], tables[name]]
        place = end
    return "".join([*parts, text[place:]])


def renewed(path: Path, tables: Mapping[str, str]) -> str:
    """A document with its marked places filled; a new one has every table."""
    if not path.exists():
        marked = [f"<!-- table {name} -->\n{text}{END}\n" for name, text in tables.items()]
        return "\n".join(marked)
    text = read_text(path)
    if not has_places(text):
        raise ConfigError(f"{path} has no place for a table: mark one with `<!-- table NAME -->`")
    try:
        return filled(text, tables)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
