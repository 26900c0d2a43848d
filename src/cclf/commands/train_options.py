"""The command line of `cclf train`: from words to a config."""

import argparse
import contextlib
from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro

from cclf import presets
from cclf.algorithms.base import DEFAULT_PROFILE, BaseAlgorithm
from cclf.algorithms.registry import algorithms, find_algorithm
from cclf.commands.options import EMPTY_PATH, parse
from cclf.config import Config, EnvConfig, MethodConfig, RunConfig
from cclf.envs.registry import find_task, task_kind
from cclf.errors import ConfigError
from cclf.presets import reject_inactive_options


def _choices(names: Collection[str]) -> Any:
    """Shown as choices, but refused elsewhere, with the nearest name."""
    return tyro.conf.arg(metavar="{" + ",".join(names) + "}" if names else "NAME")


def _methods(base: BaseAlgorithm) -> Any:
    return tyro.conf.arg(
        metavar="METHOD",
        help=f"What is learned, as a difference from CCLF (see: cclf methods --base {base.name}): "
        f"{', '.join(base.methods)}.",
    )


def train_options(spec: BaseAlgorithm) -> Any:
    """The options of `cclf train` with this base algorithm, as a dataclass."""

    @dataclass(frozen=True)
    class Train:
        """Train an agent; the same command again goes on with a run that was stopped.

        Every number below shows its value for this task, method, profile and size."""

        task: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TASK")]
        """What to learn, e.g. toy/reach or dmc/cartpole-swingup (see: cclf tasks)."""
        method: Annotated[str, _methods(spec)]
        base: Annotated[str, _choices(algorithms())]
        """The base algorithm; the task's own unless given (see: cclf methods)."""
        profile: Annotated[str, _choices(spec.profiles)]
        """Which reading of the points where the paper and the released code disagree."""
        size: Annotated[str | None, _choices(spec.sizes)]
        """Smaller frames, networks and batches, for a machine without a GPU. What it changes is
        shown below; it is no setting of the paper."""
        seed: int
        """Decides every random number of the run; 0 or more."""
        with_seeds: tuple[int, ...]
        """More seeds, trained in this process in turn with the first, each in its own folder:
        useful when one run already keeps the GPU busy."""
        with_tasks: Annotated[tuple[str, ...], tyro.conf.arg(metavar="[TASK [TASK ...]]")]
        """More tasks in the same way, each with all seeds. Runs of Rainbow learn together, in one
        call: name all games."""
        out: Path
        """Folder for run folders; this run's is OUT/TASK/METHOD/seed-SEED-HASH."""
        dry_run: bool
        """Print the resolved config and stop."""
        from_: Annotated[Path | None, tyro.conf.arg(name="from", metavar="PATH")]
        """A run folder, or a file such as its config.json: train that once more, in the place of
        task, method, base and profile. Seeds and every option below may be changed beside it."""
        trust_imports: bool
        """With --from: allow a task gym/MODULE:ID or an encoder MODULE:FUNCTION of that file to
        import the Python module."""
        env: tyro.conf.OmitArgPrefixes[Annotated[EnvConfig, _group("environment")]]
        method_config: tyro.conf.OmitArgPrefixes[Annotated[MethodConfig, _group("method")]]
        algorithm: tyro.conf.OmitArgPrefixes[Annotated[spec.settings_type, _group("algorithm")]]  # type: ignore[name-defined]
        run: tyro.conf.OmitArgPrefixes[Annotated[RunConfig, _group("run")]]

    return Train


def _group(title: str) -> Any:
    """A box of its own in the help, whose options have no prefix."""
    return tyro.conf.arg(name=title)


def _task_place(arguments: list[str]) -> int:
    """Where the task stands on a command line whose other options are not known yet: they get their
    defaults from it.

    It is the first word that is neither an option nor the value of one.
    """
    groups = (
        EnvConfig,
        MethodConfig,
        RunConfig,
        *(base.settings_type for base in algorithms().values()),
    )
    flags = {"dry-run", "trust-imports", "help"} | {
        each.name.replace("_", "-")
        for group in groups
        for each in fields(group)
        if each.type is bool
    }
    place = 0
    while place < len(arguments):
        word = arguments[place]
        if not word.startswith("-"):
            return place
        place += 1
        name = word.lstrip("-").replace("_", "-")
        if word == "-h" or "=" in word or name in flags or name.removeprefix("no-") in flags:
            continue
        if name in ("with-seeds", "with-tasks"):  # those take as many as follow
            while place < len(arguments) and not arguments[place].startswith("--"):
                place += 1
        else:
            place += 1
    raise ConfigError(
        "train needs a task, e.g. cclf train toy/reach --method cclf (see: cclf tasks)"
    )


class Asked(NamedTuple):
    """What a `cclf train` command line asks for."""

    config: Config
    with_seeds: tuple[int, ...]
    with_tasks: tuple[str, ...]
    out: Path  # for run folders
    dry_run: bool  # stop before training


