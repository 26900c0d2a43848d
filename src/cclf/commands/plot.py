"""`cclf plot`: learning curves."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from cclf.commands.options import FIGURE_SUFFIXES, check_writable, output_errors, parse
from cclf.errors import ConfigError, require_extras


@dataclass(frozen=True)
class PlotOptions:
    """Plot learning curves of results files or run folders: one panel per task and profile, means with
    95 % intervals."""

    results: tyro.conf.Positional[tuple[Path, ...]]
    """Results files, or folders with results files or runs."""
    out: Path = Path("curves.svg")
    """The figure, an .svg, .png or .pdf file."""
    methods: tuple[str, ...] = ()
    """Only these methods, in this order; all by default."""
    tasks: tuple[str, ...] = ()
    """Only these tasks; all by default."""
    profiles: tuple[str, ...] = ()
    """Only these profiles, named as in the titles of panels, e.g. released-bf16; all by default."""
    published: bool = False
    """Also plot published curves where every seed was published (DrQ-v2)."""


def main(arguments: list[str]) -> None:
    options = parse(PlotOptions, "cclf plot", arguments)
    require_extras("cclf plot", ("report",))
    from cclf.analysis import curves, figures, load, runs

    check_writable(options.out, FIGURE_SUFFIXES)
    if not options.results:
        raise ConfigError("name at least one results file, or a folder with results files or runs")
    rows = [row for path in options.results for row in load.read(path)]
    runs.check_comparable(rows)
    here, selection = " and ".join(map(str, options.results)), ""
    for field in ("method", "task", "profile"):
        chosen = vars(options)[f"{field}s"]
        known = {row._asdict()[field] for row in rows}
        if unknown := ", ".join(name for name in chosen if name not in known):
            raise ConfigError(f"no results of {unknown}{selection} in {here}")
        if chosen:
            rows = [row for row in rows if row._asdict()[field] in chosen]
            selection += f" with --{field}s {' '.join(chosen)}"
    panels = curves.panels(rows, options.methods)
    if options.published:
        panels = curves.with_published(panels)
    figure = figures.learning_curves(panels)
    with output_errors(options.out):
        figures.save(figure, options.out)
    print(options.out)
