"""`cclf demo`: a small sweep on MiniGrid, its results in the terminal, and its report and inspect
pages."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cclf.commands import inspect, report
from cclf.commands.options import check_writable, parse, print_table
from cclf.commands.sweep import MachineOptions, plan, run_sweep
from cclf.console import say
from cclf.errors import EXIT_DONE, require_extras

if TYPE_CHECKING:
    from cclf.analysis.runs import ResultRow

TASK = "minigrid/DoorKey-6x6"
METHODS = ("a2c", "cclf", "cclf-shuffled")
SEEDS = (1, 2, 3)
PROFILE = "paper"
OPTIONS = ["--eval-every-env-steps", "12800", "--no-tensorboard", "--no-video"]
SOLVED_RETURN = 0.9  # the shortest paths have a mean return of 0.969
SAMPLES = 512  # transitions on the inspect page
NEXT_COMMANDS = (
    "cclf train minigrid/DoorKey-8x8 --method re3+cclf",
    "cclf train dmc/cartpole-swingup --method cclf",
    "cclf methods",
)


@dataclass(frozen=True)
class DemoOptions:
    """Train A2C on MiniGrid without CCLF, with CCLF and with shuffled curiosity, three seeds each, in
    a few minutes. Print the results, and write the pages of `cclf report` and `cclf inspect`."""

    out: Path = Path("runs/demo")
    """Folder of the runs and the pages."""


def main(arguments: list[str]) -> int:
    options = parse(DemoOptions, "cclf demo", arguments)
    require_extras("cclf demo", ("report", "minigrid"))
    report_page, inspect_page = options.out / "report.html", options.out / "curiosity.html"
    check_writable(report_page)
    check_writable(inspect_page)
    specs = plan((TASK,), METHODS, (PROFILE,), SEEDS, options.out, OPTIONS)
    specs, exit_code = run_sweep(specs, MachineOptions())
    if exit_code != EXIT_DONE:
        return exit_code
    from cclf.analysis import load

    rows = [row for row in load.read_runs(options.out / TASK) if row.method in METHODS]
    _print_results(rows)
    run = str(next(spec.folder for spec in specs if spec.config.method_name == "cclf"))
    report.main([str(options.out), "--out", str(report_page)])
    inspect.main([run, "--samples", str(SAMPLES), "--out", str(inspect_page)])
    say("\n  ".join(["next:", f"cclf play {shlex.quote(run)}", *NEXT_COMMANDS]))
    return EXIT_DONE


def _print_results(rows: "Iterable[ResultRow]") -> None:
    import numpy as np

    from cclf.analysis.runs import runs, steps_to

    by_run = runs(rows)
    lines = []
    for method in METHODS:
        evaluations = [rows for run, rows in by_run.items() if run.method == method]
        steps = [steps_to(rows, SOLVED_RETURN) for rows in evaluations]
        median = float(np.median(steps))
        lines.append(
            (
                method,
                f"{np.mean([rows[-1].return_mean for rows in evaluations]):.3f}",
                f"{sum(np.isfinite(steps))} of {len(steps)}",
                f"{median:,.0f}" if np.isfinite(median) else "never",
            )
        )
    print_table(("method", "final return", "solved", "median env steps to solve"), lines)
    print(
        f"A run is solved when its return reaches {SOLVED_RETURN}. cclf-shuffled is the control: it\n"
        "permutes curiosity within each batch. The values are the same and contain no information\n"
        f"about the transitions. {len(SEEDS)} seeds are too few to compare methods; docs/curiosity.md has more."
    )
