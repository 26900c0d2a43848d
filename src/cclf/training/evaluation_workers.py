"""Whole episodes played in worker processes, each with a copy of the policy. All runs of a process
share them."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cclf.errors import WorkerError
from cclf.training.evaluation import Evaluation, EvaluationSteps
from cclf.training.worker_process import RAISED
from cclf.training.workers import MAX_RESTARTS, WORKER_LOST, EnvWorkers, Factory

# the longest game of Atari takes half a minute on a free core, but players get what training leaves
EPISODE_SECONDS = 3600.0


@dataclass(eq=False)
class Episode:
    agent: tuple[Any, ...]  # what a worker needs to know of it
    seed: int
    losses: int = 0
    result: float | None = None
    error: Exception | None = None  # it cannot be played


class EvaluationWorkers:
    """Episodes wait here and are played as workers get free; one whose worker is lost is played
    again, to the same end."""

    def __init__(self, make: Factory, workers: int, timeout_seconds: float = EPISODE_SECONDS):
        """`make` gives an object with `play(*agent, seed)`, the return of that episode."""
        self._pool = EnvWorkers([make] * workers, workers, "the evaluation", timeout_seconds)
        self._waiting: deque[Episode] = deque()
        self._playing: dict[int, Episode] = {}

    def evaluate_async(self, agent: tuple[Any, ...], seeds: Sequence[int]) -> EvaluationSteps:
        episodes = [Episode(agent, seed) for seed in seeds]
        self._waiting.extend(episodes)
        try:
            while any(episode.result is None for episode in episodes):
                self._move()
                for episode in episodes:
                    if episode.error is not None:
                        raise episode.error
                yield self._pool.busy()
        finally:  # given up: what was not begun yet is not wanted any more
            self._waiting = deque(episode for episode in self._waiting if episode not in episodes)
        return Evaluation([float(episode.result or 0.0) for episode in episodes], [])

    def _move(self) -> None:
        for worker, command, value in self._pool.receive_all():
            episode = self._playing.pop(worker, None)
            if episode is None:
                continue  # a second error of a worker that made no player
            if command == RAISED:
                episode.error = value
            elif command != WORKER_LOST:
                episode.result = value
            elif episode.losses == MAX_RESTARTS:
                episode.error = WorkerError(
                    f"{value}; {episode.losses + 1} times in one episode of an evaluation"
                )
            else:
                episode.losses += 1
                self._waiting.appendleft(episode)
        for worker in range(self._pool.size):
            if worker not in self._playing and self._waiting:
                self._playing[worker] = episode = self._waiting.popleft()
                self._pool.send(worker, "play", *episode.agent, episode.seed)

    def close(self) -> None:
        self._pool.close()
