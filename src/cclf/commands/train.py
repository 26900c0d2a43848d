"""`cclf train`: from a command line to the configs of its runs, and to the trained runs."""

import argparse
import contextlib
import os
import shlex
from collections.abc import Collection
from dataclasses import dataclass, make_dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_origin

import tyro

from cclf import presets
from cclf.algorithms.base import DEFAULT_PROFILE, BaseAlgorithm
from cclf.algorithms.registry import algorithms, find_algorithm
from cclf.commands import DEBUG
from cclf.commands.options import (
    Json,
    Switch,
    check_options,
    option_types,
    parse,
    print_json,
)
from cclf.config import AlgorithmSettings, Config, EnvConfig, MethodConfig, RunConfig
from cclf.console import say
from cclf.envs.registry import task_kind
from cclf.errors import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, FULL_DISK, ConfigError, WorkerError

if TYPE_CHECKING:
    from cclf.training.signals import StopSignal
    from cclf.training.trainer import RunResult

_TITLES = {"env": "environment", "method": "method", "algorithm": "algorithm", "run": "run"}
_HELP_TASK = "dmc/cartpole-swingup"  # `cclf train --help` without a task shows its defaults


def _choices(names: Collection[str]) -> Any:
    """Show the names as choices. Other values are rejected later, with the most similar name."""
    return tyro.conf.arg(metavar="{" + ",".join(names) + "}" if names else "NAME")


def _group(name: str) -> Any:
    """A group of options, which the help shows in a separate box."""
    return tyro.conf.arg(name=_TITLES[name])


@dataclass(frozen=True)
class TrainOptions:
    """Train an agent. The same command again resumes a run that was stopped.

    The defaults below are those of this task, method, profile and size."""

    task: tyro.conf.Positional[str]
    """The task, e.g. toy/reach or dmc/cartpole-swingup (see: cclf tasks)."""
    method: str
    base: Annotated[str, _choices(algorithms())]
    """The base algorithm; by default that of the task (see: cclf methods)."""
    profile: str
    """Settings for the points on which the paper and the released code disagree."""
    size: str | None
    """Smaller frames, networks and batches, for a machine without a GPU. The defaults below show
    them. The paper does not use them."""
    seed: int
    """Seed of all random numbers of the run, 0 or more."""
    with_seeds: tuple[int, ...]
    """Further seeds, trained in this process as one batch, each with its own run folder
    (Rainbow)."""
    with_tasks: tuple[str, ...]
    """Further tasks in the same batch, each with all seeds (Rainbow)."""
    out: Path
    """Parent folder of run folders, which are OUT/TASK/METHOD/seed-SEED-HASH."""
    dry_run: Switch
    """Check the task, print the settings with a mark at those that differ from the default, and
    stop."""
    json: Json
    """With --dry-run: print the settings as one JSON document, like config.json of a run."""
    from_: Annotated[Path | None, tyro.conf.arg(name="from", metavar="PATH")]
    """Train again what this run folder, or a file such as its config.json, describes. It replaces
    task, method, base, profile and size; seeds and all options below can be changed."""
    trust_imports: Switch
    """With --from: allow the config to import the Python modules that it names."""
    env: Annotated[EnvConfig, tyro.conf.OmitArgPrefixes, _group("env")]
    method_config: Annotated[MethodConfig, tyro.conf.OmitArgPrefixes, _group("method")]
    algorithm: AlgorithmSettings
    run: Annotated[RunConfig, tyro.conf.OmitArgPrefixes, _group("run")]


@cache
def train_options(algorithm: BaseAlgorithm) -> type[TrainOptions]:
    """The options of `cclf train` with the methods, profiles, sizes and settings of one algorithm."""
    method = tyro.conf.arg(
        help=f"The method, one of {', '.join(algorithm.methods)}. `cclf methods --base "
        f"{algorithm.name}` describes them."
    )
    settings: Any = algorithm.settings_type
    fields = [
        ("method", Annotated[str, method]),
        ("profile", Annotated[str, _choices(algorithm.profiles)]),
        ("size", Annotated[str | None, _choices(algorithm.sizes)]),
        ("algorithm", Annotated[settings, tyro.conf.OmitArgPrefixes, _group("algorithm")]),
    ]
    documented = {"__doc__": TrainOptions.__doc__}
    return make_dataclass(
        "Options", fields, bases=(TrainOptions,), namespace=documented, frozen=True
    )


