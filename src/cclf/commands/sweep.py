"""`cclf sweep`: many runs, on this machine or on a Ray cluster."""

import contextlib
import itertools
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from cclf.algorithms.base import DEFAULT_PROFILE
from cclf.analysis import experiments
from cclf.commands.options import DryRun, check_writable, parse, print_table
from cclf.commands.train import train_config
from cclf.console import say
from cclf.errors import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, ConfigError
from cclf.validation import Range, names

if TYPE_CHECKING:
    from cclf.sweep.local import LocalBackend
    from cclf.sweep.plan import RunSpec
    from cclf.sweep.ray_backend import RayBackend


@dataclass(frozen=True)
class MachineOptions:
    """The machines, and how many runs train at a time."""

    backend: Literal["local", "ray"] = "local"
    """This machine, or a Ray cluster."""
    address: str | None = None
    """Address of the Ray cluster, e.g. 10.0.0.1:6379, whose nodes must share OUT. Without it Ray is
    started on this machine."""
    jobs: Annotated[int, Range(0)] = 0
    """Processes at a time; 0 is as many as cores, memory and GPUs allow."""
    runs_per_gpu: Annotated[int, Range(1, 1_000)] = 1
    """Processes that share one GPU."""
    seeds_per_process: Annotated[int, Range(1)] = 1
    """Seeds of Rainbow on one game that train as one batch in one process (cclf train
    --with-seeds)."""
    games_per_process: Annotated[int, Range(1)] = 1
    """Atari games that train as one batch in one process (cclf train --with-tasks), each with all
    seeds of that process."""
    stop_after_seconds: Annotated[float, Range(0)] | None = None
    """Ask all runs to save and stop after this time."""

    def __post_init__(self) -> None:
        if self.backend == "local" and self.address is not None:
            raise ConfigError("--address conflicts with --backend local: use --backend ray")


Machine = tyro.conf.OmitArgPrefixes[Annotated[MachineOptions, tyro.conf.arg(name="machine")]]


@dataclass(frozen=True)
class SweepOptions:
    """Train every method on every task with every seed, several at a time. The same command again
    resumes what was stopped.

    Options after a bare -- are passed to each `cclf train`: cclf sweep ... -- --no-video --env-steps
    100000
    """

    machine: Machine
    table: str | None = None
    """The tasks, methods, seeds and options of a table of the paper: table1, ablation, minigrid or atari;
    or of CCLF and its controls: curiosity, curiosity-toy, curiosity-re3 or curiosity-drqv2. The options
    below override them."""
    tasks: tuple[str, ...] = ()
    """Tasks to train on (see: cclf tasks)."""
    methods: tuple[str, ...] = ()
    """Methods to train (see: cclf methods)."""
    seeds: tuple[int, ...] = ()
    """Seeds; by default those of the table, or 1 2 3 4 5."""
    profiles: tuple[str, ...] = (DEFAULT_PROFILE,)
    """Settings for the points on which the paper and the released code disagree."""
    vary: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="OPTION=VALUE,VALUE")
    ] = ()
    """Train each method with each value of an option of `cclf train`: --vary learning_rate=1e-4,3e-4.
    Given several times: every combination of the values."""
    out: Path = Path("runs")
    """Parent folder of run folders."""
    dry_run: DryRun = False


def main(arguments: list[str]) -> int:
    words, extra = split_passthrough(arguments)
    options = parse(SweepOptions, "cclf sweep", words)
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
    _, exit_code = run_sweep(specs, options.machine, options.dry_run)
    if exit_code == EXIT_DONE and not options.dry_run:
        say(f"next: cclf report {shlex.quote(str(options.out))}")
    return exit_code


# Options of `cclf train` that the sweep sets for each run.
_SET_BY_SWEEP = names(
    """
    task method profile seed with-seeds with-tasks out dry-run no-dry-run json help
    """
)


