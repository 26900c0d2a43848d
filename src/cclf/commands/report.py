"""`cclf report`: results of runs as a page, figures and tables."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from cclf.commands.options import PAGE_SUFFIXES, check_writable, output_errors, parse
from cclf.errors import require_extras


@dataclass(frozen=True)
class ReportOptions:
    """Write one self-contained page about run folders or results files: verdicts, learning curves, tables
    with published values, and cost."""

    source: tyro.conf.Positional[Path]
    """A folder with runs, a folder with results files, or one such file."""
    out: Path = Path("report.html")
    """The page, an .html file."""
    methods: tuple[str, ...] = ()
    """Include only these methods; by default all."""
    pdf: Path | None = None
    """Write the figures as PDF files into this folder."""
    png: Path | None = None
    """Write the figures as PNG files into this folder."""
    tables: Path | None = None
    """Write the tables as CSV and LaTeX files into this folder."""
    markdown: tuple[Path, ...] = ()
    """Write tables into these Markdown files, between the lines `<!-- table NAME -->` and
    `<!-- end of table -->`. A new file gets all tables."""


def main(arguments: list[str]) -> None:
    options = parse(ReportOptions, "cclf report", arguments)
    require_extras("cclf report", ("report",))
    from cclf.analysis.report import build_report
    from cclf.analysis.report_files import write_report

    check_writable(options.out, PAGE_SUFFIXES)
    for folder in (options.pdf, options.png, options.tables):
        if folder is not None:
            check_writable(folder, is_folder=True)
    for document in options.markdown:
        check_writable(document)
    report = build_report(options.source, options.methods)
    with output_errors(options.out):
        written = write_report(
            report, options.out, options.pdf, options.png, options.tables, options.markdown
        )
    print(*written, sep="\n")
