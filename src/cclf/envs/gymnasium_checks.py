"""Checks of the spaces of a user's Gymnasium environment, and a wrapper that checks every value that
the environment returns. Without it PyTorch and numpy would broadcast or cast a wrong value, or fail
much later. Errors name the environment."""

import os
import warnings
from collections.abc import Iterable
from numbers import Real
from operator import itemgetter
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import gymnasium
import numpy as np
from gymnasium import spaces

from cclf.config import ObservationType
from cclf.envs.env_errors import close_env, named_errors
from cclf.envs.minigrid import short_name
from cclf.errors import ConfigError, WorkerError, did_you_mean
from cclf.plugins import import_function, no_module, validate_import_name
from cclf.types import EnvStep
from cclf.validation import short_text

GymnasiumAction: TypeAlias = np.ndarray | int  # an element of the action space
AnyEnv: TypeAlias = "gymnasium.Env[Any, Any]"
Space: TypeAlias = "spaces.Space[Any]"
FLOAT32_MAX = float(np.finfo(np.float32).max)


def require_actions(env_id: str, space: object) -> spaces.Discrete | spaces.Box:
    """The action space. Raises ConfigError if no algorithm supports it."""
    if isinstance(space, spaces.Discrete):
        return space
    if isinstance(space, spaces.Box) and space.is_bounded() and 0 not in space.shape:
        return space
    raise ConfigError(
        f"{env_id} has actions {space}: use Discrete actions (for Rainbow) or a Box with finite "
        "bounds (for SAC, DrQ-v2), for example with gymnasium.wrappers.TransformAction"
    )


def is_image_space(space: object) -> bool:
    """Whether observations are images, or boolean layers (H, W, n) as those of MinAtar."""
    if not isinstance(space, spaces.Box) or 0 in space.shape:
        return False
    shape = space.shape
    if space.dtype == np.bool_:
        return len(shape) == 3
    is_image = len(shape) == 2 or (len(shape) == 3 and (shape[-1] in (1, 3) or shape[0] == 3))
    return space.dtype == np.uint8 and is_image


def why_not_state(space: Space, name: str = "observation") -> str:
    """Why the observations of a space cannot be flattened to vectors of a fixed length; empty if they
    can."""
    if is_image_space(space):
        return f"{name} is an image"
    for key, part in _subspaces(space):
        if reason := why_not_state(part, f"{name}[{key!r}]"):
            return reason
    try:
        return "" if spaces.flatdim(space) else f"{name} has no numbers"
    except (NotImplementedError, ValueError):  # varying length, or unknown to Gymnasium
        return f"{name} is {type(space).__name__}"


def require_state(env_id: str, space: Space) -> int:
    """The length of the state vector. Raises ConfigError if the space cannot be flattened to one."""
    if reason := why_not_state(space):
        options = "remove --observe state"
        numbers = []
        if isinstance(space, spaces.Dict):
            numbers = [key for key, part in space.items() if not why_not_state(part)]
        if numbers:
            options = f"choose one key with --observe-key: {', '.join(numbers)}"
        raise ConfigError(
            f"{env_id} has {type(space).__name__} observations that are not a state ({reason}): "
            f"{options}, or use a wrapper such as gymnasium.wrappers.TransformObservation"
            f"{minigrid_hint(env_id)}"
        )
    return spaces.flatdim(space)


def require_no_image_key(env_id: str, space: Space, observe_key: str) -> None:
    """Raise ConfigError for a key that is not an image, and for a Dict that contains images: an agent
    that learns from rendered frames would ignore them."""
    if observe_key:
        raise ConfigError(
            f"observe_key={observe_key} conflicts with observe=pixels: {space} is not an image; add "
            "--observe state"
        )
    images = [key for key, part in _subspaces(space) if is_image_space(part)]
    if isinstance(space, spaces.Dict) and images:
        raise ConfigError(
            f"{env_id} has Dict observations with the keys {', '.join(space)}: choose an image with "
            f"--observe-key, e.g. --observe-key {images[0]}, or rendered frames with "
            f"gymnasium.wrappers.AddRenderObservation{minigrid_hint(env_id)}"
        )


def minigrid_hint(env_id: str) -> str:
    """The end of a message: for an environment of MiniGrid it recommends the suite minigrid/ of this
    package, for any other it is empty."""
    name = env_id.rpartition(":")[2]
    return f", or train minigrid/{short_name(name)}" if name.startswith("MiniGrid-") else ""