def split_passthrough(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The arguments of the command, and those after a bare --, which are for each `cclf train`.
    Raises ConfigError if these contain an option that the command itself sets."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    extra = arguments[end + 1 :]
    for word in extra:
        name = word.partition("=")[0].replace("_", "-")
        if name == "-h" or (name.startswith("--") and name.removeprefix("--") in _SET_BY_SWEEP):
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
    from cclf.training.trainer import replay_size

    specs, replay_bytes = [], dict[tuple[str, str], int]()
    combinations = itertools.product(tasks, methods, profiles, variants(vary, extra).items(), seeds)
    for task, method, profile, (variant, varied), seed in combinations:
        words = [task, "--method", method, "--profile", profile, "--seed", str(seed)]
        options = [*extra, *varied]
        config = train_config([*words, *options]).config
        key = task, variant
        if key not in replay_bytes:
            replay_bytes[key] = replay_size(config).num_bytes
        specs.append(make_run_spec(config, out, options, replay_bytes[key], variant))
    folders = Counter(spec.folder for spec in specs)
    for spec in specs:
        if folders[spec.folder] > 1:
            raise ConfigError(
                f"{folders[spec.folder]} runs share the folder of {spec.label} (profile "
                f"{spec.config.profile}): name each task, method, profile and seed once, and vary "
                "only options that change results"
            )
    return sorted(specs, key=lambda spec: -spec.config.planned_agent_steps)


def variants(vary: Iterable[str], extra: Iterable[str] = ()) -> dict[str, list[str]]:
    """Every combination of the values of `--vary`, as options of `cclf train` by a label; without
    `--vary` one without options.

    >>> variants(["learning_rate=1e-4,3e-4", "compile=false"])["learning_rate=3e-4 compile=false"]
    ['--learning-rate=3e-4', '--no-compile']
    """
    used = {word.partition("=")[0].replace("_", "-").removeprefix("--") for word in extra}
    axes: list[list[tuple[str, str]]] = []
    for text in vary:
        name, _, values = text.partition("=")
        option, choices = name.replace("_", "-").removeprefix("--"), values.split(",")
        if not option or not all(choices):
            raise ConfigError(f"--vary {text}: write OPTION=VALUE,VALUE")
        if option in _SET_BY_SWEEP:
            raise ConfigError(f"--vary {text}: the sweep sets --{option}; use its own option")
        if option in used or len(set(choices)) < len(choices):
            raise ConfigError(f"--vary {text}: name each option and each value once")
        used.add(option)
        switches = {"true": f"--{option}", "false": f"--no-{option}"}
        words = [switches.get(value.lower(), f"--{option}={value}") for value in choices]
        labels = [f"{option.replace('-', '_')}={value}" for value in choices]
        axes.append(list(zip(labels, words, strict=True)))
    return {
        " ".join(label for label, _ in combination): [word for _, word in combination]
        for combination in itertools.product(*axes)
    }


def _print_plan(specs: "Sequence[RunSpec]") -> None:
    """The runs of each suite, method and variant, and their environment steps."""
    from cclf.sweep.plan import is_finished

    groups: dict[tuple[str, str], list[RunSpec]] = {}
    for spec in specs:
        groups.setdefault((spec.config.task.partition("/")[0], spec.method), []).append(spec)
    finished = {spec.folder for spec in specs if is_finished(spec)}
    rows = [
        (
            suite,
            method,
            str(len(group)),
            str(sum(spec.folder in finished for spec in group)),
            _range([spec.config.run.env_steps for spec in group]),
        )
        for (suite, method), group in groups.items()
    ]
    print_table(("suite", "method", "runs", "finished", "env steps each"), rows)
    env_steps = sum(spec.config.run.env_steps for spec in specs)
    print(
        f"{len(specs)} runs, {len(finished)} finished, {env_steps:,} env steps in all", flush=True
    )


def _range(values: Sequence[int]) -> str:
    return " to ".join(f"{value:,}" for value in sorted({min(values), max(values)}))


def run_sweep(
    specs: "list[RunSpec]",
    machine: MachineOptions,
    dry_run: bool = False,
    print_plan: bool = True,
) -> "tuple[list[RunSpec], int]":
    """Print the plan and, unless `dry_run`, train the runs and report how they ended. Returns the runs,
    with their precision, and the exit code."""
    from cclf.sweep.plan import is_finished, resolve_precision, summarize
    from cclf.sweep.scheduler import run_all
    from cclf.training.signals import StopSignal

    with contextlib.closing(_backend(machine)) as backend:
        stop = StopSignal()
        stop.install()  # after Ray, which installs its own handler of SIGTERM
        specs = resolve_precision(specs, backend.computes_on_gpus)
        if not dry_run:
            backend.check_trainable([spec for spec in specs if not is_finished(spec)])
        if print_plan:
            _print_plan(specs)
        if dry_run:
            return specs, EXIT_DONE
        outcomes = run_all(
            specs,
            backend,
            stop,
            machine.stop_after_seconds,
            machine.seeds_per_process,
            machine.games_per_process,
        )
    failed = [outcome for outcome in outcomes if outcome.failed]
    for outcome in failed:
        command = f"cclf train {shlex.join(outcome.spec.arguments)}"
        say(f"failed with {outcome.exit_code}: {command}: {outcome.last_line}")
    is_stopped = any(outcome.exit_code == EXIT_STOPPED for outcome in outcomes)
    advice = "; run the same command to go on" if is_stopped else ""
    say(f"{summarize(outcomes, len(outcomes))}{advice}")
    return specs, EXIT_FAILED if failed else EXIT_STOPPED if is_stopped else EXIT_DONE


def _backend(machine: MachineOptions) -> "LocalBackend | RayBackend":
    if machine.backend == "ray":
        from cclf.sweep.ray_backend import RayBackend

        return RayBackend(machine.address, machine.jobs, machine.runs_per_gpu)
    from cclf.sweep.local import LocalBackend

    return LocalBackend(machine.jobs, machine.runs_per_gpu)
