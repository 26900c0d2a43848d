"""MiniGrid tasks, many worlds per step.

`GridWorlds` plays Empty-NxN and DoorKey-NxN for all environments at once in numpy. It follows the
rules AND the random stream of the minigrid package: environment i seeded with s meets the layouts
that the package makes from s, episode after episode. `PackageWorlds` steps any other MiniGrid task
through the package itself, behind the same methods.
"""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cclf.data.from_disk import refuse_unless, refuse_unlike
from cclf.data.types import VectorStep
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
    IntegerStream,
    Ints,
    hide_unseen,
    rules,
    view_offsets,
)

# environment i gets seed + 10,000 i, as the published A2C and RE3 code seeds its processes
SEED_STRIDE = 10_000


# --- the batched worlds
# -----------------------------------------------------------------------------------------------


class GridWorlds:
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
        _check_positive("num_envs", num_envs)
        _check_positive("max_episode_steps", max_episode_steps)
        self.name, self.num_envs, self.max_episode_steps = name, num_envs, max_episode_steps
        self._lay_out, self._see_through_walls = family.lay_out, family.see_through_walls
        self._streams = [IntegerStream(spaced) for spaced in _spaced_seeds(seed, num_envs)]
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
            self._streams = [IntegerStream(seed) for seed in _checked_seeds(seeds, self.num_envs)]
        for index in range(self.num_envs):
            self._begin_episode(index)
        self._started = True
        return self._observe()

    def step(self, actions: ArrayLike) -> VectorStep:
        _check_started(self._started)
        action = _checked_actions(actions, self.num_envs, NUM_ACTIONS)
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
            hide_unseen(codes)
        return cells, codes

    def render(self, index: int, tile_pixels: int = 16) -> NDArray[np.uint8]:
        """RGB picture of one whole world as the package draws it: agent, and a lighter field of
        view."""
        _check_started(self._started)
        _gymnasium()
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
        _check_same_worlds(state, self.name, self.num_envs)
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
        refuse_unlike(self.state_dict(), state, "env of minigrid")
        rooms, size, place = (
            state["rooms"],
            self._rooms.shape[1],
            np.arange(self.num_envs) * self._stride**2,
        )
        refuse_unless((rooms < CODES).all(), "env: rooms hold unknown codes")
        inside = np.zeros((size, size), dtype=bool)
        inside[1:-1, 1:-1] = True
        refuse_unless((rooms[:, ~inside] == WALL).all(), "env: a room has no wall around it")
        if state["started"]:
            y, x = np.divmod(state["cell"] - place, self._stride)
            off = np.minimum(x, y) - PADDING, np.maximum(x, y) - PADDING
            refuse_unless(
                (off[0] >= 1).all() and (off[1] <= size - 2).all(),
                "env: an agent stands outside its room",
            )
        pose, steps = state["pose"], state["episode_steps"]
        refuse_unless((pose >= 0).all() and (pose < POSES).all(), "env: pose is unknown")
        refuse_unless(
            (steps >= 0).all() and (steps < self.max_episode_steps).all(),
            "env: episodes are over already",
        )

    def close(self) -> None:
        """Nothing to release; there so that every environment can be closed alike."""


# --- every other task, through the package
# ----------------------------------------------------------------------------


