"""`cclf sweep`: many runs, on this machine or on a Ray cluster."""

import contextlib
import itertools
import math
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import tyro

from cclf.algorithms.base import DEFAULT_PROFILE
from cclf.analysis import experiments
from cclf.commands.options import check_writable, parse, print_table
from cclf.commands.train import train_config
from cclf.config import Config
from cclf.console import say
from cclf.errors import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, ConfigError

if TYPE_CHECKING:
    from cclf.sweep.local import LocalBackend
    from cclf.sweep.plan import RunOutcome, RunSpec
    from cclf.sweep.ray_backend import RayBackend
    from cclf.training.signals import StopSignal


MOST_RUNS_PER_GPU = 1_000


@dataclass(frozen=True)
class Where:
    """Which machines, and how many runs at a time."""

    backend: Literal["local", "ray"] = "local"
    """This machine, or a Ray cluster."""
    address: str | None = None
    """Address of the Ray cluster, e.g. 10.0.0.1:6379, whose nodes must share OUT; by default Ray is
    started on this machine."""
    jobs: int = 0
    """Processes at a time; 0 is as many as cores, memory and GPUs allow."""
    runs_per_gpu: int = 1
    """Processes that share one GPU."""
    seeds_per_process: int = 1
    """Seeds of Rainbow on one game that are trained as one batch in one process (cclf train
    --with-seeds)."""
    games_per_process: int = 1
    """Atari games that are trained as one batch in one process (cclf train --with-tasks), each with
    all seeds of that process."""
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

    Options after a bare -- are passed to each `cclf train`: cclf sweep ... -- --no-video --env-steps
    100000
    """

    where: tyro.conf.OmitArgPrefixes[Annotated[Where, tyro.conf.arg(name="machine")]]
    table: str | None = None
    """table1, ablation, minigrid or atari: the methods, tasks, seeds and options of the paper's; or
    curiosity, curiosity-toy, curiosity-re3 or curiosity-drqv2: CCLF and its controls. The options
    below override it."""
    tasks: tuple[str, ...] = ()
    """Tasks to train on (see: cclf tasks)."""
    methods: tuple[str, ...] = ()
    """Methods to train (see: cclf methods)."""
    seeds: tuple[int, ...] = ()
    """1 2 3 4 5 without a table."""
    profiles: tuple[str, ...] = (DEFAULT_PROFILE,)
    """Readings of the points where the paper and the released code disagree."""
    vary: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Train each method with each value of an option of `cclf train`: --vary learning_rate=1e-4,3e-4.
    Given several times: every combination of the values."""
    out: Path = Path("runs")
    """Folder for run folders."""
    dry_run: bool = False
    """Print the runs and their steps, and train nothing."""


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
    specs = plan(
        tasks,
        methods,
        options.profiles,
        options.seeds or table.seeds,
        options.out,
        [*table.options, *extra],
        options.vary,
    )
    check_writable(options.out, is_folder=True)
    from cclf.sweep.plan import resolve_precision

    with sweeping(options.where) as (backend, stop):
        specs = resolve_precision(specs, backend.computes_on_gpus)
        if options.dry_run:
            print_plan(specs)
            return EXIT_DONE
        exit_code = run_and_report(specs, backend, stop, options.where)
    if exit_code == EXIT_DONE:
        say(f"next: cclf report {shlex.quote(str(options.out))}")
    return exit_code


