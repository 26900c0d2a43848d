"""A trained agent as the policy of a Gymnasium loop: of one environment, and of several at once.

    python examples/act_in_gymnasium.py

Continuous actions are in [-1, 1], so the environments are wrapped. A discrete action is an integer, which
`step` takes as it is.
"""

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

import cclf
from cclf.trained_agent import TrainedAgent


def make_one() -> gymnasium.Env:
    return gymnasium.wrappers.RescaleAction(gymnasium.make("Pendulum-v1"), -1.0, 1.0)


def make_several(num_envs: int) -> VectorEnv:
    same_step = {"autoreset_mode": AutoresetMode.SAME_STEP}
    envs = gymnasium.make_vec("Pendulum-v1", num_envs, vector_kwargs=same_step)
    return gymnasium.wrappers.vector.RescaleAction(envs, -1.0, 1.0)


def play_one(agent: TrainedAgent, env: gymnasium.Env, seed: int) -> float:
    """The return of one episode."""
    observation, _ = env.reset(seed=seed)
    agent.reset()  # a new episode
    total, ended = 0.0, False
    while not ended:
        observation, reward, terminated, truncated, _ = env.step(agent.act(observation))
        total, ended = total + float(reward), terminated or truncated
    return total


def play_several(agent: TrainedAgent, envs: VectorEnv, steps: int, seed: int) -> np.ndarray:
    """The sum of rewards in each environment, which is a row of `observations`."""
    observations, _ = envs.reset(seed=seed)
    agent.reset()
    totals = np.zeros(envs.num_envs)
    for _ in range(steps):
        observations, rewards, terminated, truncated, _ = envs.step(agent.act(observations))
        agent.reset(terminated | truncated)  # rows in which an episode begins
        totals += rewards
    return totals


if __name__ == "__main__":
    agent = cclf.load("pretrained/Pendulum-v1")
    print("one episode:", play_one(agent, make_one(), seed=0))
    print("four environments:", play_several(agent, make_several(4), steps=200, seed=0))