def main(arguments: list[str]) -> int:
    from cclf.training.signals import STOP_MESSAGE, StopSignal

    stop = StopSignal(STOP_MESSAGE)
    stop.install()  # first, so that a signal during startup stops the run too
    # Reading the options of some tasks makes their environment, which may change the directory.
    with contextlib.chdir(_working_directory()):
        request = train_config(arguments)
        configs = all_configs(request, arguments)
    if not request.options.dry_run:
        return run_training(configs, request.options.out, stop)
    from cclf.envs.make import validate_task

    for config in configs:
        validate_task(config)
    if request.options.json:
        print_json(request.config.to_dict())
        return EXIT_DONE
    _print_settings(request.config, request.defaults)
    for config in configs[1:]:
        print(f"also {config.task} seed {config.seed}")
    return EXIT_DONE


def _working_directory() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise ConfigError("the working directory was removed: change to another one") from error


# --- from the command line to configs


class TrainRequest(NamedTuple):
    config: Config
    defaults: Config  # the config before the other options of the command line are applied
    options: TrainOptions


def train_config(arguments: list[str], task: str | None = None) -> TrainRequest:
    """Parse a `cclf train` command line. `task` replaces the task that it names."""
    names = _parse_names(arguments)
    defaults = _preset(names, task) if names["from"] is None else _config_of_file(names)
    options_type = train_options(find_algorithm(defaults.base))
    default_options = options_type(
        task=defaults.task,
        method=defaults.method_name,
        base=defaults.base,
        profile=defaults.profile,
        size=names["size"],
        seed=defaults.seed,
        with_seeds=(),
        with_tasks=(),
        out=Path("runs"),
        dry_run=False,
        json=False,
        from_=None,
        trust_imports=False,
        env=defaults.env,
        method_config=defaults.method,
        algorithm=defaults.algorithm,
        run=defaults.run,
    )
    options = parse(options_type, "cclf train", arguments, default_options)
    config = replace(
        defaults,
        seed=options.seed,
        env=options.env,
        method=options.method_config,
        algorithm=options.algorithm,
        run=options.run,
    )
    presets.reject_inactive_options(config, defaults)
    if options.json and not options.dry_run:
        raise ConfigError("--json conflicts with training: add --dry-run, or remove --json")
    return TrainRequest(config, defaults, options)


def _parse_names(arguments: list[str]) -> dict[str, Any]:
    """Parse the options that determine which other options exist and what their defaults are. The
    parser knows the options of all algorithms, so that it takes no option's value for the task."""
    types = option_types(TrainOptions)
    for algorithm in algorithms().values():
        types |= option_types(algorithm.settings_type)
    words = check_options(arguments, types, "cclf train")
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("task", nargs="?")
    parser.add_argument("-h", "--help", action="store_true")
    for option, kind in types.items():
        if kind is bool:
            parser.add_argument(option, action=argparse.BooleanOptionalAction)
        elif option != "--task":
            parser.add_argument(option, nargs="*" if get_origin(kind) is tuple else None)
    try:
        return vars(parser.parse_known_args(words)[0])
    except argparse.ArgumentError as error:
        raise ConfigError(f"{error} (see: cclf train --help)") from error


def _preset(names: dict[str, Any], task: str | None) -> Config:
    """The config of the task, method, base, profile and size of a command line, without its other
    options."""
    if names["trust_imports"]:
        raise ConfigError(
            "--trust-imports is for --from: modules that a command line names are trusted; remove it"
        )
    task = task or names["task"] or (_HELP_TASK if names["help"] else None)
    if task is None:
        raise ConfigError(
            "train needs a task, e.g. cclf train toy/reach --method cclf (see: cclf tasks)"
        )
    return presets.resolve(
        task,
        names["method"],
        profile=names["profile"] or DEFAULT_PROFILE,
        base_name=names["base"],
        size=names["size"],
        observe=names["observe"] or "pixels",
    )


def _config_of_file(names: dict[str, Any]) -> Config:
    """The config that --from names."""
    from cclf.storage.run_folder import load_config_for_training

    path = Path(names["from"])
    options = ("method", "base", "profile", "size", "observe")
    conflicts = [f"--{name}" for name in options if names[name]]
    conflicts += ["--with-tasks"] if names["with_tasks"] else []
    conflicts += [names["task"]] if names["task"] else []
    if conflicts:
        raise ConfigError(
            f"--from {path} conflicts with {conflicts[0]}: the file already describes the run; remove one of them"
        )
    return load_config_for_training(path, bool(names["trust_imports"]))


