"""What can be learned from the spaces of a Gymnasium environment, and whether an observation is one
of its space."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from cclf.config import TaskKind
from cclf.errors import ConfigError

FLOAT32_MAX = float(np.finfo(np.float32).max)


def play_of_actions(env_id: str, env: Any) -> TaskKind:
    from gymnasium import spaces

    space = env.action_space
    if isinstance(space, spaces.Discrete):
        return "discrete"
    is_box = isinstance(space, spaces.Box) and space.low.size > 0
    if is_box and np.all(np.isfinite([space.low, space.high])):
        return "continuous"
    raise ConfigError(
        f"{env_id} has actions {space}: learned are Discrete ones (by Rainbow) and a Box with "
        "finite bounds (by SAC, DrQ-v2); register it with a wrapper that makes them so"
    )


class Controls:
    """What a Box takes, of actions of numbers in [-1, 1]."""

    def __init__(self, space: Any):
        self._low, self._high = space.low, space.high
        with np.errstate(over="ignore"):
            self._width = space.high - space.low
        # of a Box as wide as its type, where the difference is inf or, of integers, negative
        self._overflows = ~np.isfinite(self._width) | (self._width < 0)
        self._is_wide = bool(self._overflows.any())

    def __call__(self, action: np.ndarray) -> np.ndarray:
        part = (np.clip(action, -1.0, 1.0).reshape(self._low.shape) + 1.0) * 0.5
        if self._is_wide:
            return self._wide(part)
        control: np.ndarray = self._low + part * self._width
        return control.astype(self._low.dtype)

    def _wide(self, part: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            ordinary = (self._low + part * self._width).astype(self._low.dtype)
            low, high = self._low.astype(np.float64), self._high.astype(np.float64)
            mixed = (low * (1.0 - part) + high * part).astype(self._low.dtype)
        # the largest int64 is no float64
        mixed = np.where(part == 1.0, self._high, mixed)
        control: np.ndarray = np.where(self._overflows, mixed, ordinary)
        return control


def agent_step_limit(env: Any, action_repeat: int) -> int | None:
    """Agent steps until the time limit, where there is one."""
    limit = env.spec.max_episode_steps if env.spec else None
    return None if limit is None else -(-limit // action_repeat)


def has_image_observations(env: Any) -> bool:
    """Whether its observations are images, or layers of cells that are on or off (MinAtar's)."""
    from gymnasium import spaces

    space = env.observation_space
    if not isinstance(space, spaces.Box) or 0 in space.shape:
        return False
    if space.dtype == np.bool_:
        return len(space.shape) == 3
    return space.dtype == np.uint8 and _is_image(space.shape)


def _is_image(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 or (len(shape) == 3 and (shape[-1] in (1, 3) or shape[0] == 3))


def state_dim(env: Any) -> int:
    """Numbers in one observation; 0 where it is an image, or cannot be one vector of one length."""
    from gymnasium import spaces

    space = env.observation_space
    if has_image_observations(env) or without_length(space):
        return 0
    return int(spaces.flatdim(space))


def without_length(space: Any, name: str = "an observation") -> str:
    """The first part of a space that is no fixed count of numbers; empty if all of it is."""
    from gymnasium import spaces

    for key, inner in _parts(space):
        found = without_length(inner, f"{_part_of(name)}[{key!r}]")
        if found:
            return found
    try:
        if space.is_np_flattenable:
            spaces.flatdim(space)
            return ""
    except (NotImplementedError, ValueError):  # a kind of space that Gymnasium does not know
        pass
    return f"{name} is {type(space).__name__}"


def refuse_no_state(env_id: str, env: Any) -> int:
    """Numbers in one observation of state."""
    numbers, space = state_dim(env), env.observation_space
    if numbers:
        return numbers
    why = "an image" if has_image_observations(env) else without_length(space) or "it has no number"
    raise ConfigError(
        f"{env_id} gives {space}, which is no state ({why}): remove --observe state, or register "
        f"it with a wrapper that gives numbers{own_suite(env_id)}"
    )


def own_suite(env_id: str) -> str:
    """Of an environment that this package knows better, the other name, to be read at the end."""
    name = env_id.rpartition(":")[2]
    if not name.startswith("MiniGrid-"):
        return ""
    return f", or learn minigrid/{name.removeprefix('MiniGrid-').removesuffix('-v0')}"


def _parts(space: Any) -> list[tuple[Any, Any]]:
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return [*space.spaces.items()]
    return [*enumerate(space.spaces)] if isinstance(space, spaces.Tuple) else []


def _part_of(name: str) -> str:
    return name.removeprefix("an ")


def require_space(env_id: str, name: str, space: Any) -> None:
    from gymnasium import spaces

    if not isinstance(space, spaces.Space):
        raise ConfigError(
            f"{env_id} has {name} {space!r}: Gymnasium asks for a space, see gymnasium.spaces"
        )


# What is wrong with an observation, to be read after "with"; empty if nothing is.
Check = Callable[[Any], str]


def make_space_check(space: Any, name: str = "an observation") -> Check:
    """Bounds of a Box are not checked: many environments exceed them, which harms nothing."""
    from gymnasium import spaces

    if isinstance(space, spaces.Box):
        kind = space.dtype.kind
        if kind == "b":
            limits: tuple[int, int] | None = 0, 1
        elif kind in "iu":
            limits = int(np.iinfo(space.dtype).min), int(np.iinfo(space.dtype).max)
        else:
            limits = None
        return partial(_box_error, space.shape, space.dtype, limits, name)
    checks = {
        key: make_space_check(inner, f"{_part_of(name)}[{key!r}]") for key, inner in _parts(space)
    }
    if isinstance(space, spaces.Dict):
        return partial(_dict_error, checks, name)
    if isinstance(space, spaces.Tuple):
        return partial(_tuple_error, checks, name)
    return partial(_other_error, space, name)


def _box_error(
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    limits: tuple[int, int] | None,
    name: str,
    observation: Any,
) -> str:
    given = np.asarray(observation)
    if given.shape != shape:
        return f"{name} of shape {given.shape}: its space has {shape}"
    if given.dtype == dtype:
        return ""
    kind = given.dtype.kind
    if kind not in "biuf" or (kind == "f" and limits is not None):
        return f"{name} of {given.dtype}: its space has {dtype}"
    if limits is not None and given.size:
        least, most = given.min(), given.max()
        if least < limits[0] or most > limits[1]:
            return f"{name} from {least} to {most}: its space has {dtype}"
    return ""


def _dict_error(checks: Mapping[Any, Check], name: str, observation: Any) -> str:
    if not isinstance(observation, Mapping):
        return f"{name} of {type(observation).__name__}: its space is Dict"
    for key, check in checks.items():
        if key not in observation:
            return f"{name} without {key!r}"
        wrong = check(observation[key])
        if wrong:
            return wrong
    return ""


def _tuple_error(checks: Mapping[Any, Check], name: str, observation: Any) -> str:
    if not isinstance(observation, (tuple, list, np.ndarray)) or len(observation) != len(checks):
        return f"{name} of {describe_type(observation)}: its space has {len(checks)} parts"
    for check, part in zip(checks.values(), observation, strict=True):
        wrong = check(part)
        if wrong:
            return wrong
    return ""


def _other_error(space: Any, name: str, observation: Any) -> str:
    if space.contains(observation):
        return ""
    return f"{_part_of(name)}={short_repr(observation)}: its space is {space}"


def describe_type(value: Any) -> str:
    """Its type, and how many it holds.

    >>> describe_type((1, 2)), describe_type(None)
    ('tuple of 2', 'NoneType')
    """
    counted = isinstance(value, (tuple, list, dict))
    return f"{type(value).__name__} of {len(value)}" if counted else type(value).__name__


def short_repr(value: Any) -> str:
    """In one short line."""
    text = " ".join(repr(value).split())
    return text if len(text) < 60 else f"{text[:57]}..."
