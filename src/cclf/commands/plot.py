"""`cclf plot`: learning curves, or one difference on many tasks."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from cclf import extras
from cclf.commands.options import EXIT_DONE, check_writable, output_errors, parse
from cclf.errors import ConfigError

if TYPE_CHECKING:
    from cclf.analysis.evaluations import Row


@dataclass(frozen=True)
class Plot:
    """Draw learning curves from results files: one panel per task and profile, means with 95 %
    intervals. With --less, draw the difference of two methods on each task; with --scores, where
    each run ended."""

    results: tyro.conf.Positional[tuple[Path, ...]]
    """Folders with results files, or such files."""
    out: Path = Path("curves.svg")
    """.svg, .png or .pdf."""
    methods: tuple[str, ...] = ()
    """Only these, in this order; all when empty."""
    tasks: tuple[str, ...] = ()
    """Only these; all when empty."""
    profiles: tuple[str, ...] = ()
    """Only these, as panels are titled: released, paper, released-bf16; all when empty."""
    published: bool = False
    """Draw curves whose every seed was published (DrQ-v2's) beside ours."""
    less: str = ""
    """In place of curves: how far the one of --methods (cclf when empty) lies above this method on
    each task, in deviations of seeds, with 95 % intervals."""
    scores: bool = False
    """In place of curves: where every run ended, a line per task; 0 and 1 are a random agent and a
    human on Atari, the bounds of the return elsewhere. Needs results of one suite and profile."""


def main(arguments: list[str]) -> int:
    options = parse(Plot, "cclf plot", arguments)
    extras.require_extras("cclf plot", ("plots",))
    from cclf.analysis import evaluations, figures, learning, load

    check_writable(options.out)
    if not options.results:
        raise ConfigError("name at least one folder with results files, or such a file")
    rows = [row for path in options.results for row in load.read(path)]
    evaluations.refuse_mixed_clocks(rows)
    asked = [*options.methods, *([options.less] if options.less else [])]
    unknown = [method for method in asked if method not in {row.method for row in rows}]
    unknown += [task for task in options.tasks if task not in {row.task for row in rows}]
    unknown += [name for name in options.profiles if name not in {row.profile for row in rows}]
    if unknown:
        here = " and ".join(map(str, options.results))
        raise ConfigError(f"no results of {', '.join(unknown)} in {here}")
    rows = [row for row in rows if not options.tasks or row.task in options.tasks]
    rows = [row for row in rows if not options.profiles or row.profile in options.profiles]
    if not any(row.method in asked or not options.methods for row in rows):
        named = (("--tasks", options.tasks), ("--profiles", options.profiles))
        words = " ".join(f"{name} {' '.join(values)}" for name, values in named if values)
        raise ConfigError(f"nothing to draw: no run of these methods has {words}")
    if options.out.suffix not in (".svg", ".png", ".pdf"):
        raise ConfigError(f"cannot draw {options.out}: the name must end in .svg, .png or .pdf")
    if options.scores:
        drawing = _scores(rows, options)
    elif options.less:
        if options.published or len(options.methods) > 1:
            raise ConfigError(
                "--less compares one of --methods with another: leave --published and further "
                "methods out"
            )
        drawing = _differences(rows, (*options.methods, "cclf")[0], options.less)
    else:
        panels = learning.panels(rows, options.methods)
        if options.published:
            panels = learning.with_published(panels)
        drawing = figures.learning_curves(panels)
    with output_errors(options.out):
        figures.save(drawing, options.out)
    print(options.out)
    return EXIT_DONE


def _scores(rows: "list[Row]", options: Plot) -> Any:
    from cclf.analysis import figures
    from cclf.analysis.ends import ends

    if options.less or options.published:
        raise ConfigError("--scores draws where runs ended: remove --less and --published")
    found = ends(rows, options.methods)
    if len(found) != 1:
        told = f"these have {'; '.join(found)}" if found else "no task here has a scale"
        raise ConfigError(
            f"--scores needs results of one suite and profile, {told}: name --profiles or --tasks"
        )
    ((title, tasks),) = found.items()
    words = "score: 0 a random agent, 1 a human" if title.startswith("atari") else "score"
    return figures.runs_by_task(tasks, title, f"{words} (small: runs, large: their mean)")


def _differences(rows: "list[Row]", method: str, rival: str) -> Any:
    from cclf.analysis import figures
    from cclf.analysis.effects import FEWEST, effects
    from cclf.analysis.styles import styles

    if method == rival:
        raise ConfigError(f"--less {rival}: a method less itself is 0; name another in --methods")
    found = effects(rows, method, rival)
    if not found:
        raise ConfigError(
            f"on no task do {method} and {rival} have {FEWEST} seeds each that differ: there is "
            "nothing to compare"
        )
    looks = dict.fromkeys(found, styles([method])[method])
    words = (
        f"{method} less {rival}, in deviations of seeds; 0: no difference\n"
        "(in brackets: seeds; “end”: of the last evaluation,\nelse of the mean over training)"
    )
    return figures.intervals(found, words, 0.0, looks, inches=7.0)
