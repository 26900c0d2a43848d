"""`cclf sweep`: many runs, on this machine or on a Ray cluster."""

import contextlib
import math
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from cclf.algorithms.base import DEFAULT_PROFILE
from cclf.analysis import experiments
from cclf.commands.options import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, check_writable, parse
from cclf.commands.train_options import train_config
from cclf.config import Config
from cclf.console import say
from cclf.errors import ConfigError

if TYPE_CHECKING:
    from cclf.sweep.local import LocalBackend
    from cclf.sweep.plan import Call, Outcome
    from cclf.sweep.ray_backend import RayBackend
    from cclf.training.signals import StopSignal


MOST_RUNS_PER_GPU = 1_000


@dataclass(frozen=True)
class Where:
    """Which machines, and how many runs at a time."""

    backend: Literal["local", "ray"] = "local"
    """This machine, or a Ray cluster."""
    address: str | None = None
    """Of the Ray cluster, e.g. 10.0.0.1:6379, whose nodes must share OUT; without it, Ray is started
    on this machine."""
    jobs: int = 0
    """Processes at a time; 0 is as many as cores, memory and GPUs allow."""
    runs_per_gpu: int = 1
    """Processes that share one GPU."""
    seeds_per_process: int = 1
    """Seeds of a method trained in turns in one process (cclf train --with-seeds): useful when one
    run already keeps the GPU busy."""
    games_per_process: int = 1
    """Atari games trained together in one process (cclf train --with-tasks), each with all of its
    seeds there."""
    stop_after_seconds: float | None = None
    """Ask all runs to save and stop after this long."""

    def __post_init__(self) -> None:
        if self.backend == "local" and self.address is not None:
            raise ConfigError("--address conflicts with --backend local: use --backend ray")
        if (
            self.jobs < 0
            or min(self.runs_per_gpu, self.seeds_per_process, self.games_per_process) < 1
        ):
            raise ConfigError(
                "--jobs must be 0 or more, --runs-per-gpu, --seeds- and --games-per-process 1 or "
                "more"
            )
        if self.runs_per_gpu > MOST_RUNS_PER_GPU:
            raise ConfigError(
                f"--runs-per-gpu must be at most {MOST_RUNS_PER_GPU:,}, not {self.runs_per_gpu}"
            )
        seconds = self.stop_after_seconds
        if seconds is not None and not 0 <= seconds < math.inf:
            raise ConfigError(
                f"--stop-after-seconds must be a number of seconds, 0 or more, not {seconds}"
            )


@dataclass(frozen=True)
class Sweep:
    """Train every method on every task with every seed, several at a time. Run it again to finish
    what was stopped.

    What follows a bare -- goes to each `cclf train`: cclf sweep ... -- --no-video --env-steps
    100000
    """

    where: tyro.conf.OmitArgPrefixes[Annotated[Where, tyro.conf.arg(name="machine")]]
    table: str | None = None
    """table1, ablation, minigrid or atari: the methods, tasks, seeds and options of the paper's; or
    curiosity, curiosity-toy, curiosity-re3 or curiosity-drqv2: CCLF and its controls. Those given
    here win."""
    tasks: tuple[str, ...] = ()
    """What to learn (see: cclf tasks)."""
    methods: tuple[str, ...] = ()
    """What to learn by (see: cclf methods)."""
    seeds: tuple[int, ...] = ()
    """1 2 3 4 5 without a table."""
    profiles: tuple[str, ...] = (DEFAULT_PROFILE,)
    """Readings of the points where the paper and the released code disagree."""
    out: Path = Path("runs")
    """Folder for run folders."""


def main(arguments: list[str]) -> int:
    words, extra = split(arguments)
    options = parse(Sweep, "cclf sweep", words)
    table = experiments.Experiment("", (), (), (1, 2, 3, 4, 5))
    if options.table is not None:
        table = experiments.find_table(options.table, "paper")
    tasks, methods = options.tasks or table.tasks, options.methods or table.methods
    if not tasks or not methods:
        raise ConfigError(
            "sweep needs --tasks and --methods, or a --table (see: cclf sweep --help)"
        )
    calls = plan(
        tasks,
        methods,
        options.profiles,
        options.seeds or table.seeds,
        options.out,
        [*table.options, *extra],
    )
    check_writable(options.out, is_folder=True)
    from cclf.sweep.plan import settled

    with sweeping(options.where) as (backend, stop):
        calls = settled(calls, backend.computes_on_gpus)
        exit_code = run_and_report(calls, backend, stop, options.where)
    if exit_code == EXIT_DONE:
        say(f"next: cclf report {shlex.quote(str(options.out))}")
    return exit_code


