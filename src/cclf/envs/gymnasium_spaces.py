"""What the spaces of a Gymnasium environment say about it, and checks of values against them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces

from cclf.envs.minigrid import short_name
from cclf.errors import ConfigError
from cclf.validation import short_text

Space: TypeAlias = "spaces.Space[Any]"


def require_actions(env_id: str, space: object) -> spaces.Discrete | spaces.Box:
    """The action space. Raises ConfigError if no algorithm supports it."""
    bounds = [space.low, space.high] if isinstance(space, spaces.Box) else []
    is_bounded = np.size(bounds) > 0 and bool(np.all(np.isfinite(bounds)))
    if isinstance(space, spaces.Discrete) or (isinstance(space, spaces.Box) and is_bounded):
        return space
    raise ConfigError(
        f"{env_id} has actions {space}: use Discrete actions (for Rainbow) or a Box with finite "
        "bounds (for SAC, DrQ-v2), for example with gymnasium.wrappers.TransformAction"
    )


class RescaleAction:
    """Maps actions in [-1, 1] to the bounds of a Box. Rounds differently from
    `gymnasium.wrappers.RescaleAction`, and supports bounds as wide as their dtype."""

    def __init__(self, space: spaces.Box):
        low, high = space.low, space.high
        with np.errstate(over="ignore"):
            width = high - low
        if not (np.isfinite(width) & (width >= 0)).all():  # wider than the dtype can represent
            low = low.astype(np.longdouble)
            width = high.astype(np.longdouble) - low
        self._low, self._width, self._dtype = low, width, space.dtype

    def __call__(self, action: np.ndarray) -> np.ndarray:
        fraction = (np.clip(action, -1.0, 1.0).reshape(self._low.shape) + 1.0) * 0.5
        with np.errstate(invalid="ignore"):
            scaled: np.ndarray = (self._low + fraction * self._width).astype(self._dtype)
        return scaled


def is_image_space(space: object) -> bool:
    """Whether observations are images, or boolean layers (H, W, n) as those of MinAtar."""
    if not isinstance(space, spaces.Box) or 0 in space.shape:
        return False
    shape = space.shape
    if space.dtype == np.bool_:
        return len(shape) == 3
    is_image = len(shape) == 2 or (len(shape) == 3 and (shape[-1] in (1, 3) or shape[0] == 3))
    return space.dtype == np.uint8 and is_image


def state_dim(space: Space) -> int:
    """Numbers in one observation; 0 if `why_not_state` gives a reason."""
    return 0 if why_not_state(space) else spaces.flatdim(space)


def why_not_state(space: Space, name: str = "observation") -> str:
    """Why observations are not a fixed count of numbers; empty if they are."""
    if is_image_space(space):
        return f"{name} is an image"
    for key, part in _parts(space):
        if reason := why_not_state(part, f"{name}[{key!r}]"):
            return reason
    try:
        return "" if spaces.flatdim(space) else f"{name} has no numbers"
    except (NotImplementedError, ValueError):  # varying length, or unknown to Gymnasium
        return f"{name} is {type(space).__name__}"


def require_state(env_id: str, space: Space) -> int:
    """Numbers in one observation of state. Raises ConfigError if there is no such count."""
    if reason := why_not_state(space):
        options = "remove --observe state"
        if isinstance(space, spaces.Dict):
            options = f"choose one key with --observe-key: {', '.join(space)}"
        raise ConfigError(
            f"{env_id} has {type(space).__name__} observations that are not a state ({reason}): "
            f"{options}, or use a wrapper such as gymnasium.wrappers.TransformObservation"
            f"{minigrid_hint(env_id)}"
        )
    return spaces.flatdim(space)


def require_no_image_key(env_id: str, space: Space) -> None:
    """Raise ConfigError for a Dict that contains images: an agent that learns from rendered frames
    would ignore them."""
    images = [key for key, part in _parts(space) if is_image_space(part)]
    if isinstance(space, spaces.Dict) and images:
        raise ConfigError(
            f"{env_id} has Dict observations with the keys {', '.join(space)}: choose an image with "
            f"--observe-key, e.g. --observe-key {images[0]}, or rendered frames with "
            f"gymnasium.wrappers.AddRenderObservation{minigrid_hint(env_id)}"
        )


def minigrid_hint(env_id: str) -> str:
    """For MiniGrid, the task of this package's own suite, to end a message; otherwise empty."""
    name = env_id.rpartition(":")[2]
    if not name.startswith("MiniGrid-"):
        return ""
    return f", or train minigrid/{short_name(name)}"


def _parts(space: Space) -> Iterable[tuple[Any, Space]]:
    if isinstance(space, spaces.Dict):
        return space.spaces.items()
    return enumerate(space.spaces) if isinstance(space, spaces.Tuple) else ()


def observation_error(space: Space, observation: Any, name: str = "observation") -> str:
    """Why an observation is not one of its space; empty if it is. Bounds of a Box are not checked:
    many environments exceed them, which is harmless."""
    for key, part in _parts(space):
        try:
            value = observation[key]
        except (LookupError, TypeError):
            return f"{name} is {short_text(repr(observation))}, which has no {key!r}"
        if error := observation_error(part, value, f"{name}[{key!r}]"):
            return error
    if isinstance(space, spaces.Box):
        return _box_error(space, np.asarray(observation), name)
    if isinstance(space, (spaces.Dict, spaces.Tuple)) or space.contains(observation):
        return ""
    return f"{name} is {short_text(repr(observation))}, its space is {space}"


def _box_error(space: spaces.Box, array: np.ndarray, name: str) -> str:
    if array.shape != space.shape:
        return f"{name} has shape {array.shape}, its space has {space.shape}"
    fits = array.dtype == space.dtype
    if not fits and array.dtype.kind in "biuf":
        with np.errstate(all="ignore"):
            converted = array.astype(space.dtype)
        # A float is rounded to the precision of its space; integers must be equal.
        fits = space.dtype.kind == "f" or np.array_equal(converted, array)
    return "" if fits else f"{name} is {array.dtype} ({short_text(array)}), its space {space.dtype}"
