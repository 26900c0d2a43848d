"""From configs to trained runs in their folders: devices, locks, resuming, progress, the final
evaluation. `cclf train` and `cclf.train` both come through here."""

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from cclf import build, extras, presets
from cclf.algorithms.registry import find_base
from cclf.config import Config
from cclf.console import say, warn
from cclf.envs.registry import task_note
from cclf.errors import ConfigError, WorkerError
from cclf.storage import run_folder
from cclf.storage.failure import NonFiniteError, check_not_failed
from cclf.storage.loggers import make_loggers
from cclf.storage.run_log import RunLog
from cclf.storage.safe_loading import data_error_context
from cclf.storage.tables import check_tables
from cclf.training import devices
from cclf.training.callbacks import NO_CALLBACKS, Callbacks
from cclf.training.evaluation_workers import EvaluationWorkers
from cclf.training.loop import ActiveRun, TrainingRun, train_loop
from cclf.training.progress import MAX_EVALUATION_LINES, Progress
from cclf.training.signals import StopSignal


class RunResult(NamedTuple):
    """How one run of a call ended."""

    folder: Path
    end: Literal["done", "stopped", "failed"]
    line: str = ""  # for a person, of one that stopped
    error: NonFiniteError | WorkerError | None = None  # of one that failed


def train_runs(
    configs: list[Config], out: Path, stop: StopSignal, callbacks: Callbacks | None = None
) -> Generator[RunResult, None, None]:
    """Train these, which differ in task and seed alone, in one process."""
    device = devices.choose_device(configs[0].run.device)
    out = out.absolute()  # an environment may change the working directory
    started = False
    try:
        configs = presets.resolve_precision(configs, out, device.type == "cuda")
        devices.configure_torch(configs[0], device)
        configs = _without_missing_extras(configs)
        with contextlib.ExitStack() as held:
            found = {folder for config in configs if (folder := out / config.run_name()).exists()}
            accepted = _resumable_runs(configs, out, found, held)
            evaluators = build.make_evaluators(accepted[0], device, len(accepted))
            if evaluators is not None:
                held.callback(evaluators.close)
            runs = _prepare_runs(accepted, out, found, device, evaluators, held)
            started = True

            def conclude(folder: Path) -> bool:
                return build.final_evaluation(folder, device, lambda: stop.requested, evaluators)

            yield from _train_together(runs, conclude, stop, held, callbacks or NO_CALLBACKS)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        named = None if error.filename is None else Path(os.fsdecode(error.filename))
        if started or full or named is None or not named.is_relative_to(out):
            raise
        raise ConfigError(f"cannot use the run folder: {error}") from error


def _shown(folder: Path) -> Path:
    """Relative to the working directory where that is shorter."""
    with contextlib.suppress(OSError, ValueError):  # it was removed, or the folder is not below it
        return folder.relative_to(Path.cwd())
    return folder


def _without_missing_extras(configs: list[Config]) -> list[Config]:
    """A video and TensorBoard are on unless told: where their packages are missing a line says so
    before the first step, and the run goes on without."""
    if configs[0].run.tracker != "none":
        extras.require_extras(f"--tracker {configs[0].run.tracker}", [configs[0].run.tracker])
    drawing = {extra for config in configs for extra in extras.rendering_extras(config.task)}
    no_video = extras.missing_packages(["video", *sorted(drawing)]) if configs[0].run.video else {}
    no_tensorboard = extras.missing_packages(["tensorboard"]) if configs[0].run.tensorboard else {}
    for what, lacking in (("video", no_video), ("TensorBoard", no_tensorboard)):
        if lacking:
            warn(f"no {what}, it needs {extras.install_hint(lacking)}")
    video, tensorboard = (
        configs[0].run.video and not no_video,
        configs[0].run.tensorboard and not no_tensorboard,
    )
    return [
        replace(config, run=replace(config.run, video=video, tensorboard=tensorboard))
        for config in configs
    ]


