"""MiniGrid's rules as tables and its layouts draw for draw: what `cclf.envs.minigrid` plays by.

Everything here is compared with the minigrid package, step by step, in
`tests/envs/test_minigrid.py`.
"""

import re
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cclf.storage.safe_loading import check_data

Ints = NDArray[np.int64]
DrawInteger = Callable[[int, int], int]  # (low, high) -> an integer in [low, high)

# What a grid cell holds. The numbers are ordered so that "blocks the view" is one comparison.
CODES = 8
UNSEEN, EMPTY, GOAL, KEY, DOOR_OPEN, DOOR_CLOSED, DOOR_LOCKED, WALL = range(CODES)
FIRST_OPAQUE = DOOR_CLOSED
# The package's (object, colour, state) of each cell code: green goal, yellow key and door, grey
# wall.
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
# an agent next to the outer wall looks this many cells past it; the package shows walls there
PADDING = VIEW - 2


# --- random stream
# ----------------------------------------------------------------------------------------------------


class IntegerGenerator:
    """The numbers `Generator(PCG64(seed)).integers(low, high)` would give, without that call's
    fixed cost of a few µs.

    A reset of a solved DoorKey happens every dozen steps and draws about 20 integers, so that cost
    would double a step. Only PCG64's raw words are taken from numpy; they, unlike `integers`, are
    promised never to change between versions.
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
            return low  # numpy draws nothing when there is nothing to choose
        product = self._next_uint32() * span
        if product & 0xFFFFFFFF < span:
            threshold = (1 << 32) % span
            while product & 0xFFFFFFFF < threshold:
                product = self._next_uint32() * span
        return low + (product >> 32)

    def state_dict(self) -> dict[str, Any]:
        return {"bit_generator": self._bits.state, "unused": list(self._unused)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_data(
            all(0 <= draw < 2**32 for draw in state["unused"]), "env: unused draws are no draws"
        )
        self._bits.state = state["bit_generator"]
        self._unused = list(state["unused"])


# --- layouts: the package's _gen_grid, draw for draw
# ------------------------------------------------------------------


class Start(NamedTuple):
    x: int
    y: int
    heading: int


def lay_out_empty(_room: Ints, _draw: DrawInteger) -> Start:
    """The walled room is already there and Empty draws nothing: the agent stands in the corner and
    looks east."""
    return Start(1, 1, 0)


def lay_out_door_key(room: Ints, draw: DrawInteger) -> Start:
    """Split a walled room[y, x] by a wall with a locked door; agent and key go left of it."""
    size = len(room)
    split_x = draw(2, size - 2)
    room[:, split_x] = WALL
    agent_xy = _draw_free_cell(room, split_x, draw)
    heading = draw(0, 4)
    room[draw(1, size - 2), split_x] = DOOR_LOCKED
    key_xy = _draw_free_cell(room, split_x, draw)
    while key_xy == agent_xy:
        key_xy = _draw_free_cell(room, split_x, draw)
    room[key_xy[1], key_xy[0]] = KEY
    return Start(*agent_xy, heading)


def _draw_free_cell(room: Ints, columns: int, draw: DrawInteger) -> tuple[int, int]:
    """Rejection sampling over the left `columns`, walls included, because that is what the package
    draws from."""
    size = len(room)
    while True:
        x, y = draw(0, columns), draw(0, size)
        if room[y, x] == EMPTY:
            return x, y


class LayoutFamily(NamedTuple):
    lay_out: Callable[[Ints, DrawInteger], Start]
    min_size: int  # the smallest room the layout fits in
    episode_steps_per_cell: int
    see_through_walls: bool


FAMILIES = {
    "Empty": LayoutFamily(
        lay_out_empty, min_size=4, episode_steps_per_cell=4, see_through_walls=True
    ),
    "DoorKey": LayoutFamily(
        lay_out_door_key, min_size=5, episode_steps_per_cell=10, see_through_walls=False
    ),
}
BATCHED_NAME = re.compile(r"(Empty|DoorKey)-([1-9]\d*)x\2")


# --- rules as tables
# --------------------------------------------------------------------------------------------------


class Rules(NamedTuple):
    """What follows from (action, pose, code of the cell in front), looked up by the flat index of
    the three."""

    next_pose: Ints
    next_front: Ints
    advances: Ints  # 1 where the agent moves into the front cell
    reaches_goal: NDArray[np.bool_]


@cache
def rules() -> Rules:
    """The package's MiniGridEnv.step, written out for every case once."""
    next_pose, next_front, advances = (
        np.zeros((NUM_ACTIONS, POSES, CODES), dtype=np.int64) for _ in range(3)
    )
    reaches_goal = np.zeros((NUM_ACTIONS, POSES, CODES), dtype=np.bool_)
    for action, pose, front in np.ndindex(NUM_ACTIONS, POSES, CODES):
        heading, carries, after = pose % 4, pose // 4, front
        if action == LEFT:
            heading = (heading - 1) % 4
        elif action == RIGHT:
            heading = (heading + 1) % 4
        elif action == FORWARD:
            advances[action, pose, front] = front in (EMPTY, GOAL, DOOR_OPEN)
            reaches_goal[action, pose, front] = front == GOAL
        elif action == PICK_UP and front == KEY and not carries:
            carries, after = 1, EMPTY
        elif action == DROP and front == EMPTY and carries:
            carries, after = 0, KEY
        elif action == TOGGLE and front == DOOR_LOCKED and carries:
            after = DOOR_OPEN
        elif action == TOGGLE and front in (DOOR_OPEN, DOOR_CLOSED):
            after = DOOR_CLOSED if front == DOOR_OPEN else DOOR_OPEN
        next_pose[action, pose, front] = heading + 4 * carries
        next_front[action, pose, front] = after
    return Rules(next_pose.ravel(), next_front.ravel(), advances.ravel(), reaches_goal.ravel())


