"""The training loop. It does not depend on the algorithm, the method or the suite."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from cclf.config import Config
from cclf.errors import ConfigError, WorkerError
from cclf.storage.checkpoint import REPLAY_KEPT, Checkpoints
from cclf.storage.failure import NonFiniteError, check_finite
from cclf.storage.loggers import RunLog
from cclf.storage.safe_loading import check_data, data_error_context, load_state, matching_state
from cclf.storage.tables import CsvRow, TableRecord, rows_to_keep
from cclf.training.agent import Agent, evaluation_networks
from cclf.training.callbacks import NO_CALLBACKS, Callbacks, EvaluationInfo, StepInfo
from cclf.training.evaluation import (
    EvaluationSteps,
    StepCounters,
    evaluation_row,
    poll,
)
from cclf.training.progress import Progress
from cclf.training.seeding import derive
from cclf.training.signals import StopSignal
from cclf.training.video import save_video
from cclf.types import Learner, Metrics, StateDict

RunError = NonFiniteError | WorkerError  # ends one run of several
POLL_SECONDS = 0.01  # the longest wait of one poll while a run only waits for its evaluation
STOP_GRACE_SECONDS = 5.0  # for pending evaluations when a stop is requested


class MetricAccumulator:
    """Means of metrics over many updates. The values stay on their device until the mean is taken,
    so no update waits for the device."""

    def __init__(self) -> None:
        self._values: dict[str, list[torch.Tensor]] = {}

    def add(self, metrics: Metrics) -> None:
        for name, value in metrics.items():
            values = self._values.setdefault(name, [])
            if values and values[0].device != value.device:  # loaded from a checkpoint
                values[:] = [old.to(value.device) for old in values]
            values.append(value)

    def mean_and_reset(self) -> dict[str, float]:
        means = {
            name: float(torch.stack(values).double().mean())
            for name, values in self._values.items()
        }
        self._values.clear()
        return means

    def state_dict(self) -> StateDict:
        return {name: torch.stack(values) for name, values in self._values.items()}

    def load_state_dict(self, state: StateDict) -> None:
        for name, values in state.items():
            is_vector = isinstance(values, torch.Tensor) and values.ndim == 1 and len(values) > 0
            fits = is_vector and values.is_floating_point()
            check_data(fits, f"averages/{name} is not a vector of numbers")
        self._values = {name: list(values) for name, values in state.items()}


class PendingEvaluation(NamedTuple):
    """An evaluation in progress, with the counters and the time at its start."""

    steps: EvaluationSteps
    counters: StepCounters
    wall_seconds: float


class TrainingRun:
    """One run: a learner, its evaluation, its files, and the counters of the loop. `state_dict` holds
    everything that changes. Call `resume` and `start` before the first `step`."""

    log: RunLog  # set by `start`
    progress: Progress

    def __init__(
        self,
        config: Config,
        learner: Learner,
        agent: Agent,
        folder: Path,
        evaluates_asynchronously: bool = False,
    ):
        """`evaluates_asynchronously`: training continues during an evaluation."""
        self.config, self.options = config, config.run
        self.learner, self.agent, self.folder = learner, agent, folder
        self.evaluates_asynchronously = evaluates_asynchronously
        self.checkpoints = Checkpoints(folder / "checkpoint")
        self.saved_env_steps = 0  # at the last checkpoint that this process wrote
        self.rows: dict[str, list[CsvRow]] = {}  # of the CSV files, up to the loaded checkpoint
        self.agent_steps = 0
        self.episodes = 0
        self.finished_returns: list[float] = []  # since the last row of train.csv
        self.averages = MetricAccumulator()
        # A checkpoint with `evaluation_due` was written before the evaluation at its step was
        # complete: a resumed run evaluates again.
        self.evaluation_due = False
        self.pending_evaluation: PendingEvaluation | None = None
        self._earlier_seconds = 0.0  # of the processes before this one
        self._started = time.monotonic()
        self._replay_lost = False  # the checkpoint was written without replay
        # What the next `notify` reports to the callbacks.
        self._has_stepped = False
        self._evaluations: list[EvaluationInfo] = []

    @property
    def env_steps(self) -> int:
        return self.agent_steps * self.config.env.action_repeat

    @property
    def counters(self) -> StepCounters:
        return StepCounters(self.env_steps, self.agent_steps, self.learner.updates)

    @property
    def wall_seconds(self) -> float:
        return self._earlier_seconds + time.monotonic() - self._started

    @property
    def finished(self) -> bool:
        return self.env_steps >= self.options.env_steps and not self.evaluation_due

    def resume(self, agent_steps: int | None = None) -> None:
        """Load the newest valid checkpoint of the folder, or the one at `agent_steps`, if there is
        one, and read the rows of the tables up to its step. No file is changed."""
        saved, records = self.checkpoints.load(agent_steps=agent_steps), {}
        if saved is not None:
            with data_error_context(
                f"the checkpoint in {self.folder} does not fit this run", "use another --out"
            ):
                self.load_state_dict(saved)
                tables = saved.get("tables", {})  # version 0.1 saved none
                records = {name: TableRecord(**record) for name, record in tables.items()}
        self.rows = rows_to_keep(self.folder, self.env_steps, self.evaluation_due, records)

    def start(self, log: RunLog, progress: Progress) -> None:
        self.log, self.progress = log, progress
        self._started = time.monotonic()

    def step(self) -> None:
        """Train for one step of the learner, or wait up to `POLL_SECONDS` for the evaluation that
        is due. Log, evaluate and save, each if it is due."""
        if not self.evaluation_due:
            self._step_learner()
        if self.pending_evaluation is not None:
            self._poll_evaluation(POLL_SECONDS if self.evaluation_due else 0.0)
        elif self.evaluation_due:
            # Not in the step in which another evaluation finished: until its callbacks have been
            # called, the newest checkpoint must hold the agent that it evaluated.
            self._start_evaluation()

    def _step_learner(self) -> None:
        before, env_steps_before = self.agent_steps, self.env_steps
        agent_steps, metrics, finished_returns = self.learner.step(self.env_steps)
        self.agent_steps += agent_steps
        self.episodes += len(finished_returns)
        self.finished_returns += finished_returns
        if metrics is not None:
            undeclared = metrics.keys() - {*self.learner.metric_names}
            if undeclared:  # train.csv has no columns for them
                raise ConfigError(
                    f"the updates of this algorithm return the metrics {sorted(undeclared)}, which "
                    "its metric_names does not declare"
                )
            self.averages.add(metrics)
        if _crossed_multiple(before, self.agent_steps, self.options.log_every_agent_steps):
            self._write_train_row()
        self.progress.step(self.env_steps, self.learner.updates)
        self._has_stepped = True
        self.evaluation_due = self.env_steps >= self.options.env_steps or _crossed_multiple(
            env_steps_before, self.env_steps, self.options.eval_every_env_steps
        )

    def _write_train_row(self) -> None:
        row: dict[str, float] = {**self.counters._asdict(), "episodes": self.episodes}
        if self.finished_returns:
            row["episode_return"] = sum(self.finished_returns) / len(self.finished_returns)
            self.progress.training_return(row["episode_return"])
            self.finished_returns.clear()
        row |= self.averages.mean_and_reset() | self.learner.replay_metrics()
        self.log.write("train", row)
        # Checked per row and not per update: here the values are already on the host.
        check_finite(self.folder, row)

    def _start_evaluation(self) -> None:
        """Start the evaluation that is due. If training continues during it, save a checkpoint now,
        otherwise after it."""
        self._check_finite()  # an environment may raise on a non-finite action
        last = self.env_steps >= self.options.env_steps
        steps = self.evaluate(self.env_steps, self.options.video and last)
        self.pending_evaluation = PendingEvaluation(steps, self.counters, self.wall_seconds)
        if self.evaluates_asynchronously:
            self._save()
            self.evaluation_due = last  # after the last step, the run can only wait

    def evaluate(self, env_steps: int, record: bool) -> EvaluationSteps:
        """Start an evaluation with a copy of the current weights, since training may continue."""
        weights = evaluation_networks(self.learner.algorithm).state_dict()
        evaluation_networks(self.agent.policy).load_state_dict(weights)
        # Seeds depend on the env steps and the episode only, so that the result at a step does not
        # depend on the evaluation schedule.
        seeds = [
            derive(self.config.seed, "eval", env_steps, episode)
            for episode in range(self.options.eval_episodes)
        ]
        return self.agent.evaluate_async(seeds, record)

    def _poll_evaluation(self, timeout_seconds: float) -> None:
        """Continue the pending evaluation, and write its row if it has finished."""
        assert self.pending_evaluation is not None, "no evaluation has been started"
        steps, counters, wall_seconds = self.pending_evaluation
        result = poll(steps, timeout_seconds)
        if result is None:
            return
        self.pending_evaluation = None
        if counters.env_steps == self.env_steps:
            self.evaluation_due = False
        row = evaluation_row(counters, result, wall_seconds)
        check_finite(self.folder, row)  # first, so that the table holds finite returns only
        self.log.write("eval", row)
        self.progress.evaluation(counters.env_steps, result.mean, result.std)
        self._evaluations.append(
            EvaluationInfo(*counters, result.mean, result.std, tuple(result.returns), self.folder)
        )
        video = self.folder / f"episode-{counters.env_steps}.mp4"
        if error := result.recording_error or save_video(video, result.pictures):
            self.progress.print(f"cclf: warning: no video: {error}")
        elif result.pictures:
            self.log.log_video(video, counters.env_steps)
        if self.finished or not self.evaluates_asynchronously:
            self._save()

    def save_before_stop(self, deadline: float) -> None:
        """Save the run before it is stopped. An evaluation during training may continue until
        `deadline`; if that is not enough, the checkpoint of its start stays the newest."""
        if self.evaluates_asynchronously:
            while self.pending_evaluation is not None:
                if time.monotonic() > deadline:
                    return
                self._poll_evaluation(POLL_SECONDS)
        if not self.finished:
            self._save()

    def _save(self) -> None:
        self._check_finite()  # so that a run can always resume from its newest checkpoint
        self.log.sync()  # the rows before a checkpoint must be on disk before it is
        tables = {name: record._asdict() for name, record in self.log.records().items()}
        needs_replay = self.options.keep_replay or self.env_steps < self.options.env_steps
        keeps_replay = needs_replay and not self._replay_lost
        extra = {"tables": tables} | ({} if keeps_replay else {REPLAY_KEPT: False})
        self.checkpoints.save(self.state_dict() | extra, keeps_replay)
        self.saved_env_steps = self.env_steps

    def _check_finite(self) -> None:
        """Check the metrics since the last row, and then the whole state."""
        state = self.averages.state_dict() | self.state_dict()
        check_finite(self.folder, self.counters._asdict(), state)

    def notify(self, callbacks: Callbacks) -> bool:
        """Call the callbacks with the steps and evaluations since the last call. Returns whether one
        of them requests a stop. If training waits for an evaluation, they are called after it."""
        if self.evaluation_due and not self.evaluates_asynchronously:
            return False
        step = StepInfo(*self.counters, self.episodes) if self._has_stepped else None
        evaluations, self._evaluations, self._has_stepped = self._evaluations, [], False
        return callbacks.notify(step, evaluations)

    def state_dict(self) -> StateDict:
        return {
            "learner": self.learner.state_dict(),
            "averages": self.averages.state_dict(),
            "agent_steps": self.agent_steps,
            "episodes": self.episodes,
            "finished_returns": self.finished_returns,
            "wall_seconds": self.wall_seconds,
            "evaluation_due": self.evaluation_due,
        }

    def load_state_dict(self, state: StateDict) -> None:
        # The types to expect, by example. The learner and the averages check their own state.
        expected = self.state_dict() | {"tables": {}, REPLAY_KEPT: True, "finished_returns": [0.0]}
        state = matching_state(expected | {"learner": None, "averages": None}, state)
        self.agent_steps, self.episodes = state["agent_steps"], state["episodes"]
        self.finished_returns = state["finished_returns"]
        self._earlier_seconds = state["wall_seconds"]
        self.evaluation_due = state["evaluation_due"]
        if self.finished:
            return  # the budget may be smaller now, and the replay then too small for its state
        self._replay_lost = not state[REPLAY_KEPT]
        if self._replay_lost and self.env_steps < self.options.env_steps:
            raise ConfigError(
                f"{self.folder} ended at {self.env_steps:,} env steps and kept no replay "
                "(--no-keep-replay), so it cannot go on: use another --out"
            )
        load_state(self.learner, state["learner"], "learner")
        self.averages.load_state_dict(state["averages"])


def train_loop(
    runs: Sequence[TrainingRun], stop: StopSignal, callbacks: Callbacks = NO_CALLBACKS
) -> dict[TrainingRun, RunError]:
    """Train all runs to the end of their budgets or until a stop is requested. Runs that did not
    reach the end are saved.

    A run with non-finite values, or whose environments failed, ends; the other runs continue. The
    errors are returned. `callbacks` are called after each step and its checkpoint.
    """
    errors: dict[TrainingRun, RunError] = {}

    def unfinished() -> list[TrainingRun]:
        return [run for run in runs if not run.finished and run not in errors]

    def attempt(run: TrainingRun, action: Callable[[TrainingRun], None]) -> None:
        try:
            action(run)
        except (NonFiniteError, WorkerError) as error:
            errors[run] = error
        else:
            if run.notify(callbacks):
                stop.requested = True

    while not stop.requested and (active := unfinished()):
        # Evaluations that are due come first, because the next step of a batched run also updates the
        # weights of the other runs of its batch.
        for run in [run for run in active if run.evaluation_due] or active:
            attempt(run, TrainingRun.step)
    deadline = time.monotonic() + STOP_GRACE_SECONDS
    for run in unfinished():
        attempt(run, lambda run: run.save_before_stop(deadline))
    return errors


def _crossed_multiple(before: int, now: int, every: int) -> bool:
    """Whether (before, now] contains a multiple of `every`."""
    return now // every != before // every
