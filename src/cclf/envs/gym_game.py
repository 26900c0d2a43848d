"""A Gymnasium environment with discrete actions as a `Game`: grey frames, and a stack to act on.

Rewards are given as they are. An episode is a game; a time limit ends it as any other end does, as
the cap on a game's frames does on Atari.

Gymnasium cannot save an environment. So every episode begins with a seed of its own, and to save
is to write down that seed and the actions since: a loaded game plays them again. Where it then
shows another frame than it did (an environment that its seed does not decide), a new episode
begins.
"""

import sys
from typing import Any

import numpy as np

from cclf.data.from_disk import refuse_unless, refuse_unlike
from cclf.data.types import EnvSpec, EnvStep
from cclf.envs.gym import agent_step_limit, made, picture_of, play_of_actions, resized, shows_images
from cclf.errors import ConfigError

GREY = np.array([0.299, 0.587, 0.114], np.float32)  # of red, green, blue: ITU-R BT.601


class GymnasiumGame:
    def __init__(
        self, env_id: str, frame_pixels: int, frame_stack: int, action_repeat: int, seed: int
    ):
        self._id, self._env = env_id, made(env_id)
        if play_of_actions(env_id, self._env) != "discrete":
            raise ConfigError(
                f"{env_id} has actions {self._env.action_space}: Rainbow needs Discrete ones"
            )
        actions = self._env.action_space
        self._first_action = int(actions.start)
        self._shows, self._repeat = shows_images(self._env), action_repeat
        self._random = np.random.default_rng(seed)
        self._episode_seed, self._actions = 0, list[int]()
        self._playing = False  # whether an episode is under way
        self.stack = np.zeros((frame_stack, frame_pixels, frame_pixels), np.uint8)
        self.raw_reward, self.game_over = 0.0, False
        self.spec = EnvSpec(
            (1, frame_pixels, frame_pixels),
            1,
            action_repeat,
            agent_step_limit(self._env, action_repeat),
            num_actions=int(actions.n),
        )

    def reset(self, seed: int | None = None) -> np.ndarray:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._episode_seed, self._actions = int(self._random.integers(2**31)), []
        self._playing, self.game_over, self.raw_reward = True, False, 0.0
        observation, _ = self._env.reset(seed=self._episode_seed)
        self.stack = np.zeros_like(self.stack)
        return self._push(self._frame(observation))

    def step(self, action: int) -> EnvStep:
        observation, reward, terminated, truncated = self._act(int(action))
        self._actions.append(int(action))
        self.raw_reward, self.game_over = reward, terminated or truncated
        frame = self._push(self._frame(observation))
        return EnvStep(frame, reward, terminated, truncated and not terminated)

    def _act(self, action: int) -> tuple[Any, float, bool, bool]:
        reward = 0.0
        for _ in range(self._repeat):
            observation, step_reward, terminated, truncated, _ = self._env.step(
                self._first_action + action
            )
            reward += float(step_reward)
            if terminated or truncated:
                break
        return observation, reward, bool(terminated), bool(truncated)

    def picture(self) -> np.ndarray:
        return np.asarray(self._env.render(), dtype=np.uint8)

    def close(self) -> None:
        self._env.close()

    def state_dict(self) -> dict[str, Any]:
        return {
            "episode_seed": self._episode_seed,
            "actions": np.array(self._actions, np.int64),
            "playing": self._playing,
            "stack": self.stack,
            "raw_reward": self.raw_reward,
            "game_over": self.game_over,
            "random": self._random.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Whether the game is where it was; if not, it must be reset."""
        own = self.state_dict() | {"actions": np.zeros(0, np.int64)}
        refuse_unlike(own, state, "env of gym")
        actions = [int(action) for action in state["actions"]]
        refuse_unless(
            all(0 <= action < (self.spec.num_actions or 0) for action in actions),
            f"env: it holds actions that {self._id} does not have",
        )
        self._episode_seed, self._actions = state["episode_seed"], actions
        self._playing, self.game_over = state["playing"], state["game_over"]
        self.raw_reward, self.stack = state["raw_reward"], np.array(state["stack"], np.uint8)
        self._random.bit_generator.state = state["random"]
        return not self._playing or self._played_again()

    def _played_again(self) -> bool:
        observation, _ = self._env.reset(seed=self._episode_seed)
        over = False
        for action in self._actions:
            if over:
                break
            observation, _, terminated, truncated = self._act(action)
            over = terminated or truncated
        if over == self.game_over and np.array_equal(self._frame(observation), self.stack[-1]):
            return True
        print(
            f"cclf: warning: {self._id} cannot be brought back to where it was, since its seed "
            "does not decide all: a new episode begins",
            file=sys.stderr,
            flush=True,
        )
        return False

    def _push(self, frame: np.ndarray) -> np.ndarray:
        self.stack = np.concatenate((self.stack[1:], frame[None]))
        return frame[None]

    def _frame(self, observation: Any) -> np.ndarray:
        """(P, P), grey. A small picture is enlarged cell by cell: its edges stay sharp."""
        image = picture_of(observation if self._shows else self._env.render())
        grey = np.rint(image @ GREY).astype(np.uint8)
        pixels = self.spec.frame_shape[1]
        height, width = grey.shape
        frame: np.ndarray
        if max(height, width) > pixels:
            frame = resized(grey[None], pixels)[0]
        else:
            rows, columns = (np.arange(pixels) * side // pixels for side in (height, width))
            frame = grey[rows[:, None], columns]
        return frame
