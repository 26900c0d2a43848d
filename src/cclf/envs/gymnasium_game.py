"""A Gymnasium environment with discrete actions as a `Game`: grey frames, and a stack to act on.

Rewards are given as they are. An episode is a game; a time limit ends it as any other end does, as
the cap on a game's frames does on Atari.

Gymnasium cannot save an environment. So every episode begins with a seed of its own, and to save
is to write down that seed and the actions since: a loaded game plays them again. Where it then
shows another frame than it did (an environment that its seed does not decide), a new episode
begins.
"""

from typing import Any

import numpy as np

from cclf.envs.episode_replay import EpisodeRecorder
from cclf.envs.gymnasium_checks import make_gymnasium
from cclf.envs.gymnasium_env import resize, to_rgb
from cclf.envs.gymnasium_spaces import agent_step_limit, has_image_observations, play_of_actions
from cclf.errors import ConfigError
from cclf.storage.safe_loading import check_data
from cclf.types import EnvSpec, EnvStep

GREY = np.array([0.299, 0.587, 0.114], np.float32)  # of red, green, blue: ITU-R BT.601


class GymnasiumGame:
    def __init__(
        self, env_id: str, frame_pixels: int, frame_stack: int, action_repeat: int, seed: int
    ):
        self._env = make_gymnasium(env_id)
        if play_of_actions(env_id, self._env) != "discrete":
            raise ConfigError(
                f"{env_id} has actions {self._env.action_space}: Rainbow needs Discrete ones"
            )
        actions = self._env.action_space
        first_action, none = int(actions.start), np.zeros(0, np.int64)
        self._shows = has_image_observations(self._env)
        self._episodes = EpisodeRecorder(
            self._env, action_repeat, seed, none, lambda action: first_action + int(action)
        )
        self.stack = np.zeros((frame_stack, frame_pixels, frame_pixels), np.uint8)
        self.raw_reward = 0.0
        self.spec = EnvSpec(
            (1, frame_pixels, frame_pixels),
            1,
            action_repeat,
            agent_step_limit(self._env, action_repeat),
            num_actions=int(actions.n),
        )

    @property
    def game_over(self) -> bool:
        return self._episodes.over

    def reset(self, seed: int | None = None) -> np.ndarray:
        observation, self.raw_reward = self._episodes.begin(seed), 0.0
        self.stack = np.zeros_like(self.stack)
        return self._push(self._frame(observation))

    def step(self, action: int) -> EnvStep:
        observation, reward, terminated, truncated = self._episodes.step(int(action))
        self.raw_reward = reward
        frame = self._push(self._frame(observation))
        return EnvStep(frame, reward, terminated, truncated and not terminated)

    def picture(self) -> np.ndarray:
        return self._env.render()

    def close(self) -> None:
        self._env.close()

    def state_dict(self) -> dict[str, Any]:
        return self._episodes.state_dict() | {"stack": self.stack, "raw_reward": self.raw_reward}

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Whether the game is where it was; if not, it must be reset."""
        own = {"stack": self.stack, "raw_reward": self.raw_reward}
        self._episodes.check(state, own)
        check_data(
            all(0 <= action < (self.spec.num_actions or 0) for action in state["actions"]),
            f"env: it holds actions that {self._env.id} does not have",
        )
        self.raw_reward, self.stack = state["raw_reward"], np.array(state["stack"], np.uint8)
        return self._episodes.restored(
            state, lambda observation: np.array_equal(self._frame(observation), self.stack[-1])
        )

    def _push(self, frame: np.ndarray) -> np.ndarray:
        self.stack = np.concatenate((self.stack[1:], frame[None]))
        return frame[None]

    def _frame(self, observation: Any) -> np.ndarray:
        """(P, P), grey. A small picture is enlarged cell by cell: its edges stay sharp."""
        image = to_rgb(observation if self._shows else self._env.render())
        grey = np.rint(image @ GREY).astype(np.uint8)
        pixels = self.spec.frame_shape[1]
        height, width = grey.shape
        frame: np.ndarray
        if max(height, width) > pixels:
            frame = resize(grey[None], pixels)[0]
        else:
            rows, columns = (np.arange(pixels) * side // pixels for side in (height, width))
            frame = grey[rows[:, None], columns]
        return frame
