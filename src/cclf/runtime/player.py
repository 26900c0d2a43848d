"""A game as a run plays it. No torch here, so that it can live in a process of its own."""

from typing import Any, NamedTuple

import numpy as np

from cclf.types import EnvSpec, Game


class Played(NamedTuple):
    stack: np.ndarray  # (F, H, W)  what to act on next: where an episode ended, of the one that has begun
    reward: float
    ended: bool
    finished_return: float | None  # of the whole game, all its lives, unclipped; None while it goes on


class Player:
    """Begins the next episode as soon as one has ended."""

    def __init__(self, game: Game):
        self.game = game
        self.spec: EnvSpec = game.spec
        self.begun = False
        self.game_return = 0.0

    def look(self) -> np.ndarray:
        """What to act on now."""
        if not self.begun:
            self.game.reset()
            self.begun = True
        return self.game.stack

    def play(self, action: int) -> Played:
        step = self.game.step(action)
        self.game_return += self.game.raw_reward
        finished = None
        if self.game.game_over:
            finished, self.game_return = self.game_return, 0.0
        ended = step.terminated or step.truncated
        if ended:
            self.game.reset()
        return Played(self.game.stack, step.reward, ended, finished)

    def close(self) -> None:
        self.game.close()

    def state_dict(self) -> dict[str, Any]:
        return {"game": self.game.state_dict(), "begun": self.begun, "game_return": self.game_return}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.game.load_state_dict(state["game"])
        self.begun, self.game_return = state["begun"], state["game_return"]
