"""From configs to trained runs in their folders: devices, locks, resuming, the training loop and the
final evaluation. `cclf train` and `cclf.train` both call `train_runs`."""

import contextlib
import errno
import os
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
from cclf.storage.loggers import make_loggers
from cclf.storage.manifest import write_manifest
from cclf.storage.run_log import RunLog
from cclf.storage.safe_loading import data_error_context
from cclf.storage.tables import EVAL_COLUMNS, CsvTable, check_tables, final_rows, write_final_record
from cclf.training import devices
from cclf.training.agent import Agent, evaluation_networks, load_agent
from cclf.training.callbacks import NO_CALLBACKS, Callbacks
from cclf.training.evaluation import EvaluationSteps, EvaluationStoppedError
from cclf.training.evaluation_workers import EvaluationWorkers
from cclf.training.loop import ActiveRun, TrainingRun, train_loop
from cclf.training.progress import Progress
from cclf.training.seeding import derive
from cclf.training.signals import StopSignal
from cclf.types import Learner


class RunResult(NamedTuple):
    """How one run ended."""

    folder: Path
    end: Literal["done", "stopped", "failed"]
    message: str = ""  # of a run that was stopped
    error: NonFiniteError | WorkerError | None = None  # of a run that failed


def train_runs(
    configs: list[Config], out: Path, stop: StopSignal, callbacks: Callbacks | None = None
) -> Generator[RunResult, None, None]:
    """Train runs in this process, and yield the result of each. Several runs must differ in task and
    seed only, and their algorithm must compute one batched update for all of them."""
    algorithm = algorithm_of(configs[0])
    if len(configs) > 1 and not algorithm.batches_runs:
        raise ConfigError(
            f"{len(configs)} runs in one process conflict with base {algorithm.name}, whose runs "
            "share no update: start a process for each (cclf sweep)"
        )
    device = devices.choose_device(configs[0].run.device)
    out = out.absolute()  # an environment may change the working directory
    started = False
    try:
        configs = presets.resolve_precision(configs, out, device.type == "cuda")
        devices.configure_torch(configs[0], device)
        configs = _without_missing_extras(configs)
        with contextlib.ExitStack() as stack:
            existing = {folder for each in configs if (folder := out / each.run_name()).exists()}
            configs = _lock_existing_folders(configs, out, existing, stack)
            workers = algorithm.make_evaluation_workers(configs[0], device, make_env, len(configs))
            if workers is not None:
                stack.callback(workers.close)
            trainings = _resume_runs(configs, out, device, workers, stack)
            runs = _start_runs(configs, trainings, out, existing, device, stack)
            started = True
            errors = train_loop(runs, stop, callbacks or NO_CALLBACKS)
            for run in runs:
                run.progress.close()  # later lines are printed below it
            failed = {runs[index].training: error for index, error in errors.items()}
            for training in trainings:
                if training in failed:
                    yield RunResult(training.folder, "failed", error=failed[training])
                else:
                    yield _finish_run(training, device, stop, workers)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        path = None if error.filename is None else Path(os.fsdecode(error.filename))
        if started or full or path is None or not path.is_relative_to(out):
            raise
        raise ConfigError(f"cannot use the run folder: {error}") from error


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
            stack.enter_context(run_folder.open_run_folder(config, out))
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

    All checkpoints are loaded before any folder is changed, so that an error in one run cannot cost
    another its newest checkpoint.
    """
    algorithm, folders = algorithm_of(configs[0]), [out / config.run_name() for config in configs]
    steps: list[int | None] = [None] * len(configs)
    if len(configs) > 1:
        steps = [*common_checkpoint_steps([folder / "checkpoint" for folder in folders])]
    learners = algorithm.make_learners(configs, device, make_env, steps)
    trainings = []
    for config, learner, folder, step in zip(configs, learners, folders, steps, strict=True):
        stack.callback(learner.close)
        agent = make_agent(config, device, workers)
        stack.callback(agent.close)
        asynchronous = algorithm.evaluates_asynchronously(config, device, workers)
        training = make_training(config, learner, agent, folder, asynchronous)
        training.resume(step)
        check_tables(folder, training.env_steps, training.evaluation_due, training.table_records)
        trainings.append(training)
    return trainings


def _start_runs(
    configs: list[Config],
    trainings: list[TrainingRun],
    out: Path,
    existing: set[Path],
    device: torch.device,
    stack: contextlib.ExitStack,
) -> list[ActiveRun]:
    """The unfinished runs with their folders, which are created, locked and written here, and their
    open tables, loggers and progress output."""
    for config, training in zip(configs, trainings, strict=True):
        if training.folder not in existing:
            if training.folder.exists():
                raise ConfigError(
                    f"another process has started in {training.folder}: run the same command again"
                )
            stack.enter_context(run_folder.create_run_folder(config, out))
        run_folder.write_config(config, training.folder)
    # Before any checkpoint or row is discarded, since environments may raise here.
    for config, training in zip(configs, trainings, strict=True):
        if not training.finished:
            env_steps = training.env_steps
            write_manifest(config, training.learner, device, training.folder, env_steps)
    several, runs = len(configs) > 1, []
    for config, training in zip(configs, trainings, strict=True):
        if several:
            training.checkpoints.rewind(training.agent_steps)
        if training.finished:
            say(
                f"finished before, at {training.env_steps:,} env steps; a larger --env-steps goes on "
                "from there"
            )
            continue
        runs.append(_start_run(config, training, device, several))
        stack.callback(runs[-1].log.close)
        stack.callback(runs[-1].progress.close)
    return runs


def _start_run(
    config: Config, training: TrainingRun, device: torch.device, several: bool
) -> ActiveRun:
    folder, learner, env_steps = training.folder, training.learner, training.env_steps
    start = f"resuming at {env_steps:,} env steps in" if training.resumed else "run folder"
    say("\n".join([*run_summary(config, learner, device), f"{start} {_relative_path(folder)}"]))
    with data_error_context(f"cannot go on with the tables in {folder}"):
        loggers = make_loggers(config, folder, env_steps)
        tables = training.evaluation_due, training.table_records
        log = RunLog(folder, learner.metric_names, loggers, env_steps, *tables)
    label = f"{config.task} seed {config.seed}: " if several else ""
    progress = Progress(config.run.env_steps, env_steps, learner.updates, label)
    return ActiveRun(training, log, progress)


def _relative_path(folder: Path) -> Path:
    """The path relative to the working directory, if that contains the folder."""
    with contextlib.suppress(OSError, ValueError):  # OSError: the working directory was removed
        return folder.relative_to(Path.cwd())
    return folder


def _finish_run(
    training: TrainingRun,
    device: torch.device,
    stop: StopSignal,
    workers: EvaluationWorkers | None,
) -> RunResult:
    """The result of a run that did not fail, after the final evaluation of a finished one."""
    folder = training.folder
    if not training.finished:
        saved = training.saved_env_steps
        message = f"stopped at {saved:,} env steps and saved; run the same command to go on"
        return RunResult(folder, "stopped", message)
    try:
        if final_evaluation(folder, device, lambda: stop.requested, workers):
            return RunResult(folder, "done")
    except (NonFiniteError, WorkerError) as error:  # of this run only
        return RunResult(folder, "failed", error=error)
    message = "stopped in the final evaluation; run the same command to make it again"
    return RunResult(folder, "stopped", message)


def make_training(
    config: Config, learner: Learner, agent: Agent, folder: Path, asynchronous: bool = False
) -> TrainingRun:
    """One run. `asynchronous`: training continues during an evaluation."""

    def evaluate(env_steps: int, record: bool) -> EvaluationSteps:
        # Copy the current weights: training may continue during the evaluation.
        evaluation_networks(agent.policy).load_state_dict(
            evaluation_networks(learner.algorithm).state_dict()
        )
        # Seeds depend on the env steps and the episode only, so that the result at a step does not
        # depend on the evaluation schedule.
        seeds = [
            derive(config.seed, "eval", env_steps, episode)
            for episode in range(config.run.eval_episodes)
        ]
        return agent.evaluate_async(seeds, record)

    return TrainingRun(config, learner, evaluate, folder, asynchronous)


def run_summary(config: Config, learner: Any, device: torch.device) -> list[str]:
    """The lines that are printed before a run begins."""
    precision = config.precision
    note = task_note(config.task, config.env.observe)
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
                f"{config.task} has no time limit: an evaluation lasts until its episodes end"
            )
        transitions, num_bytes = algorithm.replay_size(config, learner.env.spec)
        lines.append(
            f"replay {transitions:,} transitions, {num_bytes / 1e9:.2f} GB on "
            f"{learner.replay.device}"
        )
    return lines


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
        if str(env_steps) in [row["env_steps"] for row in final_rows(folder, env_steps)]:
            return True
        started = time.monotonic()
        seeds = [derive(config.seed, "final", episode) for episode in range(episodes)]
        try:
            result = agent.evaluate(seeds, False, stopped)
        except EvaluationStoppedError:
            return False
    row = {
        "env_steps": env_steps,
        "agent_steps": env_steps // config.env.action_repeat,
        "updates": config.updates_at(env_steps // config.env.action_repeat),
        "return_mean": result.mean,
        "return_std": result.std,
        "episodes": episodes,
        "wall_seconds": round(time.monotonic() - started, 3),
        "returns": " ".join(f"{value:.8g}" for value in result.returns),
    }
    check_finite(folder, row)
    with closing(CsvTable(folder / "final.csv", EVAL_COLUMNS, env_steps - 1)) as table:
        table.write(row)
        table.sync()
        write_final_record(folder, table.known())
    return True


def replay_size(config: Config) -> ReplaySize:
    """Transitions and bytes that the replay of a run can hold at most. It makes an environment to ask
    for its spec."""
    algorithm = algorithm_of(config)
    if not algorithm.uses_replay:
        return ReplaySize(0, 0)
    with closing(make_env(config, 0)) as env:
        return algorithm.replay_size(config, env.spec)
