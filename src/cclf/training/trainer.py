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

from cclf import extras, presets
from cclf.algorithms.registry import algorithm_of, make_agent
from cclf.config import Config
from cclf.console import say, warn
from cclf.envs.make import make_env
from cclf.envs.registry import task_note
from cclf.errors import ConfigError, WorkerError
from cclf.storage import run_folder
from cclf.storage.checkpoint import common_checkpoint_steps
from cclf.storage.failure import NonFiniteError, check_finite, check_not_failed
from cclf.storage.loggers import make_loggers
from cclf.storage.run_log import RunLog
from cclf.storage.safe_loading import data_error_context
from cclf.storage.tables import EVAL_COLUMNS, CsvTable, check_tables, final_rows, write_final_record
from cclf.training import devices
from cclf.training.agent import Agent, evaluation_networks, load_agent
from cclf.training.callbacks import NO_CALLBACKS, Callbacks
from cclf.training.evaluation import EvaluationSteps, EvaluationStoppedError
from cclf.training.evaluation_workers import EvaluationWorkers
from cclf.training.loop import ActiveRun, Schedule, TrainingRun, train_loop
from cclf.training.progress import MAX_EVALUATION_LINES, Progress
from cclf.training.seeding import derive
from cclf.training.signals import StopSignal
from cclf.types import EnvSpec, Learner


class RunResult(NamedTuple):
    """How one run of a call ended."""

    folder: Path
    end: Literal["done", "stopped", "failed"]
    message: str = ""  # of a run that was stopped
    error: NonFiniteError | WorkerError | None = None  # of a run that failed


def train_runs(
    configs: list[Config], out: Path, stop: StopSignal, callbacks: Callbacks | None = None
) -> Generator[RunResult, None, None]:
    """Train these runs in one process. Several of them must differ in task and seed alone, and their
    algorithm must compute one batched update for all of them."""
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
            existing = {
                folder for config in configs if (folder := out / config.run_name()).exists()
            }
            resumable = _resumable_runs(configs, out, existing, stack)
            workers = algorithm.make_evaluation_workers(
                resumable[0], device, make_env, len(resumable)
            )
            if workers is not None:
                stack.callback(workers.close)
            runs = _prepare_runs(resumable, out, existing, device, workers, stack)
            started = True

            def evaluate_final(folder: Path) -> bool:
                return final_evaluation(folder, device, lambda: stop.requested, workers)

            yield from _train(runs, evaluate_final, stop, stack, callbacks or NO_CALLBACKS)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        named = None if error.filename is None else Path(os.fsdecode(error.filename))
        if started or full or named is None or not named.is_relative_to(out):
            raise
        raise ConfigError(f"cannot use the run folder: {error}") from error


def _shown(folder: Path) -> Path:
    """The path relative to the working directory where that is shorter."""
    with contextlib.suppress(OSError, ValueError):  # it was removed, or does not contain the folder
        return folder.relative_to(Path.cwd())
    return folder


def _without_missing_extras(configs: list[Config]) -> list[Config]:
    """Configs without video and TensorBoard where their packages are missing. Both are on by default,
    so a warning is enough."""
    if configs[0].run.tracker != "none":
        extras.require_extras(f"--tracker {configs[0].run.tracker}", [configs[0].run.tracker])
    rendering = {extra for config in configs for extra in extras.rendering_extras(config.task)}
    no_video = (
        extras.missing_packages(["video", *sorted(rendering)]) if configs[0].run.video else {}
    )
    no_tensorboard = extras.missing_packages(["tensorboard"]) if configs[0].run.tensorboard else {}
    for what, missing in (("video", no_video), ("TensorBoard", no_tensorboard)):
        if missing:
            warn(f"no {what}, it needs {extras.install_hint(missing)}")
    video, tensorboard = (
        configs[0].run.video and not no_video,
        configs[0].run.tensorboard and not no_tensorboard,
    )
    return [
        replace(config, run=replace(config.run, video=video, tensorboard=tensorboard))
        for config in configs
    ]


def _resumable_runs(
    configs: list[Config], out: Path, existing: set[Path], stack: contextlib.ExitStack
) -> list[Config]:
    """The runs without those that failed before, each of which is named in a warning. The existing
    folders are locked until `stack` closes, and nothing in them has changed yet."""
    accepted, refused = [], []
    for config in configs:
        folder = out / config.run_name()
        if folder in existing:
            stack.enter_context(run_folder.open_run_folder(config, out))
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


