"""Games as runs play them. No torch here, so that they can live in a process of their own."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from cclf.data.from_disk import refuse_unlike
from cclf.data.types import EnvSpec, Game


class Outcome(NamedTuple):
    """What came of one action in a game."""

    reward: float
    ended: bool  # the episode; the next one has begun
    # of a whole game, all its lives, unclipped; None where it goes on
    finished_return: float | None


class Player:
    """One game, whose next episode begins as soon as one has ended."""

    def __init__(self, game: Game):
        self.game, self.spec = game, game.spec
        self.begun = False
        self.game_return = 0.0

    def look(self) -> np.ndarray:
        """What to act on now, (F, H, W)."""
        if not self.begun:
            self.game.reset()
            self.begun = True
        return self.game.stack

    def play(self, action: int) -> Outcome:
        step, finished = self.game.step(action), None
        self.game_return += self.game.raw_reward
        if self.game.game_over:
            finished, self.game_return = self.game_return, 0.0
        ended = step.terminated or step.truncated
        if ended:
            self.game.reset()
        return Outcome(step.reward, ended, finished)

    def close(self) -> None:
        self.game.close()

    def state_dict(self) -> dict[str, Any]:
        return {"game": self.game.state_dict()} | self._progress()

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Whether the episode goes on: a game that cannot be brought back begins a new one."""
        refuse_unlike(self._progress() | {"game": None}, state, "env of games")
        lost = self.game.load_state_dict(state["game"]) is False
        self.begun = state["begun"] and not lost
        self.game_return = 0.0 if lost else state["game_return"]
        return self.begun

    def _progress(self) -> dict[str, Any]:
        return {"begun": self.begun, "game_return": self.game_return}


class Played(NamedTuple):
    """What came of one action in each of n games."""

    # (n, H, W) uint8  the newest of the stack to act on next; the others are known
    frames: np.ndarray
    # (F, H, W)  where an episode ended, the whole stack to begin the next one with
    begun: dict[int, np.ndarray]
    rewards: np.ndarray  # (n,)
    ended: np.ndarray  # (n,) bool
    finished_returns: list[float | None]  # of each game


class Players:
    """Several games, of runs of a stack."""

    def __init__(self, makes: Sequence[Callable[[], Game]]):
        self.players = [Player(make()) for make in makes]
        self.specs: list[EnvSpec] = [player.spec for player in self.players]

    def look(self) -> np.ndarray:
        """What to act on now, (n, F, H, W)."""
        return np.stack([player.look() for player in self.players])

    def play(self, actions: Sequence[int]) -> Played:
        outcomes = [
            player.play(action) for player, action in zip(self.players, actions, strict=True)
        ]
        rewards, ended, finished = zip(*outcomes, strict=True)
        stacks = [player.look() for player in self.players]
        begun = {number: stack for number, stack in enumerate(stacks) if ended[number]}
        frames = np.stack([stack[-1] for stack in stacks])
        return Played(
            frames, begun, np.array(rewards, float), np.array(ended, bool), list(finished)
        )

    def close(self) -> None:
        for player in self.players:
            player.close()

    def game_state(self, number: int) -> dict[str, Any]:
        return self.players[number].state_dict()

    def load_game_state(self, number: int, state: dict[str, Any]) -> bool:
        return self.players[number].load_state_dict(state)
