"""A report as a page, and its figures and tables as files."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from cclf.analysis import documents, figures, render
from cclf.analysis.report import Figure, Report, ReportPart, Section
from cclf.analysis.runs import Runs
from cclf.analysis.table import Table
from cclf.analysis.verdicts import Claim, Verdict
from cclf.storage.atomic_files import write_output


def to_html(report: Report) -> str:
    parts = [
        {
            "name": part.name,
            "about": _describe(part.runs),
            "sections": [_section_values(section, len(report.parts)) for section in part.sections],
        }
        for part in report.parts
    ]
    return render.render(
        "report.html",
        title=report.title,
        tiles=tiles(report),
        claims=_claims(report, decided=True),
        undecided=_claims(report, decided=False),
        parts=parts,
    )


def _section_values(section: Section, num_parts: int) -> dict[str, object]:
    tables_shown = [render.html_table(item) for item in section.items if isinstance(item, Table)]
    figures_shown = [
        render.HtmlFigure(
            item.caption,
            [figures.inline_svg(draw(), label) for label, draw in item.panels.items()],
            item.styles,
        )
        for item in section.items
        if isinstance(item, Figure)
    ]
    is_open = section.is_open or (num_parts == 1 and section.title == "Returns and steps")
    counts = {"table": len(tables_shown), "figure": sum(len(f.panels) for f in figures_shown)}
    about = ", ".join(_count(number, name) for name, number in counts.items() if number)
    return section._asdict() | {
        "about": about,
        "tables": tables_shown,
        "figures": figures_shown,
        "is_open": is_open,
    }


def _describe(by_run: Runs) -> str:
    counts = [len({key[field] for key in by_run}) for field in (1, 0)]
    named = zip((len(by_run), *counts), ("run", "method", "task"), strict=True)
    return ", ".join(_count(number, name) for number, name in named)


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}{'s' * (number != 1)}"


def tiles(report: Report) -> list[tuple[str, str, str]]:
    """Number, label and CSS class of the summary."""
    all_runs = [item for part in report.parts for item in part.runs.items()]
    states: Counter[str] = Counter(verdict.state for _, _, verdict in _verdicts(report))
    failed = sum(evaluations[-1].state == "failed" for _, evaluations in all_runs)
    return [
        (f"{len(all_runs):,}", "runs", ""),
        (str(len({key.method for key, _ in all_runs})), "methods", ""),
        (str(len({key.task for key, _ in all_runs})), "tasks", ""),
        (str(failed), "failed runs", "did-not-hold" if failed else ""),
        *(
            (str(states[state]), f"verdicts: {state}", state.replace(" ", "-"))
            for state in render.VERDICTS
            if states
        ),
    ]


def _verdicts(report: Report) -> list[tuple[str, Claim, Verdict]]:
    """Label, claim and verdict, of every part and profile."""
    return [
        (f"{part.name}, {profile}" if part.name else profile, claim, verdict)
        for part in report.parts
        for results in part.claims.values()
        for profile, pairs in results.items()
        for claim, verdict in pairs
    ]


def _claims(report: Report, decided: bool) -> dict[str, list[tuple[str, Verdict, str]]]:
    """The summary: by claim the label, the verdict and its estimate; of the claims that are decided
    under some profile, or of the others."""
    claims: dict[str, list[tuple[str, Verdict, str]]] = {}
    for label, claim, verdict in _verdicts(report):
        estimate = verdict.text.partition("; ")[0]
        claims.setdefault(claim.text, []).append((label, verdict, estimate))
    return {
        text: results
        for text, results in claims.items()
        if any(verdict.state != "undecided" for _, verdict, _ in results) == decided
    }


def markdown_tables(report: Report) -> dict[str, str]:
    """The tables by the names that documents use."""
    found, all_verdicts = {}, []
    for part in report.parts:
        prefix = f"{render.file_name(part.name)}/" if part.name else ""
        for table in part.tables:
            name, text = render.file_name(table.name), render.to_markdown(table)
            found[f"{prefix}{name}"] = text
            all_verdicts += [text] if name.startswith("verdicts-") else []
    return {"verdicts": "\n".join(all_verdicts), **found} if all_verdicts else found


def write_report(
    report: Report,
    out: Path,
    pdf: Path | None = None,
    png: Path | None = None,
    table_folder: Path | None = None,
    marked: Sequence[Path] = (),
) -> list[Path]:
    """Write the page, and figures, tables and documents if asked for; returns the files written."""
    markdown, page = markdown_tables(report) if marked else {}, to_html(report)
    texts = [documents.update_document(path, markdown) for path in marked]  # all or none
    for path, text in zip(marked, texts, strict=True):
        write_output(path, text)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_output(out, page)
    written = [*marked, out]
    for part in report.parts:
        for folder, suffix in ((pdf, "pdf"), (png, "png")):
            if folder is not None:
                written += _write_figures(part, folder / part.name, suffix)
        if table_folder is not None:
            written += _write_tables(part, table_folder / part.name)
    return written


def _write_figures(part: ReportPart, folder: Path, suffix: str) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for figure in part.figures:
        for name, draw in figure.files.items():
            written.append(folder / f"{render.file_name(name)}.{suffix}")
            figures.save(draw(), written[-1])
    return written


def _write_tables(part: ReportPart, folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for table in part.tables:
        texts = {"csv": render.to_csv(table), "tex": render.to_latex(table, part.name)}
        for suffix, text in texts.items():
            written.append(folder / f"{render.file_name(table.name)}.{suffix}")
            write_output(written[-1], text)
    return written
