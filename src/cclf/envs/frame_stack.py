"""The frames that an agent saw last, for a program that hands it one frame after the other."""

from typing import Any

import numpy as np

from cclf.errors import ConfigError
from cclf.validation import short_text


class FrameStack:
    """Stacks of `frame_stack` frames, oldest first, as training makes them: before the first frame
    of an episode stand copies of it, or blanks where `starts_blank` (games). One history, or one
    for each row of a batch."""

    def __init__(
        self,
        frame_shape: tuple[int, ...],
        frame_stack: int,
        starts_blank: bool,
        dtype: str = "uint8",
    ):
        self.frame_shape, self.frame_stack = tuple(frame_shape), frame_stack
        self.dtype = np.dtype(dtype)  # float32: frames are vectors of state
        self.starts_blank = starts_blank
        self._frames: np.ndarray | None = None  # (N, frame_stack, *frame_shape)
        self._is_new = np.zeros(0, dtype=bool)  # (N,)  whose next frame begins an episode

    def reset(self, rows: Any = None) -> None:
        """The next frame begins an episode: of all, or of these rows of a batch, as numbers or as
        one truth value for each row."""
        if rows is None:
            self._frames = None
            return
        self._is_new[self._checked_rows(rows)] = True

    def _checked_rows(self, rows: Any) -> np.ndarray:
        size = 0 if self._frames is None else len(self._is_new)
        wrong = f"rows={short_text(rows)}: the last batch had {size} rows, counted from 0"
        try:
            given = np.asarray(rows)
        except Exception as error:  # whatever the class of `rows` raises
            raise ConfigError(wrong) from error
        if given.dtype == bool and given.shape == (size,):
            return np.flatnonzero(given)
        if given.shape == (0,):
            return np.zeros(0, dtype=int)
        if given.dtype.kind not in "iu" or given.ndim != 1 or not _all_in(given, size):
            raise ConfigError(wrong)
        return given

    def seen(self, frames: np.ndarray) -> np.ndarray:
        """Add a frame to each history (N, ...); the stacks (N, frame_stack * C, ...)."""
        if self._frames is None:
            shape = (len(frames), self.frame_stack, *self.frame_shape)
            self._frames = np.zeros(shape, self.dtype)
            self._is_new = np.ones(len(frames), dtype=bool)
        if len(frames) != len(self._frames):
            raise ConfigError(
                f"{len(frames)} frames, and {len(self._frames)} the time before: each row has a "
                "history of its own; call reset() where episodes begin"
            )
        self._frames = np.concatenate([self._frames[:, 1:], frames[:, None]], axis=1)
        self._frames[self._is_new] = 0 if self.starts_blank else frames[self._is_new, None]
        self._frames[:, -1] = frames
        self._is_new[:] = False
        return self._frames.reshape(len(frames), -1, *self.frame_shape[1:])

    def checked(self, observation: np.ndarray) -> np.ndarray:
        """One frame or a batch of them, as a batch (N, ...); anything else is refused."""
        shape, wanted = observation.shape, self.frame_shape
        if self.dtype != np.uint8 and observation.dtype.kind in "fiub":
            with np.errstate(over="ignore"):
                observation = observation.astype(self.dtype)  # as training does
            if not np.isfinite(observation).all():
                raise ConfigError("the observation holds numbers that are not finite float32")
        if observation.dtype != self.dtype:
            wants = "frames are uint8, from 0 to 255, not scaled"
            if self.dtype != np.uint8:
                wants = "state is a vector of numbers, such as gymnasium.spaces.flatten makes"
            raise ConfigError(f"the observation is {observation.dtype}: {wants}")
        if shape != wanted and (shape[1:] != wanted or shape[0] == 0):
            channels_last = (*wanted[1:], wanted[0])
            hint = "; channels come first" if shape[-3:] == channels_last else ""
            raise ConfigError(
                f"the observation has the shape {shape}: use one newest frame {wanted}, or a batch "
                f"(N, {', '.join(map(str, wanted))}){hint}"
            )
        return observation if shape != wanted else observation[None]


def _all_in(rows: np.ndarray, size: int) -> bool:
    return bool(((rows >= 0) & (rows < size)).all())