def _subspaces(space: Space) -> Iterable[tuple[Any, Space]]:
    """The keys and spaces that a Dict or Tuple consists of; nothing for any other space."""
    if isinstance(space, spaces.Dict):
        return space.spaces.items()
    return enumerate(space.spaces) if isinstance(space, spaces.Tuple) else ()


class CheckedEnv:
    """Checks every value that a Gymnasium environment returns. Its observations are those used for
    training: a float32 vector (D,) of state, or the image. Where rendered frames replace the
    observation, it is empty and the environment's own observation is not checked."""

    def __init__(self, env_id: str, env: AnyEnv, observe: ObservationType = "pixels"):
        self.id, self._env, self.spec = env_id, env, env.spec
        self.action_space: object = env.action_space
        self.observation_space = env.observation_space
        if not isinstance(self.observation_space, spaces.Space):
            raise ConfigError(
                f"{env_id} has the observation space {self.observation_space!r}: see gymnasium.spaces"
            )
        self.has_images = is_image_space(self.observation_space)
        self._observe, self._has_rendered = observe, False

    def reset(self, seed: int | None = None) -> np.ndarray:
        """The first observation."""
        with named_errors(self.id, "reset"):
            result = self._env.reset(seed=seed)
            observation, info = self._unpack("reset", result, "observation", "info")
            if not isinstance(info, dict):
                raise self._return_error("reset", f"info of type {type(info).__name__}: use a dict")
            return self._checked_observation("reset", observation)

    def repeat(self, action: GymnasiumAction, times: int) -> EnvStep:
        """One agent step: take the same action `times` times, or until the episode ends. The rewards
        are added."""
        # A non-finite action is an error of the policy, which the training loop reports, so non-finite
        # values that result from it are not blamed on the environment.
        is_finite = bool(np.isfinite(action).all())
        total, terminated, truncated = 0.0, False, False
        names = ("observation", "reward", "terminated", "truncated", "info")
        try:
            with named_errors(self.id, "step"):
                for _ in range(times):
                    result = self._unpack("step", self._env.step(action), *names)
                    total += self._number("reward", result[1])
                    terminated = bool(self._number("terminated", result[2]))
                    truncated = bool(self._number("truncated", result[3]))
                    if terminated or truncated:
                        break
                # `not ... <=` because every comparison with nan is false
                if is_finite and not abs(total) <= FLOAT32_MAX:
                    raise self._return_error(
                        "step",
                        f"a reward of {total} in one agent step: use finite numbers of float32",
                    )
                frame = self._checked_observation("step", result[0], is_finite)
        except WorkerError as error:
            if is_finite:
                raise
            line = f"{error}; its action was {short_text(repr(action))}"
            raise WorkerError(line, error.details) from error
        return EnvStep(frame, total, terminated, truncated)

    def _unpack(self, method: str, result: object, *names: str) -> "tuple[Any, ...] | list[Any]":
        if isinstance(result, (tuple, list)) and len(result) == len(names):
            return result
        kind = type(result).__name__
        if isinstance(result, (tuple, list)):
            kind = f"({', '.join(type(value).__name__ for value in result)})"
        raise self._return_error(method, f"{kind}: use ({', '.join(names)})")

    def _number(self, name: str, value: object) -> float:
        """A number, a bool or an array of one element as a float."""
        if isinstance(value, Real):
            return float(value)
        array = np.asarray(value)
        if array.size != 1 or array.dtype.kind not in "biuf":
            use = "one number" if name == "reward" else "True or False"
            raise self._return_error("step", f"{name}={short_text(repr(value))}: use {use}")
        return float(array.item())

    def _checked_observation(
        self, method: str, observation: object, is_finite: bool = True
    ) -> np.ndarray:
        if self._observe == "pixels" and not self.has_images:
            return np.zeros(0)
        if error := observation_error(self.observation_space, observation):
            raise self._return_error(method, f"an invalid observation: {error}")
        if self._observe == "pixels":
            return np.asarray(observation, self.observation_space.dtype)
        with np.errstate(over="ignore"):
            flat = np.asarray(spaces.flatten(self.observation_space, observation)).ravel()
            vector = flat.astype(np.float32)
        if is_finite and not np.isfinite(vector).all():
            index = int(np.argmin(np.isfinite(vector)))
            raise self._return_error(
                method,
                f"an observation that is not finite in float32: element {index} is {flat[index]}",
            )
        return vector

    def render(self) -> np.ndarray:
        """The rendered frame, (H, W, C), (3, H, W) or (H, W), uint8."""
        with named_errors(self.id, "render"):
            try:
                frame = np.asarray(self._env.render())
            except NotImplementedError:
                frame = np.asarray(None)
            except gymnasium.error.DependencyNotInstalled as error:
                raise ConfigError(f"{self.id} cannot be rendered: {error}") from error
        if frame.shape == () and not self._has_rendered:
            raise ConfigError(
                f"{self.id} returns no image from render(): make it with render_mode='rgb_array', or "
                "train it with --observe state --no-video (continuous actions only)"
            )
        shape = frame.shape
        is_image = len(shape) == 2 or (len(shape) == 3 and (shape[0] == 3 or shape[-1] != 2))
        if not (is_image and frame.size and frame.dtype == np.uint8):
            raise self._return_error(
                "render", f"{frame.dtype} of shape {shape}: use uint8 of shape (height, width, 3)"
            )
        self._has_rendered = True
        return frame

    def close(self) -> None:
        close_env(self.id, self._env.close)

    def _return_error(self, method: str, what: str) -> WorkerError:
        return WorkerError(f"the environment {self.id}: {method}() returned {what}")


