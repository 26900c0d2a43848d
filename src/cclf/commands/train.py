"""`cclf train`: from a command line to a config to a run."""

import argparse
import contextlib
import errno
import json
import os
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import tyro

from cclf import extras, presets
from cclf.bases.base import DEFAULT_PROFILE
from cclf.bases.registry import bases, find_base
from cclf.commands.options import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, parse
from cclf.config import Config, EnvConfig, MethodConfig, RunConfig
from cclf.envs.registry import find_task, play_of, remark_on
from cclf.errors import ConfigError, WorkerError
from cclf.presets import refuse_idle_options

if TYPE_CHECKING:
    from cclf.runtime.callbacks import Callbacks
    from cclf.runtime.evaluators import Evaluators
    from cclf.runtime.failure import NonFiniteError
    from cclf.runtime.loop import ActiveRun, Training
    from cclf.runtime.stop import Stop


def _train_options(algorithm_config: type) -> Any:
    @dataclass(frozen=True)
    class Train:
        """Train an agent. Every number below shows its value for this task, method and profile."""

        task: tyro.conf.Positional[str]
        method: str
        base: str
        """The base algorithm; the task's own unless given (see: cclf methods)."""
        profile: str
        """released or paper: which reading of the points where the two disagree."""
        size: str | None
        """small: smaller frames, networks and batches, for a machine without a GPU. What it
        changes is shown below; it is no setting of the paper."""
        seed: int
        with_seeds: tuple[int, ...]
        """More seeds, trained in this process in turn with the first, each in its own folder:
        useful when one run already keeps the GPU busy."""
        with_tasks: tuple[str, ...]
        """More tasks in the same way, each with all seeds. Runs of Rainbow learn together, in one
        call: name all games."""
        out: Path
        """Folder for run folders; this run's is OUT/TASK/METHOD/seed-SEED-HASH."""
        dry_run: bool
        """Print the resolved config and stop."""
        from_: Annotated[Path | None, tyro.conf.arg(name="from")]
        """A run folder, or a file such as its config.json: train that once more, in the place of
        task, method, base and profile. Seeds and every option below may be changed beside it."""
        trust_imports: bool
        """With --from: allow a task gym/MODULE:ID of that file to import the Python module."""
        env: Annotated[EnvConfig, tyro.conf.arg(name="")]
        method_config: Annotated[MethodConfig, tyro.conf.arg(name="")]
        algorithm: Annotated[algorithm_config, tyro.conf.arg(name="")]  # type: ignore[valid-type]
        run: Annotated[RunConfig, tyro.conf.arg(name="")]

    return Train


