"""A trained agent as the policy of a Gymnasium loop: of one environment, and of several at once.

    python examples/act_in_gymnasium.py

A discrete action is an integer that `step` takes as it is. Continuous actions lie in [-1, 1]: wrap the
environment in `gymnasium.wrappers.RescaleAction(env, -1.0, 1.0)`, several of them in
`gymnasium.wrappers.vector.RescaleAction`.
"""

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

import cclf
from cclf.trained_agent import TrainedAgent


def make_several(env_id: str, num_envs: int) -> VectorEnv:
    same_step = {"autoreset_mode": AutoresetMode.SAME_STEP}
    return gymnasium.make_vec(env_id, num_envs, "sync", vector_kwargs=same_step)


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
    """The sum of rewards in each environment. A row of `observations` is one environment."""
    observations, _ = envs.reset(seed=seed)
    agent.reset()
    totals = np.zeros(envs.num_envs)
    for _ in range(steps):
        observations, rewards, terminated, truncated, _ = envs.step(agent.act(observations))
        agent.reset(terminated | truncated)  # rows whose observation begins a new episode
        totals += rewards
    return totals


if __name__ == "__main__":
    agent = cclf.load("pretrained/CartPole-v1")
    print(play_one(agent, gymnasium.make("CartPole-v1"), seed=0))
    envs = make_several("CartPole-v1", 4)
    print(play_several(agent, envs, steps=500, seed=0))
