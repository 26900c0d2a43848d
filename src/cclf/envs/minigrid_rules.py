"""The rules of MiniGrid as look-up tables, and its layouts, sampled with the same random numbers as
in the minigrid package.

Everything is compared with the minigrid package, step by step, in `tests/envs/test_minigrid.py`.
"""

import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cclf.storage.safe_loading import check_data
from cclf.types import StateDict

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
SampleInteger = Callable[[int, int], int]  # (low, high) -> an integer in [low, high)

# Contents of a grid cell, ordered so that "blocks the view" is one comparison.
CODES = 8
UNSEEN, EMPTY, GOAL, KEY, DOOR_OPEN, DOOR_CLOSED, DOOR_LOCKED, WALL = range(CODES)
FIRST_OPAQUE = DOOR_CLOSED
# The package's (object, color, state) of each cell code: green goal, yellow key and door, gray wall.
ENCODING = np.array(
    [(0, 0, 0), (1, 0, 0), (8, 1, 0), (5, 4, 0), (4, 4, 0), (4, 4, 1), (4, 4, 2), (2, 5, 0)],
    dtype=np.uint8,
)

NUM_ACTIONS = 7
LEFT, RIGHT, FORWARD, PICK_UP, DROP, TOGGLE, DONE = range(NUM_ACTIONS)
HEADING_XY = ((1, 0), (0, 1), (-1, 0), (0, -1))  # east, south, west, north
POSES = 8  # a pose is heading + 4 * (carries the key)

VIEW = 7  # cells along each side of the agent's square view
AGENT_VIEW_X, AGENT_VIEW_Y = VIEW // 2, VIEW - 1
# An agent next to the outer wall sees this many cells beyond it; the package shows walls there.
PADDING = VIEW - 2


# --- random stream
# ----------------------------------------------------------------------------------------------------


class IntegerGenerator:
    """Returns the numbers of `Generator(PCG64(seed)).integers(low, high)` without the fixed cost of
    that call, a few µs.

    A solved DoorKey is reset every dozen steps and samples about 20 integers, so that cost would
    double the time of a step. numpy is used only for the raw words of PCG64, which do not change
    between its versions as those of `integers` may.
    """

    _WORDS_PER_REFILL = 32  # 64-bit words; each gives two 32-bit draws

    def __init__(self, seed: int) -> None:
        # exactly gymnasium.utils.seeding.np_random
        self._bits = np.random.PCG64(np.random.SeedSequence(seed))
        # 32-bit draws in reverse order, so that the next one is at the end
        self._unused: list[int] = []

    def _next_uint32(self) -> int:
        if not self._unused:
            words = self._bits.random_raw(self._WORDS_PER_REFILL)
            # numpy's 32-bit draws are the low half, then the high half
            halves = words.astype("<u8").view("<u4")
            self._unused = halves[::-1].tolist()
        return self._unused.pop()

    def integer(self, low: int, high: int) -> int:
        """One integer in [low, high) by Lemire's method, as numpy does it for spans below 2**32."""
        span = high - low
        if span == 1:
            return low  # numpy uses no random number in this case
        product = self._next_uint32() * span
        if product & 0xFFFFFFFF < span:
            threshold = (1 << 32) % span
            while product & 0xFFFFFFFF < threshold:
                product = self._next_uint32() * span
        return low + (product >> 32)

    def state_dict(self) -> StateDict:
        return {"bit_generator": self._bits.state, "unused": list(self._unused)}

    def load_state_dict(self, state: StateDict) -> None:
        check_data(
            all(0 <= draw < 2**32 for draw in state["unused"]),
            "env: unused random numbers are not of 32 bits",
        )
        self._bits.state = state["bit_generator"]
        self._unused = list(state["unused"])


# --- layouts: the package's _gen_grid with the same random numbers
# ------------------------------------------------------------------


Start = tuple[int, int, int]  # of the agent: x, y, heading


def generate_empty(_grid: Ints, _sample: SampleInteger) -> Start:
    """Leave the empty walled grid as it is; the agent starts in the corner and faces east."""
    return 1, 1, 0


def generate_door_key(grid: Ints, sample: SampleInteger) -> Start:
    """Split an empty walled grid[y, x] by a wall with a locked door. The agent and the key are placed
    to the left of this wall."""
    size = len(grid)
    split_x = sample(2, size - 2)
    grid[:, split_x] = WALL
    agent_xy = _sample_free_cell(grid, split_x, sample)
    heading = sample(0, 4)
    grid[sample(1, size - 2), split_x] = DOOR_LOCKED
    key_xy = _sample_free_cell(grid, split_x, sample)
    while key_xy == agent_xy:
        key_xy = _sample_free_cell(grid, split_x, sample)
    grid[key_xy[1], key_xy[0]] = KEY
    return *agent_xy, heading


def _sample_free_cell(grid: Ints, columns: int, sample: SampleInteger) -> tuple[int, int]:
    """(x, y) by rejection sampling over the left `columns`, walls included, as in the package."""
    size = len(grid)
    while True:
        x, y = sample(0, columns), sample(0, size)
        if grid[y, x] == EMPTY:
            return x, y


