"""MiniGrid tasks by the minigrid package, and its rendering."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import gymnasium
import minigrid  # noqa: F401 (registers its tasks with Gymnasium)
import numpy as np
from gymnasium import spaces
from gymnasium.utils.seeding import np_random
from minigrid.core.grid import Grid

from cclf.envs.minigrid import (
    check_actions,
    check_positive,
    check_same_worlds,
    check_seeds,
    check_started,
    spaced_seeds,
)
from cclf.envs.minigrid_rules import AGENT_VIEW_X, AGENT_VIEW_Y, Bytes
from cclf.types import StateDict, VectorStep

if TYPE_CHECKING:
    GridEnv: TypeAlias = gymnasium.Env[dict[str, Bytes], int]


class PackageMiniGrid:
    """N environments of one MiniGrid id, stepped one after the other by the minigrid package.

    The package cannot save its objects, so a state holds the random generator at the start of each
    episode and the actions since then. They are replayed when it is loaded, and must give the saved
    observation.
    """

    def __init__(self, env_id: str, num_envs: int, seed: int) -> None:
        check_positive("num_envs", num_envs)
        self.name, self.num_envs = env_id, num_envs
        try:
            self._envs: list[GridEnv] = [
                gymnasium.make(env_id, disable_env_checker=True) for _ in range(num_envs)
            ]
            self._envs[0].reset()  # only to see whether it can be; seeded below
        except FileNotFoundError as error:  # the patterns of WFC tasks are not in the package
            raise ValueError(
                f"the minigrid package cannot make {env_id}: {error}; choose another task"
            ) from error
        shape, self.num_actions, self.max_episode_steps = _package_spec(env_id, self._envs[0])
        self.observation_shape = shape
        self._actions_since_start: list[list[int]] = [[] for _ in range(num_envs)]
        self._generator_at_start: list[StateDict] = [{} for _ in range(num_envs)]
        self._observation = np.zeros((num_envs, *shape), dtype=np.uint8)
        self._started = False
        self._seed(spaced_seeds(seed, num_envs))

    def _seed(self, seeds: Sequence[int]) -> None:
        for env, seed in zip(self._envs, seeds, strict=True):
            env.unwrapped.np_random = np_random(seed)[0]

    def reset(self, seeds: Sequence[int] | None = None) -> Bytes:
        """Begin a new episode in each environment; `seeds` (one each) also restart the random
        streams, as in Gymnasium."""
        if seeds is not None:
            self._seed(check_seeds(seeds, self.num_envs))
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
        check_started(self._started)
        action = check_actions(actions, self.num_envs, self.num_actions)
        reward = np.zeros(self.num_envs, dtype=np.float32)
        terminated, truncated = np.zeros((2, self.num_envs), dtype=np.bool_)
        for index, chosen in enumerate(action.tolist()):
            observation, reward[index], terminated[index], truncated[index], _ = self._envs[
                index
            ].step(chosen)
            self._observation[index] = observation["image"]
            self._actions_since_start[index].append(chosen)
            if terminated[index] or truncated[index]:
                self._begin_episode(index)
        return VectorStep(self._observation.copy(), reward, terminated, truncated)

    def render(self, index: int, tile_pixels: int = 16) -> Bytes:
        """The whole grid with the agent and its field of view, (H, W, 3)."""
        check_started(self._started)
        world: Any = self._envs[index].unwrapped
        return np.asarray(world.get_frame(highlight=True, tile_size=tile_pixels), dtype=np.uint8)

    def render_observation(self, observation: Bytes) -> Bytes:
        return render_observation(observation)

    def state_dict(self) -> StateDict:
        generators = self._generator_at_start
        if not self._started:
            generators = [dict(env.unwrapped.np_random.bit_generator.state) for env in self._envs]
        return {
            "name": self.name,
            "num_envs": self.num_envs,
            "started": self._started,
            "generator": [dict(state) for state in generators],
            "actions_since_start": [list(actions) for actions in self._actions_since_start],
            "observation": self._observation.copy(),
        }

    def load_state_dict(self, state: StateDict) -> None:
        check_same_worlds(state, self.name, self.num_envs)
        self._started = state["started"]
        for index, env in enumerate(self._envs):
            env.unwrapped.np_random.bit_generator.state = state["generator"][index]
            if not self._started:
                continue  # seeded, but there is no episode to replay yet
            self._begin_episode(index)
            for action in state["actions_since_start"][index]:
                self._observation[index] = env.step(action)[0]["image"]
            self._actions_since_start[index] = list(state["actions_since_start"][index])
        if self._started and not np.array_equal(self._observation, state["observation"]):
            raise RuntimeError(
                f"resuming {self.name}: replaying the saved actions gave other observations than "
                "those saved; use the minigrid version that wrote the state, or start a new run"
            )

    def close(self) -> None:
        for env in self._envs:
            env.close()


def _package_spec(env_id: str, env: "GridEnv") -> tuple[tuple[int, int, int], int, int]:
    """(observation shape, number of actions, episode limit). A ValueError names what is missing."""
    space, actions = env.observation_space, env.action_space
    image = space.spaces.get("image") if isinstance(space, spaces.Dict) else None
    shape = image.shape if image is not None and image.dtype == np.uint8 else None
    if shape is None or len(shape) != 3 or shape[2] != 3:
        raise ValueError(
            f"{env_id} has no (H, W, 3) uint8 'image' observation, got {space}; choose a grid "
            "task such as FourRooms"
        )
    max_steps = getattr(env.unwrapped, "max_steps", None)
    if not isinstance(actions, spaces.Discrete) or max_steps is None:
        raise ValueError(
            f"{env_id} needs discrete actions and a max_steps attribute, got {actions} and "
            f"max_steps={max_steps}; choose a grid task such as FourRooms"
        )
    return (shape[0], shape[1], 3), int(actions.n), int(max_steps)


def render_observation(observation: Bytes, tile_pixels: int = 12) -> Bytes:
    """The view (7, 7, 3) of an agent as RGB (H, W, 3). The agent is in the middle of the lowest row
    and faces up."""
    grid, visible = Grid.decode(observation)
    return render_grid(grid, tile_pixels, (AGENT_VIEW_X, AGENT_VIEW_Y), 3, visible)


def render_encoded(
    encoding: Bytes, tile_pixels: int, agent_xy: tuple[int, int], heading: int, lit: np.ndarray
) -> Bytes:
    """A whole grid from the package's (object, color, state) of its cells [x, y]."""
    return render_grid(Grid.decode(encoding)[0], tile_pixels, agent_xy, heading, lit)


def render_grid(
    grid: Grid, tile_pixels: int, agent_xy: tuple[int, int], heading: int, lit: np.ndarray
) -> Bytes:
    image = grid.render(tile_pixels, agent_xy, heading, highlight_mask=lit)
    return np.asarray(image, dtype=np.uint8)


def package_ids() -> dict[str, str]:
    """Ids of Gymnasium by their names without "MiniGrid-" and "-v0"."""
    ids = [env_id for env_id in gymnasium.registry if env_id.startswith("MiniGrid-")]
    return {env_id.removeprefix("MiniGrid-").removesuffix("-v0"): env_id for env_id in ids}
