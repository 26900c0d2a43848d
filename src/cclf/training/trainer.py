"""From configs to trained runs in their folders: devices, locks, resuming, the training loop and the
final evaluation. `cclf train` and `cclf.train` both call `train_runs`."""

import contextlib
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from cclf import presets
from cclf.algorithms.base import ReplaySize
from cclf.algorithms.registry import algorithm_of, make_agent
from cclf.config import Config
from cclf.console import say, warn
from cclf.envs.make import make_env
from cclf.envs.registry import task_note
from cclf.errors import (
    ConfigError,
    WorkerError,
    install_hint,
    missing_packages,
    rendering_extras,
    require_extras,
)
from cclf.storage import run_folder
from cclf.storage.checkpoint import common_checkpoint_steps
from cclf.storage.failure import NonFiniteError, check_finite, check_not_failed
from cclf.storage.loggers import RunLog, make_loggers
from cclf.storage.manifest import write_manifest
from cclf.storage.safe_loading import data_error_context
from cclf.storage.tables import rows_until, write_final_table
from cclf.training import devices
from cclf.training.agent import load_agent
from cclf.training.callbacks import NO_CALLBACKS, Callbacks
from cclf.training.evaluation import (
    EvaluationStoppedError,
    EvaluationWorkers,
    StepCounters,
    evaluation_row,
)
from cclf.training.loop import RunError, TrainingRun, train_loop
from cclf.training.progress import Progress
from cclf.training.seeding import derive
from cclf.training.signals import StopSignal


class RunResult(NamedTuple):
    """How one run ended."""

    folder: Path
    end: Literal["done", "stopped", "failed"]
    message: str = ""  # of a run that was stopped
    error: RunError | None = None  # of a run that failed


def train_runs(
    configs: list[Config], out: Path, stop: StopSignal, callbacks: Callbacks = NO_CALLBACKS
) -> Generator[RunResult, None, None]:
    """Train runs in this process, and yield the result of each. Several runs must differ in task and
    seed only, and their algorithm must compute one batched update for all of them."""
    algorithm = algorithm_of(configs[0])
    if len(configs) > 1 and not algorithm.batches_runs:
        raise ConfigError(
            f"{len(configs)} runs in one process conflict with base {algorithm.name}, which "
            "updates each run separately: start a process for each (cclf sweep)"
        )
    device = devices.choose_device(configs[0].run.device)
    out = out.absolute()  # an environment may change the working directory
    with contextlib.ExitStack() as stack:
        with data_error_context(f"cannot use the run folders in {out}"):
            configs = presets.resolve_precision(configs, out, device.type == "cuda")
            existing = {folder for each in configs if (folder := out / each.run_name()).exists()}
        devices.configure_torch(configs[0], device)
        configs = _without_missing_extras(configs)
        configs = _lock_existing_folders(configs, out, existing, stack)
        workers = algorithm.make_evaluation_workers(configs[0], device, make_env, len(configs))
        if workers is not None:
            stack.callback(workers.close)
        runs = _resume_runs(configs, out, device, workers, stack)
        _write_manifests(runs, out, existing, device, stack)
        for run in runs:
            _start_run(run, device, len(runs) > 1, stack)
        active = [run for run in runs if not run.finished]
        errors = train_loop(active, stop, callbacks)
        for run in active:
            run.progress.close()  # later lines are printed below it
        for run in runs:
            if run in errors:
                yield RunResult(run.folder, "failed", error=errors[run])
            else:
                yield _finish_run(run, device, stop, workers)


def _without_missing_extras(configs: list[Config]) -> list[Config]:
    """Configs without video and TensorBoard if their packages are missing. Both are on by default,
    so a warning is enough."""
    run = configs[0].run
    if run.tracker != "none":
        require_extras(f"--tracker {run.tracker}", [run.tracker])
    rendering = {extra for config in configs for extra in rendering_extras(config.task)}
    missing_video = missing_packages(["video", *sorted(rendering)]) if run.video else {}
    missing_board = missing_packages(["tensorboard"]) if run.tensorboard else {}
    for name, missing in (("video", missing_video), ("TensorBoard", missing_board)):
        if missing:
            warn(f"no {name}, it needs {install_hint(missing)}")
    video, tensorboard = run.video and not missing_video, run.tensorboard and not missing_board
    return [
        replace(config, run=replace(config.run, video=video, tensorboard=tensorboard))
        for config in configs
    ]


