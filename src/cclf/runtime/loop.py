"""The training loop. It names no algorithm, no method and no suite."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cclf.config import ConfigError
from cclf.runtime.checkpoint import Checkpoints
from cclf.runtime.evaluate import Evaluation, EvaluationStoppedError, write_video
from cclf.runtime.failure import NonFiniteError, first_non_finite, save_bundle
from cclf.runtime.metrics import Averages, RunLog
from cclf.runtime.progress import Progress
from cclf.runtime.stop import Stop
from cclf.types import Learner

Evaluate = Callable[[int, bool, Callable[[], bool]], Evaluation]  # (env_steps, record, stopped) -> what the agent does now


@dataclass(frozen=True)
class Plan:
    """When to do what. Budgets are environment steps."""

    env_steps: int
    action_repeat: int
    eval_every_env_steps: int
    log_every_agent_steps: int
    video: bool


class Training:
    """One run: a learner, its evaluation, and everything the loop counts. All of it is in `state_dict`."""

    def __init__(self, plan: Plan, learner: Learner, evaluate: Evaluate, folder: Path):
        self.plan, self.learner, self.evaluate, self.folder = plan, learner, evaluate, folder
        self.checkpoints = Checkpoints(folder / "checkpoint")
        self.agent_steps = 0
        self.episodes = 0
        self.finished_returns: list[float] = []
        self.averages = Averages()
        self.wall_seconds = 0.0
        self.evaluation_due = False  # True in a checkpoint when a stop fell into an evaluation: it is repeated

    @property
    def env_steps(self) -> int:
        return self.agent_steps * self.plan.action_repeat

    @property
    def finished(self) -> bool:
        return self.env_steps >= self.plan.env_steps and not self.evaluation_due

    def run(self, log: RunLog, progress: Progress, stop: Stop) -> bool:
        """Train to the end of the budget; True when it got there, False when it was asked to stop (and saved)."""
        started = time.monotonic() - self.wall_seconds
        while not self.finished and not stop.requested:
            if not self.evaluation_due:
                self._turn(log, progress)
            if self.evaluation_due:
                self.wall_seconds = time.monotonic() - started
                self.evaluation_due = not self._evaluate(log, progress, stop)
                if not self.evaluation_due:
                    self._save(log, started)
        if not self.finished:
            self._save(log, started)
        return self.finished

    def _turn(self, log: RunLog, progress: Progress) -> None:
        before = self.agent_steps
        self._advance()
        if _crossed(before, self.agent_steps, self.plan.log_every_agent_steps):
            self._write_train_row(log, progress)
        progress.step(self.env_steps, self.learner.updates)
        evaluations_crossed = _crossed(before * self.plan.action_repeat, self.env_steps, self.plan.eval_every_env_steps)
        self.evaluation_due = evaluations_crossed or self.env_steps >= self.plan.env_steps

    def _save(self, log: RunLog, started: float) -> None:
        self.wall_seconds = time.monotonic() - started
        log.sync()  # a checkpoint must never be ahead of the rows that led to it
        self.checkpoints.save(self.state_dict())

    def _advance(self) -> None:
        agent_steps, metrics, finished_returns = self.learner.advance(self.env_steps)
        self.agent_steps += agent_steps
        self.episodes += len(finished_returns)
        self.finished_returns += finished_returns
        if metrics is not None:
            self.averages.add(metrics)

    def _clocks(self) -> dict[str, Any]:
        return {"env_steps": self.env_steps, "agent_steps": self.agent_steps, "updates": self.learner.updates}

    def _write_train_row(self, log: RunLog, progress: Progress) -> None:
        row = self._clocks() | {"episodes": self.episodes}
        if self.finished_returns:
            row["episode_return"] = sum(self.finished_returns) / len(self.finished_returns)
            progress.training_return(row["episode_return"])
            self.finished_returns.clear()
        row |= self.averages.take() | self.learner.slow_metrics()
        log.write("train", row)
        name = first_non_finite(row)  # here, where the values are on the host anyway: a check per update would stall a GPU
        if name is not None:
            raise NonFiniteError(save_bundle(self.folder, name, row), name, row[name], self.env_steps)

    def _evaluate(self, log: RunLog, progress: Progress, stop: Stop) -> bool:
        """Whether it came to its end; one that is interrupted leaves no trace."""
        record = self.plan.video and self.env_steps >= self.plan.env_steps
        try:
            result = self.evaluate(self.env_steps, record, lambda: stop.requested)
        except EvaluationStoppedError:
            return False
        row = {
            "return_mean": result.mean,
            "return_std": result.std,
            "episodes": len(result.returns),
            "wall_seconds": round(self.wall_seconds, 3),
            "returns": " ".join(f"{value:.8g}" for value in result.returns),
        }
        log.write("eval", self._clocks() | row)
        progress.evaluation(self.env_steps, result.mean, result.std)
        if result.pictures:
            try:
                write_video(str(self.folder / f"episode-{self.env_steps}.mp4"), result.pictures)
            except ImportError:
                progress.say("no video: imageio is not installed (pip install 'cclf[video]')")
        return True

    _COUNTERS = ("agent_steps", "episodes", "finished_returns", "wall_seconds", "evaluation_due")

    def state_dict(self) -> dict[str, Any]:
        parts = {name: getattr(self, name).state_dict() for name in ("learner", "averages")}
        return parts | {name: getattr(self, name) for name in self._COUNTERS}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in self._COUNTERS:
            setattr(self, name, state[name])
        if self.finished:
            return  # nothing is left to do, and a smaller budget than was run may have no room for the replay
        for name in ("learner", "averages"):
            getattr(self, name).load_state_dict(state[name])

    def resume(self) -> bool:
        """Go on from the newest good checkpoint of the folder; whether there is one."""
        saved = self.checkpoints.load()
        if saved is None:
            return False
        try:
            self.load_state_dict(saved)
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
            raise ConfigError(f"the checkpoint in {self.folder} does not fit this run: {error!r}; use another --out") from error
        return True


def _crossed(before: int, now: int, every: int) -> bool:
    """Whether a multiple of `every` lies in (before, now]."""
    return now // every != before // every
