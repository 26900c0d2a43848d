import gymnasium
from gymnasium.wrappers import AddRenderObservation


def pendulum() -> gymnasium.Env:
    """Pendulum with short episodes. Its observation is a Dict of `state` and `pixels`."""
    env = gymnasium.make("Pendulum-v1", render_mode="rgb_array", max_episode_steps=50)
    return AddRenderObservation(env, render_only=False)
