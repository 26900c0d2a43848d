import gymnasium
import numpy as np
from gymnasium.envs.classic_control import PendulumEnv


class ThreeTorques(gymnasium.ActionWrapper):
    """Actions: left, none, right."""

    def __init__(self, env):
        super().__init__(env)
        self.action_space = gymnasium.spaces.Discrete(3)

    def action(self, chosen):
        return np.array([2.0 * (chosen - 1)], np.float32)


gymnasium.register(
    "ThreeTorques-v0",
    entry_point=PendulumEnv,
    max_episode_steps=200,
    additional_wrappers=(ThreeTorques.wrapper_spec(),),
)
