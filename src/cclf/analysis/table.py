"""A table: records, each with the row and column in which it is shown."""

import functools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cclf.analysis.statistics import Interval

Value = str | int | float | None
Record = dict[str, Value]  # one line of the CSV file, by column
MISSING = "–"  # the text of an empty cell


class Cell(NamedTuple):
    """The text of a table cell and notes in small print. `style` is "best" (bold), "word" (prose),
    "claim" (prose whose notes are a source) or the state of a verdict."""

    text: str
    notes: tuple[str, ...] = ()
    style: str = ""


class Entry(NamedTuple):
    """One value of a table: the first cells of its row, its column and cell, and its record, which
    is None for values that other sources published."""

    row: tuple[Cell, ...]
    record: Record | None = None
    column: str = ""
    cell: Cell = Cell(MISSING)


@dataclass(frozen=True)
class Table:
    """Entries arranged by row and column. The first `len(labels)` columns identify a row."""

    name: str  # base name of its files
    entries: Sequence[Entry]
    labels: tuple[str, ...]
    columns: tuple[str, ...] = ()
    title: str = ""
    about: str = ""  # the runs in it, e.g. their suite and profile
    caption: str = ""
    bold_caption: str = ""  # what bold means; shown if a cell is bold
    stacked: bool = False  # whether cells are prose; narrow screens show the table as a list

    @property
    def records(self) -> list[Record]:
        return [entry.record for entry in self.entries if entry.record is not None]

    @property
    def header(self) -> tuple[str, ...]:
        return (*self.labels, *self.columns)

    @functools.cached_property
    def rows(self) -> list[tuple[Cell, ...]]:
        grid: dict[tuple[Cell, ...], dict[str, Cell]] = {}
        for entry in self.entries:
            grid.setdefault(entry.row, {})[entry.column] = entry.cell
        return [
            (*row, *(cells.get(name, Cell(MISSING)) for name in self.columns))
            for row, cells in grid.items()
        ]

    @property
    def heading(self) -> str:
        return ": ".join(filter(None, (self.title, self.about)))


class Layout(NamedTuple):
    """A table as it is shown."""

    caption: str
    header: tuple[Cell, ...]
    rows: Sequence[tuple[Cell, ...]]


def layout(table: Table, drop_empty: bool = False) -> Layout:
    """Notes that all cells share move to the caption, and tasks become columns if there are more
    methods than tasks, so that the table stays narrow. `drop_empty` removes columns without a
    value."""
    shared, rows = _factor_common_notes(table.rows)
    header = tuple(map(Cell, table.header))
    columns = [
        column
        for index, column in enumerate(zip(header, *rows, strict=True))
        if not drop_empty
        or index < len(table.labels)
        or any(cell.text != MISSING for cell in column[1:])
    ]
    if table.header[0] != "task" or len(columns) - 1 <= len(rows):
        header, *rows = zip(*columns, strict=True)
    else:
        (_, *tasks), *rows = columns  # transposed
        header = (Cell("method"), *tasks)
    is_bold = any(entry.cell.style == "best" for entry in table.entries)
    caption = " ".join(filter(None, (table.caption, table.bold_caption * is_bold, shared)))
    return Layout(caption, header, rows)


_is_seeds = re.compile(r"\d+ seeds?").fullmatch


def _factor_common_notes(
    rows: Sequence[tuple[Cell, ...]],
) -> tuple[str, list[tuple[Cell, ...]]]:
    """The notes that the first cells of all rows share and the most common number of seeds, as a
    sentence; and the rows without these notes."""
    first_notes = {row[0].notes for row in rows if row[0].style != "claim"}
    common = first_notes.pop() if len(rows) > 1 and len(first_notes) == 1 else ()
    counts = Counter(note for row in rows for cell in row for note in cell.notes if _is_seeds(note))
    (usual_count, _), *others = counts.most_common() or [("", 0)]
    shortened = [
        (
            row[0]._replace(notes=() if common else row[0].notes),
            *(
                cell._replace(notes=tuple(note for note in cell.notes if note != usual_count))
                for cell in row[1:]
            ),
        )
        for row in rows
    ]
    seeds = f"{usual_count}{', unless a cell says otherwise' * bool(others)}"
    shared = "; ".join(filter(None, (", ".join(common), seeds)))
    return f"All: {shared}." if shared else "", shortened


def format_number(value: float) -> str:
    """A number below 1000 with three significant digits and at most three decimals; others as
    integers; "never" for infinity.

    >>> format_number(0.9412), format_number(-17.31), format_number(4228.6), format_number(np.inf)
    ('0.941', '-17.3', '4,229', 'never')
    >>> format_number(0.9996), format_number(-0.0004)
    ('1.00', '0.000')
    """
    if np.isinf(value):
        return "never"
    size = abs(round(value, 3))
    decimals = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    text = f"{value:,.{decimals}f}"
    return text.lstrip("-") if not text.strip("-0.") else text  # 0.000 instead of -0.000


def format_interval(low: float, high: float) -> str:
    return f"[{format_number(low)}, {format_number(high)}]"


def interval_cell(interval: Interval, *notes: str, style: str = "") -> Cell:
    estimate, low, high = interval.floats()
    return Cell(format_number(estimate), (format_interval(low, high), *notes), style)


def format_seeds(count: int) -> str:
    return f"{count} seed{'s' * (count > 1)}"
