"""Tasks from pixels that are learned in a minute on a CPU, for first runs and for tests.

In Reach a red dot, the agent, moves to a green one. Both are inside every random crop, and only their
distance matters. Catch has discrete actions: a paddle catches falling balls.
"""

import numpy as np

from cclf.config import EnvConfig
from cclf.errors import ConfigError
from cclf.storage.safe_loading import check_data, check_same_structure
from cclf.types import EnvSpec, EnvStep, StateDict

EPISODE_STEPS = 25
STEP_LENGTH = 0.3  # per environment step and axis, in the units of positions
DOT_SIGMA_PIXELS = 1.2


class Reach:
    """Positions are in [-1, 1] on each axis. The reward is max(0, 1 - distance), so the return is at
    most 25."""

    def __init__(
        self, axes: int, frame_pixels: int, crop_pixels: int, action_repeat: int, seed: int
    ):
        self.axes, self.frame_pixels, self.action_repeat = axes, frame_pixels, action_repeat
        # From the center of the frame to position 1, where a blurred dot is still inside every crop.
        self.pixels_per_unit = max(1.0, crop_pixels - frame_pixels / 2.0 - 1.5)
        steps = -(-EPISODE_STEPS // action_repeat)
        self.spec = EnvSpec((3, frame_pixels, frame_pixels), axes, action_repeat, steps)
        self.random = np.random.default_rng(seed)
        self.agent, self.goal = np.zeros(axes), np.zeros(axes)
        self.steps = 0

    def reset(self, seed: int | None = None) -> np.ndarray:
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.agent, self.goal = self.random.uniform(-1.0, 1.0, (2, self.axes))
        self.steps = 0
        return self._frame()

    def step(self, action: np.ndarray) -> EnvStep:
        reward = 0.0
        for _ in range(self.action_repeat):
            self.agent = np.clip(self.agent + STEP_LENGTH * np.clip(action, -1.0, 1.0), -1.0, 1.0)
            reward += max(0.0, 1.0 - float(np.linalg.norm(self.agent - self.goal)))
            self.steps += 1
            if self.steps >= EPISODE_STEPS:
                break
        return EnvStep(self._frame(), reward, False, truncated=self.steps >= EPISODE_STEPS)

    def render(self) -> np.ndarray:
        return self._frame().transpose(1, 2, 0).repeat(12, axis=0).repeat(12, axis=1)

    def close(self) -> None:
        pass

    def state_dict(self) -> StateDict:
        return {
            "agent": self.agent.tolist(),
            "goal": self.goal.tolist(),
            "steps": self.steps,
            "random": self.random.bit_generator.state,
        }

    def load_state_dict(self, state: StateDict) -> bool:
        check_same_structure(self.state_dict(), state, "env of toy/reach")
        self.agent, self.goal = np.array(state["agent"]), np.array(state["goal"])
        for position in (self.agent, self.goal):
            check_data(position.shape == (self.axes,), f"env: {position} has not {self.axes} axes")
        self.steps = state["steps"]
        self.random.bit_generator.state = state["random"]
        return True

    def _frame(self) -> np.ndarray:
        frame = np.zeros((3, self.frame_pixels, self.frame_pixels))
        offset = np.arange(self.frame_pixels) - (self.frame_pixels - 1) / 2.0
        for channel, position in ((0, self.agent), (1, self.goal)):
            x, y = np.pad(position, (0, 2 - self.axes)) * self.pixels_per_unit
            along_y, along_x = (
                np.exp(-((offset - center) ** 2) / (2 * DOT_SIGMA_PIXELS**2)) for center in (y, x)
            )
            frame[channel] = 255.0 * (along_y[:, None] * along_x[None])
        return frame.astype(np.uint8)


CATCH_CELLS = 5  # columns and rows
CATCH_BALLS = 3  # per episode
CATCH_MARGIN_PIXELS = 4


class Catch:
    """A ball falls one cell per step. The reward is 1 if the paddle catches it and -1 if not. An
    episode has three balls. Actions: left, stay, right.

    The cells fill the pixels that Rainbow's network uses, which are a multiple of 25, except for a
    margin of 4 pixels on each side, by which its augmentation may shift a frame.
    """

    def __init__(self, frame_pixels: int, seed: int):
        self.frame_pixels = frame_pixels
        self.cell_pixels = (25 * (frame_pixels // 25) - 2 * CATCH_MARGIN_PIXELS) // CATCH_CELLS
        self.spec = EnvSpec(
            (1, frame_pixels, frame_pixels), 1, 1, CATCH_BALLS * (CATCH_CELLS - 1), num_actions=3
        )
        self.random = np.random.default_rng(seed)
        self.reward = 0.0  # of the last step
        self.paddle, self.column = 0, 0  # the columns of the paddle and of the ball
        self.row, self.balls = 0, 0  # the row of the ball, and the number of balls that have landed

    def reset(self, seed: int | None = None) -> np.ndarray:
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.paddle, self.balls = CATCH_CELLS // 2, 0
        self._drop()
        return self._frame()

    def step(self, action: int) -> EnvStep:
        self.paddle = min(max(self.paddle + action - 1, 0), CATCH_CELLS - 1)
        self.row += 1
        self.reward = 0.0
        if self.row >= CATCH_CELLS - 1:
            self.reward = 1.0 if self.paddle == self.column else -1.0
            self.balls += 1
            self._drop()
        over = self.balls >= CATCH_BALLS
        return EnvStep(self._frame(), self.reward, terminated=over, truncated=False)

    def render(self) -> np.ndarray:
        return (
            self._frame().transpose(1, 2, 0).repeat(3, axis=2).repeat(4, axis=0).repeat(4, axis=1)
        )

    def close(self) -> None:
        pass

    def state_dict(self) -> StateDict:
        return {
            "paddle": self.paddle,
            "column": self.column,
            "row": self.row,
            "balls": self.balls,
            "raw_reward": self.reward,
            "random": self.random.bit_generator.state,
        }

    def load_state_dict(self, state: StateDict) -> bool:
        check_same_structure(self.state_dict(), state, "env of toy/catch")
        self.paddle, self.column, self.row = state["paddle"], state["column"], state["row"]
        self.balls, self.reward = state["balls"], state["raw_reward"]
        self.random.bit_generator.state = state["random"]
        return True

    def _drop(self) -> None:
        self.column, self.row = int(self.random.integers(CATCH_CELLS)), 0

    def _frame(self) -> np.ndarray:
        frame = np.zeros((1, self.frame_pixels, self.frame_pixels), np.uint8)
        for row, column in ((self.row, self.column), (CATCH_CELLS - 1, self.paddle)):
            top, left = (CATCH_MARGIN_PIXELS + cell * self.cell_pixels for cell in (row, column))
            frame[0, top : top + self.cell_pixels, left : left + self.cell_pixels] = 255
        return frame


def make(name: str, env: EnvConfig, seed: int, evaluation: bool = False) -> Reach | Catch:  # noqa: ARG001
    axes = {"reach": 2, "reach-1d": 1}
    if name == "catch":
        return Catch(env.frame_pixels, seed)
    if name not in axes:
        raise ConfigError(f"unknown toy task {name!r}: use one of {', '.join(axes)}, catch")
    return Reach(axes[name], env.frame_pixels, env.crop_pixels, env.action_repeat, seed)
