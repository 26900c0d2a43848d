"""A report as a page, and its figures and tables as files."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cclf.analysis import documents, figures, render
from cclf.analysis.report import Report
from cclf.analysis.verdicts import Verdict
from cclf.storage.atomic_files import write_output


class ClaimSummary(NamedTuple):
    """A claim with its verdicts, by part and profile of the report."""

    text: str
    verdicts: dict[str, Verdict]

    @property
    def is_decided(self) -> bool:
        return any(verdict.state != "undecided" for verdict in self.verdicts.values())


def claim_summaries(report: Report) -> list[ClaimSummary]:
    claims: dict[str, ClaimSummary] = {}
    for part in report.parts:
        for by_profile in part.claims.values():
            for profile, pairs in by_profile.items():
                label = f"{part.name}, {profile}" if part.name else profile
                for claim, verdict in pairs:
                    summary = claims.setdefault(claim.text, ClaimSummary(claim.text, {}))
                    summary.verdicts[label] = verdict
    return list(claims.values())


def tiles(report: Report) -> list[tuple[str, str, str]]:
    """Number, label and CSS class of the summary."""
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


def to_html(report: Report) -> str:
    return render.render(
        "report.html",
        title=report.title,
        tiles=tiles(report),
        claims=claim_summaries(report),
        parts=report.parts,
    )


def markdown_tables(report: Report) -> dict[str, str]:
    """The tables by the names that documents use."""
    tables, all_verdicts = {}, []
    for part in report.parts:
        prefix = f"{render.file_name(part.name)}/" if part.name else ""
        for table in part.tables:
            name, text = render.file_name(table.name), render.to_markdown(table)
            tables[f"{prefix}{name}"] = text
            all_verdicts += [text] if name.startswith("verdicts-") else []
    return {"verdicts": "\n".join(all_verdicts), **tables} if all_verdicts else tables


def write_report(
    report: Report,
    out: Path,
    pdf: Path | None = None,
    png: Path | None = None,
    table_folder: Path | None = None,
    marked: Sequence[Path] = (),
) -> list[Path]:
    """Write the page, and figures, tables and documents if asked for; returns the files written.
    Everything is made before the first file is written, so an error changes none."""
    markdown = markdown_tables(report) if marked else {}
    contents: dict[Path, str | bytes] = {
        path: documents.update_document(path, markdown) for path in marked
    }
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
