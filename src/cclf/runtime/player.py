"""Games as runs play them, several as one. No torch here, so that they can live in a process of their own."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from cclf.from_disk import refuse_unlike
from cclf.types import EnvSpec, Game


class Played(NamedTuple):
    """What came of one action in each of n games."""

    frames: np.ndarray  # (n, H, W) uint8  the newest of the stack to act on next; the others are known
    begun: dict[int, np.ndarray]  # (F, H, W)  where an episode ended, the whole stack to begin the next one with
    rewards: np.ndarray  # (n,)
    ended: np.ndarray  # (n,) bool
    finished_returns: list[float | None]  # of whole games, all their lives, unclipped; None where a game goes on


class Players:
    """Begins the next episode of a game as soon as one has ended."""

    def __init__(self, makes: Sequence[Callable[[], Game]]):
        self.games = [make() for make in makes]
        self.specs: list[EnvSpec] = [game.spec for game in self.games]
        self.begun = [False] * len(makes)
        self.returns = [0.0] * len(makes)

    def look(self) -> np.ndarray:
        """What to act on now, (n, F, H, W)."""
        for number, game in enumerate(self.games):
            if not self.begun[number]:
                game.reset()
                self.begun[number] = True
        return np.stack([game.stack for game in self.games])

    def play(self, actions: Sequence[int]) -> Played:
        rewards, ended = np.zeros(len(actions)), np.zeros(len(actions), dtype=bool)
        finished: list[float | None] = [None] * len(actions)
        for number, (game, action) in enumerate(zip(self.games, actions, strict=True)):
            step = game.step(action)
            rewards[number], ended[number] = step.reward, step.terminated or step.truncated
            self.returns[number] += game.raw_reward
            if game.game_over:
                finished[number], self.returns[number] = self.returns[number], 0.0
            if ended[number]:
                game.reset()
        begun = {number: self.games[number].stack for number in ended.nonzero()[0].tolist()}
        return Played(np.stack([game.stack[-1] for game in self.games]), begun, rewards, ended, finished)

    def close(self) -> None:
        for game in self.games:
            game.close()

    def game_state(self, number: int) -> dict[str, Any]:
        state = {"game": self.games[number].state_dict(), "begun": self.begun[number]}
        return state | {"game_return": self.returns[number]}

    def load_game_state(self, number: int, state: dict[str, Any]) -> None:
        own = {name: value for name, value in self.game_state(number).items() if name != "game"}
        refuse_unlike(own | {"game": None}, state, "env of games")
        self.games[number].load_state_dict(state["game"])
        self.begun[number], self.returns[number] = state["begun"], state["game_return"]