def _task_place(arguments: list[str]) -> int:
    """Where the task stands on a command line whose other options are not known yet: they get their
    defaults from it.

    It is the first word that is neither an option nor the value of one.
    """
    groups = (EnvConfig, MethodConfig, RunConfig, *(base.settings for base in bases().values()))
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
    if known.source is None:
        defaults = _preset(arguments, known)
    else:
        defaults = _from_file(arguments, known)
    options = _train_options(type(defaults.algorithm))(
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
    refuse_idle_options(config, defaults)
    if len({chosen.seed, *chosen.with_seeds}) <= len(chosen.with_seeds):
        raise ConfigError(f"seeds {chosen.seed} and {chosen.with_seeds}: each may be named once")
    if chosen.from_ is not None and chosen.with_tasks:
        raise ConfigError(
            "--from clashes with --with-tasks: the file names the task; leave one out"
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
            "--trust-imports is for --from: a task on the command line needs none; leave it out"
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
    from cclf.runtime.run_folder import trainable_config

    names = ("method", "base", "profile", "size", "observe")
    also = [f"--{name}" for name in names if getattr(known, name)]
    with contextlib.suppress(ConfigError):  # there is none, as it should be
        also.append(arguments[_task_place(arguments)])
    if also:
        raise ConfigError(
            f"--from {known.source} clashes with {also[0]}: the file says which run; leave one out"
        )
    return trainable_config(known.source, known.trust_imports)


def main(arguments: list[str]) -> int:
    from cclf.runtime.stop import Stop

    stop = Stop()
    stop.install()  # before all else: a signal that comes now is answered like any later one
    asked = train_config(arguments)
    if asked.dry_run:
        print(json.dumps(asked.config.to_dict(), indent=2))
        return EXIT_DONE
    return run_training(all_configs(asked, arguments), asked.out, stop)


def all_configs(asked: Asked, arguments: list[str]) -> list[Config]:
    """Of every task with every seed. Each task has defaults of its own, so the words are read again
    for it."""
    firsts = [asked.config]
    for task in asked.with_tasks:
        place = _task_place(arguments)
        if play_of(task) != play_of(asked.config.task):
            raise ConfigError(
                f"{asked.config.task} and {task} are learned with different algorithms: train them "
                "apart"
            )
        firsts.append(
            train_config(
                [*arguments[:place], task, *arguments[place + 1 :]], of_several=True
            ).config
        )
        if find_base(asked.config.base).learns_tasks_together:
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


class Outcome(NamedTuple):
    """How one run of a call ended."""

    folder: Path
    exit_code: int
    line: str = ""  # for a person, of one that stopped
    error: "NonFiniteError | WorkerError | None" = None  # of one that failed


def run_training(configs: list[Config], out: Path, stop: "Stop") -> int:
    """Train these, which differ in task and seed alone, in one process, and say how each ended."""
    exit_codes = []
    try:
        with contextlib.closing(trained(configs, out, stop)) as outcomes:
            for outcome in outcomes:
                _tell(outcome)
                exit_codes.append(outcome.exit_code)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print(
            f"cclf: the disk is full ({out}); the last checkpoint is good: make room, run the same "
            "command",
            file=sys.stderr,
        )
        return EXIT_FAILED
    if len(exit_codes) < len(configs):
        return EXIT_FAILED  # one was left out
    return next(code for code in (EXIT_FAILED, EXIT_STOPPED, EXIT_DONE) if code in exit_codes)


def trained(
    configs: list[Config], out: Path, stop: "Stop", callbacks: "Callbacks | None" = None
) -> Generator[Outcome, None, None]:
    """Train these, which differ in task and seed alone, in one process."""
    from cclf import build
    from cclf.runtime import devices
    from cclf.runtime.callbacks import NOBODY

    device = devices.choose_device(configs[0].run.device)
    devices.set_up(configs[0], device)
    configs = _without_missing_extras(configs)
    try:
        with contextlib.ExitStack() as held:
            found = {folder for config in configs if (folder := out / config.run_name()).exists()}
            accepted = _accepted(configs, out, found, held)
            evaluators = build.make_evaluators(accepted[0], device, len(accepted))
            if evaluators is not None:
                held.callback(evaluators.close)
            runs = _prepared(accepted, out, found, device, evaluators, held)

            def conclude(folder: Path) -> bool:
                return build.final_evaluation(folder, device, lambda: stop.requested, evaluators)

            yield from _train_together(runs, conclude, stop, held, callbacks or NOBODY)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        named = None if error.filename is None else Path(os.fsdecode(error.filename))
        if full or named is None or not named.is_relative_to(out):
            raise  # not of the run folder: the environment's own
        raise ConfigError(f"cannot use the run folder: {error}") from error


def _without_missing_extras(configs: list[Config]) -> list[Config]:
    """A video and TensorBoard are on unless told: where their packages are missing a line says so
    before the first step, and the run goes on without."""
    drawing = {extra for config in configs for extra in extras.to_draw(config.task)}
    no_video = extras.missing(["video", *sorted(drawing)]) if configs[0].run.video else {}
    no_tensorboard = extras.missing(["tensorboard"]) if configs[0].run.tensorboard else {}
    for what, lacking in (("video", no_video), ("TensorBoard", no_tensorboard)):
        if lacking:
            print(
                f"cclf: warning: no {what}, it needs {extras.said(lacking)}",
                file=sys.stderr,
                flush=True,
            )
    video, tensorboard = (
        configs[0].run.video and not no_video,
        configs[0].run.tensorboard and not no_tensorboard,
    )
    return [
        replace(config, run=replace(config.run, video=video, tensorboard=tensorboard))
        for config in configs
    ]


def _accepted(
    configs: list[Config], out: Path, found: set[Path], held: contextlib.ExitStack
) -> list[Config]:
    """Those that may go on: of several, one that failed before is left out and named. The folders
    that were found are held from here on, and nothing in them has changed: whoever is refused
    finds all as it was."""
    from cclf.runtime import run_folder
    from cclf.runtime.failure import refuse_after_failure

    accepted, refused = [], []
    for config in configs:
        folder = out / config.run_name()
        if folder in found:
            held.enter_context(run_folder.found_folder(config, out))
        try:
            refuse_after_failure(folder)
            accepted.append(config)
        except ConfigError as error:
            refused.append(error)
    if not accepted:
        raise refused[0]
    for refusal in refused:
        print(f"cclf: warning: left out: {refusal}", file=sys.stderr, flush=True)
    return accepted


def _prepared(
    configs: list[Config],
    out: Path,
    found: set[Path],
    device: Any,
    evaluators: "Evaluators | None",
    held: contextlib.ExitStack,
) -> "dict[Path, ActiveRun | None]":
    """Runs ready to go on in their folders, both held until `held` closes; None for one that was
    finished before.

    All are read before any folder is changed: what one lacks must not cost another its newest
    checkpoint.
    """
    from cclf import build
    from cclf.runtime import run_folder
    from cclf.runtime.metrics import check_tables

    points = build.resume_points(configs, out)
    trained = []
    for config, learner, point in zip(
        configs, build.make_learners(configs, device, points), points, strict=True
    ):
        held.callback(learner.close)
        training, learner, agent = build.make_training(
            config, out / config.run_name(), device, len(configs), learner, evaluators
        )
        held.callback(agent.close)
        trained.append((training, learner, training.resume(point)))
        check_tables(
            training.folder, training.env_steps, training.evaluation_due, training.known_rows
        )
    for config in configs:
        folder = out / config.run_name()
        if folder not in found:
            if folder.exists():
                raise ConfigError(
                    f"another process has begun in {folder} meanwhile: run the same command again"
                )
            held.enter_context(run_folder.claimed_folder(config, out))
    runs = {}
    for config, (training, learner, resumed), point in zip(configs, trained, points, strict=True):
        run_folder.write_config(config, training.folder)
        if point is not None:
            training.checkpoints.rewind(point)
        runs[training.folder] = _begin(
            config, training, learner, device, held, len(configs) > 1, resumed
        )
    return runs


def _begin(
    config: Config,
    training: "Training",
    learner: Any,
    device: Any,
    held: contextlib.ExitStack,
    several: bool,
    resumed: bool,
) -> "ActiveRun | None":
    """What a run needs in its folder, from its first step on; None when it was finished before."""
    from cclf.data.from_disk import refused_as
    from cclf.runtime import run_folder
    from cclf.runtime.loop import ActiveRun
    from cclf.runtime.metrics import RunLog
    from cclf.runtime.progress import Progress

    if training.finished:
        print(
            f"finished before, at {training.env_steps:,} env steps; a larger --env-steps goes on "
            "from there",
            file=sys.stderr,
        )
        return None
    folder = training.folder
    run_folder.record(config, learner, device, folder, training.env_steps)
    start = f"resuming at {training.env_steps:,} env steps in" if resumed else "run folder"
    print(
        "\n".join([*announcement(config, learner, device), f"{start} {folder}"]),
        file=sys.stderr,
        flush=True,
    )
    moment = training.env_steps, training.evaluation_due
    with refused_as(f"cannot go on with the tables in {folder}"):
        log = RunLog(
            folder, learner.metric_names, config.run.tensorboard, *moment, training.known_rows
        )
    held.callback(log.close)
    label = f"{config.task} seed {config.seed}: " if several else ""
    return ActiveRun(
        training,
        log,
        Progress(
            config.run.env_steps,
            training.env_steps,
            learner.updates,
            label=label,
            if_slow=_what_helps(config, device),
        ),
    )


def _what_helps(config: Config, device: Any) -> str:
    """Against a run that would take days."""
    ways = ["fewer --env-steps", *(f"--size {size}" for size in presets.sizes_below(config))]
    if find_base(config.base).uses_gpu and device.type == "cpu":
        ways.append("a GPU")
    return f"{', '.join(ways)} would help"


def announcement(config: Config, learner: Any, device: Any) -> list[str]:
    """What a person wants to know before a run begins."""
    from cclf import build

    remark = remark_on(config.task, config.env.observe)
    lines = [f"{config.task} {remark}"] if remark else []
    lines += [
        f"{config.task}  {config.method_name}  base {config.base}  seed {config.seed}  profile "
        f"{config.profile}  on {device}",
        f"budget {config.run.env_steps:,} env steps = {config.planned_agent_steps:,} agent steps x "
        f"{config.env.action_repeat}, "
        f"{config.planned_updates:,} updates",
    ]
    if build.base_of(config).keeps_replay:
        if learner.env.spec.max_episode_agent_steps is None:
            lines.append(
                f"{config.task} has no time limit: an evaluation waits until its episodes end by "
                "themselves"
            )
        transitions, size = build.replay_forecast(config, learner.env.spec)
        lines.append(
            f"replay {transitions:,} transitions, {size / 1e9:.2f} GB on {learner.replay.device}"
        )
    return lines


def _train_together(
    prepared: "dict[Path, ActiveRun | None]",
    conclude: Callable[[Path], bool],
    stop: "Stop",
    held: contextlib.ExitStack,
    callbacks: "Callbacks",
) -> Generator[Outcome, None, None]:
    """Train those that are not finished; then, of all that are, the final evaluation, where one is
    asked for and not made yet."""
    from cclf.runtime.loop import run_together

    runs = {folder: run for folder, run in prepared.items() if run is not None}
    for run in runs.values():
        held.callback(run.progress.close)
    failures = run_together(list(runs.values()), stop, callbacks)
    failed = {folder: failures[place] for place, folder in enumerate(runs) if place in failures}
    for folder, each in prepared.items():
        if folder in failed:
            yield Outcome(folder, EXIT_FAILED, error=failed[folder])
        elif each is not None and not each.training.finished:
            saved = each.training.saved_env_steps
            line = f"stopped at {saved:,} env steps and saved; run the same command to go on"
            yield Outcome(folder, EXIT_STOPPED, line)
        else:
            yield _concluded(folder, conclude)


def _concluded(folder: Path, conclude: Callable[[Path], bool]) -> Outcome:
    """The final evaluation of a finished run."""
    from cclf.runtime.failure import NonFiniteError

    try:
        if conclude(folder):
            return Outcome(folder, EXIT_DONE)
    except NonFiniteError as error:  # of this run alone
        return Outcome(folder, EXIT_FAILED, error=error)
    line = "stopped in the final evaluation; run the same command to make it again"
    return Outcome(folder, EXIT_STOPPED, line)


def _tell(outcome: Outcome) -> None:
    if outcome.exit_code == EXIT_DONE:
        print(outcome.folder)
    elif outcome.error is None:
        print(outcome.line, file=sys.stderr)
    else:
        print(f"cclf: {outcome.error}", file=sys.stderr)
        if isinstance(outcome.error, WorkerError):
            print(
                f"{outcome.error.details}the last checkpoint is good: run the same command to go "
                "on",
                file=sys.stderr,
            )
