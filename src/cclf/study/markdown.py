"""Tables of a report as Markdown, and into the marked places of documents that people write.

    <!-- table minigrid/verdicts-minigrid -->
    what stands here is written by `cclf report results --markdown THIS_FILE`
    <!-- end of table -->

A name is that of the table's CSV file; where a report has several parts, with its part before it.
"""

import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from cclf.data.from_disk import read_text
from cclf.errors import ConfigError, nearest
from cclf.study.page import Cell
from cclf.study.tabular import Table

CAPTION_COLUMNS = 130
END = "<!-- end of table -->"
_BEGIN = re.compile(r"<!-- table (\S+) -->\n")
_SEEDS = re.compile(r"\d+ seeds?").fullmatch
_SIGNS = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "\\|", "*": "\\*", "`": "\\`", "\\": "\\\\"}
)


def written(table: Table) -> str:
    """Caption and table. Tasks stand across where methods are more, so that it stays narrow."""
    shared, rows = _told_once(table.rows)
    lines = [tuple(Cell(name) for name in table.header), *rows]
    if table.header[0] == "task" and len(table.header) - 1 > len(rows):
        lines = list(zip(*lines, strict=True))
        lines[0] = (Cell("method"), *lines[0][1:])
    lines.insert(1, tuple(Cell("---") for _ in lines[0]))
    text = "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)
    caption = f"{table.caption} {shared}".strip().translate(_SIGNS)
    return f"{textwrap.fill(caption, CAPTION_COLUMNS)}\n\n{text}" if caption else text


def _told_once(rows: Sequence[tuple[Cell, ...]]) -> tuple[str, list[tuple[Cell, ...]]]:
    """Small print that all tasks share, or most cells, as a sentence; and the rows without it."""
    rows, told = list(rows), []
    firsts = {row[0].notes for row in rows if row[0].kind != "word claim"}
    if len(rows) > 1 and len(firsts) == 1 and (notes := firsts.pop()):
        told.append(", ".join(notes))
        rows = [(row[0]._replace(notes=()), *row[1:]) for row in rows]
    seeds = Counter(note for row in rows for cell in row for note in cell.notes if _SEEDS(note))
    if seeds:
        (usual, _), *others = seeds.most_common()
        told.append(f"{usual}{', unless a cell says otherwise' * bool(others)}")
        rows = [tuple(_without(cell, usual) for cell in row) for row in rows]
    return f"All: {'; '.join(told)}." if told else "", rows


def _without(cell: Cell, note: str) -> Cell:
    return cell._replace(notes=tuple(other for other in cell.notes if other != note))


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


def write(path: Path, tables: Mapping[str, str]) -> None:
    """Into the marked places of a document; a new one gets every table."""
    if not path.exists():
        marked = [f"<!-- table {name} -->\n{text}{END}\n" for name, text in tables.items()]
        path.write_text("\n".join(marked), encoding="utf-8")
        return
    old = read_text(path)
    if not _BEGIN.search(old):
        raise ConfigError(f"{path} has no place for a table: mark one with `<!-- table NAME -->`")
    path.write_text(filled(old, tables), encoding="utf-8")
