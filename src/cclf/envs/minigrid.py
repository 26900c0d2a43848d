"""MiniGrid tasks as vectorized environments.

`VectorMiniGrid` steps all environments of Empty-NxN and DoorKey-NxN at once in numpy. It has the
rules AND the random stream of the minigrid package: environment i with seed s has the layouts that
the package generates from s, episode after episode. All other MiniGrid tasks are stepped by the
package itself (`cclf.envs.minigrid_package`).
"""

import difflib
from collections.abc import Sequence
from types import ModuleType

import numpy as np
from numpy.typing import ArrayLike

from cclf.config import EnvConfig
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
from cclf.errors import ConfigError
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
        if match is None:
            raise ValueError(f"VectorMiniGrid has Empty-NxN and DoorKey-NxN, got {name!r}")
        family, size = FAMILIES[match[1]], int(match[2])
        if size < family.min_size:
            raise ValueError(
                f"{match[1]} needs a grid of {family.min_size}x{family.min_size} or more, got "
                f"{name!r}"
            )
        if max_episode_steps is None:
            max_episode_steps = family.episode_steps_per_cell * size**2
        check_positive("num_envs", num_envs)
        check_positive("max_episode_steps", max_episode_steps)
        self.name, self.num_envs, self.max_episode_steps = name, num_envs, max_episode_steps
        self._generate, self._see_through_walls = family.generate, family.see_through_walls
        self._streams = [IntegerGenerator(spaced) for spaced in spaced_seeds(seed, num_envs)]
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
        self._step_ahead = np.array([dx + dy * stride for dx, dy in HEADING_XY] * 2, dtype=np.int64)
        self._advance = (
            rules().advances.reshape(NUM_ACTIONS, POSES, CODES) * self._step_ahead[:, None]
        ).ravel()
        self._view_offsets = view_offsets(stride)
        steps = np.arange(self.max_episode_steps + 1)
        self._goal_reward = (1 - 0.9 * (steps / self.max_episode_steps)).astype(np.float32)

    def reset(self, seeds: Sequence[int] | None = None) -> Bytes:
        """Begin a new episode in each environment; `seeds` (one each) also restart the random
        streams, as in Gymnasium."""
        if seeds is not None:
            self._streams = [IntegerGenerator(seed) for seed in check_seeds(seeds, self.num_envs)]
        for index in range(self.num_envs):
            self._begin_episode(index)
        self._started = True
        return self._observe()

    def step(self, actions: ArrayLike) -> VectorStep:
        check_started(self._started)
        action = check_actions(actions, self.num_envs, NUM_ACTIONS)
        table = rules()
        front = self._position + self._step_ahead[self._pose]
        case = (action * POSES + self._pose) * CODES + self._cells[front]
        self._cells[front] = table.next_front[case]
        self._position += self._advance[case]
        self._pose = table.next_pose[case]
        self._episode_steps += 1

        terminated = table.reaches_goal[case]
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
        start = self._generate(grid, self._streams[index].integer)
        row = index * self._stride + start.y + PADDING
        self._position[index] = row * self._stride + start.x + PADDING
        self._pose[index] = start.heading
        self._episode_steps[index] = 0

    def _observe(self) -> Bytes:
        return ENCODING.take(self._view()[1], axis=0)

    def _view(self) -> tuple[Ints, Ints]:
        """Indices of _cells and visible codes of the view cells, both (N, x, y)."""
        cells = self._view_offsets.take(self._pose, axis=0)
        cells += self._position[:, None, None]
        codes = self._cells.take(cells)
        # On its own cell the agent sees what it carries, and not what is below it. Neither blocks
        # its view.
        codes[:, AGENT_VIEW_X, AGENT_VIEW_Y] = CARRIED[self._pose]
        if not self._see_through_walls:
            mask_occluded(codes)
        return cells, codes

    def render(self, index: int, tile_pixels: int = 16) -> Bytes:
        """The whole grid with the agent and its field of view, (H, W, 3), as the package does."""
        check_started(self._started)
        cells, codes = self._view()
        in_view = np.zeros(self._cells.size, dtype=np.bool_)
        in_view[cells[index][codes[index] != UNSEEN]] = True
        lit = in_view.reshape(self.num_envs, self._stride, self._stride)[
            index, PADDING:-PADDING, PADDING:-PADDING
        ]
        y, x = divmod(int(self._position[index]) % self._stride**2, self._stride)
        encoding, agent_xy = ENCODING[self._grids[index].T], (x - PADDING, y - PADDING)
        heading = int(self._pose[index]) % 4
        image: Bytes = import_package().render_encoded(
            encoding, tile_pixels, agent_xy, heading, lit.T
        )
        return image

    def render_observation(self, observation: Bytes) -> Bytes:
        image: Bytes = import_package().render_observation(observation)
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
        check_same_worlds(state, self.name, self.num_envs)
        self._check_indices(state)
        self._started = state["started"]
        self._grids[...] = state["rooms"]
        self._position[...] = state["cell"]
        self._pose = np.array(state["pose"], dtype=np.int64)
        self._episode_steps[...] = state["episode_steps"]
        for stream, saved in zip(self._streams, state["streams"], strict=True):
            stream.load_state_dict(saved)

    def _check_indices(self, state: StateDict) -> None:
        """Raise ValueError for codes and positions that would index memory outside of the tables."""
        check_same_structure(self.state_dict(), state, "env of minigrid")
        grids, pose, steps = state["rooms"], state["pose"], state["episode_steps"]
        check_data((grids < CODES).all(), "env: rooms hold unknown codes")
        wall = np.ones(grids.shape[1:], dtype=bool)
        wall[1:-1, 1:-1] = False
        check_data((grids[:, wall] == WALL).all(), "env: a room has no wall around it")
        if state["started"]:
            first = np.arange(self.num_envs) * self._stride**2
            yx = np.array(np.divmod(state["cell"] - first, self._stride)) - PADDING
            inside = (yx >= 1) & (yx <= len(wall) - 2)
            check_data(inside.all(), "env: an agent stands outside its room")
        check_data((pose >= 0).all() and (pose < POSES).all(), "env: pose is unknown")
        check_data(
            (steps >= 0).all() and (steps < self.max_episode_steps).all(),
            "env: episodes are over already",
        )

    def close(self) -> None:
        """Nothing to release."""


