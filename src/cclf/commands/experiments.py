"""`cclf demo`, `sweep`, `results` and `plot`: many runs and what came of them."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cclf import presets
from cclf.commands.options import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, parse
from cclf.commands.training import train_config
from cclf.config import ConfigError

if TYPE_CHECKING:
    from cclf.sweep import Call


@dataclass(frozen=True)
class Sweep:
    """Train every method on every task with every seed, several at a time. Run it again to finish what was stopped.

    What follows a bare -- goes to each `cclf train`: cclf sweep ... -- --no-video --env-steps 100000
    """

    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    profiles: tuple[str, ...] = (presets.DEFAULT_PROFILE,)
    out: Path = Path("runs")
    jobs: int = 0
    """Runs at a time; 0 is one per processor."""
    stop_after_seconds: float | None = None
    """Ask all runs to save and stop after this long."""


def sweep(arguments: list[str]) -> int:
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options, extra = parse(Sweep, "cclf sweep", arguments[:end]), arguments[end + 1 :]
    from cclf.runtime.stop import Stop
    from cclf.sweep import LocalSweep

    stop = Stop()
    stop.install()
    calls = [
        train_call(task, method, profile, seed, options.out, extra)
        for task in options.tasks
        for method in options.methods
        for profile in options.profiles
        for seed in options.seeds
    ]
    calls.sort(key=lambda call: -call.env_steps)  # the longest first: no core idles at the end
    outcomes = LocalSweep(options.jobs or os.cpu_count() or 1, stop, options.stop_after_seconds).run(calls)
    stopped = [outcome for outcome in outcomes if outcome.exit_code == EXIT_STOPPED]
    failed = [outcome for outcome in outcomes if outcome.exit_code not in (EXIT_DONE, EXIT_STOPPED)]
    for outcome in failed:
        command = f"cclf train {' '.join(outcome.call.arguments)}"
        print(f"failed with {outcome.exit_code}: {command}: {outcome.last_line}", file=sys.stderr)
    done = len(outcomes) - len(stopped) - len(failed)
    print(f"{done} of {len(outcomes)} runs done, {len(stopped)} stopped, {len(failed)} failed", file=sys.stderr)
    return EXIT_FAILED if failed else EXIT_STOPPED if stopped else EXIT_DONE


def train_call(task: str, method: str, profile: str, seed: int, out: Path, extra: list[str]) -> "Call":
    """A run as a sweep starts it. Bad names and options end the sweep here, before anything runs."""
    from cclf.sweep import Call

    arguments = [task, "--method", method, "--profile", profile, "--seed", str(seed), "--out", str(out), *extra]
    config = train_config(arguments).config
    return Call(task, method, seed, config.run.env_steps, out / config.run_name(), tuple(arguments))


@dataclass(frozen=True)
class Demo:
    """Train A2C with and without CCLF on MiniGrid, a few minutes, and write a page that shows what curiosity did."""

    out: Path = Path("runs/demo")


def demo(arguments: list[str]) -> int:
    options = parse(Demo, "cclf demo", arguments)
    from cclf import demo as demonstration
    from cclf.runtime.stop import Stop

    stop = Stop()
    stop.install()
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

    for path in load.write_results(load.read(options.runs), options.out):
        print(path)
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
    from cclf.analysis import figures, load

    rows = load.read(options.results)
    unknown = [method for method in options.methods if method not in {row.method for row in rows}]
    if unknown:
        raise ConfigError(f"{options.results} holds no results of {', '.join(unknown)}")
    if options.out.suffix not in (".svg", ".png", ".pdf"):
        raise ConfigError(f"cannot draw {options.out}: the name must end in .svg, .png or .pdf")
    figures.learning_curves(figures.panels(rows, options.methods)).savefig(options.out, dpi=150)
    print(options.out)
    return EXIT_DONE
