"""A Gymnasium environment with continuous actions by its state: the numbers that it gives as its
observation, in one vector."""

from typing import Any

import numpy as np

from cclf.data.from_disk import refuse_unless
from cclf.data.types import EnvSpec, EnvStep
from cclf.envs.gym import (
    agent_step_limit,
    control_of,
    made,
    play_of_actions,
    rendered,
    shows_images,
)
from cclf.envs.gym_episode import Episodes
from cclf.errors import ConfigError


class GymnasiumState:
    def __init__(self, env_id: str, action_repeat: int, seed: int):
        self._id, self._env = env_id, made(env_id)
        if play_of_actions(env_id, self._env) != "continuous":
            raise ConfigError(
                f"{env_id} has actions {self._env.action_space}: with observe=state learned is a "
                "Box with finite bounds (by SAC)"
            )
        numbers = state_dim(self._env)
        if not numbers:
            raise ConfigError(
                f"{env_id} gives {self._env.observation_space}, which is no state: leave "
                "observe=state out"
            )
        actions = int(np.prod(self._env.action_space.shape))
        self._frame: np.ndarray = np.zeros(numbers, np.float32)
        self._episodes = Episodes(
            env_id,
            self._env,
            action_repeat,
            seed,
            np.zeros((0, actions), np.float32),
            lambda action: control_of(self._env.action_space, action),
        )
        limit = agent_step_limit(self._env, action_repeat)
        self.spec = EnvSpec((numbers,), actions, action_repeat, limit)

    def reset(self, seed: int | None = None) -> np.ndarray:
        self._frame = self._vector(self._episodes.begin(seed))
        return self._frame

    def step(self, action: np.ndarray) -> EnvStep:
        observation, reward, terminated, truncated = self._episodes.step(
            np.array(action, np.float32)
        )
        self._frame = self._vector(observation)
        return EnvStep(self._frame, reward, terminated, truncated and not terminated)

    def picture(self) -> np.ndarray:
        return rendered(self._id, self._env)

    def close(self) -> None:
        self._env.close()

    def state_dict(self) -> dict[str, Any]:
        return self._episodes.state_dict() | {"frame": self._frame}

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Whether the episode is where it was; if not, it must be reset."""
        self._episodes.check(state, {"frame": self._frame})
        refuse_unless(
            np.isfinite(state["actions"]).all(), "env: it holds actions that are no numbers"
        )
        self._frame = np.array(state["frame"], np.float32)
        return self._episodes.restored(
            state, lambda observation: np.array_equal(self._vector(observation), self._frame)
        )

    def _vector(self, observation: Any) -> np.ndarray:
        from gymnasium import spaces

        flat = spaces.flatten(self._env.observation_space, observation)
        return np.array(flat, np.float32).reshape(-1)


def state_dim(env: Any) -> int:
    """Numbers in one observation; 0 where it is an image, or cannot be one vector of one length."""
    from gymnasium import spaces

    space = env.observation_space
    if shows_images(env) or not space.is_np_flattenable:
        return 0
    return int(spaces.flatdim(space))
