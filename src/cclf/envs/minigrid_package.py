"""MiniGrid tasks that are stepped by the minigrid package, and the package's rendering."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import minigrid  # noqa: F401 (registers its tasks with Gymnasium)
import numpy as np
from gymnasium.utils.seeding import np_random
from minigrid.core.grid import Grid

from cclf.envs.minigrid import (
    check_same_envs,
    short_name,
    spaced_seeds,
    to_integers,
)
from cclf.envs.minigrid_rules import AGENT_VIEW_X, AGENT_VIEW_Y, Bytes
from cclf.errors import ConfigError
from cclf.types import StateDict, VectorStep


class PackageMiniGrid:
    """N environments of one MiniGrid id, stepped one after the other by the minigrid package.

    The package cannot save its objects, so a state holds the random generator at the start of each
    episode and the actions since then. When the state is loaded, the actions are replayed and must
    lead to the saved observation.
    """

    def __init__(self, env_id: str, num_envs: int, seed: int) -> None:
        self.name, self.num_envs = env_id, num_envs
        try:
            self._envs: list[gymnasium.Env[Any, Any]] = [
                gymnasium.make(env_id, disable_env_checker=True) for _ in range(num_envs)
            ]
            observation, _ = self._envs[0].reset()  # seeded below
        except FileNotFoundError as error:  # WFC tasks need files that the package lacks
            raise ConfigError(
                f"the minigrid package cannot make {env_id}: {error}; choose another task"
            ) from error
        self.observation_shape: tuple[int, int, int] = observation["image"].shape
        actions = self._envs[0].action_space
        assert isinstance(actions, gymnasium.spaces.Discrete), f"{env_id} has actions {actions}"
        self.num_actions = int(actions.n)
        self._actions_since_start: list[list[int]] = [[] for _ in range(num_envs)]
        self._generator_at_start: list[StateDict] = [{} for _ in range(num_envs)]
        self._observation = np.zeros((num_envs, *self.observation_shape), dtype=np.uint8)
        self._started = False
        self._seed(spaced_seeds(seed, num_envs))

    def _seed(self, seeds: Sequence[int]) -> None:
        for index, (env, seed) in enumerate(zip(self._envs, seeds, strict=True)):
            env.unwrapped.np_random = np_random(seed)[0]
            self._generator_at_start[index] = dict(env.unwrapped.np_random.bit_generator.state)

    def reset(self, seeds: Sequence[int] | None = None) -> Bytes:
        """Begin a new episode in each environment; `seeds` (one each) also restart the random
        streams, as in Gymnasium."""
        if seeds is not None:
            self._seed(seeds)
        for index in range(self.num_envs):
            self._begin_episode(index)
        self._started = True
        return self._observation.copy()

    def _begin_episode(self, index: int) -> None:
        env = self._envs[index]
        self._generator_at_start[index] = dict(env.unwrapped.np_random.bit_generator.state)
        self._actions_since_start[index] = []
        self._observation[index] = env.reset()[0]["image"]

    def step(self, actions: np.ndarray) -> VectorStep:
        reward = np.zeros(self.num_envs, dtype=np.float32)
        terminated, truncated = np.zeros((2, self.num_envs), dtype=np.bool_)
        chosen_actions = to_integers(actions).tolist()
        for index, (env, chosen) in enumerate(zip(self._envs, chosen_actions, strict=True)):
            observation, reward[index], terminated[index], truncated[index], _ = env.step(chosen)
            self._observation[index] = observation["image"]
            self._actions_since_start[index].append(chosen)
            if terminated[index] or truncated[index]:
                self._begin_episode(index)
        return VectorStep(self._observation.copy(), reward, terminated, truncated)

    def render(self, index: int, tile_pixels: int = 16) -> Bytes:
        """The whole grid with the agent and its field of view, (H, W, 3)."""
        env: Any = self._envs[index].unwrapped
        return np.asarray(env.get_frame(highlight=True, tile_size=tile_pixels), dtype=np.uint8)

    def render_observation(self, observation: Bytes) -> Bytes:
        return render_observation(observation)

    def state_dict(self) -> StateDict:
        return {
            "name": self.name,
            "num_envs": self.num_envs,
            "started": self._started,
            "generator": [dict(state) for state in self._generator_at_start],
            "actions_since_start": [list(actions) for actions in self._actions_since_start],
            "observation": self._observation.copy(),
        }

    def load_state_dict(self, state: StateDict) -> None:
        check_same_envs(self, state)
        self._started = state["started"]
        for index, env in enumerate(self._envs):
            env.unwrapped.np_random.bit_generator.state = state["generator"][index]
            self._generator_at_start[index] = dict(state["generator"][index])
            if not self._started:
                continue  # there is no episode to replay yet
            self._begin_episode(index)
            for action in state["actions_since_start"][index]:
                self._observation[index] = env.step(action)[0]["image"]
            self._actions_since_start[index] = list(state["actions_since_start"][index])
        if self._started and not np.array_equal(self._observation, state["observation"]):
            raise RuntimeError(
                f"resuming {self.name}: the saved actions gave other observations than those saved; "
                "use the minigrid version that wrote the state, or start a new run"
            )

    def close(self) -> None:
        for env in self._envs:
            env.close()


def render_observation(observation: Bytes, tile_pixels: int = 12) -> Bytes:
    """The view (7, 7, 3) of an agent as RGB (H, W, 3). The agent is in the middle of the lowest row
    and faces up."""
    return render_grid(observation, tile_pixels, (AGENT_VIEW_X, AGENT_VIEW_Y), 3)


def render_grid(
    encoding: Bytes,
    tile_pixels: int,
    agent_xy: tuple[int, int],
    heading: int,
    highlight: np.ndarray | None = None,
) -> Bytes:
    """A grid as RGB (H, W, 3), from the package's (object, color, state) of its cells [x, y].
    The cells that `highlight` [x, y] marks are highlighted, by default all that are not unseen."""
    grid, visible = Grid.decode(encoding)
    mask = visible if highlight is None else highlight
    image = grid.render(tile_pixels, agent_xy, heading, highlight_mask=mask)
    return np.asarray(image, dtype=np.uint8)


def package_ids() -> dict[str, str]:
    """Gymnasium's ids of MiniGrid environments, by their names without "MiniGrid-" and "-v0"."""
    ids = [env_id for env_id in gymnasium.registry if env_id.startswith("MiniGrid-")]
    return {short_name(env_id): env_id for env_id in ids}