# Options of `cclf train` that the command sets for each run.
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
    """The arguments of the command, and those after a bare --, which are for each `cclf train`.
    Raises ConfigError if these contain an option that the command itself sets."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    extra = arguments[end + 1 :]
    for word in extra:
        name = word.partition("=")[0].replace("_", "-")
        if name == "-h" or (name.startswith("--") and name.removeprefix("--") in _NOT_FOR_RUNS):
            raise ConfigError(
                f"{word} after -- conflicts with the command, which sets it for each run: give it "
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
    vary: Iterable[str] = (),
) -> "list[RunSpec]":
    """The runs, the longest first, so that no core is idle at the end. Raises ConfigError for names
    and options that `cclf train` refuses."""
    from cclf.sweep.plan import make_run_spec

    specs, replay_bytes = [], dict[tuple[str, str], int]()
    combinations = itertools.product(tasks, methods, profiles, variants(vary, extra), seeds)
    for task, method, profile, variant, seed in combinations:
        names = [task, "--method", method, "--profile", profile, "--seed", str(seed)]
        options = [*extra, *variant.arguments]
        config = train_config([*names, *options]).config
        key = task, variant.label
        if key not in replay_bytes:
            replay_bytes[key] = _replay_bytes(config)
        specs.append(make_run_spec(config, out, options, replay_bytes[key], variant.label))
    folders = Counter(spec.folder for spec in specs)
    for spec in specs:
        if folders[spec.folder] > 1:
            raise ConfigError(
                f"{folders[spec.folder]} runs share the folder of {spec.label} (profile "
                f"{spec.config.profile}): name each task, method, profile and seed once, and vary "
                "only options that change results"
            )
    return sorted(specs, key=lambda spec: -spec.config.planned_agent_steps)


class Variant(NamedTuple):
    """One combination of the values of `--vary`."""

    label: str = ""
    arguments: tuple[str, ...] = ()


def variants(vary: Iterable[str], extra: Iterable[str] = ()) -> list[Variant]:
    """Every combination of the values; one empty variant without `--vary`.

    >>> variants(["learning_rate=1e-4,3e-4", "compile=false"])[1]
    Variant(label='learning_rate=3e-4 compile=false', arguments=('--learning-rate=3e-4', '--no-compile'))
    """
    used = {word.partition("=")[0].replace("_", "-").removeprefix("--") for word in extra}
    axes: list[list[Variant]] = []
    for text in vary:
        name, _, values = text.partition("=")
        option, choices = name.replace("_", "-").removeprefix("--"), values.split(",")
        if not option or not all(choices):
            raise ConfigError(f"--vary {text}: write OPTION=VALUE,VALUE")
        if option in _NOT_FOR_RUNS:
            raise ConfigError(f"--vary {text}: the sweep sets --{option}; use its own option")
        if option in used or len(set(choices)) < len(choices):
            raise ConfigError(f"--vary {text}: name each option and each value once")
        used.add(option)
        axes.append([_variant(option, value) for value in choices])
    return [
        Variant(
            " ".join(each.label for each in combination),
            tuple(word for each in combination for word in each.arguments),
        )
        for combination in itertools.product(*axes)
    ]


def _variant(option: str, value: str) -> Variant:
    label = f"{option.replace('-', '_')}={value}"
    switch = {"true": f"--{option}", "false": f"--no-{option}"}.get(value.lower())
    return Variant(label, (switch or f"--{option}={value}",))


def print_plan(specs: "Sequence[RunSpec]") -> None:
    """The runs of each suite, method and variant, and their environment steps."""
    from cclf.sweep.plan import is_finished

    groups: dict[tuple[str, str], list[RunSpec]] = {}
    for spec in specs:
        suite = spec.config.task.partition("/")[0]
        groups.setdefault((suite, spec.method), []).append(spec)
    rows = [
        (
            f"{suite} {method}",
            str(len(group)),
            str(sum(map(is_finished, group))),
            f"{max(spec.config.run.env_steps for spec in group):,}",
        )
        for (suite, method), group in groups.items()
    ]
    print_table(("suite and method", "runs", "finished", "env steps each"), rows)
    env_steps = sum(spec.config.run.env_steps for spec in specs)
    finished = sum(map(is_finished, specs))
    print(f"{len(specs)} runs, {finished} finished, {env_steps:,} env steps in all", flush=True)


def _replay_bytes(config: Config) -> int:
    from cclf.training.trainer import replay_size

    return replay_size(config)[1]


@contextlib.contextmanager
def sweeping(where: Where) -> "Iterator[tuple[LocalBackend | RayBackend, StopSignal]]":
    """The backend, and a stop signal whose handlers are installed."""
    from cclf.training.signals import StopSignal

    with contextlib.closing(_backend(where)) as backend:
        stop = StopSignal()
        stop.install()  # after Ray, which installs its own handler of SIGTERM
        yield backend, stop


def _backend(where: Where) -> "LocalBackend | RayBackend":
    if where.backend == "ray":
        from cclf.sweep.ray_backend import RayBackend

        return RayBackend(where.address, where.jobs, where.runs_per_gpu)
    from cclf.sweep.local import LocalBackend

    return LocalBackend(where.jobs, where.runs_per_gpu)


def run_and_report(
    specs: "list[RunSpec]", backend: "LocalBackend | RayBackend", stop: "StopSignal", where: Where
) -> int:
    from cclf.sweep.plan import is_finished, summarize
    from cclf.sweep.scheduler import run_all

    backend.refuse_unfit([spec for spec in specs if not is_finished(spec)])
    outcomes: list[RunOutcome] = run_all(
        specs,
        backend,
        stop,
        where.stop_after_seconds,
        where.seeds_per_process,
        where.games_per_process,
    )
    failed = [outcome for outcome in outcomes if outcome.failed]
    for outcome in failed:
        command = f"cclf train {shlex.join(outcome.spec.arguments())}"
        say(f"failed with {outcome.exit_code}: {command}: {outcome.last_line}")
    is_stopped = any(outcome.exit_code == EXIT_STOPPED for outcome in outcomes)
    go_on = "; run the same command to go on" if is_stopped else ""
    say(f"{summarize(outcomes, len(outcomes))}{go_on}")
    return EXIT_FAILED if failed else EXIT_STOPPED if is_stopped else EXIT_DONE
