"""Games as runs play them. No torch here, so that they can live in a process of their own."""

import math
import mmap
import os
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from cclf.envs.frame_stack import StackedEnv
from cclf.storage.safe_loading import check_same_structure
from cclf.types import Env, EnvSpec


class GameStep(NamedTuple):
    """What came of one action in a game."""

    reward: float
    ended: bool  # the episode; the next one has begun
    # of a whole game, all its lives, unclipped; None where it goes on
    finished_return: float | None


class EpisodicGame:
    """One game, whose next episode begins as soon as one has ended."""

    def __init__(self, env: Env, frame_stack: int):
        self.game, self.spec = StackedEnv(env, frame_stack), env.spec
        self.begun = False
        self.game_return = 0.0

    def look(self) -> np.ndarray:
        """What to act on now, (F, H, W)."""
        if not self.begun:
            self.game.reset()
            self.begun = True
        return self.game.stack

    def play(self, action: int) -> GameStep:
        step, finished = self.game.step(action), None
        self.game_return += step.unclipped_reward
        if step.game_over:
            finished, self.game_return = self.game_return, 0.0
        ended = step.terminated or step.truncated
        if ended:
            self.game.reset()
        return GameStep(step.reward, ended, finished)

    def close(self) -> None:
        self.game.close()

    def state_dict(self) -> dict[str, Any]:
        return {"game": self.game.state_dict()} | self._progress()

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Whether the episode goes on: a game that cannot be brought back begins a new one."""
        check_same_structure(self._progress() | {"game": None}, state, "env of games")
        lost = not self.game.load_state_dict(state["game"])
        self.begun = state["begun"] and not lost
        self.game_return = 0.0 if lost else state["game_return"]
        return self.begun

    def _progress(self) -> dict[str, Any]:
        return {"begun": self.begun, "game_return": self.game_return}


class SharedBuffer(NamedTuple):
    """What is asked of games and what they answer, in memory that processes share: a turn of Atari
    is too short to send frames around."""

    actions: np.ndarray  # (S,) int64  asked for
    rewards: np.ndarray  # (S,)
    finished_returns: np.ndarray  # (S,)  of a whole game, where it is over
    ended: np.ndarray  # (S,) bool  the episode; the next one has begun
    over: np.ndarray  # (S,) bool  the whole game
    stacks: np.ndarray  # (S, F, H, W) uint8  to act on next

    @staticmethod
    def in_file(descriptor: int, games: int, stack_shape: tuple[int, ...]) -> "SharedBuffer":
        """All processes that map the same file see one board. The file grows if it has to."""
        kinds = (np.int64, np.float64, np.float64, np.bool_, np.bool_, np.uint8)
        shapes = [(games,)] * 5 + [(games, *stack_shape)]
        sizes = [
            math.prod(shape) * np.dtype(kind).itemsize
            for kind, shape in zip(kinds, shapes, strict=True)
        ]
        if os.fstat(descriptor).st_size < sum(sizes):
            os.ftruncate(descriptor, sum(sizes))
        memory = mmap.mmap(descriptor, sum(sizes))
        begins = accumulate(sizes[:-1], initial=0)
        fields = zip(kinds, begins, shapes, strict=True)
        return SharedBuffer(
            *(np.ndarray(shape, kind, memory, begin) for kind, begin, shape in fields)
        )

    def part(self, first: int, last: int) -> "SharedBuffer":
        return SharedBuffer(*(field[first:last] for field in self))


class GameGroup:
    """Several games, of runs of a stack, at their part of a board."""

    def __init__(self, makes: Sequence[Callable[[], Env]], frame_stack: int):
        self.players = [EpisodicGame(make(), frame_stack) for make in makes]
        self.specs: list[EnvSpec] = [player.spec for player in self.players]

    def sit(
        self, descriptor: int, games: int, stack_shape: tuple[int, ...], first: int, last: int
    ) -> None:
        self.board = SharedBuffer.in_file(descriptor, games, stack_shape).part(first, last)

    def look(self) -> None:
        """Show what to act on now."""
        for number, player in enumerate(self.players):
            self.board.stacks[number] = player.look()

    def ring(self) -> None:
        """One action in each game, as the board says."""
        board = self.board
        for number, (player, action) in enumerate(
            zip(self.players, board.actions.tolist(), strict=True)
        ):
            outcome = player.play(action)
            board.rewards[number], board.ended[number] = outcome.reward, outcome.ended
            board.over[number] = outcome.finished_return is not None
            board.finished_returns[number] = outcome.finished_return or 0.0
        self.look()

    def close(self) -> None:
        for player in self.players:
            player.close()

    def game_state(self, number: int) -> dict[str, Any]:
        return self.players[number].state_dict()

    def load_game_state(self, number: int, state: dict[str, Any]) -> bool:
        return self.players[number].load_state_dict(state)
