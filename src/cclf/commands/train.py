"""`cclf train`: from a command line to the configs of its runs, and to the trained runs."""

import argparse
import contextlib
import errno
import json
import os
import shlex
from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import tyro

from cclf import presets
from cclf.algorithms.base import DEFAULT_PROFILE, BaseAlgorithm
from cclf.algorithms.registry import algorithms, find_algorithm
from cclf.commands import DEBUG
from cclf.commands.options import EMPTY_PATH, Json, parse
from cclf.config import Config, EnvConfig, MethodConfig, RunConfig
from cclf.console import say
from cclf.envs.registry import task_kind
from cclf.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_STOPPED,
    ConfigError,
    WorkerError,
    did_you_mean,
)

if TYPE_CHECKING:
    from cclf.training.signals import StopSignal
    from cclf.training.trainer import RunResult

_EXIT_CODES = {"done": EXIT_DONE, "stopped": EXIT_STOPPED, "failed": EXIT_FAILED}
_TITLES = {"env": "environment", "method": "method", "algorithm": "algorithm", "run": "run"}
_HELP_TASK = "dmc/cartpole-swingup"  # whose values `cclf train --help` shows


def main(arguments: list[str]) -> int:
    from cclf.training.signals import STOP_MESSAGE, StopSignal

    stop = StopSignal(STOP_MESSAGE)
    stop.install()  # first, so that a signal during startup stops the run too
    # Some tasks are known only once their environment is made, which may change the directory.
    with contextlib.chdir(_working_directory()):
        request = train_config(arguments)
        configs = all_configs(request, arguments)
    if not request.dry_run:
        return run_training(configs, request.out, stop)
    from cclf.envs.make import validate_task

    for config in configs:
        validate_task(config)
    if request.json:
        print(json.dumps(request.config.to_dict(), indent=2))
    else:
        _print_settings(request.config, request.defaults)
        for config in configs[1:]:
            print(f"also {config.task} seed {config.seed}")
    return EXIT_DONE


def _working_directory() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise ConfigError("the working directory was removed: change to another one") from error


# --- the command line


def _choices(names: Collection[str]) -> Any:
    """Show the names as choices. Others are rejected later, with the most similar name."""
    return tyro.conf.arg(metavar="{" + ",".join(names) + "}" if names else "NAME")


def _group(name: str) -> Any:
    """A group of options, in a box of its own in the help."""
    return tyro.conf.arg(name=_TITLES[name])


@cache
def train_options(spec: BaseAlgorithm) -> Any:
    """The options of `cclf train` with this base algorithm, as a dataclass."""
    method_choice = tyro.conf.arg(
        metavar="METHOD",
        help=f"The method, one of {', '.join(spec.methods)}. `cclf methods --base {spec.name}` "
        "describes them.",
    )

    @dataclass(frozen=True)
    class TrainOptions:
        """Train an agent. The same command again resumes a run that was stopped.

        The defaults below are those of this task, method, profile and size."""

        task: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TASK")]
        """The task, e.g. toy/reach or dmc/cartpole-swingup (see: cclf tasks)."""
        method: Annotated[str, method_choice]
        base: Annotated[str, _choices(algorithms())]
        """The base algorithm; by default that of the task (see: cclf methods)."""
        profile: Annotated[str, _choices(spec.profiles)]
        """Settings for the points on which the paper and the released code disagree."""
        size: Annotated[str | None, _choices(spec.sizes)]
        """Smaller frames, networks and batches, for a machine without a GPU. The defaults below show
        them. The paper does not use them."""
        seed: int
        """Seed of all random numbers of the run, 0 or more."""
        with_seeds: tuple[int, ...]
        """Further seeds, trained in this process as one batch, each with its own run folder
        (Rainbow)."""
        with_tasks: Annotated[tuple[str, ...], tyro.conf.arg(metavar="[TASK [TASK ...]]")]
        """Further tasks in the same batch, each with all seeds (Rainbow)."""
        out: Path
        """Parent folder of run folders, which are OUT/TASK/METHOD/seed-SEED-HASH."""
        dry_run: bool
        """Check the task, print the settings with a mark at those that differ from the default, and
        stop."""
        json: Json
        """With --dry-run: print the settings as one JSON document, like config.json of a run."""
        from_: Annotated[Path | None, tyro.conf.arg(name="from", metavar="PATH")]
        """Train again what this run folder, or a file such as its config.json, describes. It replaces
        task, method, base, profile and size; seeds and all options below can be changed."""
        trust_imports: bool
        """With --from: allow the config to import the Python modules that it names."""
        env: tyro.conf.OmitArgPrefixes[Annotated[EnvConfig, _group("env")]]
        method_config: tyro.conf.OmitArgPrefixes[Annotated[MethodConfig, _group("method")]]
        algorithm: tyro.conf.OmitArgPrefixes[
            Annotated[spec.settings_type, _group("algorithm")]  # type: ignore[name-defined]
        ]
        run: tyro.conf.OmitArgPrefixes[Annotated[RunConfig, _group("run")]]

    return TrainOptions


