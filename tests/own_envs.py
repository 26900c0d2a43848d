"""Gymnasium environments of a user, in a module that a run can import: `gym/own_envs:FUNCTION`."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple

IMAGE = Box(0, 255, (12, 12, 3), np.uint8)
NUMBERS = Box(-10.0, 10.0, (3,), np.float32)


class Countdown(gymnasium.Env):
    """Observations are sampled from their space with a seed of the episode and the step."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012

    def __init__(self, observation_space, action_space=None):
        self.render_mode = "rgb_array"
        self.observation_space = observation_space
        self.action_space = action_space or Box(-1.0, 1.0, (1,), np.float32)

    def _observation(self):
        self.observation_space.seed(self.first + self.steps)
        return self.observation_space.sample()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        del options
        self.first, self.steps = int(self.np_random.integers(1000)), 0
        return self._observation(), {}

    def step(self, action):
        del action
        self.steps += 1
        return self._observation(), 1.0, self.steps == 7, False, {}

    def render(self):
        return np.full((12, 12, 3), self.steps, np.uint8)


def numbers():
    return Countdown(NUMBERS)


def image():
    return Countdown(IMAGE)


def image_and_numbers():
    return Countdown(Dict({"camera": IMAGE, "joints": NUMBERS}))


def parts():
    return Countdown(Tuple([IMAGE, NUMBERS]))


def buttons():
    return Countdown(NUMBERS, MultiDiscrete([3, 2]))


def game():
    return Countdown(IMAGE, Discrete(3))


class Maker:
    """A class without arguments, and a static function of one."""

    @staticmethod
    def make():
        return Countdown(NUMBERS)


class Registered(Countdown):
    def __init__(self, render_mode=None):  # noqa: ARG002
        super().__init__(NUMBERS)


gymnasium.register("Registered-v0", entry_point=Registered)
_SHARED = Countdown(NUMBERS)


def shared():
    return _SHARED


def nothing():
    return None