CARRIED = np.array([EMPTY] * 4 + [KEY] * 4, dtype=np.int64)  # by pose
_COLUMN_BITS = (1 << np.arange(VIEW)).astype(np.uint8)
_LIT_AT_AGENT = (1 << AGENT_VIEW_X) << VIEW


class VisibilityTable(NamedTuple):
    """One row of the agent's view, looked up by `lit * 128 + opaque` (7 bits each, bit i for view
    column i)."""

    visible: Ints  # (16384, 7) 0 or 1
    # (16384,) which cells of the next row away from the agent are lit, already times 128
    lit_above: Ints


@cache
def visibility_table() -> VisibilityTable:
    """The package's Grid.process_vis for every possible row: light runs right, then left, and up to
    the row above."""
    lit, opaque = np.divmod(np.arange(1 << 2 * VIEW), 1 << VIEW)
    above = np.zeros_like(lit)
    for sideways, columns in ((1, range(VIEW - 1)), (-1, range(VIEW - 1, 0, -1))):
        for column in columns:
            passes = (lit & ~opaque) >> column & 1
            lit |= passes << (column + sideways)
            above |= passes << (column + sideways) | passes << column
    return VisibilityTable(visible=lit[:, None] >> np.arange(VIEW) & 1, lit_above=above << VIEW)


def mask_occluded(codes: Ints) -> None:
    """Set to UNSEEN, in place, what walls and shut doors hide in views of shape (N, x, y)."""
    table = visibility_table()
    opaque = (codes >= FIRST_OPAQUE).view(np.uint8)
    rows = (_COLUMN_BITS @ opaque).T.astype(np.int64)  # (y, N), 7 bits for the 7 columns
    below = rows[AGENT_VIEW_Y]
    below += _LIT_AT_AGENT
    for row in rows[AGENT_VIEW_Y - 1 :: -1]:
        row += table.lit_above[below]
        below = row
    codes *= table.visible.take(rows, axis=0).transpose(1, 2, 0)


def view_offsets(stride: int) -> Ints:
    """(8, 7, 7) flat offsets from the agent's cell to view cell (x, y), for each pose."""
    ahead = AGENT_VIEW_Y - np.arange(VIEW)[None, :]  # view y counts down towards the agent
    rightwards = np.arange(VIEW)[:, None] - AGENT_VIEW_X
    by_heading = [
        ahead * (dx + dy * stride) + rightwards * (-dy + dx * stride) for dx, dy in HEADING_XY
    ]
    return np.array(by_heading * 2, dtype=np.int64)
