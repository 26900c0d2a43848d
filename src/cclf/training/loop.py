"""The training loop. It names no algorithm, no method and no suite."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cclf.errors import ConfigError, WorkerError, short_error
from cclf.storage.checkpoint import REPLAY_KEPT, Checkpoints
from cclf.storage.failure import NonFiniteError, check_finite, first_non_finite_of
from cclf.storage.migrations import with_added_fields
from cclf.storage.run_log import RunLog
from cclf.storage.safe_loading import (
    check_data,
    check_same_structure,
    data_error_context,
    load_state,
)
from cclf.storage.tables import TableRecord
from cclf.training.callbacks import NO_CALLBACKS, Callbacks, EvaluationInfo, StepInfo
from cclf.training.evaluation import (
    Evaluation,
    EvaluationSteps,
    EvaluationStoppedError,
    poll,
    wait_for_evaluation,
    write_video,
)
from cclf.training.metrics import MetricAccumulator
from cclf.training.progress import Progress
from cclf.training.signals import StopSignal
from cclf.types import Learner

# (env_steps, record) -> the evaluation of the agent as it is now
Evaluate = Callable[[int, bool], EvaluationSteps]
PATIENCE_SECONDS = 0.01  # with workers, where a run has to wait for them
STOP_GRACE_SECONDS = 5.0  # for evaluations under way when a stop is asked for


@dataclass(frozen=True)
class Schedule:
    """When to do what. Budgets are environment steps."""

    env_steps: int
    action_repeat: int
    eval_every_env_steps: int
    log_every_agent_steps: int
    video: bool
    evaluate_asynchronously: bool = False
    keep_replay: bool = True  # on disk, when all is done


class PendingEvaluation(NamedTuple):
    """An evaluation that has begun, and when."""

    steps: EvaluationSteps
    clocks: dict[str, Any]
    wall_seconds: float


class TrainingRun:
    """One run: a learner, its evaluation, and everything the loop counts. All of it is in
    `state_dict`."""

    def __init__(self, plan: Schedule, learner: Learner, evaluate: Evaluate, folder: Path):
        self.plan, self.learner, self.evaluate, self.folder = plan, learner, evaluate, folder
        self.checkpoints = Checkpoints(folder / "checkpoint")
        self.agent_steps = 0
        self.episodes = 0
        self.finished_returns: list[float] = []
        self.averages = MetricAccumulator()
        self._declared_metrics = frozenset(learner.metric_names)
        self.wall_seconds = 0.0
        # when this process began, less the seconds that earlier ones took
        self._started: float | None = None
        # True in a checkpoint when the evaluation of its moment was not over: whoever goes on from
        # there makes it again.
        self.evaluation_due = False
        self.under_way: PendingEvaluation | None = None
        self.saved_env_steps = 0
        # for callbacks, since they were told last
        self._has_stepped = False
        self._evaluations: list[EvaluationInfo] = []
        self._replay_lost = False  # what is loaded of it stands for frames that were not kept
        # of the tables, by the checkpoint that this run goes on from
        self.known_rows: dict[str, TableRecord] = {}

    @property
    def env_steps(self) -> int:
        return self.agent_steps * self.plan.action_repeat

    @property
    def finished(self) -> bool:
        return self.env_steps >= self.plan.env_steps and not self.evaluation_due

    def step(self, log: RunLog, progress: Progress, stop: StopSignal) -> None:
        """One step of the learner, and the evaluation and checkpoint that are due after it."""
        self._started = (
            time.monotonic() - self.wall_seconds if self._started is None else self._started
        )
        if not self.evaluation_due:
            self._step_learner(log, progress)
        if self.under_way is not None:
            result = poll(self.under_way.steps, PATIENCE_SECONDS if self.evaluation_due else 0.0)
            if result is not None:
                self._write_eval_row(self.under_way, result, log, progress)
                if self.finished:
                    self._save(log)
        if self.evaluation_due and self.under_way is None:
            self._evaluate(log, progress, stop)

    def save_and_close(self, log: RunLog, progress: Progress, deadline: float) -> None:
        """Save the run before it is stopped. An asynchronous evaluation may go on until
        `deadline`."""
        if self._finish_evaluation(log, progress, lambda: time.monotonic() > deadline):
            self._save(log)  # otherwise the checkpoint of the moment it began at stays the newest

    def notify(self, callbacks: Callbacks) -> bool:
        """Call the callbacks with the steps and evaluations since the last call. Returns whether one
        of them requests a stop."""
        step = (
            StepInfo(**self._step_counters(), episodes=self.episodes) if self._has_stepped else None
        )
        self._has_stepped = False
        evaluations, self._evaluations = self._evaluations, []
        return callbacks.notify(step, evaluations)

    def _step_learner(self, log: RunLog, progress: Progress) -> None:
        before = self.agent_steps
        self._collect_and_learn()
        if _crossed_multiple(before, self.agent_steps, self.plan.log_every_agent_steps):
            self._write_train_row(log, progress)
        progress.step(self.env_steps, self.learner.updates)
        self._has_stepped = True
        evaluations_crossed = _crossed_multiple(
            before * self.plan.action_repeat, self.env_steps, self.plan.eval_every_env_steps
        )
        self.evaluation_due = evaluations_crossed or self.env_steps >= self.plan.env_steps

    def _save(self, log: RunLog) -> None:
        self.wall_seconds = self._seconds()
        self._check_finite()  # so that going on from the last checkpoint is always a way out
        log.sync()  # a checkpoint must never be ahead of the rows that led to it
        tables = {name: rows._asdict() for name, rows in log.known().items()}
        wanted = self.plan.keep_replay or self.env_steps < self.plan.env_steps
        kept = wanted and not self._replay_lost
        facts = {"tables": tables} | ({} if kept else {REPLAY_KEPT: False})
        self.checkpoints.save(self.state_dict() | facts, kept)
        self.saved_env_steps = self.env_steps

    def _seconds(self) -> float:
        return self.wall_seconds if self._started is None else time.monotonic() - self._started

    def _collect_and_learn(self) -> None:
        agent_steps, metrics, finished_returns = self.learner.step(self.env_steps)
        self.agent_steps += agent_steps
        self.episodes += len(finished_returns)
        self.finished_returns += finished_returns
        if metrics is not None:
            undeclared = metrics.keys() - self._declared_metrics
            if undeclared:  # they would be in no column of train.csv
                raise ConfigError(
                    f"the updates of this algorithm give the metrics {sorted(undeclared)}, which "
                    "its metric_names does not declare"
                )
            self.averages.add(metrics)

    def _step_counters(self) -> dict[str, Any]:
        return {
            "env_steps": self.env_steps,
            "agent_steps": self.agent_steps,
            "updates": self.learner.updates,
        }

    def _write_train_row(self, log: RunLog, progress: Progress) -> None:
        row = self._step_counters() | {"episodes": self.episodes}
        if self.finished_returns:
            row["episode_return"] = sum(self.finished_returns) / len(self.finished_returns)
            progress.training_return(row["episode_return"])
            self.finished_returns.clear()
        row |= self.averages.mean_and_reset() | self.learner.replay_metrics()
        log.write("train", row)
        # here, where the values are on the host anyway: per update it would stall a GPU
        check_finite(self.folder, row)

    def _check_finite(self) -> None:
        """Of what was measured since the last row, then of all that was learned."""
        averages = self.averages.state_dict()
        losses_first = dict(
            sorted(averages.items(), key=lambda item: not item[0].endswith("_loss"))
        )
        found = first_non_finite_of(losses_first) or first_non_finite_of(self.state_dict())
        if found is not None:
            check_finite(self.folder, self._step_counters() | dict([found]))

    def _evaluate(self, log: RunLog, progress: Progress, stop: StopSignal) -> None:
        """Begin what is due. Beside training the checkpoint comes first and the row when it is
        over, else the row at once."""
        self.wall_seconds = self._seconds()
        # before it is played: an environment may raise on an action that is no number
        self._check_finite()
        last = self.env_steps >= self.plan.env_steps
        steps = self.evaluate(self.env_steps, self.plan.video and last)
        self.under_way = PendingEvaluation(steps, self._step_counters(), self.wall_seconds)
        if self.plan.evaluate_asynchronously:
            self._save(log)
            self.evaluation_due = last  # nothing is left to go on with
        elif self._finish_evaluation(log, progress, lambda: stop.requested):
            self._save(log)
        else:
            self.under_way = None  # it leaves no trace

    def _finish_evaluation(
        self, log: RunLog, progress: Progress, stopped: Callable[[], bool]
    ) -> bool:
        """Whether none is under way any more."""
        if self.under_way is not None:
            try:
                self._write_eval_row(
                    self.under_way,
                    wait_for_evaluation(self.under_way.steps, stopped),
                    log,
                    progress,
                )
            except EvaluationStoppedError:
                return False
        return True

    def _write_eval_row(
        self, over: PendingEvaluation, result: Evaluation, log: RunLog, progress: Progress
    ) -> None:
        self.under_way = None
        if over.clocks["env_steps"] == self.env_steps:
            self.evaluation_due = False
        row = {
            "return_mean": result.mean,
            "return_std": result.std,
            "episodes": len(result.returns),
            "wall_seconds": round(over.wall_seconds, 3),
            "returns": " ".join(f"{value:.8g}" for value in result.returns),
        }
        # first: the table holds returns that can be compared
        check_finite(self.folder, over.clocks | row)
        log.write("eval", over.clocks | row)
        progress.evaluation(over.clocks["env_steps"], result.mean, result.std)
        self._evaluations.append(
            EvaluationInfo(
                **over.clocks,
                return_mean=result.mean,
                return_std=result.std,
                returns=tuple(result.returns),
            )
        )
        if result.no_pictures:
            progress.print(
                f"cclf: warning: no video, no picture could be drawn: {result.no_pictures}"
            )
        if result.pictures:
            path = self.folder / f"episode-{over.clocks['env_steps']}.mp4"
            if self._write_video(path, result, progress):
                log.log_video(path, over.clocks["env_steps"])

    def _write_video(self, path: Path, result: Evaluation, progress: Progress) -> bool:
        """Whatever a library raises here: a run that is trained must not fail for want of a
        picture."""
        try:
            write_video(str(path), result.pictures)
        except Exception as error:
            path.unlink(missing_ok=True)  # what was begun of it
            progress.print(f"cclf: warning: no video: {short_error(error)}")
            return False
        return True

    _COUNTERS = ("agent_steps", "episodes", "finished_returns", "wall_seconds", "evaluation_due")

    def state_dict(self) -> dict[str, Any]:
        parts = {name: getattr(self, name).state_dict() for name in ("learner", "averages")}
        return parts | {name: getattr(self, name) for name in self._COUNTERS}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        own = self.state_dict() | {"tables": {}, REPLAY_KEPT: True}
        state = with_added_fields(own, state)
        own |= {"learner": None, "averages": None, "finished_returns": [0.0]}
        check_same_structure(own, state, "the run")
        for name in self._COUNTERS:
            setattr(self, name, state[name])
        self.known_rows = {name: TableRecord(**facts) for name, facts in state["tables"].items()}
        if self.finished:
            # nothing is left to do, and a smaller budget than was run may have no room for the
            # replay
            return
        self._replay_lost = not state[REPLAY_KEPT]
        if self._replay_lost and self.env_steps < self.plan.env_steps:
            raise ConfigError(
                f"{self.folder} ended at {self.env_steps:,} env steps and kept no replay "
                "(--no-keep-replay), so it cannot go on: use another --out"
            )
        load_state(self.learner, state["learner"], "learner")
        self.averages.load_state_dict(state["averages"])
        learned_steps = state["learner"].get("agent_steps", self.agent_steps)
        check_data(
            learned_steps == self.agent_steps,
            f"agent_steps is {self.agent_steps} and {learned_steps}",
        )

    def resume(self, agent_steps: int | None = None) -> bool:
        """Go on from the newest good checkpoint of the folder, or the one of `agent_steps`; whether
        there is one."""
        saved = self.checkpoints.load(agent_steps=agent_steps)
        if saved is None:
            return False
        with data_error_context(
            f"the checkpoint in {self.folder} does not fit this run", "use another --out"
        ):
            self.load_state_dict(saved)
        return True


class ActiveRun(NamedTuple):
    """A run in training, with its tables and its progress line."""

    training: TrainingRun
    log: RunLog
    progress: Progress


def train_loop(
    runs: Sequence[ActiveRun], stop: StopSignal, callbacks: Callbacks = NO_CALLBACKS
) -> dict[int, NonFiniteError | WorkerError]:
    """Train all runs to the end of their budgets or until a stop is requested. Runs that did not
    reach the end are saved.

    A run with non-finite values, or whose environments failed, ends; the other runs continue. The
    errors are returned, by the index of the run. `callbacks` are called after each step and its
    checkpoint.
    """
    errors: dict[int, NonFiniteError | WorkerError] = {}

    def unfinished() -> list[int]:
        return [
            index
            for index, run in enumerate(runs)
            if not run.training.finished and index not in errors
        ]

    def attempt(index: int, action: Callable[[ActiveRun], None]) -> None:
        try:
            action(runs[index])
        except (NonFiniteError, WorkerError) as error:
            errors[index] = error
        else:
            if runs[index].training.notify(callbacks):
                stop.requested = True

    def step(run: ActiveRun) -> None:
        run.training.step(run.log, run.progress, stop)

    while not stop.requested and (active := unfinished()):
        # The next step of a batched run also updates the weights of the other runs of its batch, so
        # evaluations that are due come first.
        for index in [i for i in active if runs[i].training.evaluation_due] or active:
            attempt(index, step)
    deadline = time.monotonic() + STOP_GRACE_SECONDS
    for index in unfinished():
        attempt(index, lambda run: run.training.save_and_close(run.log, run.progress, deadline))
    return errors


def _crossed_multiple(before: int, now: int, every: int) -> bool:
    """Whether a multiple of `every` lies in (before, now]."""
    return now // every != before // every