def _names_parser() -> tuple[argparse.ArgumentParser, frozenset[str]]:
    """A parser of the names that decide which options there are and what their defaults are, and the
    options that it knows: those of every algorithm, to tell their values from the task."""
    settings = [algorithm.settings_type for algorithm in algorithms().values()]
    names = dict.fromkeys(("method", "base", "profile", "size", "seed", "out", "from"), False)
    names |= dict.fromkeys(("dry_run", "json", "trust_imports"), True)
    for group in (EnvConfig, MethodConfig, RunConfig, *settings):
        names |= {field.name: field.type is bool for field in fields(group)}
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("task", nargs="?")
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--with-seeds", nargs="*")
    parser.add_argument("--with-tasks", nargs="*")
    options = {f"--{name.replace('_', '-')}": is_flag for name, is_flag in names.items()}
    for option, is_flag in options.items():
        action = argparse.BooleanOptionalAction if is_flag else "store"
        parser.add_argument(option, action=action)
    return parser, frozenset(options)


def _parse_names(arguments: list[str]) -> dict[str, Any]:
    words = []
    for word in arguments:
        option, equals, value = word.partition("=")
        is_option = word.startswith("--")
        words.append(f"{option.replace('_', '-')}{equals}{value}" if is_option else word)
    parser, options = _names_parser()
    try:
        names, others = parser.parse_known_args(words)
    except argparse.ArgumentError as error:
        raise ConfigError(f"{error} (see: cclf train --help)") from error
    for word in others:
        if word.startswith("--"):
            option = word.partition("=")[0]
            raise ConfigError(
                f"unknown option {option}{did_you_mean(option, options)} (see: cclf train --help)"
            )
    return vars(names)


class TrainRequest(NamedTuple):
    config: Config
    defaults: Config  # what the names alone stand for
    with_seeds: tuple[int, ...]
    with_tasks: tuple[str, ...]
    out: Path  # parent folder of run folders
    dry_run: bool
    json: bool


def train_config(arguments: list[str], task: str | None = None) -> TrainRequest:
    """What a `cclf train` command line requests; with `task`, for that task instead of its own."""
    names = _parse_names(arguments)
    defaults = _preset(names, task) if names["from"] is None else _config_of_file(names)
    kind = train_options(find_algorithm(defaults.base))
    options = parse(
        kind,
        "cclf train",
        arguments,
        kind(
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
        ),
    )
    groups = {"env": options.env, "method": options.method_config}
    groups |= {"algorithm": options.algorithm, "run": options.run}
    config = replace(defaults, seed=options.seed, **groups)
    presets.reject_inactive_options(config, defaults)
    for option, first, others in (
        ("seeds", options.seed, options.with_seeds),
        ("tasks", options.task, options.with_tasks),
    ):
        if len({first, *others}) <= len(others):
            raise ConfigError(f"{option} {first} and {others}: name each of them once")
    if options.from_ is not None and options.with_tasks:
        raise ConfigError(
            "--from conflicts with --with-tasks: the file names the task; remove one of them"
        )
    if options.json and not options.dry_run:
        raise ConfigError("--json conflicts with training: it needs --dry-run")
    return TrainRequest(
        config,
        defaults,
        options.with_seeds,
        options.with_tasks,
        options.out,
        options.dry_run,
        options.json,
    )


