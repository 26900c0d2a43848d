"""A report as a page, its figures and tables as files, and marked places of Markdown documents,
which `cclf report --markdown` fills with tables:

    <!-- table minigrid/verdicts-minigrid -->
    written by `cclf report results --markdown THIS_FILE`
    <!-- end of table -->

The name of a table is that of its CSV file; if the report has several parts, PART/ precedes it.
`verdicts` are the verdict tables of all parts.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cclf.analysis import figures, render
from cclf.analysis.report import ReportContent
from cclf.analysis.verdicts import Verdict
from cclf.errors import ConfigError, did_you_mean
from cclf.storage.atomic_files import write_output
from cclf.storage.safe_loading import data_error_context, read_text

END = "<!-- end of table -->"
_BEGIN = re.compile(r"^<!-- table (\S+) -->\n", re.MULTILINE)


class ClaimSummary(NamedTuple):
    """A claim with its verdicts, by part and profile of the report."""

    text: str
    verdicts: dict[str, Verdict]

    @property
    def is_decided(self) -> bool:
        return any(verdict.state != "undecided" for verdict in self.verdicts.values())


def claim_summaries(report: ReportContent) -> list[ClaimSummary]:
    claims: dict[str, ClaimSummary] = {}
    for part in report.parts:
        for by_profile in part.claims.values():
            for profile, pairs in by_profile.items():
                label = f"{part.name}, {profile}" if part.name else profile
                for claim, verdict in pairs:
                    summary = claims.setdefault(claim.text, ClaimSummary(claim.text, {}))
                    summary.verdicts[label] = verdict
    return list(claims.values())


def tiles(report: ReportContent) -> list[tuple[str, str, str]]:
    """Number, label and CSS class of each tile of the summary."""
    runs = [run for part in report.parts for run in part.runs.items()]
    failed = sum(evaluations[-1].state == "failed" for _, evaluations in runs)
    states = Counter(
        verdict.state for claim in claim_summaries(report) for verdict in claim.verdicts.values()
    )
    verdicts = {f"verdicts: {state}": (states[state], state) for state in render.VERDICTS if states}
    counts = {
        "runs": (len(runs), ""),
        "methods": (len({key.method for key, _ in runs}), ""),
        "tasks": (len({key.task for key, _ in runs}), ""),
        "failed runs": (failed, "did not hold"),
        **verdicts,
    }
    return [
        (f"{number:,}", label, style.replace(" ", "-") if number else "")
        for label, (number, style) in counts.items()
    ]


def to_html(report: ReportContent) -> str:
    return render.render(
        "report.html",
        title=report.title,
        tiles=tiles(report),
        claims=claim_summaries(report),
        parts=report.parts,
    )


def markdown_tables(report: ReportContent) -> dict[str, str]:
    """The tables by the names that documents use."""
    tables, all_verdicts = {}, []
    for part in report.parts:
        prefix = f"{render.file_name(part.name)}/" if part.name else ""
        for table in part.tables:
            name, text = render.file_name(table.name), render.to_markdown(table)
            tables[f"{prefix}{name}"] = text
            all_verdicts += [text] if name.startswith("verdicts-") else []
    return {"verdicts": "\n".join(all_verdicts), **tables} if all_verdicts else tables


def fill_placeholders(text: str, tables: Mapping[str, str]) -> str:
    """`text` with the named table in each marked place."""
    before, *places = _BEGIN.split(text)
    filled = [before]
    for name, place in zip(places[::2], places[1::2], strict=True):
        _, end, after = place.partition(END)
        if name not in tables:
            raise ConfigError(
                f"no table is called {name!r} here{did_you_mean(name, tuple(tables))}"
            )
        if not end:
            raise ConfigError(f"the place for table {name} has no end: put {END!r} after it")
        filled.append(f"<!-- table {name} -->\n{tables[name]}{END}{after}")
    return "".join(filled)


def update_document(path: Path, tables: Mapping[str, str]) -> str:
    """The document with its marked places filled; a new document has every table."""
    if not path.exists():
        marked = [f"<!-- table {name} -->\n{text}{END}\n" for name, text in tables.items()]
        return "\n".join(marked)
    with data_error_context(f"cannot read {path}"):
        text = read_text(path)
    if not _BEGIN.search(text):
        raise ConfigError(f"{path} has no place for a table: mark one with `<!-- table NAME -->`")
    try:
        return fill_placeholders(text, tables)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def write_report(
    report: ReportContent,
    out: Path,
    pdf: Path | None = None,
    png: Path | None = None,
    table_folder: Path | None = None,
    documents: Sequence[Path] = (),
) -> list[Path]:
    """Write the page, and figures, tables and documents if asked for; returns the files written.
    Everything is made before the first file is written, so an error changes none."""
    markdown = markdown_tables(report) if documents else {}
    contents: dict[Path, str | bytes] = {}
    contents |= {path: update_document(path, markdown) for path in documents}
    contents[out] = to_html(report)
    for part in report.parts:
        for folder, suffix in ((pdf, "pdf"), (png, "png")):
            if folder is not None:
                for name, draw in part.figure_files.items():
                    path = folder / part.name / f"{render.file_name(name)}.{suffix}"
                    contents[path] = figures.to_bytes(draw(), suffix)
        if table_folder is not None:
            for table in part.tables:
                name = render.file_name(table.name)
                contents[table_folder / part.name / f"{name}.csv"] = render.to_csv(table)
                latex = render.to_latex(table, part.name)
                contents[table_folder / part.name / f"{name}.tex"] = latex
    for path, content in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_output(path, content)
    return list(contents)