def _resumable_runs(
    configs: list[Config], out: Path, found: set[Path], held: contextlib.ExitStack
) -> list[Config]:
    """Those that may go on: of several, one that failed before is left out and named. The folders
    that were found are held from here on, and nothing in them has changed: whoever is refused
    finds all as it was."""
    accepted, refused = [], []
    for config in configs:
        folder = out / config.run_name()
        if folder in found:
            held.enter_context(run_folder.open_run_folder(config, out))
        try:
            check_not_failed(folder)
            accepted.append(config)
        except ConfigError as error:
            refused.append(error)
    if not accepted:
        raise refused[0]
    for refusal in refused:
        warn(f"left out: {refusal}")
    return accepted


def _prepare_runs(
    configs: list[Config],
    out: Path,
    found: set[Path],
    device: Any,
    evaluators: EvaluationWorkers | None,
    held: contextlib.ExitStack,
) -> dict[Path, ActiveRun | None]:
    """Runs ready to go on in their folders, both held until `held` closes; None for one that was
    finished before.

    All are read before any folder is changed: what one lacks must not cost another its newest
    checkpoint.
    """
    points = build.common_checkpoint_steps(configs, out)
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
    going_on = [
        (config, training, learner)
        for config, (training, learner, _) in zip(configs, trained, strict=True)
        if not training.finished
    ]
    _warn_of_small_disk([(config, learner) for config, _, learner in going_on], out)
    for config in configs:
        folder = out / config.run_name()
        if folder not in found:
            if folder.exists():
                raise ConfigError(
                    f"another process has begun in {folder} meanwhile: run the same command again"
                )
            held.enter_context(run_folder.create_run_folder(config, out))
        run_folder.write_config(config, folder)
    # Of all runs before a checkpoint or a row of any is forgotten: this asks the environments.
    for config, training, learner in going_on:
        run_folder.write_manifest(config, learner, device, training.folder, training.env_steps)
    runs: dict[Path, ActiveRun | None] = {}
    for config, (training, learner, resumed), point in zip(configs, trained, points, strict=True):
        if point is not None:
            training.checkpoints.rewind(point)
        # runs of one process go at one pace: one of them tells how far they are
        shows_life = not any(runs.values())
        runs[training.folder] = _start_run(
            config, training, learner, device, held, len(configs) > 1, resumed, shows_life
        )
    return runs


def _warn_of_small_disk(runs: list[tuple[Config, Any]], out: Path) -> None:
    """By the last step, when replays are saved, the disk may be full. Only a warning: what cannot
    be measured here is not counted."""
    if not runs or not build.base_of(runs[0][0]).uses_replay:
        return
    needed = sum(build.checkpoint_size(config, learner.env.spec) for config, learner in runs)
    needed -= sum(_frame_bytes(out / config.run_name()) for config, _ in runs)
    with contextlib.suppress(OSError):
        place = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
        free = shutil.disk_usage(place).free
        if needed > free:
            instead = " or add --no-keep-replay" if runs[0][0].run.keep_replay else ""
            line = (
                f"checkpoints of {len(runs)} run{'s' * (len(runs) > 1)} will hold about "
                f"{needed / 1e9:.1f} GB of replay, and {free / 1e9:.1f} GB are free in {out}"
            )
            warn(f"{line}: make room{instead}")


def _frame_bytes(folder: Path) -> int:
    """What a run has written of its replay."""
    with contextlib.suppress(OSError):
        facts = [path.lstat() for path in (folder / "checkpoint" / "frames").iterdir()]
        return sum(each.st_size for each in facts if stat.S_ISREG(each.st_mode))
    return 0


def _start_run(
    config: Config,
    training: TrainingRun,
    learner: Any,
    device: Any,
    held: contextlib.ExitStack,
    several: bool,
    resumed: bool,
    shows_life: bool,
) -> ActiveRun | None:
    """What a run needs in its folder, from its first step on; None when it was finished before."""
    if training.finished:
        say(
            f"finished before, at {training.env_steps:,} env steps; a larger --env-steps goes on "
            "from there"
        )
        return None
    folder = training.folder
    start = f"resuming at {training.env_steps:,} env steps in" if resumed else "run folder"
    say("\n".join([*run_summary(config, learner, device), f"{start} {_shown(folder)}"]))
    moment = training.env_steps, training.evaluation_due
    with data_error_context(f"cannot go on with the tables in {folder}"):
        loggers = make_loggers(config, folder, training.env_steps)
        log = RunLog(folder, learner.metric_names, loggers, *moment, training.known_rows)
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
            if_slow=what_helps(config, device),
            shows_life=shows_life,
        ),
    )


