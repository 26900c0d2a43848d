"""The training loop. It names no algorithm, no method and no suite."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cclf.runtime import checkpoint
from cclf.runtime.evaluate import Evaluation, write_video
from cclf.runtime.metrics import Averages, RunLog
from cclf.runtime.progress import Progress
from cclf.runtime.stop import Stop
from cclf.types import Learner

Evaluate = Callable[[int, bool], Evaluation]  # (env_steps, record) -> what the agent does now


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
        self.agent_steps = 0
        self.episodes = 0
        self.finished_returns: list[float] = []
        self.averages = Averages()
        self.wall_seconds = 0.0

    @property
    def env_steps(self) -> int:
        return self.agent_steps * self.plan.action_repeat

    def run(self, log: RunLog, progress: Progress, stop: Stop) -> bool:
        """Train to the end of the budget; True when it got there, False when it was asked to stop (and saved)."""
        started = time.monotonic() - self.wall_seconds
        while self.env_steps < self.plan.env_steps and not stop.requested:
            before = self.agent_steps
            self._advance()
            if _crossed(before, self.agent_steps, self.plan.log_every_agent_steps):
                self._write_train_row(log, progress)
            progress.step(self.env_steps, self.learner.updates)
            last = self.env_steps >= self.plan.env_steps
            if last or _crossed(before * self.plan.action_repeat, self.env_steps, self.plan.eval_every_env_steps):
                self.wall_seconds = time.monotonic() - started
                self._evaluate(log, progress, record=last and self.plan.video)
                self.wall_seconds = time.monotonic() - started
                checkpoint.save(self.folder / "checkpoint", self.state_dict())
        finished = self.env_steps >= self.plan.env_steps
        if not finished:
            self.wall_seconds = time.monotonic() - started
            checkpoint.save(self.folder / "checkpoint", self.state_dict())
        return finished

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
        log.write("train", row | self.averages.take() | self.learner.slow_metrics())

    def _evaluate(self, log: RunLog, progress: Progress, record: bool) -> None:
        result = self.evaluate(self.env_steps, record)
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

    _COUNTERS = ("agent_steps", "episodes", "finished_returns", "wall_seconds")

    def state_dict(self) -> dict[str, Any]:
        parts = {name: getattr(self, name).state_dict() for name in ("learner", "averages")}
        return parts | {name: getattr(self, name) for name in self._COUNTERS}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("learner", "averages"):
            getattr(self, name).load_state_dict(state[name])
        for name in self._COUNTERS:
            setattr(self, name, state[name])


def _crossed(before: int, now: int, every: int) -> bool:
    """Whether a multiple of `every` lies in (before, now]."""
    return now // every != before // every
