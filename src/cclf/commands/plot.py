"""`cclf plot`: learning curves."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from cclf.commands.options import check_writable, output_errors, parse
from cclf.errors import EXIT_DONE, ConfigError, require_extras


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


def main(arguments: list[str]) -> int:
    options = parse(PlotOptions, "cclf plot", arguments)
    require_extras("cclf plot", ("report",))
    from cclf.analysis import curves, figures, load, runs

    check_writable(options.out)
    if not options.results:
        raise ConfigError("name at least one results file, or a folder with results files or runs")
    rows = [row for path in options.results for row in load.read(path)]
    runs.check_same_action_repeat(rows)
    unknown = [method for method in options.methods if method not in {row.method for row in rows}]
    unknown += [task for task in options.tasks if task not in {row.task for row in rows}]
    unknown += [name for name in options.profiles if name not in {row.profile for row in rows}]
    if unknown:
        here = " and ".join(map(str, options.results))
        raise ConfigError(f"no results of {', '.join(unknown)} in {here}")
    rows = [row for row in rows if not options.tasks or row.task in options.tasks]
    rows = [row for row in rows if not options.profiles or row.profile in options.profiles]
    if not any(row.method in options.methods or not options.methods for row in rows):
        named = (("--tasks", options.tasks), ("--profiles", options.profiles))
        words = " ".join(f"{name} {' '.join(values)}" for name, values in named if values)
        raise ConfigError(f"nothing to plot: no run of these methods has {words}")
    if options.out.suffix not in (".svg", ".png", ".pdf"):
        raise ConfigError(f"cannot write {options.out}: the name must end in .svg, .png or .pdf")
    panels = curves.panels(rows, options.methods)
    if options.published:
        panels = curves.with_published(panels)
    figure = figures.learning_curves(panels)
    with output_errors(options.out):
        figures.save(figure, options.out)
    print(options.out)
    return EXIT_DONE
