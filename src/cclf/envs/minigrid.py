"""MiniGrid tasks as vectorized environments.

`VectorMiniGrid` steps all environments of Empty-NxN and DoorKey-NxN together in numpy. It has the
rules and the random stream of the minigrid package: environment i with seed s has the layouts that
the package generates from s, episode after episode. All other MiniGrid tasks are stepped by the
package (`cclf.envs.minigrid_package`).
"""

from collections.abc import Sequence
from types import ModuleType

import numpy as np
from numpy.typing import ArrayLike

from cclf.envs.minigrid_rules import (
    AGENT_VIEW_X,
    AGENT_VIEW_Y,
    BATCHED_NAME,
    CARRIED,
    CODES,
    EMPTY,
    ENCODING,
    FAMILIES,
    GOAL,
    HEADING_XY,
    NUM_ACTIONS,
    PADDING,
    POSES,
    UNSEEN,
    VIEW,
    WALL,
    Bytes,
    IntegerGenerator,
    Ints,
    mask_occluded,
    rules,
    view_offsets,
)
from cclf.envs.registry import unknown_task
from cclf.errors import ConfigError, require_extras
from cclf.storage.safe_loading import check_data, check_same_structure
from cclf.types import StateDict, VectorEnv, VectorStep

# Environment i gets seed + 10,000 i, as in the published code of A2C and RE3.
SEED_STRIDE = 10_000


class VectorMiniGrid:
    """N independent Empty-NxN or DoorKey-NxN environments. Every returned array is new."""

    observation_shape = (VIEW, VIEW, 3)
    num_actions = NUM_ACTIONS

    def __init__(
        self, name: str, num_envs: int, seed: int, max_episode_steps: int | None = None
    ) -> None:
        match = BATCHED_NAME.fullmatch(name)
        assert match is not None, f"{name} is not Empty-NxN or DoorKey-NxN"
        family, size = FAMILIES[match[1]], int(match[2])
        if size < family.min_size:
            raise ConfigError(
                f"minigrid/{name} is too small: {match[1]} needs {family.min_size}x{family.min_size} "
                "or more"
            )
        if max_episode_steps is None:
            max_episode_steps = family.episode_steps_per_cell * size**2
        self.name, self.num_envs, self.max_episode_steps = name, num_envs, max_episode_steps
        self._generate, self._see_through_walls = family.generate, family.see_through_walls
        self._streams = [IntegerGenerator(each) for each in spaced_seeds(seed, num_envs)]
        self._started = False

        # Cell codes are int64, the type of an index, so that they index tables without conversion.
        stride = size + 2 * PADDING
        self._cells = np.full(num_envs * stride**2, WALL, dtype=np.int64)
        self._grids = self._cells.reshape(num_envs, stride, stride)[
            :, PADDING:-PADDING, PADDING:-PADDING
        ]
        self._empty_grid = np.full((size, size), WALL, dtype=np.int64)
        self._empty_grid[1:-1, 1:-1] = EMPTY
        self._empty_grid[-2, -2] = GOAL

        self._position = np.zeros(num_envs, dtype=np.int64)  # of the agent, an index of _cells
        self._pose = np.zeros(num_envs, dtype=np.int64)
        self._episode_steps = np.zeros(num_envs, dtype=np.int64)

        self._stride = stride
        # From the cell of the agent to that in front of it, by pose (4 without, 4 with a key).
        self._front_offset = np.array(
            [dx + dy * stride for dx, dy in HEADING_XY] * 2, dtype=np.int64
        )
        self._advance = (
            rules().advances.reshape(NUM_ACTIONS, POSES, CODES) * self._front_offset[:, None]
        ).ravel()
        self._view_offsets = view_offsets(stride)
        steps = np.arange(self.max_episode_steps + 1)
        self._goal_reward = (1 - 0.9 * (steps / self.max_episode_steps)).astype(np.float32)

    def reset(self, seeds: Sequence[int] | None = None) -> Bytes:
        """Begin a new episode in each environment; `seeds` (one each) also restart the random
        streams, as in Gymnasium."""
        if seeds is not None:
            self._streams = [IntegerGenerator(seed) for seed in seeds]
        for index in range(self.num_envs):
            self._begin_episode(index)
        self._started = True
        return self._observe()

    def step(self, actions: ArrayLike) -> VectorStep:
        action = to_integers(actions)
        table = rules()
        front = self._position + self._front_offset[self._pose]
        rule = (action * POSES + self._pose) * CODES + self._cells[front]
        self._cells[front] = table.next_front[rule]
        self._position += self._advance[rule]
        self._pose = table.next_pose[rule]
        self._episode_steps += 1

        terminated = table.reaches_goal[rule]
        truncated = self._episode_steps >= self.max_episode_steps
        reward = self._goal_reward[self._episode_steps] * terminated
        ended = terminated | truncated
        if np.count_nonzero(ended):
            for index in np.flatnonzero(ended).tolist():
                self._begin_episode(index)
        return VectorStep(self._observe(), reward, terminated, truncated)

    def _begin_episode(self, index: int) -> None:
        grid = self._grids[index]
        grid[...] = self._empty_grid
        x, y, self._pose[index] = self._generate(grid, self._streams[index].integer)
        row = index * self._stride + y + PADDING
        self._position[index] = row * self._stride + x + PADDING
        self._episode_steps[index] = 0

    def _observe(self) -> Bytes:
        return ENCODING.take(self._view()[1], axis=0)

    def _view(self) -> tuple[Ints, Ints]:
        """Indices of _cells and visible codes of the view cells, both (N, x, y)."""
        cells = self._view_offsets.take(self._pose, axis=0)
        cells += self._position[:, None, None]
        codes = self._cells.take(cells)
        # In its own cell the agent sees the object that it carries, or an empty cell, which do not
        # block its view.
        codes[:, AGENT_VIEW_X, AGENT_VIEW_Y] = CARRIED[self._pose]
        if not self._see_through_walls:
            mask_occluded(codes)
        return cells, codes

    def render(self, index: int, tile_pixels: int = 16) -> Bytes:
        """The grid with the agent and its field of view, (H, W, 3), as the minigrid package draws it."""
        cells, codes = self._view()
        in_view = np.zeros(self._cells.size, dtype=np.bool_)
        in_view[cells[index][codes[index] != UNSEEN]] = True
        highlighted = in_view.reshape(self.num_envs, self._stride, self._stride)[
            index, PADDING:-PADDING, PADDING:-PADDING
        ]
        y, x = divmod(int(self._position[index]) % self._stride**2, self._stride)
        encoding, agent_xy = ENCODING[self._grids[index].T], (x - PADDING, y - PADDING)
        heading = int(self._pose[index]) % 4
        image: Bytes = import_minigrid_package().render_grid(
            encoding, tile_pixels, agent_xy, heading, highlighted.T
        )
        return image

    def render_observation(self, observation: Bytes) -> Bytes:
        image: Bytes = import_minigrid_package().render_observation(observation)
        return image

    def state_dict(self) -> StateDict:
        return {
            "name": self.name,
            "num_envs": self.num_envs,
            "started": self._started,
            "rooms": self._grids.astype(np.uint8),
            "cell": self._position.copy(),
            "pose": self._pose.copy(),
            "episode_steps": self._episode_steps.copy(),
            "streams": [stream.state_dict() for stream in self._streams],
        }

    def load_state_dict(self, state: StateDict) -> None:
        check_same_envs(self, state)
        self._check_ranges(state)
        self._started = state["started"]
        self._grids[...] = state["rooms"]
        self._position[...] = state["cell"]
        self._pose = np.array(state["pose"], dtype=np.int64)
        self._episode_steps[...] = state["episode_steps"]
        for stream, saved in zip(self._streams, state["streams"], strict=True):
            stream.load_state_dict(saved)

    def _check_ranges(self, state: StateDict) -> None:
        """Raise ValueError for codes and positions that are not in the tables or in the grid."""
        grids, pose, steps = state["rooms"], state["pose"], state["episode_steps"]
        is_wall = self._empty_grid == WALL
        valid = (grids < CODES).all() and (grids[:, is_wall] == WALL).all()
        check_data(valid, "env: a grid has unknown cells, or no wall around it")
        first_cell = np.arange(self.num_envs) * self._stride**2
        yx = np.array(np.divmod(state["cell"] - first_cell, self._stride)) - PADDING
        inside = (yx >= 1) & (yx <= len(is_wall) - 2)
        valid = (inside.all() or not state["started"]) and np.isin(pose, range(POSES)).all()
        check_data(valid, "env: an agent has a position or a pose outside of its grid")
        valid = (steps >= 0).all() and (steps < self.max_episode_steps).all()
        check_data(valid, "env: an episode has an invalid number of steps")

    def close(self) -> None:
        """Does nothing: there are no resources to release."""