def what_helps(config: Config, device: Any) -> str:
    """Against a run that would take days."""
    ways = ["fewer --env-steps", *(f"--size {size}" for size in presets.sizes_below(config))]
    if find_base(config.base).uses_gpu and device.type == "cpu":
        ways.append("a GPU")
    return f"{', '.join(ways)} would help"


def run_summary(config: Config, learner: Any, device: Any) -> list[str]:
    """What a person wants to know before a run begins."""
    remark = task_note(config.task, config.env.observe)
    lines = [f"{config.task} {remark}"] if remark else []
    if "encoder" in config.imports:
        module = config.imports["encoder"]
        lines.append(f"encoder {config.algorithm.encoder} imports the Python module {module}")
    lines += [
        f"{config.task}  {config.method_name}  base {config.base}  seed {config.seed}  profile "
        f"{config.profile}  on {device}{_in_precision(config)}",
        f"budget {config.run.env_steps:,} env steps = {config.planned_agent_steps:,} agent steps x "
        f"{config.env.action_repeat}, "
        f"{config.planned_updates:,} updates",
    ]
    evaluations = config.run.env_steps // config.run.eval_every_env_steps
    if evaluations > MAX_EVALUATION_LINES:
        lines.append(
            f"{evaluations:,} evaluations, all in eval.csv; here a line for each {100 // MAX_EVALUATION_LINES} % "
            "of the budget"
        )
    if build.base_of(config).uses_replay:
        if learner.env.spec.max_episode_agent_steps is None:
            lines.append(
                f"{config.task} has no time limit: an evaluation waits until its episodes end by "
                "themselves"
            )
        transitions, size = build.replay_size(config, learner.env.spec)
        lines.append(
            f"replay {transitions:,} transitions, {size / 1e9:.2f} GB on {learner.replay.device}"
        )
    return lines


def _in_precision(config: Config) -> str:
    """Of a run in less than float32."""
    precision = getattr(config.algorithm, "precision", "fp32")
    return "" if precision == "fp32" else f" in {precision}"


def _train_together(
    prepared: dict[Path, ActiveRun | None],
    conclude: Callable[[Path], bool],
    stop: StopSignal,
    held: contextlib.ExitStack,
    callbacks: Callbacks,
) -> Generator[RunResult, None, None]:
    """Train those that are not finished; then, of all that are, the final evaluation, where one is
    asked for and not made yet."""
    runs = {folder: run for folder, run in prepared.items() if run is not None}
    for run in runs.values():
        held.callback(run.progress.close)
    failures = train_loop(list(runs.values()), stop, callbacks)
    for run in runs.values():
        run.progress.close()  # what is printed from here on stands below it
    failed = {folder: failures[place] for place, folder in enumerate(runs) if place in failures}
    for folder, each in prepared.items():
        if folder in failed:
            yield RunResult(folder, "failed", error=failed[folder])
        elif each is not None and not each.training.finished:
            saved = each.training.saved_env_steps
            line = f"stopped at {saved:,} env steps and saved; run the same command to go on"
            yield RunResult(folder, "stopped", line)
        else:
            yield _final_evaluation(folder, conclude)


def _final_evaluation(folder: Path, conclude: Callable[[Path], bool]) -> RunResult:
    """The final evaluation of a finished run."""
    try:
        if conclude(folder):
            return RunResult(folder, "done")
    except (NonFiniteError, WorkerError) as error:  # of this run alone
        return RunResult(folder, "failed", error=error)
    line = "stopped in the final evaluation; run the same command to make it again"
    return RunResult(folder, "stopped", line)
