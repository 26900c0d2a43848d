"""A Gymnasium environment with continuous actions by its state: the numbers that it gives as its
observation, in one vector."""

from typing import Any

import numpy as np

from cclf.envs.episode_replay import EpisodeRecorder
from cclf.envs.gymnasium_checks import make_gymnasium
from cclf.envs.gymnasium_spaces import Controls, agent_step_limit, play_of_actions, refuse_no_state
from cclf.errors import ConfigError
from cclf.storage.safe_loading import check_data
from cclf.types import EnvSpec, EnvStep


class GymnasiumState:
    def __init__(self, env_id: str, action_repeat: int, seed: int):
        self._env = make_gymnasium(env_id, "state")
        if play_of_actions(env_id, self._env) != "continuous":
            raise ConfigError(
                f"{env_id} has actions {self._env.action_space}: with observe=state learned is a "
                "Box with finite bounds (by SAC)"
            )
        numbers = refuse_no_state(env_id, self._env)
        actions = int(np.prod(self._env.action_space.shape))
        self._frame: np.ndarray = np.zeros(numbers, np.float32)
        self._episodes = EpisodeRecorder(
            self._env,
            action_repeat,
            seed,
            np.zeros((0, actions), np.float32),
            Controls(self._env.action_space),
        )
        limit = agent_step_limit(self._env, action_repeat)
        self.spec = EnvSpec((numbers,), actions, action_repeat, limit)

    def reset(self, seed: int | None = None) -> np.ndarray:
        self._frame = self._episodes.begin(seed)
        return self._frame

    def step(self, action: np.ndarray) -> EnvStep:
        self._frame, reward, terminated, truncated = self._episodes.step(
            np.array(action, np.float32)
        )
        return EnvStep(self._frame, reward, terminated, truncated and not terminated)

    def picture(self) -> np.ndarray:
        return self._env.render()

    def close(self) -> None:
        self._env.close()

    def state_dict(self) -> dict[str, Any]:
        return self._episodes.state_dict() | {"frame": self._frame}

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Whether the episode is where it was; if not, it must be reset."""
        self._episodes.check(state, {"frame": self._frame})
        check_data(np.isfinite(state["actions"]).all(), "env: it holds actions that are no numbers")
        self._frame = np.array(state["frame"], np.float32)
        return self._episodes.restored(
            state, lambda observation: np.array_equal(observation, self._frame)
        )