def _lock_existing_folders(
    configs: list[Config], out: Path, existing: set[Path], stack: contextlib.ExitStack
) -> list[Config]:
    """Lock the run folders that exist, until `stack` closes, and change nothing in them. Returns the
    runs that did not fail before, with a warning for each of the others."""
    accepted, refused = [], []
    for config in configs:
        if out / config.run_name() in existing:
            stack.enter_context(run_folder.lock_run_folder(config, out))
        try:
            check_not_failed(out / config.run_name())
            accepted.append(config)
        except ConfigError as error:
            refused.append(error)
    if not accepted:
        raise refused[0]
    for refusal in refused:
        warn(f"run skipped: {refusal}")
    return accepted


def _resume_runs(
    configs: list[Config],
    out: Path,
    device: torch.device,
    workers: EvaluationWorkers | None,
    stack: contextlib.ExitStack,
) -> list[TrainingRun]:
    """The runs with their learners and agents, in the state of their checkpoints.

    All checkpoints are loaded before any folder is changed, so that no run loses its newest
    checkpoint because of an error in another one.
    """
    algorithm, folders = algorithm_of(configs[0]), [out / config.run_name() for config in configs]
    steps: list[int | None] = [None] * len(configs)
    if len(configs) > 1:
        steps = [*common_checkpoint_steps([folder / "checkpoint" for folder in folders])]
    learners = algorithm.make_learners(configs, device, make_env, steps)
    runs = []
    for config, learner, folder, step in zip(configs, learners, folders, steps, strict=True):
        stack.callback(learner.close)
        agent = make_agent(config, device, workers)
        stack.callback(agent.close)
        asynchronous = algorithm.evaluates_asynchronously(config, device, workers)
        runs.append(TrainingRun(config, learner, agent, folder, asynchronous))
        runs[-1].resume(step)
    return runs


def _write_manifests(
    runs: list[TrainingRun],
    out: Path,
    existing: set[Path],
    device: torch.device,
    stack: contextlib.ExitStack,
) -> None:
    """Create and lock the folders of new runs, and write config.json and manifest.json of
    unfinished ones. Environments render for the manifest and may raise, so this comes before any
    checkpoint or row is discarded."""
    for run in runs:
        if run.folder not in existing:
            if run.folder.exists():
                raise ConfigError(
                    f"another process has started in {run.folder}: run the same command again"
                )
            stack.enter_context(run_folder.lock_run_folder(run.config, out))
    for run in runs:
        if not run.finished:
            write_manifest(run.config, run.learner, device, run.folder, run.env_steps)


def _start_run(
    run: TrainingRun, device: torch.device, several: bool, stack: contextlib.ExitStack
) -> None:
    """Print a summary of a run. Open the tables, loggers and progress of an unfinished one."""
    config = run.config
    if several:
        run.checkpoints.discard_later(run.agent_steps)
    if run.finished:
        say(
            f"finished before, at {run.env_steps:,} env steps; a larger --env-steps goes on from "
            "there"
        )
        return
    start = f"resuming at {run.env_steps:,} env steps in" if run.env_steps else "run folder"
    say("\n".join([*run_summary(config, run.learner, device), f"{start} {_shortest(run.folder)}"]))
    with data_error_context(f"cannot go on with the tables in {run.folder}"):
        loggers = make_loggers(config, run.folder, run.env_steps)
        log = RunLog(run.folder, run.learner.metric_names, loggers, run.rows)
    label = f"{config.task} seed {config.seed}: " if several else ""
    progress = Progress(config.run.env_steps, run.env_steps, run.learner.updates, label)
    stack.callback(log.close)
    stack.callback(progress.close)
    run.start(log, progress)


