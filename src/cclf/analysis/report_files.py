"""A report as a page, and its figures and tables as files of their own."""

from collections.abc import Sequence
from pathlib import Path

from cclf.analysis import figures, markdown, page, tabular
from cclf.analysis.report import Drawing, Part, Report, Section
from cclf.analysis.tabular import Table
from cclf.storage.atomic_files import write_output


def html(report: Report) -> str:
    parts = [f"<h1>{page.escape(report.title)}</h1>", page.tiles(report.facts), _contents(report)]
    for part in report.parts:
        if part.name:
            parts.append(f'<h2 class="part" id="{_place(part)}">{page.escape(part.name)}</h2>')
        for section in part.sections:
            tag = "h3" if part.name else "h2"
            place = _place(part, section)
            parts.append(f'<{tag} id="{place}">{page.escape(section.title)}</{tag}>')
            if section.text:
                parts.append(f"<p>{page.escape(section.text)}</p>")
            for item in section.items:
                parts += _table(item) if isinstance(item, Table) else _drawing(item)
        if part.name:
            parts.append('<p><a class="up" href="#contents">↑ contents</a></p>')
    return page.page(report.title, parts)


def _place(part: Part, section: Section | None = None) -> str:
    """The name of a place on the page, for links."""
    words = f"{part.name} {section.title if section else ''}".lower()
    return page.escape(tabular.file_name(words))


def _contents(report: Report) -> str:
    lists = []
    for part in report.parts:
        links = " ".join(
            f'<li><a href="#{_place(part, section)}">{page.escape(section.title)}</a></li>'
            for section in part.sections
        )
        head = f'<a href="#{_place(part)}">{page.escape(part.name)}</a>'
        lists.append(f"<div>{f'<b>{head}</b>' if part.name else ''}<ul>{links}</ul></div>")
    return f'<nav id="contents" aria-label="Contents">{"".join(lists)}</nav>'


def _table(table: Table) -> list[str]:
    caption, header, rows = tabular.laid_out(table)
    return [page.table(header, rows, table.stacked, table.heading, tabular.sentence(caption))]


def _drawing(drawing: Drawing) -> list[str]:
    svgs = [figures.inline_svg(draw(), label) for label, draw in drawing.panels]
    return [
        page.legend(drawing.styles),
        page.panels(svgs, drawing.caption),
    ]


def markdown_tables(report: Report) -> dict[str, str]:
    """By the names that marked places of documents use."""
    found, verdicts = {}, []
    for part in report.parts:
        before = f"{tabular.file_name(part.name)}/" if part.name else ""
        for table in part.tables:
            name, text = tabular.file_name(table.name), markdown.written(table)
            found[f"{before}{name}"] = text
            verdicts += [text] if name.startswith("verdicts-") else []
    return {"verdicts": "\n".join(verdicts), **found} if verdicts else found


def write(
    report: Report,
    out: Path,
    pdf: Path | None = None,
    png: Path | None = None,
    table_folder: Path | None = None,
    documents: Sequence[Path] = (),
) -> list[Path]:
    """The page, and what else was asked for; returns the files written."""
    tables, page_text = markdown_tables(report), html(report)
    texts = [markdown.renewed(document, tables) for document in documents]  # all, or none
    for document, text in zip(documents, texts, strict=True):
        write_output(document, text)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_output(out, page_text)
    written = [*documents, out]
    for part in report.parts:
        for folder, suffix in ((pdf, "pdf"), (png, "png")):
            if folder is not None:
                written += _write_figures(part, folder / part.name, suffix)
        if table_folder is not None:
            written += _write_tables(part, table_folder / part.name)
    return written


def _write_figures(part: Part, folder: Path, suffix: str) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for drawing in part.drawings:
        for name, draw in drawing.files.items():
            written.append(folder / f"{tabular.file_name(name)}.{suffix}")
            figures.save(draw(), written[-1])
    return written


def _write_tables(part: Part, folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    return [
        path
        for table in part.tables
        for path in (
            tabular.write_csv(table, folder),
            tabular.write_latex(table, folder, part.name),
        )
    ]