class LayoutFamily(NamedTuple):
    generate: Callable[[Ints, SampleInteger], Start]
    min_size: int  # cells along each side of the smallest grid
    episode_steps_per_cell: int
    see_through_walls: bool


FAMILIES = {
    "Empty": LayoutFamily(
        generate_empty, min_size=4, episode_steps_per_cell=4, see_through_walls=True
    ),
    "DoorKey": LayoutFamily(
        generate_door_key, min_size=5, episode_steps_per_cell=10, see_through_walls=False
    ),
}
BATCHED_NAME = re.compile(r"(Empty|DoorKey)-([1-9]\d*)x\2")


# --- rules as tables
# --------------------------------------------------------------------------------------------------


class Rules(NamedTuple):
    """The results of each (action, pose, code of the cell in front), by the flat index of the
    three."""

    next_pose: Ints
    next_front: Ints
    advances: Ints  # 1 where the agent moves into the front cell
    reaches_goal: NDArray[np.bool_]


@cache
def rules() -> Rules:
    """The package's MiniGridEnv.step for every case."""
    next_pose, next_front, advances = (
        np.zeros((NUM_ACTIONS, POSES, CODES), dtype=np.int64) for _ in range(3)
    )
    reaches_goal = np.zeros((NUM_ACTIONS, POSES, CODES), dtype=np.bool_)
    for action, pose, front in np.ndindex(NUM_ACTIONS, POSES, CODES):
        heading, carries, front_after = pose % 4, pose // 4, front
        if action == LEFT:
            heading = (heading - 1) % 4
        elif action == RIGHT:
            heading = (heading + 1) % 4
        elif action == FORWARD:
            advances[action, pose, front] = front in (EMPTY, GOAL, DOOR_OPEN)
            reaches_goal[action, pose, front] = front == GOAL
        elif action == PICK_UP and front == KEY and not carries:
            carries, front_after = 1, EMPTY
        elif action == DROP and front == EMPTY and carries:
            carries, front_after = 0, KEY
        elif action == TOGGLE and front == DOOR_LOCKED and carries:
            front_after = DOOR_OPEN
        elif action == TOGGLE and front in (DOOR_OPEN, DOOR_CLOSED):
            front_after = DOOR_CLOSED if front == DOOR_OPEN else DOOR_OPEN
        next_pose[action, pose, front] = heading + 4 * carries
        next_front[action, pose, front] = front_after
    return Rules(next_pose.ravel(), next_front.ravel(), advances.ravel(), reaches_goal.ravel())


CARRIED = np.array([EMPTY] * 4 + [KEY] * 4, dtype=np.int64)  # by pose
_COLUMN_BITS = (1 << np.arange(VIEW)).astype(np.uint8)
_LIT_AT_AGENT = (1 << AGENT_VIEW_X) << VIEW


@cache
def visibility_table() -> tuple[Ints, Ints]:
    """The package's Grid.process_vis for every possible row of the view. A cell that the agent sees
    is called lit: light spreads to the right, then to the left, and to the row above. Rows are
    indexed by `lit * 128 + opaque`, 7 bits each, bit i for column i.

    Returns which cells are visible, (16384, 7) of 0 and 1, and the lit cells of the next row away from
    the agent, times 128, (16384,).
    """
    lit, opaque = np.divmod(np.arange(1 << 2 * VIEW), 1 << VIEW)
    above = np.zeros_like(lit)
    for sideways, columns in ((1, range(VIEW - 1)), (-1, range(VIEW - 1, 0, -1))):
        for column in columns:
            passes = (lit & ~opaque) >> column & 1
            lit |= passes << (column + sideways)
            above |= passes << (column + sideways) | passes << column
    return lit[:, None] >> np.arange(VIEW) & 1, above << VIEW


def mask_occluded(codes: Ints) -> None:
    """Set cells that are hidden by walls and closed doors to UNSEEN in views (N, x, y), in place."""
    visible, lit_above = visibility_table()
    opaque = (codes >= FIRST_OPAQUE).view(np.uint8)
    rows = (_COLUMN_BITS @ opaque).T.astype(np.int64)  # (y, N), 7 bits for the 7 columns
    below = rows[AGENT_VIEW_Y]
    below += _LIT_AT_AGENT
    for row in rows[AGENT_VIEW_Y - 1 :: -1]:
        row += lit_above[below]
        below = row
    codes *= visible.take(rows, axis=0).transpose(1, 2, 0)


def view_offsets(stride: int) -> Ints:
    """(8, 7, 7) flat offsets from the agent's cell to view cell (x, y), for each pose."""
    ahead = AGENT_VIEW_Y - np.arange(VIEW)[None, :]  # view y counts down towards the agent
    rightwards = np.arange(VIEW)[:, None] - AGENT_VIEW_X
    by_heading = [
        ahead * (dx + dy * stride) + rightwards * (-dy + dx * stride) for dx, dy in HEADING_XY
    ]
    return np.array(by_heading * 2, dtype=np.int64)
