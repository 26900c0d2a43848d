"""Tables as HTML, Markdown, LaTeX and CSV, and HTML pages, by the templates in `templates/`. Text
from runs is escaped as each format requires."""

import base64
import csv
import functools
import io
import re
import textwrap
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np

from cclf.analysis.figures import inline_svg
from cclf.analysis.runs import FORMULA_PREFIXES
from cclf.analysis.styles import Style
from cclf.analysis.table import Cell, Table, layout
from cclf.analysis.verdicts import VerdictState

if TYPE_CHECKING:
    from jinja2 import Environment

MARKDOWN_CAPTION_WIDTH = 130  # characters per line
VERDICTS = get_args(VerdictState)


@functools.cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    filters = (file_name, inline_svg, layout, png, sentence_case, stroke)
    environment.filters |= {function.__name__: function for function in filters}
    return environment


def render(template: str, **values: object) -> str:
    return _environment().get_template(template).render(**values)


# --- HTML ---


def stroke(style: Style) -> str:
    """The line of a method in a legend, as a CSS background. A line width is 2 pixels.

    >>> stroke(Style("#000000", (4.0, 2.0)))
    'repeating-linear-gradient(90deg, #000000 0px 8px, transparent 8px 12px)'
    """
    boundaries = [2.0 * length for length in accumulate(style.dashes, initial=0.0)]
    parts = [
        f"{'transparent' if number % 2 else style.color} {begin:g}px {end:g}px"
        for number, (begin, end) in enumerate(pairwise(boundaries))
    ]
    return f"repeating-linear-gradient(90deg, {', '.join(parts)})" if parts else style.color


def png(picture: np.ndarray) -> str:
    """A picture (H, W, 3) as a data URL, so that the page contains it."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


# --- Markdown ---

_MARKDOWN_SYNTAX = re.compile(
    r"(?P<interval>\[[\d., %∞−-]+\](?![(\[:]))"  # kept; a link would have its target after the ]
    r"|[&<>@]"
    r"|[\\`*|~$#!\[\]]"
    r"|(?<![^\W_])_|_(?![^\W_])"  # an underscore within a word is kept
    r"|(?<=:)/(?=/)|(?<=\w)\.(?=[^\W\d_])"  # in a URL, which many viewers turn into a link
)
# A comment after the @: some viewers turn @name into a link even after a backslash.
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "@<!---->"}


def escape_markdown(text: object) -> str:
    """Text as Markdown on one line, without links, images or markup.

    >>> print(escape_markdown("a|b\\n![x](https://x.example) snake_case _x_ 1.5 [0.9, 1.1]"))
    a\\|b \\!\\[x\\](https:\\//x\\.example) snake_case \\_x\\_ 1.5 [0.9, 1.1]
    """
    printable = "".join(char if char.isprintable() else " " for char in str(text))
    return _MARKDOWN_SYNTAX.sub(
        lambda match: match[0] if match["interval"] else _ENTITIES.get(match[0], f"\\{match[0]}"),
        " ".join(printable.split()),
    )


def to_markdown(table: Table) -> str:
    """The caption and the table as Markdown."""
    caption, header, rows = layout(table)
    caption = f"{table.about}: {caption}" if table.about else caption
    wrapped = textwrap.fill(escape_markdown(caption), MARKDOWN_CAPTION_WIDTH)
    lines = [[_markdown_cell(cell) for cell in row] for row in (header, *rows)]
    return render("table.md", caption=wrapped, header=lines[0], rows=lines[1:])


def _markdown_cell(cell: Cell) -> str:
    """The text of a cell and its notes. The source of a claim is omitted: it is in the CSV file."""
    text = escape_markdown(cell.text)
    text = f"**{text}**" if cell.style in ("best", "held") else text
    notes = [escape_markdown(note) for note in cell.notes if cell.style != "claim"]
    if cell.style in VERDICTS:
        return ": ".join([text, *notes])
    intervals = [note for note in notes if note.startswith("[")]
    others = ", ".join(note for note in notes if note not in intervals)
    return " ".join([text, *intervals, *([f"({others})"] if others else [])])


# --- LaTeX ---

_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
    }
    | {"±": r"$\pm$", "×": r"$\times$", "–": "--", "−": "$-$", "∞": r"$\infty$", "…": r"\dots{}"}
)


def escape_latex(text: str) -> str:
    r"""Text that TeX prints and never executes.

    >>> print(escape_latex(r"\input{x} 50% a_b ± $1"))
    \textbackslash{}input\{x\} 50\% a\_b $\pm$ \$1
    """
    return text.translate(_LATEX)


def to_latex(table: Table, part: str = "") -> str:
    """A table for a paper (package booktabs), without empty columns. Its label begins with the
    name of its `part` of the report, since parts may have tables of the same name."""
    caption, header, rows = layout(table, drop_empty=True)
    heading = f"{table.heading}." if table.heading else ""
    columns = "l" + "c" * (len(header) - 1)
    if table.stacked:  # columns of fixed width, since their prose needs line breaks
        width = 0.58 / max(1, len(header) - 1)
        columns = r"p{0.34\linewidth}" + rf"p{{{width:.2f}\linewidth}}" * (len(header) - 1)
    to_cell = _latex_prose if table.stacked else _latex_cell
    lines = [" & ".join(map(to_cell, row)) for row in (header, *rows)]
    return render(
        "table.tex",
        caption=escape_latex(" ".join(filter(None, (heading, sentence_case(caption))))),
        label=file_name(f"{part} {table.name}"),
        columns=columns,
        header=lines[0],
        rows=lines[1:],
    )


def _latex_cell(cell: Cell) -> str:
    text = escape_latex(cell.text)
    text = rf"\textbf{{{text}}}" if cell.style == "best" else text
    notes = "".join(rf"\\ \scriptsize {escape_latex(note)}" for note in cell.notes)
    return rf"\shortstack{{{text}{notes}}}" if notes else text


def _latex_prose(cell: Cell) -> str:
    text = escape_latex(cell.text)
    text = rf"\textbf{{{text}}}" if cell.style == "held" else text
    notes = (rf" \newline {{\scriptsize {escape_latex(note)}}}" for note in cell.notes)
    return text + "".join(notes)


# --- CSV ---


def to_csv(table: Table) -> str:
    text = io.StringIO()
    records = table.records
    writer = csv.DictWriter(text, tuple(records[0]) if records else (), lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({name: escape_formula(value) for name, value in record.items()})
    return text.getvalue()


def escape_formula(value: object) -> object:
    """Text that a spreadsheet would evaluate as a formula gets a leading apostrophe; numbers are
    unchanged.

    >>> escape_formula("=1+1"), escape_formula("-1.5"), escape_formula(-1.5), escape_formula("re3+cclf")
    ("'=1+1", "'-1.5", -1.5, 're3+cclf')
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_PREFIXES) else value


def file_name(words: str) -> str:
    """A file name made of arbitrary text, without path separators and leading dots.

    >>> file_name("returns of ../../x: 1,000")
    'returns-of-x-1000'
    """
    allowed = (
        character
        for character in words.replace(" ", "-").replace("/", "-")
        if character.isalnum() or character in "-_+."
    )
    return re.sub(r"[-.]*\.[-.]+|-{2,}", "-", "".join(allowed)).strip(".-") or "unnamed"


def sentence_case(text: str) -> str:
    """The text with its first letter capitalized and all others unchanged."""
    return text[:1].upper() + text[1:]
