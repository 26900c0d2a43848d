"""Episodes of a Gymnasium environment that can be played again: each has a seed of its own, and the
actions since are kept. This is how a stopped run goes on exactly."""

from collections.abc import Callable
from typing import Any

import numpy as np

from cclf.console import warn
from cclf.envs.gymnasium_checks import CheckedEnv, EpisodeStep
from cclf.storage.safe_loading import check_same_structure


class EpisodeRecorder:
    def __init__(
        self,
        env: CheckedEnv,
        action_repeat: int,
        seed: int,
        no_actions: np.ndarray,
        control_of: Callable[[Any], Any],
    ):
        """`no_actions` has no row and the shape and type of those that will be; `control_of` makes
        of an action what the environment takes."""
        self._env, self._repeat = env, action_repeat
        self._random = np.random.default_rng(seed)
        self._no_actions, self._control_of = no_actions, control_of
        self._episode_seed, self._actions = 0, list[Any]()
        self._playing = False  # whether an episode was begun
        self.over = False

    def begin(self, seed: int | None) -> Any:
        """The first observation; `seed` begins the stream of the episodes' seeds anew."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._episode_seed, self._actions = int(self._random.integers(2**31)), []
        self._playing, self.over = True, False
        return self._env.reset(self._episode_seed)

    def step(self, action: Any) -> EpisodeStep:
        outcome = self._env.repeat(self._control_of(action), self._repeat)
        self._actions.append(action)
        self.over = outcome.terminated or outcome.truncated
        return outcome

    def state_dict(self) -> dict[str, Any]:
        actions = np.array(self._actions, self._no_actions.dtype)
        return {
            "episode_seed": self._episode_seed,
            "actions": actions.reshape(-1, *self._no_actions.shape[1:]),
            "playing": self._playing,
            "game_over": self.over,
            "random": self._random.bit_generator.state,
        }

    def check(self, state: dict[str, Any], of_owner: dict[str, Any]) -> None:
        """Refuse what is no state of these episodes together with what their owner adds."""
        own = self.state_dict() | of_owner | {"actions": self._no_actions}
        check_same_structure(own, state, "env of gym")

    def restored(self, state: dict[str, Any], is_last: Callable[[Any], bool]) -> bool:
        """Whether the environment is where it was once the episode of a checked `state` was played
        again: the same end, and an observation that `is_last`. If not, a line says so, and it must
        be reset."""
        self._episode_seed, self._actions = state["episode_seed"], list(state["actions"])
        self._playing, self.over = state["playing"], state["game_over"]
        self._random.bit_generator.state = state["random"]
        return not self._playing or self._replay_actions(is_last)

    def _replay_actions(self, is_last: Callable[[Any], bool]) -> bool:
        observation = self._env.reset(self._episode_seed)
        over = False
        for action in self._actions:
            if over:
                break
            observation, _, terminated, truncated = self._env.repeat(
                self._control_of(action), self._repeat
            )
            over = terminated or truncated
        if over == self.over and is_last(observation):
            return True
        warn(
            f"{self._env.id} cannot be brought back to where it was, since its seed "
            "does not decide all: a new episode begins"
        )
        return False