def _preset(names: dict[str, Any], task: str | None) -> Config:
    """The config of the task, method, base, profile and size of a command line, without its other
    options."""
    if names["trust_imports"]:
        raise ConfigError(
            "--trust-imports is for --from: a command line needs none for what it names; remove it"
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

    if not names["from"]:
        raise ConfigError(f"--from: {EMPTY_PATH}")
    also = [f"--{name}" for name in ("method", "base", "profile", "size", "observe") if names[name]]
    also += [names["task"]] if names["task"] else []
    if also:
        raise ConfigError(
            f"--from {names['from']} conflicts with {also[0]}: the file names the run; remove one of "
            "them"
        )
    return load_config_for_training(Path(names["from"]), bool(names["trust_imports"]))


def all_configs(request: TrainRequest, arguments: list[str]) -> list[Config]:
    """The configs of every task with every seed. The defaults depend on the task, so the command line
    is read again for each further task."""
    first = request.config
    by_task = [first]
    for task in request.with_tasks:
        if task_kind(task) != task_kind(first.task):
            raise ConfigError(
                f"{first.task} and {task} are learned with different algorithms: train them apart"
            )
        by_task.append(train_config(arguments, task).config)
        if find_algorithm(first.base).batches_runs:
            _check_same_observations(first, by_task[-1])
    seeds = (first.seed, *request.with_seeds)
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
    """Print the settings that have an effect, by group."""
    print(
        f"{config.task}  {config.method_name}  base {config.base}  profile {config.profile}  seed "
        f"{config.seed}\n"
        f"{config.run.env_steps:,} env steps = {config.planned_agent_steps:,} agent steps x "
        f"{config.env.action_repeat}, {config.planned_updates:,} updates"
    )
    for group, title in _TITLES.items():
        print(f"\n{title}")
        before = vars(vars(defaults)[group])
        for name, value in vars(vars(config)[group]).items():
            if not config.why_inactive(name):
                changed = value != before[name]
                note = f"  (default: {before[name]})" if changed else ""
                print(f"  {'*' if changed else ' '} {name:<31} {value}{note}")
    print("\n* differs from the default; settings without effect in this run are not listed")


# --- the runs


def run_training(configs: list[Config], out: Path, stop: "StopSignal") -> int:
    """Train these runs in one process, report how each ended, and return the exit code."""
    from cclf.training.trainer import train_runs

    results, absolute_out = [], out.absolute()
    try:
        with contextlib.closing(train_runs(configs, out, stop)) as running:
            for result in running:
                folder = result.folder
                if folder.is_relative_to(absolute_out):  # as the command line names it
                    folder = out / folder.relative_to(absolute_out)
                _report(result, folder)
                results.append(result._replace(folder=folder))
    except OSError as error:
        if DEBUG in os.environ:
            raise
        path = error.filename if isinstance(error.filename, str) else out
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason = f"the disk is full ({path}): free some space and run the same command"
        else:
            reason = f"cannot use {path}: {error.strerror or error}; repair this and run the same command"
        say(f"cclf: {reason}; it resumes from the last checkpoint, if there is one")
        return EXIT_FAILED
    if len(results) < len(configs):
        return EXIT_FAILED  # a run that failed before was skipped
    ends = {result.end for result in results}
    worst = next(end for end in ("failed", "stopped", "done") if end in ends)
    if worst == "done" and len(configs) > 1:
        say(f"next: cclf report {shlex.quote(str(out))}")
    elif worst == "done":
        say("\n".join(next_commands(configs[0], results[0].folder)))
    return _EXIT_CODES[worst]


def next_commands(config: Config, folder: Path) -> list[str]:
    """Lines with the commands that use a finished run, to copy."""
    run = shlex.quote(str(folder))
    # Whoever trained has named the modules.
    trust = " --trust-imports" if config.imported_modules else ""
    commands = [f"cclf evaluate {run}{trust}", f"cclf play {run}{trust}"]
    has_images = config.env.observe == "pixels" and find_algorithm(config.base).supports_inspection
    if config.method.needs_curiosity and has_images:
        only_task = set(config.imported_modules) <= {"task"}  # inspect makes no environment
        commands.append(f"cclf inspect {run}{'' if only_task else trust}")
    return [
        f"{'next:' if index == 0 else '':5} {command}" for index, command in enumerate(commands)
    ]


def _report(result: "RunResult", folder: Path) -> None:
    if result.end == "done":
        print(folder, flush=True)
    elif result.error is None:
        say(result.message)
    else:
        say(f"cclf: {result.error}")
        if isinstance(result.error, WorkerError):
            say(f"{result.error.details}{_resume_hint(result.folder)}")


def _resume_hint(folder: Path) -> str:
    """What the same command would do after a run failed."""
    from cclf.storage.checkpoint import Checkpoints

    if any(Checkpoints(folder / "checkpoint").steps().values()):
        return "the last checkpoint is good: run the same command to go on"
    return "nothing was saved yet: the same command begins again"