def import_minigrid_package() -> ModuleType:
    """`cclf.envs.minigrid_package`. Imported only where needed: VectorMiniGrid needs numpy only."""
    require_extras("rendering MiniGrid, or a task other than Empty and DoorKey,", ["minigrid"])
    from cclf.envs import minigrid_package

    return minigrid_package


def make(name: str, num_envs: int, seed: int) -> VectorEnv:
    """Environments of the task MiniGrid-<name>-v0, by `VectorMiniGrid` where it has the task."""
    if BATCHED_NAME.fullmatch(name):
        return VectorMiniGrid(name, num_envs, seed)
    package = import_minigrid_package()
    ids: dict[str, str] = package.package_ids()
    if name not in ids:
        raise unknown_task(f"minigrid/{name}", [f"minigrid/{each}" for each in ids])
    env: VectorEnv = package.PackageMiniGrid(ids[name], num_envs, seed)
    return env


def short_name(env_id: str) -> str:
    """NAME of MiniGrid-NAME-v0."""
    return env_id.removeprefix("MiniGrid-").removesuffix("-v0")


def spaced_seeds(seed: int, num_envs: int) -> list[int]:
    return [seed + SEED_STRIDE * index for index in range(num_envs)]


def to_integers(actions: ArrayLike) -> Ints:
    """Integers of any type as int64 (N,). Raises TypeError for floats."""
    return np.asarray(actions).astype(np.int64, casting="same_kind", copy=False)


def check_same_envs(env: VectorEnv, state: StateDict) -> None:
    """Raise ValueError unless the state is of the same task and of the same number of environments."""
    own = env.state_dict()
    names = [f"{each['num_envs']} x {each['name']}" for each in (state, own)]
    check_data(names[0] == names[1], f"env: the state is of {names[0]}, not {names[1]}")
    check_same_structure(own, state, "env of minigrid")
