"""The games of a batch of runs, stepped in this process or in worker processes.

This module runs in worker processes, so it does not import torch. An agent step of Atari takes less
time than sending its frames through a pipe, so actions and results are in shared memory.
"""

import math
import mmap
import os
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import NamedTuple, TypeVar

import numpy as np

from cclf.errors import WorkerError
from cclf.storage.safe_loading import check_same_structure
from cclf.training.workers import LocalPool, Pending, Pool, WorkerPool, anonymous_file
from cclf.types import EnvSpec, Game, StateDict

GameFactory = Callable[[], Game]
R = TypeVar("R")


class GameStep(NamedTuple):
    """The result of one action in one game."""

    reward: float
    ended: bool  # whether the episode ended; the next one has begun
    finished_return: float | None  # unclipped, of the whole game with all its lives, once it ends


class EpisodicGame:
    """One game, which is reset as soon as an episode ends."""

    def __init__(self, game: Game):
        self.game, self.spec = game, game.spec
        self.begun = False
        self.game_return = 0.0

    def observation(self) -> np.ndarray:
        """The stack of frames to act on, (F, H, W)."""
        if not self.begun:
            self.game.reset()
            self.begun = True
        return self.game.stack

    def step(self, action: int) -> GameStep:
        step, finished = self.game.step(action), None
        self.game_return += self.game.raw_reward
        if self.game.game_over:
            finished, self.game_return = self.game_return, 0.0
        ended = step.terminated or step.truncated
        if ended:
            self.game.reset()
        return GameStep(step.reward, ended, finished)

    def close(self) -> None:
        self.game.close()

    def state_dict(self) -> StateDict:
        return {"game": self.game.state_dict()} | self._progress()

    def load_state_dict(self, state: StateDict) -> bool:
        """Returns False if the game cannot be restored, so that a new episode begins."""
        check_same_structure(self._progress() | {"game": None}, state, "env of games")
        restored = self.game.load_state_dict(state["game"]) is not False
        self.begun = state["begun"] and restored
        self.game_return = state["game_return"] if restored else 0.0
        return self.begun

    def _progress(self) -> StateDict:
        return {"begun": self.begun, "game_return": self.game_return}


class SharedBuffer(NamedTuple):
    """Actions and results of S games, in memory that processes share."""

    actions: np.ndarray  # (S,) int64
    rewards: np.ndarray  # (S,)
    finished_returns: np.ndarray  # (S,)  of the whole game, where it has ended
    ended: np.ndarray  # (S,) bool  whether the episode ended; the next one has begun
    game_over: np.ndarray  # (S,) bool  whether the whole game ended
    observations: np.ndarray  # (S, F, H, W) uint8  to act on next

    @staticmethod
    def in_file(descriptor: int, games: int, stack_shape: tuple[int, ...]) -> "SharedBuffer":
        """Map a file, which grows if it is too small. Processes that map it share the buffer."""
        types = (np.int64, np.float64, np.float64, np.bool_, np.bool_, np.uint8)
        dtypes = [np.dtype(each) for each in types]
        shapes = [(games,)] * 5 + [(games, *stack_shape)]
        sizes = [
            math.prod(shape) * dtype.itemsize for shape, dtype in zip(shapes, dtypes, strict=True)
        ]
        if os.fstat(descriptor).st_size < sum(sizes):
            os.ftruncate(descriptor, sum(sizes))
        memory = mmap.mmap(descriptor, sum(sizes))
        offsets = accumulate(sizes[:-1], initial=0)
        fields = zip(shapes, dtypes, offsets, strict=True)
        return SharedBuffer(
            *(np.ndarray(shape, dtype, memory, offset) for shape, dtype, offset in fields)
        )

    def part(self, first: int, last: int) -> "SharedBuffer":
        return SharedBuffer(*(field[first:last] for field in self))


