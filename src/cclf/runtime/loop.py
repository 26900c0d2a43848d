"""The training loop. It names no algorithm, no method and no suite."""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from cclf.runtime import checkpoint
from cclf.runtime.evaluate import Evaluation, evaluate, write_video
from cclf.runtime.metrics import Averages, RunLog
from cclf.runtime.progress import Progress
from cclf.runtime.seeding import derive
from cclf.types import Env, Learner

Announce = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """When to do what. Budgets are environment steps."""

    env_steps: int
    action_repeat: int
    eval_every_env_steps: int
    eval_episodes: int
    log_every_agent_steps: int
    frame_stack: int
    seed: int
    video: bool


class Stop:
    """Set by the first SIGINT, SIGTERM or SIGUSR1, polled by the loop; a second signal quits at once."""

    def __init__(self) -> None:
        self.requested = False

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.requested:
            raise SystemExit(128 + number)
        self.requested = True


class Training:
    """One run: an environment, a learner, and everything the loop counts. All of it is in `state_dict`."""

    def __init__(self, plan: Plan, env: Env, eval_env: Env, learner: Learner, folder: Path, device: torch.device):
        self.plan, self.env, self.eval_env, self.learner, self.folder, self.device = plan, env, eval_env, learner, folder, device
        self.agent_steps = 0
        self.episodes = 0
        self.episode_return = 0.0
        self.finished_returns: list[float] = []
        self.in_episode = False
        self.averages = Averages()
        self.wall_seconds = 0.0

    @property
    def env_steps(self) -> int:
        return self.agent_steps * self.plan.action_repeat

    def run(self, log: RunLog, progress: Progress, stop: Stop) -> bool:
        """Train to the end of the budget; True when it got there, False when it was asked to stop (and saved)."""
        started = time.monotonic() - self.wall_seconds
        while self.env_steps < self.plan.env_steps and not stop.requested:
            self._agent_step()
            if self.agent_steps % self.plan.log_every_agent_steps == 0:
                self._write_train_row(log, progress)
            self.wall_seconds = time.monotonic() - started
            progress.step(self.env_steps, self.learner.updates)
            last = self.env_steps >= self.plan.env_steps
            if last or self._crossed(self.plan.eval_every_env_steps):
                self._evaluate(log, progress, record=last and self.plan.video)
                self.wall_seconds = time.monotonic() - started
                checkpoint.save(self.folder / "checkpoint", self.state_dict())
        finished = self.env_steps >= self.plan.env_steps
        if not finished:
            checkpoint.save(self.folder / "checkpoint", self.state_dict())
        return finished

    def _agent_step(self) -> None:
        if not self.in_episode:
            self.learner.begin_episode(self.env.reset())
            self.in_episode, self.episode_return = True, 0.0
        action = self.learner.act()
        metrics = self.learner.update(self.env_steps)
        step = self.env.step(action)
        self.learner.observe(action, step)
        self.agent_steps += 1
        self.episode_return += step.reward
        if metrics is not None:
            self.averages.add(metrics)
        if step.terminated or step.truncated:
            self.in_episode = False
            self.episodes += 1
            self.finished_returns.append(self.episode_return)

    def _clocks(self) -> dict[str, Any]:
        return {"env_steps": self.env_steps, "agent_steps": self.agent_steps, "updates": self.learner.updates}

    def _write_train_row(self, log: RunLog, progress: Progress) -> None:
        row = self._clocks() | {"episodes": self.episodes}
        if self.finished_returns:
            row["episode_return"] = sum(self.finished_returns) / len(self.finished_returns)
            progress.training_return(row["episode_return"])
            self.finished_returns.clear()
        log.write("train", row | self.averages.take() | self.learner.slow_metrics())

    def _crossed(self, every_env_steps: int) -> bool:
        """Whether the last agent step reached or passed a multiple of `every_env_steps`."""
        return self.env_steps // every_env_steps != (self.env_steps - self.plan.action_repeat) // every_env_steps

    def _evaluate(self, log: RunLog, progress: Progress, record: bool) -> None:
        # Seeds depend on the moment and the episode alone: another schedule evaluates the same episodes at the same moment.
        seeds = [derive(self.plan.seed, "eval", self.env_steps, episode) for episode in range(self.plan.eval_episodes)]
        result = evaluate(self.eval_env, self.learner.policy, seeds, self.plan.frame_stack, self.device, record)
        log.write("eval", self._clocks() | self._eval_row(result))
        progress.evaluation(self.env_steps, result.mean, result.std)
        if result.pictures:
            try:
                write_video(str(self.folder / f"episode-{self.env_steps}.mp4"), result.pictures)
            except ImportError:
                progress.say("no video: imageio is not installed (pip install 'cclf[video]')")

    def _eval_row(self, result: Evaluation) -> dict[str, Any]:
        return {
            "return_mean": result.mean,
            "return_std": result.std,
            "episodes": len(result.returns),
            "wall_seconds": round(self.wall_seconds, 3),
            "returns": " ".join(f"{value:.8g}" for value in result.returns),
        }

    _COUNTERS = ("agent_steps", "episodes", "episode_return", "finished_returns", "in_episode", "wall_seconds")

    def state_dict(self) -> dict[str, Any]:
        parts = {name: getattr(self, name).state_dict() for name in ("env", "learner", "averages")}
        return parts | {name: getattr(self, name) for name in self._COUNTERS}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("learner", "averages"):
            getattr(self, name).load_state_dict(state[name])
        for name in self._COUNTERS:
            setattr(self, name, state[name])
        if state["env"]:
            self.env.load_state_dict(state["env"])
        else:  # an environment that cannot be saved: the cut-off episode is left as it is, a new one begins
            self.in_episode = False