def train_config(arguments: list[str], of_several: bool = False) -> Asked:
    names = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    names.add_argument("--method")
    names.add_argument("--profile")
    names.add_argument("--base")
    names.add_argument("--size")
    names.add_argument("--observe")
    names.add_argument("--from", dest="source", type=Path)
    names.add_argument("--trust-imports", action="store_true")
    try:
        known, _ = names.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise ConfigError(f"{error} (see: cclf train --help)") from error
    if known.source == Path() and "." not in arguments:
        raise ConfigError(f"--from: {EMPTY_PATH}")
    if known.source is None:
        defaults = _preset(arguments, known)
    else:
        defaults = _from_file(arguments, known)
    options = train_options(find_algorithm(defaults.base))(
        task=defaults.task,
        method=defaults.method_name,
        base=defaults.base,
        profile=defaults.profile,
        size=known.size,
        seed=defaults.seed,
        with_seeds=(),
        with_tasks=(),
        out=Path("runs"),
        dry_run=False,
        from_=None,
        trust_imports=False,
        env=defaults.env,
        method_config=defaults.method,
        algorithm=defaults.algorithm,
        run=defaults.run,
    )
    chosen = parse(options, "cclf train", arguments)
    if find_task(chosen.task).name != defaults.task:
        raise ConfigError(
            f"is the task {defaults.task} or {chosen.task}? Write it first: cclf train "
            f"{chosen.task} ..."
        )
    config = replace(
        defaults,
        seed=chosen.seed,
        env=chosen.env,
        method=chosen.method_config,
        algorithm=chosen.algorithm,
        run=chosen.run,
    )
    reject_inactive_options(config, defaults)
    if len({chosen.seed, *chosen.with_seeds}) <= len(chosen.with_seeds):
        raise ConfigError(f"seeds {chosen.seed} and {chosen.with_seeds}: each may be named once")
    if chosen.from_ is not None and chosen.with_tasks:
        raise ConfigError(
            "--from conflicts with --with-tasks: the file names the task; remove one of them"
        )
    if not of_several and len({chosen.task, *chosen.with_tasks}) <= len(chosen.with_tasks):
        raise ConfigError(
            f"tasks {chosen.task} and {', '.join(chosen.with_tasks)}: each may be named once"
        )
    return Asked(config, chosen.with_seeds, chosen.with_tasks, chosen.out, chosen.dry_run)


def _preset(arguments: list[str], known: argparse.Namespace) -> Config:
    """What the names on a command line stand for, before its other options have their say."""
    if known.trust_imports:
        raise ConfigError(
            "--trust-imports is for --from: what the command line names needs none; remove it"
        )
    try:
        task = arguments[_task_place(arguments)]
    except ConfigError:
        if not {"-h", "--help"} & set(arguments):
            raise
        task = "dmc/cartpole-swingup"
    return presets.resolve(
        task,
        known.method,
        profile=known.profile or DEFAULT_PROFILE,
        base_name=known.base,
        size=known.size,
        observe=known.observe or "pixels",
    )


def _from_file(arguments: list[str], known: argparse.Namespace) -> Config:
    """The same from a file. It names all that decides which other options there are."""
    from cclf.storage.run_folder import load_config_for_training

    names = ("method", "base", "profile", "size", "observe")
    also = [f"--{name}" for name in names if getattr(known, name)]
    with contextlib.suppress(ConfigError):  # there is none, as it should be
        also.append(arguments[_task_place(arguments)])
    if also:
        raise ConfigError(
            f"--from {known.source} conflicts with {also[0]}: the file says which run; remove one of them"
        )
    return load_config_for_training(known.source, known.trust_imports)


def all_configs(asked: Asked, arguments: list[str]) -> list[Config]:
    """Of every task with every seed. Each task has defaults of its own, so the words are read again
    for it."""
    firsts = [asked.config]
    for task in asked.with_tasks:
        place = _task_place(arguments)
        if task_kind(task) != task_kind(asked.config.task):
            raise ConfigError(
                f"{asked.config.task} and {task} are learned with different algorithms: train them "
                "apart"
            )
        firsts.append(
            train_config(
                [*arguments[:place], task, *arguments[place + 1 :]], of_several=True
            ).config
        )
        if find_algorithm(asked.config.base).batches_runs:
            _refuse_other_frames(asked.config, firsts[-1])
    return [
        replace(first, seed=seed)
        for first in firsts
        for seed in (asked.config.seed, *asked.with_seeds)
    ]


def _refuse_other_frames(one: Config, other: Config) -> None:
    """Games that are learned in one call are seen in one shape."""
    for name, value in vars(one.env).items():
        theirs = getattr(other.env, name)
        if value != theirs:
            raise ConfigError(
                f"{one.task} has {name}={value} and {other.task} {name}={theirs}: games learned "
                "together must share it; "
                f"give --{name.replace('_', '-')}, or train them apart"
            )