def run_summary(config: Config, learner: Any, device: torch.device) -> list[str]:
    """The lines that are printed before a run begins."""
    precision = config.precision
    note = task_note(config.task, config.env)
    lines = [f"{config.task} {note}"] if note else []
    lines += [
        f"{option} {config.imported_names[option]} imports the Python module {module}"
        for option, module in config.imported_modules.items()
        if option != "task"
    ]
    lines += [
        f"{config.task}  {config.method_name}  base {config.base}  seed {config.seed}  profile "
        f"{config.profile}  on {device}{'' if precision == 'fp32' else f' in {precision}'}",
        f"budget {config.run.env_steps:,} env steps = {config.planned_agent_steps:,} agent steps x "
        f"{config.env.action_repeat}, "
        f"{config.planned_updates:,} updates",
    ]
    algorithm = algorithm_of(config)
    if algorithm.uses_replay:
        if learner.env.spec.max_episode_agent_steps is None:
            lines.append(
                f"{config.task} does not state a time limit: an evaluation lasts until its episodes end"
            )
        transitions, num_bytes = algorithm.replay_size(config, learner.env.spec)
        lines.append(
            f"replay {transitions:,} transitions, {num_bytes / 1e9:.2f} GB on "
            f"{learner.replay.device}"
        )
    return lines


def _shortest(folder: Path) -> Path:
    """The path relative to the working directory, if that contains the folder."""
    with contextlib.suppress(OSError, ValueError):  # OSError: the working directory was removed
        return folder.relative_to(Path.cwd())
    return folder


def _finish_run(
    run: TrainingRun,
    device: torch.device,
    stop: StopSignal,
    workers: EvaluationWorkers | None,
) -> RunResult:
    """The result of a run that did not fail, after the final evaluation of a finished one."""
    if not run.finished:
        saved = run.saved_env_steps
        message = f"stopped at {saved:,} env steps and saved; run the same command to go on"
        return RunResult(run.folder, "stopped", message)
    try:
        if final_evaluation(run.folder, device, lambda: stop.requested, workers):
            return RunResult(run.folder, "done")
    except (NonFiniteError, WorkerError) as error:  # of this run only
        return RunResult(run.folder, "failed", error=error)
    message = "stopped in the final evaluation; run the same command to make it again"
    return RunResult(run.folder, "stopped", message)


def final_evaluation(
    folder: Path,
    device: torch.device,
    stopped: Callable[[], bool],
    workers: EvaluationWorkers | None = None,
) -> bool:
    """Evaluate the final agent of a finished run and append the result to final.csv. Returns whether
    the row exists afterwards: not if `stopped()` became true.

    It reads the last checkpoint, so it can be called at any later time.
    """
    episodes = run_folder.read_config(folder).run.final_eval_episodes
    if not episodes:
        return True
    # The user of this command has chosen the modules that the run imports.
    agent, config, env_steps = load_agent(folder, device, episodes, workers, trust_imports=True)
    with closing(agent):
        rows = rows_until(folder, "final", env_steps)
        if rows and int(rows[-1]["env_steps"]) == env_steps:
            return True
        started = time.monotonic()
        seeds = [derive(config.seed, "final", episode) for episode in range(episodes)]
        try:
            result = agent.evaluate(seeds, False, stopped)
        except EvaluationStoppedError:
            return False
    agent_steps = env_steps // config.env.action_repeat
    counters = StepCounters(env_steps, agent_steps, config.algorithm.updates_at(agent_steps))
    row = evaluation_row(counters, result, time.monotonic() - started)
    check_finite(folder, row)
    write_final_table(folder, rows, row)
    return True


def replay_size(config: Config) -> ReplaySize:
    """Transitions and bytes that the replay of a run can hold at most. This creates an environment
    to read its spec."""
    algorithm = algorithm_of(config)
    if not algorithm.uses_replay:
        return ReplaySize(0, 0)
    with closing(make_env(config, 0)) as env:
        return algorithm.replay_size(config, env.spec)