def import_package() -> ModuleType:
    """`cclf.envs.minigrid_package`. Imported late: VectorMiniGrid needs numpy only."""
    try:
        from cclf.envs import minigrid_package
    except ImportError as error:
        raise ImportError(
            f"this needs gymnasium and minigrid, got: {error}; pip install 'cclf[minigrid]'"
        ) from error
    return minigrid_package


def make(name: str, num_envs: int, seed: int) -> VectorEnv:
    """Environments of the task MiniGrid-<name>-v0, by `VectorMiniGrid` where it has the task."""
    if BATCHED_NAME.fullmatch(name):
        return VectorMiniGrid(name, num_envs, seed)
    package = import_package()
    ids: dict[str, str] = package.package_ids()
    if name not in ids:
        near = difflib.get_close_matches(
            name.removeprefix("MiniGrid-").removesuffix("-v0"), ids, n=3
        )
        hint = (
            f"did you mean {', '.join(near)}?"
            if near
            else "give an id without 'MiniGrid-' and '-v0': DoorKey-6x6"
        )
        raise ValueError(f"unknown MiniGrid task, got {name!r}; {hint}")
    env: VectorEnv = package.PackageMiniGrid(ids[name], num_envs, seed)
    return env


def validate(name: str, env: EnvConfig) -> None:  # noqa: ARG001 (grids have one size)
    try:
        make(name, 1, 0).close()  # takes milliseconds
    except (ValueError, ImportError) as error:
        raise ConfigError(str(error)) from error


def spaced_seeds(seed: int, num_envs: int) -> list[int]:
    return check_seeds([seed + SEED_STRIDE * index for index in range(num_envs)], num_envs)


def check_seeds(seeds: Sequence[int], num_envs: int) -> list[int]:
    if len(seeds) != num_envs or not all(
        isinstance(seed, int | np.integer) and seed >= 0 for seed in seeds
    ):
        raise ValueError(
            f"seeds: need one non-negative integer for each of {num_envs} environments, got {seeds}"
        )
    return [int(seed) for seed in seeds]


def check_actions(actions: ArrayLike, num_envs: int, num_actions: int) -> Ints:
    """The actions as int64 (N,)."""
    action = np.asarray(actions)
    if action.shape != (num_envs,) or action.dtype.kind not in "iu":
        raise ValueError(
            f"actions: need integers of shape ({num_envs},), got {action.dtype} of shape "
            f"{action.shape}; pass one action per environment"
        )
    action = action.astype(np.int64, copy=False)
    # negative values are huge as unsigned, so that one comparison is enough
    if np.count_nonzero(action.view(np.uint64) >= num_actions):
        raise ValueError(
            f"actions: need values in 0..{num_actions - 1}, got {action.min()}..{action.max()}"
        )
    return action


def check_positive(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name}: need 1 or more, got {value}")


def check_started(started: bool) -> None:
    if not started:
        raise RuntimeError("these environments have not begun an episode; call reset() first")


def check_same_worlds(state: StateDict, name: str, num_envs: int) -> None:
    if (state["name"], state["num_envs"]) != (name, num_envs):
        raise ValueError(
            f"state of {state['num_envs']} x {state['name']} cannot be loaded into {num_envs} x "
            f"{name}; build the same environments first"
        )
