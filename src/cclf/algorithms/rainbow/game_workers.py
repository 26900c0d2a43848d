"""The games of a batch of runs, stepped in this process or in worker processes.

Worker processes import this module, so it does not import torch. An agent step of Atari takes less
time than sending its frames through a pipe, so actions and results are in shared memory.
"""

import mmap
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

import numpy as np

from cclf.envs.frame_stack import StackedEnv
from cclf.errors import WorkerError
from cclf.storage.safe_loading import check_same_structure
from cclf.training.workers import LocalPool, Pending, Pool, WorkerPool, anonymous_file
from cclf.types import Env, EnvSpec, StateDict

GameFactory = Callable[[], Env]
P = ParamSpec("P")
R = TypeVar("R")


class GameStep(NamedTuple):
    """The result of one action in one game."""

    reward: float
    ended: bool  # whether the episode ended; the next one has begun
    game_over: bool  # whether the whole game ended, and not only one of its lives
    game_return: float  # the unclipped return of the whole game up to this step


class EpisodicGame:
    """One game, which is reset as soon as an episode ends."""

    def __init__(self, env: Env, frame_stack: int):
        self.game, self.spec = StackedEnv(env, frame_stack), env.spec
        self.begun = False
        self.game_return = 0.0

    def observation(self) -> np.ndarray:
        """The stack of frames to act on, (F, H, W)."""
        if not self.begun:
            self.game.reset()
            self.begun = True
        return self.game.stack

    def step(self, action: int) -> GameStep:
        step = self.game.step(action)
        game_return = self.game_return + step.unclipped_reward
        self.game_return = 0.0 if step.game_over else game_return
        ended = step.terminated or step.truncated
        if ended:
            self.game.reset()
        return GameStep(step.reward, ended, step.game_over, game_return)

    def state_dict(self) -> StateDict:
        state = {"begun": self.begun, "game_return": self.game_return}
        return {"game": self.game.state_dict()} | state

    def load_state_dict(self, state: StateDict) -> bool:
        """Returns False if the game cannot be restored, so that a new episode begins."""
        expected = {"game": None, "begun": False, "game_return": 0.0}
        check_same_structure(expected, state, "env of games")
        restored = self.game.load_state_dict(state["game"])
        self.begun = state["begun"] and restored
        self.game_return = state["game_return"] if restored else 0.0
        return self.begun


def shared_records(
    file_descriptor: int, num_games: int, stack_shape: tuple[int, ...]
) -> np.ndarray:
    """One record for each game, (S,), in the memory of a file: processes that map the same file share
    the records."""
    record = np.dtype(
        [
            ("action", np.int64),
            ("reward", np.float64),
            ("ended", np.bool_),
            ("game_over", np.bool_),
            ("game_return", np.float64),
            ("observation", np.uint8, stack_shape),  # that the next action is chosen for
        ],
        align=True,
    )
    os.ftruncate(file_descriptor, num_games * record.itemsize)
    return np.frombuffer(mmap.mmap(file_descriptor, num_games * record.itemsize), record)


class GameGroup:
    """The games of one worker."""

    def __init__(
        self,
        factories: Sequence[GameFactory],
        frame_stack: int,
        map_records: Callable[[], np.ndarray],
        first: int,
    ):
        """`map_records` returns the records of all S games; those of this group begin at `first`."""
        self.games = [EpisodicGame(make_game(), frame_stack) for make_game in factories]
        self.records = map_records()[first : first + len(self.games)]
        self._results = self.records[list(GameStep._fields)]  # a view of these fields

    def specs(self) -> list[EnvSpec]:
        return [game.spec for game in self.games]

    def observe(self) -> None:
        """Write the current observations to the records."""
        for index, game in enumerate(self.games):
            self.records["observation"][index] = game.observation()

    def notify(self) -> None:
        """Called by `Pool.notify`: step each game with the action in its record, and write the result to
        the record."""
        for index, action in enumerate(self.records["action"].tolist()):
            self._results[index] = self.games[index].step(action)
        self.observe()

    def game_state(self, index: int) -> StateDict:
        return self.games[index].state_dict()

    def load_game_state(self, index: int, state: StateDict) -> bool:
        return self.games[index].load_state_dict(state)

    def close(self) -> None:
        for game in self.games:
            game.game.close()


class GameWorkers:
    """S games, distributed over worker processes, each of which steps several games.

    If a worker process dies, its games cannot be restored, and the replay already holds actions whose
    results are missing. So every later call raises an error, and all runs must resume from checkpoints.
    """

    def __init__(
        self,
        factories: Sequence[GameFactory],
        stack_shape: tuple[int, int, int],
        workers: int = 0,
        name: str = "",
    ):
        """`stack_shape` is the shape of an observation, (F, H, W). With `workers=0` the games are stepped
        in this process. `name` appears in error messages."""
        with anonymous_file() as file:  # open until each worker has mapped it
            descriptor = file.fileno()
            map_records = partial(shared_records, descriptor, len(factories), stack_shape)
            self.records = map_records()
            groups = np.array_split(np.arange(len(factories)), workers or 1)
            makers = [
                partial(
                    GameGroup,
                    [factories[i] for i in group],
                    stack_shape[0],
                    map_records,
                    int(group[0]),
                )
                for group in groups
            ]
            self.pool: Pool[GameGroup] = (
                WorkerPool(makers, name, shared=[descriptor])
                if workers
                else LocalPool([make_group() for make_group in makers])
            )
            self._failure: WorkerError | None = None
            self.games = [
                GameHandle(self, group, index, spec)
                for group, specs in enumerate(self._call_all(GameGroup.specs))
                for index, spec in enumerate(specs)
            ]

    def observations(self) -> np.ndarray:
        """The stacks of frames to act on now, (S, F, H, W)."""
        self._call_all(GameGroup.observe)
        observations: np.ndarray = self.records["observation"]
        return observations

    def step(self, actions: np.ndarray) -> np.ndarray:
        """Step every game with one action (S,). Returns the records (S,), which the next call
        overwrites."""
        self.records["action"] = actions
        self._wait(lambda: [self.pool.notify(group) for group in range(self.pool.size)])
        return self.records

    def call(
        self,
        group: int,
        method: Callable[Concatenate[GameGroup, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Call a method of one group, such as `call(0, GameGroup.game_state, index)`."""
        return self._wait(lambda: [self.pool.submit(group, method, *args, **kwargs)])[0]

    def _call_all(self, method: Callable[[GameGroup], R]) -> list[R]:
        return self._wait(lambda: [self.pool.submit(n, method) for n in range(self.pool.size)])

    def _wait(self, submit: Callable[[], list[Pending[R]]]) -> list[R]:
        """The results of the calls that `submit` makes."""
        if self._failure is not None:
            raise self._failure
        try:
            return self.pool.wait(submit())
        except WorkerError as error:
            self._failure = error
            raise

    def close(self) -> None:
        self.pool.close()


class GameHandle:
    """One game of `GameWorkers`: the environment of one run."""

    def __init__(self, workers: GameWorkers, group: int, index: int, spec: EnvSpec):
        self.workers, self.group, self.index, self.spec = workers, group, index, spec

    def state_dict(self) -> StateDict:
        return self.workers.call(self.group, GameGroup.game_state, self.index)

    def load_state_dict(self, state: StateDict) -> bool:
        return self.workers.call(self.group, GameGroup.load_game_state, self.index, state)