class _PreparedRun(NamedTuple):
    config: Config
    training: TrainingRun
    resumed: bool
    resume_step: int | None  # agent steps; None: from the newest checkpoint


def _prepare_runs(
    configs: list[Config],
    out: Path,
    existing: set[Path],
    device: torch.device,
    workers: EvaluationWorkers | None,
    stack: contextlib.ExitStack,
) -> dict[Path, ActiveRun | None]:
    """Runs ready to train in their folders, both open until `stack` closes; None for a run that was
    finished before.

    All runs are read before any folder is changed, so that an error in one run cannot cost another
    its newest checkpoint.
    """
    prepared = _resume_runs(configs, out, device, workers, stack)
    for config in configs:
        folder = out / config.run_name()
        if folder not in existing:
            if folder.exists():
                raise ConfigError(
                    f"another process has begun in {folder} meanwhile: run the same command again"
                )
            stack.enter_context(run_folder.create_run_folder(config, out))
        run_folder.write_config(config, folder)
    # Before any checkpoint or row is discarded, since this asks the environments.
    for config, training, _, _ in prepared:
        if not training.finished:
            learner, folder, env_steps = training.learner, training.folder, training.env_steps
            run_folder.write_manifest(config, learner, device, folder, env_steps)
    runs: dict[Path, ActiveRun | None] = {}
    for run in prepared:
        if run.resume_step is not None:
            run.training.checkpoints.rewind(run.resume_step)
        # Runs of one process are equally fast, so one of them prints the progress.
        prints_progress = not any(runs.values())
        runs[run.training.folder] = _start_run(
            run, device, stack, len(configs) > 1, prints_progress
        )
    return runs


def _resume_runs(
    configs: list[Config],
    out: Path,
    device: torch.device,
    workers: EvaluationWorkers | None,
    stack: contextlib.ExitStack,
) -> list[_PreparedRun]:
    """Each run with its learner and agent, in the state of its checkpoint."""
    algorithm = algorithm_of(configs[0])
    resume_steps: list[int | None] = [None] * len(configs)
    if len(configs) > 1:
        folders = [out / config.run_name() / "checkpoint" for config in configs]
        resume_steps = [*common_checkpoint_steps(folders)]
    learners = algorithm.make_learners(configs, device, make_env, resume_steps)
    prepared = []
    for config, learner, resume_step in zip(configs, learners, resume_steps, strict=True):
        stack.callback(learner.close)
        agent = make_agent(config, device, workers)
        stack.callback(agent.close)
        asynchronous = algorithm.evaluates_asynchronously(config, device, workers)
        training = make_training(config, learner, agent, out / config.run_name(), asynchronous)
        resumed = training.resume(resume_step)
        check_tables(
            training.folder, training.env_steps, training.evaluation_due, training.known_rows
        )
        prepared.append(_PreparedRun(config, training, resumed, resume_step))
    return prepared


def make_training(
    config: Config, learner: Learner, agent: Agent, folder: Path, asynchronous: bool = False
) -> TrainingRun:
    """One run. `asynchronous`: training goes on during an evaluation."""

    def evaluate(env_steps: int, record: bool) -> EvaluationSteps:
        # A copy of the current weights: training may go on during the evaluation.
        evaluation_networks(agent.policy).load_state_dict(
            evaluation_networks(learner.algorithm).state_dict()
        )
        # Seeds depend on the environment steps and the episode alone, so that another evaluation
        # schedule plays the same episodes at the same step.
        seeds = [
            derive(config.seed, "eval", env_steps, episode)
            for episode in range(config.run.eval_episodes)
        ]
        return agent.evaluate_async(seeds, record)

    schedule = Schedule(
        env_steps=config.run.env_steps,
        action_repeat=config.env.action_repeat,
        eval_every_env_steps=config.run.eval_every_env_steps,
        log_every_agent_steps=config.run.log_every_agent_steps,
        video=config.run.video,
        evaluate_asynchronously=asynchronous,
        keep_replay=config.run.keep_replay,
    )
    return TrainingRun(schedule, learner, evaluate, folder)


