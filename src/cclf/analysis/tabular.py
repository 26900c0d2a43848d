"""A table, once for people (cells with small print) and once as plain data; as CSV and LaTeX
files."""

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cclf.analysis.evaluations import FORMULA_SIGNS
from cclf.analysis.page import Cell
from cclf.storage.atomic_files import write_output


class Table(NamedTuple):
    name: str
    caption: str
    header: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]
    columns: tuple[str, ...]  # of the CSV file
    data: Sequence[tuple[object, ...]]
    stacked: bool = False  # few columns of words: on a phone a list
    title: str = ""  # what it shows, in a few words
    about: str = ""  # of which runs

    @property
    def heading(self) -> str:
        return ": ".join(filter(None, (self.title, self.about)))


def number(value: float) -> str:
    """Three digits that matter, or whole numbers.

    >>> number(0.9412), number(-17.31), number(4228.6), number(float("inf"))
    ('0.941', '-17.3', '4,229', 'never')
    >>> number(0.9996), number(-0.0004)
    ('1.00', '0.000')
    """
    if np.isinf(value):
        return "never"
    size = abs(round(value, 3))
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    text = f"{value:,.{digits}f}"
    return text.lstrip("-") if not text.strip("-0.") else text


NOTHING = "–"  # the cell of what was not measured
_SEEDS = re.compile(r"\d+ seeds?").fullmatch


class Layout(NamedTuple):
    caption: str
    header: tuple[Cell, ...]
    rows: Sequence[tuple[Cell, ...]]


def laid_out(table: Table) -> Layout:
    """As people read it best: what all cells would repeat stands once in the caption, and tasks
    stand across where methods are more, so that it stays narrow."""
    shared, rows = _told_once(table.rows)
    header = tuple(Cell(name) for name in table.header)
    caption = f"{table.caption} {shared}".strip()
    if table.header[0] != "task" or len(header) - 1 <= len(rows):
        return Layout(caption, header, rows)
    (_, *tasks), *columns = zip(header, *rows, strict=True)
    return Layout(caption, (Cell("method"), *tasks), columns)


def sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def _told_once(rows: Sequence[tuple[Cell, ...]]) -> tuple[str, list[tuple[Cell, ...]]]:
    """The small print that all first cells share, and the number of seeds that most cells have, as
    a sentence; and the rows without them."""
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


def file_name(words: str) -> str:
    """A name for a file from words that others may have written: it cannot leave its folder.

    >>> file_name("returns of ../../x: 1,000")
    'returns-of-x-1000'
    """
    kept = (
        character
        for character in words.replace(" ", "-").replace("/", "-")
        if character.isalnum() or character in "-_+."
    )
    return re.sub(r"[-.]*\.[-.]+|-{2,}", "-", "".join(kept)).strip(".-") or "unnamed"


def write_csv(table: Table, folder: Path) -> Path:
    path = folder / f"{file_name(table.name)}.csv"
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([_inert(value) for value in row] for row in table.data)
    write_output(path, text.getvalue())
    return path


def _inert(value: object) -> object:
    """Words that a spreadsheet would obey as a formula get an apostrophe before them; numbers stay
    as they are.

    >>> _inert("=1+1"), _inert("-1.5"), _inert(-1.5), _inert("re3+cclf")
    ("'=1+1", "'-1.5", -1.5, 're3+cclf')
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_SIGNS) else value


_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
    }
    | {"±": r"$\pm$", "×": r"$\times$", "–": "--", "−": "$-$", "∞": r"$\infty$"}
)


def latex(text: str) -> str:
    r"""Text that TeX prints and never obeys.

    >>> print(latex(r"\input{x} 50% a_b ± $1"))
    \textbackslash{}input\{x\} 50\% a\_b $\pm$ \$1
    """
    return text.translate(_LATEX)


def measured(table: Table) -> Table:
    """Without the columns in which nothing was measured, such as methods that others alone ran."""
    kept = [
        number
        for number in range(len(table.header))
        if number == 0 or any(row[number].text != NOTHING for row in table.rows)
    ]
    header = tuple(table.header[number] for number in kept)
    rows = [tuple(row[number] for number in kept) for row in table.rows]
    return table._replace(header=header, rows=rows)


SPACE = r"\addlinespace"


def write_latex(table: Table, folder: Path, part: str = "") -> Path:
    """A table for a paper, which needs the package booktabs: its caption above, small print below
    each number, and only what was measured. `part` tells its label from those of other parts."""
    caption, header, rows = laid_out(measured(table))
    heading = f"{table.heading}." if table.heading else ""
    words = " ".join(filter(None, (heading, sentence(caption))))
    columns, cell = "l" + "c" * (len(header) - 1), _latex_cell
    if table.stacked:  # columns of words, which break where the page ends
        share = 0.58 / max(1, len(header) - 1)
        columns = r"p{0.34\linewidth}" + rf"p{{{share:.2f}\linewidth}}" * (len(header) - 1)
        cell = _latex_words
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        r"\small",
        rf"\caption{{{latex(words)}}}",
        rf"\label{{tab:{file_name(f'{part} {table.name}')}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        " & ".join(map(cell, header)) + r" \\",
        r"\midrule",
        # some space between rows: small print would touch the number below it
        f"\n{SPACE}\n".join(" & ".join(map(cell, row)) + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    path = folder / f"{file_name(table.name)}.tex"
    write_output(path, "\n".join(lines) + "\n")
    return path


def _latex_cell(cell: Cell) -> str:
    text = rf"\textbf{{{latex(cell.text)}}}" if cell.kind == "best" else latex(cell.text)
    small = "".join(rf"\\ \scriptsize {latex(note)}" for note in cell.notes)
    return rf"\shortstack{{{text}{small}}}" if small else text


def _latex_words(cell: Cell) -> str:
    text = rf"\textbf{{{latex(cell.text)}}}" if cell.kind == "held" else latex(cell.text)
    return text + "".join(rf" \newline {{\scriptsize {latex(note)}}}" for note in cell.notes)
