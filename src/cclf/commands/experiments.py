"""`cclf demo`, `results` and `plot`: what came of many runs."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cclf import extras
from cclf.commands.options import EXIT_DONE, EXIT_STOPPED, check_output, parse, writing
from cclf.config import ConfigError


@dataclass(frozen=True)
class Demo:
    """Train A2C with and without CCLF on MiniGrid, a few minutes, and write a page that shows what curiosity did."""

    out: Path = Path("runs/demo")


def demo(arguments: list[str]) -> int:
    options = parse(Demo, "cclf demo", arguments)
    extras.refuse_missing("the page of cclf demo", ("plots", "video", "minigrid"))
    check_output(options.out, is_folder=True)
    from cclf import demo as demonstration
    from cclf.runtime.stop import Stop

    stop = Stop()
    stop.install()
    with writing(options.out):
        page = demonstration.run(options.out, stop)
    if page is None:
        print("stopped and saved; run the same command to go on", file=sys.stderr)
        return EXIT_STOPPED
    print(page.resolve())
    return EXIT_DONE


def _results_options() -> Any:
    import tyro

    @dataclass(frozen=True)
    class Results:
        """Collect the evaluations of all runs under a folder into tidy CSV files, one per method."""

        runs: tyro.conf.Positional[Path]
        out: Path = Path("results")

    return Results


def results(arguments: list[str]) -> int:
    options = parse(_results_options(), "cclf results", arguments)
    from cclf.analysis import load

    check_output(options.out, is_folder=True)
    rows = load.read(options.runs)
    with writing(options.out):
        paths = load.write_results(rows, options.out)
    print(*paths, sep="\n")
    return EXIT_DONE


def _plot_options() -> Any:
    import tyro

    @dataclass(frozen=True)
    class Plot:
        """Draw learning curves from results files: one panel per task and profile, means with 95 % intervals."""

        results: tyro.conf.Positional[Path]
        out: Path = Path("curves.svg")
        """.svg, .png or .pdf."""
        methods: tuple[str, ...] = ()
        """Only these, in this order; all when empty."""

    return Plot


def plot(arguments: list[str]) -> int:
    options = parse(_plot_options(), "cclf plot", arguments)
    extras.refuse_missing("cclf plot", ("plots",))
    from cclf.analysis import figures, load

    check_output(options.out)
    rows = load.read(options.results)
    unknown = [method for method in options.methods if method not in {row.method for row in rows}]
    if unknown:
        raise ConfigError(f"{options.results} holds no results of {', '.join(unknown)}")
    if options.out.suffix not in (".svg", ".png", ".pdf"):
        raise ConfigError(f"cannot draw {options.out}: the name must end in .svg, .png or .pdf")
    drawing = figures.learning_curves(figures.panels(rows, options.methods))
    with writing(options.out):
        drawing.savefig(options.out, dpi=150)
    print(options.out)
    return EXIT_DONE
