"""Stacks of the newest frames, which agents act on."""

import contextlib
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from cclf.errors import ConfigError
from cclf.storage.safe_loading import check_same_structure
from cclf.types import Action, Env, EnvSpec, EnvStep, StateDict
from cclf.validation import short_text

Padding = Literal["zeros", "repeat"]


class FrameStack:
    """The last `size` frames of an episode, oldest first. Before the first frame of the episode the
    stack holds zeros (Rainbow) or copies of that frame (SAC, DrQ-v2)."""

    def __init__(self, size: int, pad: Padding):
        self.size, self.pad = size, pad
        self.frames: np.ndarray | None = None  # (size * C, H, W), None before the first frame

    def clear(self) -> None:
        """Begin an episode with the next frame."""
        self.frames = None

    def push(self, frame: np.ndarray) -> np.ndarray:
        """Add a frame (C, H, W) or a state (D,). Returns the stack (size * C, H, W) or (size * D,),
        a new array."""
        if self.frames is None:
            before = np.zeros_like(frame) if self.pad == "zeros" else frame
            self.frames = np.concatenate([*[before] * (self.size - 1), frame])
        else:
            self.frames = np.concatenate((self.frames[len(frame) :], frame))
        return self.frames


class StackedEnv:
    """An environment with discrete actions and its frame stack. A new game clears the stack; the
    next episode after a lost life continues it."""

    def __init__(self, env: Env, size: int):
        self.env, self.spec = env, env.spec
        channels, *sides = env.spec.frame_shape
        self._blank = np.zeros((size * channels, *sides), env.spec.frame_dtype)
        self._frames = FrameStack(size, "zeros")
        self._life_lost = False  # by the last step

    @property
    def stack(self) -> np.ndarray:
        """The observation (size * C, H, W) to act on."""
        return self._blank if self._frames.frames is None else self._frames.frames

    def reset(self, seed: int | None = None) -> np.ndarray:
        frame = self.env.reset(seed)
        if seed is not None or not self._life_lost:
            self._frames.clear()
        self._life_lost = False
        self._frames.push(frame)
        return frame

    def step(self, action: Action) -> EnvStep:
        step = self.env.step(action)
        self._frames.push(step.frame)
        self._life_lost = step.life_lost
        return step

    def render(self) -> np.ndarray:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def state_dict(self) -> StateDict:
        """The state of the environment with the stack in place of its newest frame."""
        state = self.env.state_dict()
        return {name: state[name] for name in state if name != "frame"} | {"stack": self.stack}

    def load_state_dict(self, state: StateDict) -> bool:
        check_same_structure(self._blank, state["stack"], "env: stack")
        stack = np.array(state["stack"])
        inner = {name: state[name] for name in state if name != "stack"}
        if "frame" in self.env.state_dict():
            inner["frame"] = stack[-self.spec.frame_shape[0] :]
        # An environment of another package may return None, which means that it was restored.
        restored = self.env.load_state_dict(inner) is not False
        self._frames.frames = stack
        self._life_lost = inner.get("life_lost", False)  # only Atari games have lives
        return restored


class BatchFrameStack:
    """One frame stack for each row of a batch of observations, for programs that pass frames to a
    trained agent. All input is checked."""

    def __init__(self, spec: EnvSpec, size: int):
        self.frame_shape, self.dtype = spec.frame_shape, np.dtype(spec.frame_dtype)
        self._size = size
        self._pad: Padding = "repeat" if spec.num_actions is None else "zeros"
        self._rows: list[FrameStack] = []

    def reset(self, rows: ArrayLike | None = None) -> None:
        """Begin an episode with the next frame: in all rows, or in those given by their indices or
        by one boolean for each row."""
        if rows is None:
            self._rows = []
        else:
            for row in self._row_indices(rows).tolist():
                self._rows[row].clear()

    def _row_indices(self, rows: ArrayLike) -> np.ndarray:
        size = len(self._rows)
        with contextlib.suppress(Exception):  # any class may be passed
            index = np.asarray(rows)
            if index.shape == (0,):
                return np.zeros(0, dtype=int)
            chosen: np.ndarray = np.arange(size)[index]
            if index.ndim == 1 and (index >= 0).all():
                return chosen
        raise ConfigError(
            f"rows={short_text(rows)}: the last batch had {size} rows, counted from 0"
        )

    def push(self, frames: np.ndarray) -> np.ndarray:
        """Add a frame to each row, (N, C, H, W). Returns the stacks (N, size * C, H, W)."""
        if not self._rows:
            self._rows = [FrameStack(self._size, self._pad) for _ in frames]
        if len(frames) != len(self._rows):
            raise ConfigError(
                f"{len(frames)} frames, but the last batch had {len(self._rows)}: each row has its "
                "own history; call reset() first, or reset(rows) where episodes begin"
            )
        return np.stack([row.push(frame) for row, frame in zip(self._rows, frames, strict=True)])

    def to_batch(self, observation: np.ndarray) -> np.ndarray:
        """One frame or a batch of frames as a batch (N, C, H, W)."""
        shape, expected = observation.shape, self.frame_shape
        if self.dtype != np.uint8 and observation.dtype.kind in "fiub":
            with np.errstate(over="ignore"):
                observation = observation.astype(self.dtype)
            if not np.isfinite(observation).all():
                raise ConfigError("the observation holds numbers that are not finite float32")
        if observation.dtype != self.dtype:
            requirement = "frames are uint8, from 0 to 255, not scaled"
            if self.dtype != np.uint8:
                requirement = "state is a vector of numbers, such as gymnasium.spaces.flatten makes"
            raise ConfigError(f"the observation is {observation.dtype}: {requirement}")
        if shape != expected and (shape[1:] != expected or shape[0] == 0):
            channels_last = (*expected[1:], expected[0])
            hint = "; channels come first" if shape[-3:] == channels_last else ""
            raise ConfigError(
                f"the observation has the shape {shape}: use one newest frame {expected}, or a batch "
                f"(N, {', '.join(map(str, expected))}){hint}"
            )
        return observation if shape != expected else observation[None]