def all_configs(request: TrainRequest, arguments: list[str]) -> list[Config]:
    """The configs of every task with every seed. The defaults depend on the task, so the command line
    is read again for each further task."""
    first = request.config
    by_task = [first]
    for task in request.options.with_tasks:
        if task_kind(task) != task_kind(first.task):
            raise ConfigError(
                f"{first.task} and {task} are learned with different algorithms: train them apart"
            )
        by_task.append(train_config(arguments, task).config)
        if find_algorithm(first.base).batches_runs:
            _check_same_observations(first, by_task[-1])
    seeds = (first.seed, *request.options.with_seeds)
    if len(set(seeds)) < len(seeds) or len({config.task for config in by_task}) < len(by_task):
        raise ConfigError("a seed or a task is given twice: give each of them once")
    return [replace(config, seed=seed) for config in by_task for seed in seeds]


def _check_same_observations(one: Config, other: Config) -> None:
    """Raise ConfigError unless the observations of two tasks fit into one batch."""
    for name, value in vars(one.env).items():
        if value != vars(other.env)[name]:
            raise ConfigError(
                f"{one.task} has {name}={value} and {other.task} {name}={vars(other.env)[name]}: "
                "games that train as one batch must share it; "
                f"give --{name.replace('_', '-')}, or train them apart"
            )


def _print_settings(config: Config, defaults: Config) -> None:
    """Print the settings that have an effect, with a mark at those that differ from `defaults`."""
    print(
        f"{config.task}  {config.method_name}  base {config.base}  profile {config.profile}  seed "
        f"{config.seed}\n"
        f"{config.run.env_steps:,} env steps = {config.planned_agent_steps:,} agent steps x "
        f"{config.env.action_repeat}, {config.planned_updates:,} updates"
    )
    for group, title in _TITLES.items():
        print(f"\n{title}")
        group_defaults = vars(vars(defaults)[group])
        for name, value in vars(vars(config)[group]).items():
            if not config.why_inactive(name):
                changed = value != group_defaults[name]
                note = f"  (default: {group_defaults[name]})" if changed else ""
                shown = "none" if value == "" else value
                print(f"  {'*' if changed else ' '} {name:<31} {shown}{note}")
    print("\n* differs from the default; settings without effect in this run are not listed")


# --- the runs


def run_training(configs: list[Config], out: Path, stop: "StopSignal") -> int:
    """Train these runs in one process, report how each ended, and return the exit code."""
    from cclf.training.trainer import train_runs

    folders, ends, absolute_out = [], [], out.absolute()
    try:
        with contextlib.closing(train_runs(configs, out, stop)) as running:
            for result in running:
                # Relative to the working directory, if the command line gives --out so.
                folders.append(out / result.folder.relative_to(absolute_out))
                ends.append(result.end)
                _print_end(result, folders[-1])
    except OSError as error:
        if DEBUG in os.environ:
            raise
        path = error.filename if isinstance(error.filename, str) else out
        if error.errno in FULL_DISK:
            reason = f"the disk is full ({path}): free some space and run the same command"
        else:
            reason = f"cannot use {path}: {error.strerror or error}; repair this and run the same command"
        say(f"cclf: {reason}; the run resumes from its last checkpoint, if there is one")
        return EXIT_FAILED
    if "failed" in ends or len(ends) < len(configs):  # runs that failed earlier are skipped
        return EXIT_FAILED
    if "stopped" in ends:
        return EXIT_STOPPED
    report = [f"cclf report {shlex.quote(str(out))}"]
    commands = report if len(configs) > 1 else next_commands(configs[0], folders[0])
    say("next: " + "\n      ".join(commands))
    return EXIT_DONE


def next_commands(config: Config, folder: Path) -> list[str]:
    """Commands that a user can copy to use a finished run."""
    run = shlex.quote(str(folder))
    # The user of this command has named the modules, so they can be trusted.
    trust = " --trust-imports" if config.imported_modules else ""
    commands = [f"cclf evaluate {run}{trust}", f"cclf play {run}{trust}"]
    has_images = config.env.observe == "pixels" and find_algorithm(config.base).supports_inspection
    if config.method.needs_curiosity and has_images:
        # `cclf inspect` makes no environment, so it does not import the module of the task.
        needs_trust = not set(config.imported_modules) <= {"task"}
        commands.append(f"cclf inspect {run}{trust if needs_trust else ''}")
    return commands


def _print_end(result: "RunResult", folder: Path) -> None:
    from cclf.storage.checkpoint import Checkpoints

    if result.end == "done":
        print(folder, flush=True)
    elif result.error is None:
        say(result.message)
    else:
        say(f"cclf: {result.error}")
        if isinstance(result.error, WorkerError):
            is_saved = any(Checkpoints(folder / "checkpoint").steps().values())
            good = "the last checkpoint is good: run the same command to go on"
            hint = good if is_saved else "nothing was saved yet: the same command begins again"
            say(f"{result.error.details}{hint}")
