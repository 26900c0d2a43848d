"""The seed and actions of an episode, from which it can be repeated. Gymnasium cannot save an
environment, so a resumed run resets it with this seed and repeats the actions."""

import numpy as np

from cclf.types import Action, StateDict


class EpisodeRecorder:
    """The seed and the actions of the present episode. Each episode has a seed of its own."""

    def __init__(self, seed: int, action_shape: tuple[int, ...], dtype: type):
        self._random = np.random.default_rng(seed)
        self.no_actions: np.ndarray = np.zeros((0, *action_shape), dtype)
        self.episode_seed, self.actions = 0, list[np.ndarray]()
        self.started, self.over = False, False

    def begin(self, seed: int | None) -> int:
        """Begin an episode and return its seed. `seed` restarts the stream of episode seeds."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self.episode_seed, self.actions = int(self._random.integers(2**31)), []
        self.started, self.over = True, False
        return self.episode_seed

    def add(self, action: Action, over: bool) -> None:
        self.actions.append(action)
        self.over = over

    def state_dict(self) -> StateDict:
        actions = np.array(self.actions, self.no_actions.dtype)
        return {
            "episode_seed": self.episode_seed,
            "actions": actions.reshape(-1, *self.no_actions.shape[1:]),
            "playing": self.started,
            "game_over": self.over,
            "random": self._random.bit_generator.state,
        }

    def load_state_dict(self, state: StateDict) -> None:
        self.episode_seed, self.actions = state["episode_seed"], list(state["actions"])
        self.started, self.over = state["playing"], state["game_over"]
        self._random.bit_generator.state = state["random"]