def _start_run(
    run: _PreparedRun,
    device: torch.device,
    stack: contextlib.ExitStack,
    several: bool,
    prints_progress: bool,
) -> ActiveRun | None:
    """The run with its open tables, loggers and progress line; None if it was finished before."""
    config, training, learner = run.config, run.training, run.training.learner
    if training.finished:
        say(
            f"finished before, at {training.env_steps:,} env steps; a larger --env-steps goes on "
            "from there"
        )
        return None
    folder = training.folder
    start = f"resuming at {training.env_steps:,} env steps in" if run.resumed else "run folder"
    say("\n".join([*run_summary(config, learner, device), f"{start} {_shown(folder)}"]))
    moment = training.env_steps, training.evaluation_due
    with data_error_context(f"cannot go on with the tables in {folder}"):
        loggers = make_loggers(config, folder, training.env_steps)
        log = RunLog(folder, learner.metric_names, loggers, *moment, training.known_rows)
    stack.callback(log.close)
    progress = Progress(
        config.run.env_steps,
        training.env_steps,
        learner.updates,
        label=f"{config.task} seed {config.seed}: " if several else "",
        shows_life=prints_progress,
    )
    return ActiveRun(training, log, progress)


def run_summary(config: Config, learner: Any, device: torch.device) -> list[str]:
    """The lines that are printed before a run begins."""
    note = task_note(config.task, config.env.observe)
    lines = [f"{config.task} {note}"] if note else []
    lines += [
        f"{option} {config.imported_names[option]} imports the Python module {module}"
        for option, module in config.imported_modules.items()
        if option != "task"
    ]
    lines += [
        f"{config.task}  {config.method_name}  base {config.base}  seed {config.seed}  profile "
        f"{config.profile}  on {device}{_precision_label(config)}",
        f"budget {config.run.env_steps:,} env steps = {config.planned_agent_steps:,} agent steps x "
        f"{config.env.action_repeat}, "
        f"{config.planned_updates:,} updates",
    ]
    evaluations = config.run.env_steps // config.run.eval_every_env_steps
    if evaluations > MAX_EVALUATION_LINES:
        lines.append(
            f"{evaluations:,} evaluations, all in eval.csv; here a line for each "
            f"{100 // MAX_EVALUATION_LINES} % of the budget"
        )
    algorithm = algorithm_of(config)
    if algorithm.uses_replay:
        if learner.env.spec.max_episode_agent_steps is None:
            lines.append(
                f"{config.task} has no time limit: an evaluation waits until its episodes end by "
                "themselves"
            )
        transitions, num_bytes = algorithm.replay_size(config, learner.env.spec)
        lines.append(
            f"replay {transitions:,} transitions, {num_bytes / 1e9:.2f} GB on "
            f"{learner.replay.device}"
        )
    return lines


def _precision_label(config: Config) -> str:
    precision = getattr(config.algorithm, "precision", "fp32")
    return "" if precision == "fp32" else f" in {precision}"


def _train(
    prepared: dict[Path, ActiveRun | None],
    evaluate_final: Callable[[Path], bool],
    stop: StopSignal,
    stack: contextlib.ExitStack,
    callbacks: Callbacks,
) -> Generator[RunResult, None, None]:
    """Train the unfinished runs, then make the final evaluation of each finished one."""
    runs = {folder: run for folder, run in prepared.items() if run is not None}
    for run in runs.values():
        stack.callback(run.progress.close)
    errors = train_loop(list(runs.values()), stop, callbacks)
    for run in runs.values():
        run.progress.close()  # later lines are printed below it
    failed = {folder: errors[index] for index, folder in enumerate(runs) if index in errors}
    for folder, active in prepared.items():
        if folder in failed:
            yield RunResult(folder, "failed", error=failed[folder])
        elif active is not None and not active.training.finished:
            saved = active.training.saved_env_steps
            message = f"stopped at {saved:,} env steps and saved; run the same command to go on"
            yield RunResult(folder, "stopped", message)
        else:
            yield _finish_run(folder, evaluate_final)


def _finish_run(folder: Path, evaluate_final: Callable[[Path], bool]) -> RunResult:
    try:
        if evaluate_final(folder):
            return RunResult(folder, "done")
    except (NonFiniteError, WorkerError) as error:  # of this run alone
        return RunResult(folder, "failed", error=error)
    message = "stopped in the final evaluation; run the same command to make it again"
    return RunResult(folder, "stopped", message)


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
    # The command that trained the run named its modules.
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


def replay_size(config: Config, spec: EnvSpec | None = None) -> tuple[int, int]:
    """Transitions and bytes that the replay of a run can hold at most. Without `spec` an environment
    is made to ask for it."""
    algorithm = algorithm_of(config)
    if not algorithm.uses_replay:
        return 0, 0
    if spec is None:
        with closing(make_env(config, 0)) as env:
            spec = env.spec
    return algorithm.replay_size(config, spec)
