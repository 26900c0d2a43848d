"""What the spaces of a Gymnasium environment say about it, and checks of values against them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from gymnasium import spaces

from cclf.errors import ConfigError

if TYPE_CHECKING:
    from cclf.config import TaskKind

Space: TypeAlias = "spaces.Space[Any]"
FLOAT32_MAX = float(np.finfo(np.float32).max)


def require_space(env_id: str, name: str, space: object) -> Space:
    if not isinstance(space, spaces.Space):
        raise ConfigError(
            f"{env_id} has {name} {space!r}: Gymnasium asks for a space, see gymnasium.spaces"
        )
    return space


def action_kind(env_id: str, space: Space) -> TaskKind:
    if isinstance(space, spaces.Discrete):
        return "discrete"
    bounds = [space.low, space.high] if isinstance(space, spaces.Box) else []
    if np.size(bounds) and np.all(np.isfinite(bounds)):
        return "continuous"
    raise ConfigError(
        f"{env_id} has actions {space}: learned are Discrete ones (by Rainbow) and a Box with "
        "finite bounds (by SAC, DrQ-v2); register it with a wrapper that makes them so"
    )


class RescaleAction:
    """Maps actions in [-1, 1] to the bounds of a Box. Rounds differently from
    `gymnasium.wrappers.RescaleAction`, and supports bounds as wide as their dtype."""

    def __init__(self, space: spaces.Box):
        self._low, self._high = space.low, space.high
        with np.errstate(over="ignore"):
            self._width = space.high - space.low
        # of bounds as wide as their dtype: inf, or negative for integers
        self._overflows = ~np.isfinite(self._width) | (self._width < 0)
        self._any_overflows = bool(self._overflows.any())

    def __call__(self, action: np.ndarray) -> np.ndarray:
        part = (np.clip(action, -1.0, 1.0).reshape(self._low.shape) + 1.0) * 0.5
        with np.errstate(invalid="ignore"):
            scaled: np.ndarray = (self._low + part * self._width).astype(self._low.dtype)
            if not self._any_overflows:
                return scaled
            low, high = self._low.astype(np.float64), self._high.astype(np.float64)
            mixed = (low * (1.0 - part) + high * part).astype(self._low.dtype)
        # the largest int64 is not a float64
        mixed = np.where(part == 1.0, self._high, mixed)
        return np.where(self._overflows, mixed, scaled)


def is_image_space(space: Space) -> bool:
    """Whether observations are images, or boolean layers (H, W, n) as those of MinAtar."""
    if not isinstance(space, spaces.Box) or 0 in space.shape:
        return False
    shape = space.shape
    if space.dtype == np.bool_:
        return len(shape) == 3
    is_image = len(shape) == 2 or (len(shape) == 3 and (shape[-1] in (1, 3) or shape[0] == 3))
    return space.dtype == np.uint8 and is_image


def state_dim(space: Space) -> int:
    """Numbers in one observation; 0 for images and for observations of varying length."""
    return 0 if is_image_space(space) or varying_part(space) else spaces.flatdim(space)


def require_state(env_id: str, space: Space) -> int:
    """Numbers in one observation of state."""
    numbers = state_dim(space)
    if numbers:
        return numbers
    why = "an image" if is_image_space(space) else varying_part(space) or "it has no number"
    raise ConfigError(
        f"{env_id} gives {space}, which is no state ({why}): remove --observe state, or register "
        f"it with a wrapper that gives numbers{own_suite(env_id)}"
    )


def varying_part(space: Space, name: str = "an observation") -> str:
    """The first part of a space that is not a fixed count of numbers; empty if there is none."""
    for key, inner in _parts(space):
        found = varying_part(inner, f"{_short(name)}[{key!r}]")
        if found:
            return found
    try:
        if space.is_np_flattenable:
            spaces.flatdim(space)
            return ""
    except (NotImplementedError, ValueError):  # a kind of space that Gymnasium does not know
        pass
    return f"{name} is {type(space).__name__}"


def own_suite(env_id: str) -> str:
    """For MiniGrid, a hint at the suite of this package; ends a message."""
    name = env_id.rpartition(":")[2]
    if not name.startswith("MiniGrid-"):
        return ""
    return f", or learn minigrid/{name.removeprefix('MiniGrid-').removesuffix('-v0')}"


def _parts(space: Space) -> Iterable[tuple[object, Space]]:
    if isinstance(space, spaces.Dict):
        return space.spaces.items()
    return enumerate(space.spaces) if isinstance(space, spaces.Tuple) else ()


def _short(name: str) -> str:
    return name.removeprefix("an ")


def observation_error(space: Space, observation: Any, name: str = "an observation") -> str:
    """What is wrong with an observation, to be read after "returned"; empty if nothing is. Bounds of
    a Box are not checked: many environments exceed them, which harms nothing."""
    if isinstance(space, spaces.Box):
        return _box_error(space, np.asarray(observation), name)
    if isinstance(space, spaces.Dict):
        if not isinstance(observation, Mapping):
            return f"{name} of {type(observation).__name__}: its space is Dict"
        lacking = [key for key in space.spaces if key not in observation]
        if lacking:
            return f"{name} without {lacking[0]!r}"
    elif isinstance(space, spaces.Tuple):
        count, is_sequence = len(space.spaces), isinstance(observation, (tuple, list, np.ndarray))
        if not is_sequence or len(observation) != count:
            return f"{name} of {describe_type(observation)}: its space has {count} parts"
    elif not space.contains(observation):
        return f"{_short(name)}={short_repr(observation)}: its space is {space}"
    for key, inner in _parts(space):
        error = observation_error(inner, observation[key], f"{_short(name)}[{key!r}]")
        if error:
            return error
    return ""


def _box_error(space: spaces.Box, given: np.ndarray, name: str) -> str:
    if given.shape != space.shape:
        return f"{name} of shape {given.shape}: its space has {space.shape}"
    if given.dtype == space.dtype:
        return ""
    kind = given.dtype.kind
    is_float = space.dtype.kind not in "biu"
    if kind not in "biuf" or (kind == "f" and not is_float):
        return f"{name} of {given.dtype}: its space has {space.dtype}"
    if is_float or not given.size:
        return ""
    is_bool = space.dtype == np.bool_
    limits = np.iinfo(np.uint8 if is_bool else str(space.dtype))
    low, high = given.min(), given.max()
    if low < limits.min or high > (1 if is_bool else limits.max):
        return f"{name} from {low} to {high}: its space has {space.dtype}"
    return ""


def describe_type(value: object) -> str:
    """The type of a value, and the length of a collection.

    >>> describe_type((1, 2)), describe_type(None)
    ('tuple of 2', 'NoneType')
    """
    if isinstance(value, (tuple, list, dict)):
        return f"{type(value).__name__} of {len(value)}"
    return type(value).__name__


def short_repr(value: object) -> str:
    """In one short line."""
    text = " ".join(repr(value).split())
    return text if len(text) < 60 else f"{text[:57]}..."
