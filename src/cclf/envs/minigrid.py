"""MiniGrid tasks, many worlds per step.

`VectorMiniGrid` plays Empty-NxN and DoorKey-NxN for all environments at once in numpy. It follows the
rules AND the random stream of the minigrid package: environment i seeded with s meets the layouts
that the package makes from s, episode after episode. Any other MiniGrid task is stepped by the
package itself, behind the same methods (`cclf.envs.minigrid_package`).
"""

import difflib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cclf.config import EnvConfig
from cclf.envs.grid_checks import (
    check_positive,
    check_same_worlds,
    check_started,
    checked_actions,
    checked_seeds,
    spaced_seeds,
)
from cclf.envs.minigrid_package import (
    PackageMiniGrid,
    gymnasium_with_minigrid,
    package_id_by_name,
    picture,
)
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
    IntegerGenerator,
    Ints,
    mask_occluded,
    rules,
    view_offsets,
)
from cclf.errors import ConfigError
from cclf.storage.safe_loading import check_data, check_same_structure
from cclf.types import VectorStep


class VectorMiniGrid:
    """Many independent Empty-NxN or DoorKey-NxN worlds. Arrays handed out are fresh: no later step
    writes into them."""

    observation_shape = (VIEW, VIEW, 3)
    num_actions = NUM_ACTIONS

    @staticmethod
    def picture(observation: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return picture(observation)

    def __init__(
        self, name: str, num_envs: int, seed: int, max_episode_steps: int | None = None
    ) -> None:
        match = BATCHED_NAME.fullmatch(name)
        if match is None:
            raise ValueError(
                f"GridWorlds plays Empty-NxN and DoorKey-NxN, got {name!r}; use make_minigrid for "
                "others"
            )
        family, size = FAMILIES[match[1]], int(match[2])
        if size < family.min_size:
            raise ValueError(
                f"{match[1]} needs a room of {family.min_size}x{family.min_size} or more, got "
                f"{name!r}"
            )
        if max_episode_steps is None:
            max_episode_steps = family.episode_steps_per_cell * size**2
        check_positive("num_envs", num_envs)
        check_positive("max_episode_steps", max_episode_steps)
        self.name, self.num_envs, self.max_episode_steps = name, num_envs, max_episode_steps
        self._lay_out, self._see_through_walls = family.lay_out, family.see_through_walls
        self._streams = [IntegerGenerator(spaced) for spaced in spaced_seeds(seed, num_envs)]
        self._started = False

        # Codes are kept as int64, the size of an index, so that they look up tables without a
        # conversion.
        stride = size + 2 * PADDING
        self._codes = np.full(num_envs * stride**2, WALL, dtype=np.int64)
        self._rooms = self._codes.reshape(num_envs, stride, stride)[
            :, PADDING:-PADDING, PADDING:-PADDING
        ]
        self._bare_room = np.full((size, size), WALL, dtype=np.int64)
        self._bare_room[1:-1, 1:-1] = EMPTY
        self._bare_room[-2, -2] = GOAL

        self._cell = np.zeros(num_envs, dtype=np.int64)  # the agent's place in _codes
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

    def reset(self, seeds: Sequence[int] | None = None) -> NDArray[np.uint8]:
        """Begin a new episode everywhere; with `seeds` (one each) the random streams restart too,
        as in gymnasium."""
        if seeds is not None:
            self._streams = [IntegerGenerator(seed) for seed in checked_seeds(seeds, self.num_envs)]
        for index in range(self.num_envs):
            self._begin_episode(index)
        self._started = True
        return self._observe()

    def step(self, actions: ArrayLike) -> VectorStep:
        check_started(self._started)
        action = checked_actions(actions, self.num_envs, NUM_ACTIONS)
        table = rules()
        front = self._cell + self._step_ahead[self._pose]
        situation = (action * POSES + self._pose) * CODES + self._codes[front]
        self._codes[front] = table.next_front[situation]
        self._cell += self._advance[situation]
        self._pose = table.next_pose[situation]
        self._episode_steps += 1

        terminated = table.reaches_goal[situation]
        truncated = self._episode_steps >= self.max_episode_steps
        reward = self._goal_reward[self._episode_steps] * terminated
        ended = terminated | truncated
        if np.count_nonzero(ended):
            for index in np.flatnonzero(ended).tolist():
                self._begin_episode(index)
        return VectorStep(self._observe(), reward, terminated, truncated)

    def _begin_episode(self, index: int) -> None:
        room = self._rooms[index]
        room[...] = self._bare_room
        start = self._lay_out(room, self._streams[index].integer)
        self._cell[index] = (
            (index * self._stride + start.y + PADDING) * self._stride + start.x + PADDING
        )
        self._pose[index] = start.heading
        self._episode_steps[index] = 0

    def _observe(self) -> NDArray[np.uint8]:
        return ENCODING.take(self._view()[1], axis=0)

    def _view(self) -> tuple[Ints, Ints]:
        """Places in _codes, and codes seen there, of the view cells: both (N, x, y)."""
        cells = self._view_offsets.take(self._pose, axis=0)
        cells += self._cell[:, None, None]
        codes = self._codes.take(cells)
        # The agent sees what it carries on its own cell, never what it stands on; neither blocks
        # its view.
        codes[:, AGENT_VIEW_X, AGENT_VIEW_Y] = CARRIED[self._pose]
        if not self._see_through_walls:
            mask_occluded(codes)
        return cells, codes

    def render(self, index: int, tile_pixels: int = 16) -> NDArray[np.uint8]:
        """RGB picture of one whole world as the package draws it: agent, and a lighter field of
        view."""
        check_started(self._started)
        gymnasium_with_minigrid()
        from minigrid.core.grid import Grid

        cells, codes = self._view()
        in_view = np.zeros(self._codes.size, dtype=np.bool_)
        in_view[cells[index][codes[index] != UNSEEN]] = True
        lit = in_view.reshape(self.num_envs, self._stride, self._stride)[
            index, PADDING:-PADDING, PADDING:-PADDING
        ]
        y, x = divmod(int(self._cell[index]) % self._stride**2, self._stride)
        grid, _ = Grid.decode(ENCODING[self._rooms[index].T])
        picture = grid.render(
            tile_pixels,
            (x - PADDING, y - PADDING),
            int(self._pose[index]) % 4,
            highlight_mask=lit.T,
        )
        return np.asarray(picture, dtype=np.uint8)

    def state_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "num_envs": self.num_envs,
            "started": self._started,
            "rooms": self._rooms.astype(np.uint8),
            "cell": self._cell.copy(),
            "pose": self._pose.copy(),
            "episode_steps": self._episode_steps.copy(),
            "streams": [stream.state_dict() for stream in self._streams],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_same_worlds(state, self.name, self.num_envs)
        self._refuse_other_rooms(state)
        self._started = state["started"]
        self._rooms[...] = state["rooms"]
        self._cell[...] = state["cell"]
        self._pose = np.array(state["pose"], dtype=np.int64)
        self._episode_steps[...] = state["episode_steps"]
        for stream, saved in zip(self._streams, state["streams"], strict=True):
            stream.load_state_dict(saved)

    def _refuse_other_rooms(self, state: dict[str, Any]) -> None:
        """Codes and places that no step leads to would be looked up beyond the tables."""
        check_same_structure(self.state_dict(), state, "env of minigrid")
        rooms, size, place = (
            state["rooms"],
            self._rooms.shape[1],
            np.arange(self.num_envs) * self._stride**2,
        )
        check_data((rooms < CODES).all(), "env: rooms hold unknown codes")
        inside = np.zeros((size, size), dtype=bool)
        inside[1:-1, 1:-1] = True
        check_data((rooms[:, ~inside] == WALL).all(), "env: a room has no wall around it")
        if state["started"]:
            y, x = np.divmod(state["cell"] - place, self._stride)
            off = np.minimum(x, y) - PADDING, np.maximum(x, y) - PADDING
            check_data(
                (off[0] >= 1).all() and (off[1] <= size - 2).all(),
                "env: an agent stands outside its room",
            )
        pose, steps = state["pose"], state["episode_steps"]
        check_data((pose >= 0).all() and (pose < POSES).all(), "env: pose is unknown")
        check_data(
            (steps >= 0).all() and (steps < self.max_episode_steps).all(),
            "env: episodes are over already",
        )

    def close(self) -> None:
        """Nothing to release; there so that every environment can be closed alike."""


def make(name: str, num_envs: int, seed: int) -> VectorMiniGrid | PackageMiniGrid:
    """Worlds of the task MiniGrid-<name>-v0: batched where the rules are known here, else through
    the package."""
    if BATCHED_NAME.fullmatch(name):
        return VectorMiniGrid(name, num_envs, seed)
    id_of = package_id_by_name()
    if name not in id_of:
        near = difflib.get_close_matches(
            name.removeprefix("MiniGrid-").removesuffix("-v0"), id_of, n=3
        )
        hint = (
            f"did you mean {', '.join(near)}?"
            if near
            else "give an id without 'MiniGrid-' and '-v0': DoorKey-6x6"
        )
        raise ValueError(f"unknown MiniGrid task, got {name!r}; {hint}")
    return PackageMiniGrid(id_of[name], num_envs, seed)


def refuse_unknown(name: str, env: EnvConfig) -> None:  # noqa: ARG001 (a grid has one size)
    """A single world is made in milliseconds."""
    try:
        make(name, 1, 0).close()
    except (ValueError, ImportError) as error:
        raise ConfigError(str(error)) from error
