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

from cclf.analysis.page import Cell
from cclf.analysis.tabular import Table, laid_out
from cclf.errors import ConfigError, did_you_mean
from cclf.storage.safe_loading import data_error_context, read_text

CAPTION_COLUMNS = 130
END = "<!-- end of table -->"
_BEGIN = re.compile(r"^<!-- table (\S+) -->\n", re.MULTILINE)
_MARKUP = re.compile(
    r"(?P<interval>\[[\d., %∞−-]+\](?![(\[:]))"  # not a link: nothing after it makes it one
    r"|[&<>@]"
    r"|[\\`*|~$#!\[\]]"
    r"|(?<![^\W_])_|_(?![^\W_])"  # not within a word
    r"|(?<=:)/(?=/)|(?<=\w)\.(?=[^\W\d_])"  # of an address, which many readers make a link
)
# A reader may take a name with an @ for an address although a backslash is before it.
_REPLACED = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "@<!---->"}


def escaped(text: object) -> str:
    """Text of a file that others may have written, as Markdown that shows it: no link, no picture,
    no line of its own.

    >>> print(escaped("a|b\\n![x](https://x.example) snake_case _x_ 1.5 [0.9, 1.1]"))
    a\\|b \\!\\[x\\](https:\\//x\\.example) snake_case \\_x\\_ 1.5 [0.9, 1.1]
    """
    printable = "".join(sign if sign.isprintable() else " " for sign in str(text))
    return _MARKUP.sub(
        lambda found: found[0] if found["interval"] else _REPLACED.get(found[0], f"\\{found[0]}"),
        " ".join(printable.split()),
    )


def written(table: Table) -> str:
    """Caption and table."""
    caption, header, rows = laid_out(table)
    caption = f"{table.about}: {caption}" if table.about else caption
    lines = [header, [Cell("---")] * len(header), *rows]
    text = "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)
    words = textwrap.fill(escaped(caption), CAPTION_COLUMNS)
    return f"{words}\n\n{text}" if words else text


def _cell(cell: Cell) -> str:
    """Small print behind its number; a claim's source is left to the CSV file."""
    text = escaped(cell.text)
    text = f"**{text}**" if cell.kind in ("best", "held") else text
    notes = [escaped(note) for note in cell.notes if cell.kind != "word claim"]
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
            raise ConfigError(
                f"no table is called {name!r} here{did_you_mean(name, tuple(tables))}"
            )
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
    with data_error_context(f"cannot read {path}"):
        text = read_text(path)
    if not has_places(text):
        raise ConfigError(f"{path} has no place for a table: mark one with `<!-- table NAME -->`")
    try:
        return filled(text, tables)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