# What the command itself decides for each of its runs.
_NOT_FOR_RUNS = {
    "task",
    "method",
    "profile",
    "seed",
    "with-seeds",
    "with-tasks",
    "out",
    "dry-run",
    "no-dry-run",
    "help",
}


def split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """A command's own words, and those behind a bare -- for each `cclf train`. Those that would
    make other runs than the command's own, or none, are refused."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    extra = arguments[end + 1 :]
    for word in extra:
        name = word.partition("=")[0].replace("_", "-")
        if name == "-h" or (name.startswith("--") and name.removeprefix("--") in _NOT_FOR_RUNS):
            raise ConfigError(
                f"{word} cannot stand behind --: the command itself sets it for each run; name it "
                "before the --"
            )
    return arguments[:end], extra


def plan(
    tasks: Iterable[str],
    methods: Iterable[str],
    profiles: Iterable[str],
    seeds: Iterable[int],
    out: Path,
    extra: list[str],
) -> "list[Call]":
    """The runs, the longest first: no core idles at the end. Bad names and options end it here,
    before anything runs."""
    from cclf.sweep.plan import call_of

    methods, profiles, seeds = tuple(methods), tuple(profiles), tuple(seeds)
    calls, forecasts = [], dict[str, int]()
    for task in tasks:
        for method in methods:
            for profile in profiles:
                for seed in seeds:
                    names = [task, "--method", method, "--profile", profile, "--seed", str(seed)]
                    config = train_config([*names, *extra]).config
                    if task not in forecasts:
                        forecasts[task] = _replay_bytes(config)
                    calls.append(call_of(config, out, extra, forecasts[task]))
    folders = Counter(call.folder for call in calls)
    for call in calls:
        if folders[call.folder] > 1:
            raise ConfigError(
                f"{call.label} (profile {call.config.profile}) is asked for "
                f"{folders[call.folder]} times: name each task, method, profile and seed once"
            )
    return sorted(calls, key=lambda call: -call.config.planned_agent_steps)


def _replay_bytes(config: Config) -> int:
    from cclf.training.trainer import replay_size

    return replay_size(config)[1]


@contextlib.contextmanager
def sweeping(where: Where) -> "Iterator[tuple[LocalBackend | RayBackend, StopSignal]]":
    """The machines, and signals that reach all runs on them."""
    from cclf.training.signals import StopSignal

    with contextlib.closing(_backend(where)) as backend:
        stop = StopSignal()
        stop.install()  # after Ray, which takes SIGTERM for itself
        yield backend, stop


def _backend(where: Where) -> "LocalBackend | RayBackend":
    if where.backend == "ray":
        from cclf.sweep.ray_backend import RayBackend

        return RayBackend(where.address, where.jobs, where.runs_per_gpu)
    from cclf.sweep.local import LocalBackend

    return LocalBackend(where.jobs, where.runs_per_gpu)


def run_and_report(
    calls: "list[Call]", backend: "LocalBackend | RayBackend", stop: "StopSignal", where: Where
) -> int:
    from cclf.sweep.plan import is_finished, tally
    from cclf.sweep.scheduler import run_all

    backend.refuse_unfit([call for call in calls if not is_finished(call)])
    outcomes: list[Outcome] = run_all(
        calls,
        backend,
        stop,
        where.stop_after_seconds,
        where.seeds_per_process,
        where.games_per_process,
    )
    failed = [outcome for outcome in outcomes if outcome.failed]
    for outcome in failed:
        command = f"cclf train {' '.join(outcome.call.arguments())}"
        say(f"failed with {outcome.exit_code}: {command}: {outcome.last_line}")
    is_stopped = any(outcome.exit_code == EXIT_STOPPED for outcome in outcomes)
    go_on = "; run the same command to go on" if is_stopped else ""
    say(f"{tally(outcomes, len(outcomes))}{go_on}")
    return EXIT_FAILED if failed else EXIT_STOPPED if is_stopped else EXIT_DONE
