"""`cclf plot`: learning curves."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from cclf import extras
from cclf.commands.options import EXIT_DONE, check_output, parse, writing
from cclf.errors import ConfigError


@dataclass(frozen=True)
class Plot:
    """Draw learning curves from results files: one panel per task and profile, means with 95 %
    intervals."""

    results: tyro.conf.Positional[Path]
    """A folder with results files, or one such file."""
    out: Path = Path("curves.svg")
    """.svg, .png or .pdf."""
    methods: tuple[str, ...] = ()
    """Only these, in this order; all when empty."""
    tasks: tuple[str, ...] = ()
    """Only these; all when empty."""
    published: bool = False
    """Draw curves whose every seed was published (DrQ-v2's) beside ours."""


def main(arguments: list[str]) -> int:
    options = parse(Plot, "cclf plot", arguments)
    extras.refuse_missing("cclf plot", ("plots",))
    from cclf.study import figures, load

    check_output(options.out)
    rows = load.read(options.results)
    unknown = [method for method in options.methods if method not in {row.method for row in rows}]
    unknown += [task for task in options.tasks if task not in {row.task for row in rows}]
    if unknown:
        raise ConfigError(f"{options.results} holds no results of {', '.join(unknown)}")
    rows = [row for row in rows if not options.tasks or row.task in options.tasks]
    if options.out.suffix not in (".svg", ".png", ".pdf"):
        raise ConfigError(f"cannot draw {options.out}: the name must end in .svg, .png or .pdf")
    panels = figures.panels(rows, options.methods)
    if options.published:
        panels = figures.with_published(panels)
    drawing = figures.learning_curves(panels)
    with writing(options.out):
        figures.save(drawing, options.out)
    print(options.out)
    return EXIT_DONE