class GameGroup:
    """The games of one worker and their part of the shared buffer."""

    def __init__(self, factories: Sequence[GameFactory]):
        self.games = [EpisodicGame(make_game()) for make_game in factories]

    def specs(self) -> list[EnvSpec]:
        return [game.spec for game in self.games]

    def attach(
        self, descriptor: int, games: int, stack_shape: tuple[int, ...], first: int, last: int
    ) -> None:
        """Use the entries `first` to `last` of the shared buffer."""
        self.buffer = SharedBuffer.in_file(descriptor, games, stack_shape).part(first, last)

    def observe(self) -> None:
        """Write the current observations to the buffer."""
        for index, game in enumerate(self.games):
            self.buffer.observations[index] = game.observation()

    def notify(self) -> None:
        """Step each game with its action in the buffer, and write the results there."""
        buffer = self.buffer
        for index, (game, action) in enumerate(
            zip(self.games, buffer.actions.tolist(), strict=True)
        ):
            result = game.step(action)
            buffer.rewards[index], buffer.ended[index] = result.reward, result.ended
            buffer.game_over[index] = result.finished_return is not None
            buffer.finished_returns[index] = result.finished_return or 0.0
        self.observe()

    def close(self) -> None:
        for game in self.games:
            game.close()

    def game_state(self, index: int) -> StateDict:
        return self.games[index].state_dict()

    def load_game_state(self, index: int, state: StateDict) -> bool:
        return self.games[index].load_state_dict(state)


class GameWorkers:
    """S games, distributed over worker processes of which each steps several.

    If a worker is lost, its games cannot be restored, and replay holds actions whose results are
    missing. So every later call raises, and all runs resume from their checkpoints.
    """

    def __init__(
        self, factories: Sequence[GameFactory], frame_stack: int, workers: int = 0, name: str = ""
    ):
        """With `workers=0` the games are stepped in this process. `name` is used in errors."""
        bounds = _split_evenly(len(factories), workers or 1)
        makers = [partial(GameGroup, factories[first:last]) for first, last in bounds]
        self._memory = anonymous_file()
        descriptor = self._memory.fileno()
        self.pool: Pool[GameGroup] = (
            WorkerPool(makers, name, shared=[descriptor])
            if workers
            else LocalPool([make_group() for make_group in makers])
        )
        self._failure: WorkerError | None = None
        self._location = [
            (group, game - first)
            for group, (first, last) in enumerate(bounds)
            for game in range(first, last)
        ]
        self._groups = groups = range(len(bounds))
        specs = self._results(lambda pool: [pool.submit(n, GameGroup.specs) for n in groups])
        self.specs: list[EnvSpec] = [spec for group in specs for spec in group]
        shape = (frame_stack, *self.specs[0].frame_shape[1:])
        self.buffer = SharedBuffer.in_file(descriptor, len(self.specs), shape)
        size = descriptor, len(self.specs), shape
        self._results(
            lambda pool: [pool.submit(n, GameGroup.attach, *size, *bounds[n]) for n in groups]
        )

    def observations(self) -> np.ndarray:
        """The frames to act on now, (S, F, H, W)."""
        self._results(lambda pool: [pool.submit(n, GameGroup.observe) for n in self._groups])
        return self.buffer.observations

    def step(self, actions: np.ndarray) -> SharedBuffer:
        """Step every game with one action (S,). The results stay in the buffer until the next
        call."""
        self.buffer.actions[:] = actions
        self._results(lambda pool: [pool.notify(group) for group in self._groups])
        return self.buffer

    def game_state(self, game: int) -> StateDict:
        group, index = self._location[game]
        return self._results(lambda pool: [pool.submit(group, GameGroup.game_state, index)])[0]

    def load_game_state(self, game: int, state: StateDict) -> bool:
        group, index = self._location[game]
        return self._results(
            lambda pool: [pool.submit(group, GameGroup.load_game_state, index, state)]
        )[0]

    def _results(self, submit: Callable[[Pool[GameGroup]], list[Pending[R]]]) -> list[R]:
        """The results of the submitted calls."""
        if self._failure is not None:
            raise self._failure
        try:
            return self.pool.wait(submit(self.pool))
        except WorkerError as error:
            self._failure = error
            raise

    def close(self) -> None:
        self.pool.close()
        self._memory.close()


class GameHandle:
    """One game of `GameWorkers`: the environment of one run."""

    def __init__(self, workers: GameWorkers, index: int):
        self.workers, self.index, self.spec = workers, index, workers.specs[index]

    def state_dict(self) -> StateDict:
        return self.workers.game_state(self.index)

    def load_state_dict(self, state: StateDict) -> bool:
        return self.workers.load_game_state(self.index, state)

    def close(self) -> None:
        """Close all games: the runs of a batch end together."""
        self.workers.close()


def _split_evenly(count: int, parts: int) -> list[tuple[int, int]]:
    """Consecutive ranges whose sizes differ by one at most.

    >>> _split_evenly(5, 2)
    [(0, 2), (2, 5)]
    """
    return list(pairwise(count * part // parts for part in range(parts + 1)))