class PackageWorlds:
    """N environments of one MiniGrid id, stepped one after the other by the minigrid package.

    The package cannot save its objects, so a state is the generator at the start of each episode
    and the actions since; loading plays them again and checks that the same observation comes out.
    """

    @staticmethod
    def picture(observation: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return picture(observation)

    def __init__(self, env_id: str, num_envs: int, seed: int) -> None:
        _check_positive("num_envs", num_envs)
        self.name, self.num_envs = env_id, num_envs
        try:
            self._envs = [
                _gymnasium().make(env_id, disable_env_checker=True) for _ in range(num_envs)
            ]
            self._envs[0].reset()  # seeded below: this only shows whether it can
        except FileNotFoundError as error:  # the WFC worlds: their patterns are not in the package
            raise ValueError(
                f"the minigrid package cannot make {env_id}: {error}; choose another task"
            ) from error
        self.observation_shape, self.num_actions, self.max_episode_steps = _package_spec(
            env_id, self._envs[0]
        )
        self._actions_since_start: list[list[int]] = [[] for _ in range(num_envs)]
        self._generator_at_start: list[Mapping[str, Any]] = [{} for _ in range(num_envs)]
        self._observation = np.zeros((num_envs, *self.observation_shape), dtype=np.uint8)
        self._started = False
        self._seed(_spaced_seeds(seed, num_envs))

    def _seed(self, seeds: Sequence[int]) -> None:
        from gymnasium.utils.seeding import np_random

        for env, seed in zip(self._envs, seeds, strict=True):
            env.unwrapped.np_random = np_random(seed)[0]

    def reset(self, seeds: Sequence[int] | None = None) -> NDArray[np.uint8]:
        """Begin a new episode everywhere; with `seeds` (one each) the random streams restart too,
        as in gymnasium."""
        if seeds is not None:
            self._seed(_checked_seeds(seeds, self.num_envs))
        for index in range(self.num_envs):
            self._begin_episode(index)
        self._started = True
        return self._observation.copy()

    def _begin_episode(self, index: int) -> None:
        env = self._envs[index]
        self._generator_at_start[index] = env.unwrapped.np_random.bit_generator.state
        self._actions_since_start[index] = []
        self._observation[index] = env.reset()[0]["image"]

    def step(self, actions: ArrayLike) -> VectorStep:
        _check_started(self._started)
        action = _checked_actions(actions, self.num_envs, self.num_actions)
        reward = np.zeros(self.num_envs, dtype=np.float32)
        terminated, truncated = np.zeros((2, self.num_envs), dtype=np.bool_)
        for index, chosen in enumerate(action.tolist()):
            seen, reward[index], terminated[index], truncated[index], _ = self._envs[index].step(
                chosen
            )
            self._observation[index] = seen["image"]
            self._actions_since_start[index].append(chosen)
            if terminated[index] or truncated[index]:
                self._begin_episode(index)
        return VectorStep(self._observation.copy(), reward, terminated, truncated)

    def render(self, index: int, tile_pixels: int = 16) -> NDArray[np.uint8]:
        """RGB picture of one whole world: agent, and a lighter field of view."""
        _check_started(self._started)
        world: Any = self._envs[index].unwrapped
        return np.asarray(world.get_frame(highlight=True, tile_size=tile_pixels), dtype=np.uint8)

    def state_dict(self) -> dict[str, Any]:
        generator_now = [env.unwrapped.np_random.bit_generator.state for env in self._envs]
        return {
            "name": self.name,
            "num_envs": self.num_envs,
            "started": self._started,
            "generator": [
                dict(state)
                for state in (self._generator_at_start if self._started else generator_now)
            ],
            "actions_since_start": [list(actions) for actions in self._actions_since_start],
            "observation": self._observation.copy(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        _check_same_worlds(state, self.name, self.num_envs)
        self._started = state["started"]
        for index, env in enumerate(self._envs):
            env.unwrapped.np_random.bit_generator.state = state["generator"][index]
            if not self._started:
                continue  # seeded, but no episode to replay yet
            self._begin_episode(index)
            for action in state["actions_since_start"][index]:
                self._observation[index] = env.step(action)[0]["image"]
            self._actions_since_start[index] = list(state["actions_since_start"][index])
        if self._started and not np.array_equal(self._observation, state["observation"]):
            raise RuntimeError(
                f"resuming {self.name}: replaying the saved actions gave other observations than "
                "those saved; "
                "use the minigrid version that wrote the state, or start a new run"
            )

    def close(self) -> None:
        for env in self._envs:
            env.close()


def _package_spec(env_id: str, env: Any) -> tuple[tuple[int, int, int], int, int]:
    """(observation shape, number of actions, episode limit), or an error that says which of them is
    missing."""
    spaces = getattr(env.observation_space, "spaces", {})
    image = spaces.get("image") if isinstance(spaces, dict) else None
    shape: tuple[int, ...] = getattr(image, "shape", None) or ()
    if len(shape) != 3 or shape[2] != 3 or getattr(image, "dtype", None) != np.uint8:
        raise ValueError(
            f"{env_id} has no (H, W, 3) uint8 'image' observation, got {env.observation_space}; "
            "choose a grid task such as FourRooms"
        )
    num_actions, max_steps = (
        getattr(env.action_space, "n", None),
        getattr(env.unwrapped, "max_steps", None),
    )
    if num_actions is None or max_steps is None:
        raise ValueError(
            f"{env_id} needs discrete actions and a max_steps attribute, got {env.action_space} "
            f"and max_steps={max_steps}; choose a grid task such as FourRooms"
        )
    return (int(shape[0]), int(shape[1]), 3), int(num_actions), int(max_steps)


# --- choosing one, and checks at the border
# ---------------------------------------------------------------------------


def make(name: str, num_envs: int, seed: int) -> GridWorlds | PackageWorlds:
    """Worlds of the task MiniGrid-<name>-v0: batched where the rules are known here, else through
    the package."""
    if BATCHED_NAME.fullmatch(name):
        return GridWorlds(name, num_envs, seed)
    id_of = _package_id_by_name()
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
    return PackageWorlds(id_of[name], num_envs, seed)


def picture(observation: NDArray[np.uint8], tile_pixels: int = 12) -> NDArray[np.uint8]:
    """What one agent sees, a (7, 7, 3) observation, as RGB: it stands in the middle of the lowest
    row and looks up."""
    _gymnasium()
    from minigrid.core.grid import Grid

    grid, seen = Grid.decode(observation)
    drawn = grid.render(tile_pixels, (AGENT_VIEW_X, AGENT_VIEW_Y), 3, highlight_mask=seen)
    return np.asarray(drawn, dtype=np.uint8)


def _gymnasium() -> Any:
    """gymnasium with the MiniGrid ids registered; late, so that the batched worlds need numpy
    only."""
    try:
        import gymnasium
        import minigrid  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"this needs gymnasium and minigrid, got: {error}; pip install 'cclf[minigrid]'"
        ) from error
    return gymnasium


def _package_id_by_name() -> dict[str, str]:
    ids = [env_id for env_id in _gymnasium().registry if env_id.startswith("MiniGrid-")]
    return {env_id.removeprefix("MiniGrid-").removesuffix("-v0"): env_id for env_id in ids}


def _spaced_seeds(seed: int, num_envs: int) -> list[int]:
    return _checked_seeds([seed + SEED_STRIDE * index for index in range(num_envs)], num_envs)


def _checked_seeds(seeds: Sequence[int], num_envs: int) -> list[int]:
    if len(seeds) != num_envs or not all(
        isinstance(seed, int | np.integer) and seed >= 0 for seed in seeds
    ):
        raise ValueError(
            f"seeds: need one non-negative integer for each of {num_envs} environments, got {seeds}"
        )
    return [int(seed) for seed in seeds]


def _checked_actions(actions: ArrayLike, num_envs: int, num_actions: int) -> Ints:
    action = np.asarray(actions)
    if action.shape != (num_envs,) or action.dtype.kind not in "iu":
        raise ValueError(
            f"actions: need integers of shape ({num_envs},), got {action.dtype} of shape "
            f"{action.shape}; "
            "pass one action per environment"
        )
    action = action.astype(np.int64, copy=False)
    # negatives are huge as unsigned: one test
    if np.count_nonzero(action.view(np.uint64) >= num_actions):
        raise ValueError(
            f"actions: need values in 0..{num_actions - 1}, got {action.min()}..{action.max()}"
        )
    return action


def _check_positive(what: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{what}: need 1 or more, got {value}")


def _check_started(started: bool) -> None:
    if not started:
        raise RuntimeError("these environments have not begun an episode; call reset() first")


def _check_same_worlds(state: dict[str, Any], name: str, num_envs: int) -> None:
    if (state["name"], state["num_envs"]) != (name, num_envs):
        raise ValueError(
            f"state of {state['num_envs']} x {state['name']} cannot be loaded into {num_envs} x "
            f"{name}; "
            "build the same environments first"
        )