def observation_error(space: Space, observation: Any, name: str = "observation") -> str:
    """Why an observation is not an element of its space; empty if it is. Bounds of a Box are not
    checked: many environments exceed them, which is harmless."""
    for key, part in _subspaces(space):
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


def make_gymnasium(env_id: str, observe: ObservationType = "pixels", key: str = "") -> CheckedEnv:
    """Make the environment of a registered id, with its wrappers, or the one that MODULE:FUNCTION
    returns. With `key` its observation is that entry of the Dict."""
    # Many environments render with pygame or MuJoCo, which need a display without these variables.
    # Values that the user has set are kept.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("MUJOCO_GL", "egl")
    with named_errors(env_id, "make"):
        env = _make(env_id)
        return CheckedEnv(env_id, _select_key(env_id, env, key) if key else env, observe)


def _select_key(env_id: str, env: AnyEnv, key: str) -> AnyEnv:
    space = env.observation_space
    if not isinstance(space, spaces.Dict):
        raise ConfigError(
            f"observe_key={key} conflicts with {env_id}, whose observations are "
            f"{type(space).__name__}, not Dict: remove it"
        )
    if key not in space.spaces:
        raise ConfigError(
            f"observe_key={key} is unknown{did_you_mean(key, space)}: the observations of {env_id} "
            f"have the keys {', '.join(space)}"
        )
    return gymnasium.wrappers.TransformObservation(env, itemgetter(key), space[key])


def _make(env_id: str) -> AnyEnv:
    try:
        with warnings.catch_warnings():
            # `CheckedEnv.render` raises a clearer error if a frame is needed
            unsupported = ".*render_mode='rgb_array' that is not in the possible"
            warnings.filterwarnings("ignore", unsupported)
            try:
                return gymnasium.make(env_id, render_mode="rgb_array")
            except TypeError as error:
                # An environment without render_mode: state observations may be enough.
                if "'render_mode'" not in str(error):
                    raise
                return gymnasium.make(env_id)
    except gymnasium.error.UnregisteredEnv as error:
        if env_id.partition(":")[2].replace(".", "").isidentifier():
            return _call_function(env_id)
        hint = did_you_mean(env_id, gymnasium.registry)
        if env_id.startswith("MiniGrid-"):
            hint = f"; did you mean the task minigrid/{short_name(env_id)}?"
        raise ConfigError(f"unknown Gymnasium environment {env_id!r}{hint}") from error
    except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
        module, colon, _ = env_id.partition(":")
        if colon and isinstance(error, ModuleNotFoundError):
            validate_import_name("task", env_id, "my_envs:make_env")
            missing = getattr(error.__cause__, "name", None)  # Gymnasium's error has no name
            if missing and f"{module}.".startswith(f"{missing}."):
                raise ConfigError(
                    f"Gymnasium cannot make {env_id!r}: {no_module(missing)}"
                ) from error
        raise ConfigError(
            f"Gymnasium cannot make {env_id!r} with render_mode='rgb_array': {error}"
        ) from error


def _call_function(name: str) -> AnyEnv:
    """The environment that the function MODULE:FUNCTION returns."""
    env = import_function("task", name)()
    if not isinstance(env, gymnasium.Env):
        raise ConfigError(f"{name}() returned {type(env).__name__}, not a gymnasium.Env")
    if id(env) in _returned_envs:
        raise ConfigError(
            f"{name}() returned the same environment twice: make a new one in each call, because "
            "training and evaluation need one each"
        )
    _returned_envs[id(env)] = env
    return env


_returned_envs: WeakValueDictionary[int, AnyEnv] = WeakValueDictionary()  # by id(env)
