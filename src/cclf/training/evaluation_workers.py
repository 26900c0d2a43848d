"""Evaluation episodes in worker processes, each of which has a copy of the policy. All runs of a
process share the workers."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cclf.training.evaluation import Evaluation, EvaluationSteps, too_many_losses
from cclf.training.workers import MAX_RESTARTS, Pending, WorkerLostError, WorkerPool

# An Atari game takes at most half a minute on a free core, but training has priority.
EPISODE_SECONDS = 3600.0


class EpisodePlayer(Protocol):
    """The object in a worker."""

    def play(self, *agent_and_seed: Any) -> float: ...  # the return of one episode
    def close(self) -> None: ...


@dataclass(eq=False)
class _Request:
    """An episode to play."""

    agent: tuple[object, ...]
    seed: int
    losses: int = 0  # workers that crashed or hung
    result: Pending[float] | None = None


class EvaluationWorkers:
    """Episodes wait until a worker is idle. An episode whose worker is lost is played again, with
    the same result."""

    def __init__(
        self, factory: Callable[[], Any], workers: int, timeout_seconds: float = EPISODE_SECONDS
    ):
        """`factory` makes an `EpisodePlayer`."""
        factories = [factory] * workers
        self._pool = WorkerPool[EpisodePlayer](factories, "the evaluation", timeout_seconds)
        self._waiting: deque[_Request] = deque()
        self._running: dict[int, tuple[_Request, Pending[float]]] = {}  # by worker

    def evaluate_async(self, agent: tuple[object, ...], seeds: Sequence[int]) -> EvaluationSteps:
        """One episode per seed, played by `play(*agent, seed)`."""
        episodes = [_Request(agent, seed) for seed in seeds]
        self._waiting.extend(episodes)
        try:
            while True:
                self._dispatch()
                returns = [episode.result.result() for episode in episodes if episode.result]
                if len(returns) == len(episodes):
                    return Evaluation(returns, [])
                yield self._pool.connections()
        finally:  # also if the evaluation was stopped or failed
            self._waiting = deque(episode for episode in self._waiting if episode not in episodes)

    def _dispatch(self) -> None:
        """Collect results, and give waiting episodes to idle workers."""
        self._pool.poll()
        for worker, (episode, call) in list(self._running.items()):
            if not call.done:
                continue
            del self._running[worker]
            if isinstance(call.error, WorkerLostError):
                episode.losses += 1
                if episode.losses <= MAX_RESTARTS:
                    self._waiting.appendleft(episode)
                    continue
                call.set_error(too_many_losses(call.error, episode.losses))
            episode.result = call
        for worker in range(self._pool.size):
            if worker not in self._running and self._waiting:
                episode = self._waiting.popleft()
                call = self._pool.submit(worker, EpisodePlayer.play, *episode.agent, episode.seed)
                self._running[worker] = episode, call

    def close(self) -> None:
        self._pool.close()
