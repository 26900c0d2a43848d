"""Wrapper for a user's Gymnasium environment: errors name the environment, and every returned value
is checked before it is used. PyTorch and numpy would broadcast, cast or fail much later."""

import os
import warnings
from numbers import Real
from typing import Any, NamedTuple, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces

from cclf.config import ObservationType
from cclf.envs.gymnasium_spaces import (
    FLOAT32_MAX,
    describe_type,
    is_image_space,
    observation_error,
    require_space,
    short_repr,
)
from cclf.envs.named_calls import call, close
from cclf.errors import ConfigError, WorkerError, did_you_mean

GymnasiumEnvironment: TypeAlias = "gymnasium.Env[Any, Any]"
Control: TypeAlias = np.ndarray | int  # an action of its action space


class EpisodeStep(NamedTuple):
    """Result of one agent step; the reward is summed over action repeats."""

    observation: np.ndarray
    reward: float
    terminated: bool
    truncated: bool


class CheckedEnv:
    """Checks every value that a Gymnasium environment returns. `reset` and `repeat` return the
    observation used for training: a float32 vector for state, the image for pixels. Where rendered
    frames replace the observation, the environment's own observation is not checked."""

    def __init__(self, env_id: str, env: GymnasiumEnvironment, observe: ObservationType = "pixels"):
        self.id, self._env, self.spec = env_id, env, env.spec
        self.action_space, self.observation_space = (
            require_space(env_id, f"the {name} space", call(env_id, f"{name}_space", read))
            for name, read in (
                ("action", lambda: env.action_space),
                ("observation", lambda: env.observation_space),
            )
        )
        self.has_images = is_image_space(self.observation_space)
        self._as_vector = observe == "state"
        self._as_image = observe == "pixels" and self.has_images
        self._has_rendered = False

    @property
    def unwrapped(self) -> GymnasiumEnvironment:
        return self._env.unwrapped

    def reset(self, seed: int | None = None) -> np.ndarray:
        """The first observation."""
        return call(self.id, "reset", self._reset, seed)

    def _reset(self, seed: int | None) -> np.ndarray:
        answer: object = self._env.reset(seed=seed)
        if not isinstance(answer, (tuple, list)) or len(answer) != 2:
            raise self._return_error(
                "reset", f"{describe_type(answer)}: expected (observation, info)"
            )
        observation, info = answer
        if not isinstance(info, dict):
            raise self._return_error(
                "reset", f"info of type {describe_type(info)}: expected a dict"
            )
        return self._checked_observation("reset", observation)

    def repeat(self, control: Control, times: int) -> EpisodeStep:
        """One agent step: the same control `times` times, or until the episode ends."""
        try:
            return call(self.id, "step", self._repeat, control, times)
        except WorkerError as error:
            if _is_finite(control):
                raise
            raise WorkerError(
                f"{error}; its action was {short_repr(control)}", error.details
            ) from error

    def _repeat(self, control: Control, times: int) -> EpisodeStep:
        total, ended = 0.0, False
        while times and not ended:
            answer: object = self._env.step(control)
            if not isinstance(answer, (tuple, list)) or len(answer) != 5:
                expected = "(observation, reward, terminated, truncated, info)"
                raise self._return_error("step", f"{describe_type(answer)}: expected {expected}")
            observation = answer[0]
            reward, terminated, truncated = (
                self._scalar(*pair)
                for pair in zip(("reward", "terminated", "truncated"), answer[1:], strict=False)
            )
            total, ended, times = total + reward, bool(terminated or truncated), times - 1
        # nan fails every comparison
        if not abs(total) <= FLOAT32_MAX and _is_finite(control):
            raise self._return_error(
                "step",
                f"a reward of {total} in one agent step: expected a finite number of float32",
            )
        frame = self._checked_observation("step", observation, control)
        return EpisodeStep(frame, total, bool(terminated), bool(truncated))

    def _scalar(self, name: str, value: object) -> float:
        """A number, a bool or an array of one element as a float."""
        if isinstance(value, Real):
            return float(value)
        given = np.asarray(value)
        if given.size == 1 and given.dtype.kind in "biuf":
            return float(given.item())
        if name == "reward":
            wrong = f"the reward {short_repr(value)}: expected a scalar"
        else:
            wrong = f"{name}={short_repr(value)}: use True or False"
        raise self._return_error("step", wrong)

    def _checked_observation(
        self, method: str, observation: object, control: Control = 0
    ) -> np.ndarray:
        if not (self._as_vector or self._as_image):
            return np.zeros(0)  # not used: the rendered frame replaces it
        wrong = observation_error(self.observation_space, observation)
        if wrong:
            raise self._return_error(method, wrong)
        if self._as_image:
            return np.asarray(observation, self.observation_space.dtype)
        with np.errstate(over="ignore"):
            flat = np.asarray(spaces.flatten(self.observation_space, observation))
            vector = np.array(flat, np.float32).reshape(-1)
        # A non-finite action comes from the policy, not from the environment; the training loop
        # reports it.
        if not np.isfinite(vector).all() and _is_finite(control):
            place = int(np.flatnonzero(~np.isfinite(vector))[0])
            number = np.ravel(flat)[place]
            raise self._return_error(
                method, f"an observation that is not finite in float32: element {place} is {number}"
            )
        return vector

    def render(self) -> np.ndarray:
        """The rendered frame, (H, W, C), (3, H, W) or (H, W), uint8."""
        return call(self.id, "render", self._render)

    def _render(self) -> np.ndarray:
        try:
            rendered = self._env.render()
        except NotImplementedError:
            rendered = None
        except gymnasium.error.DependencyNotInstalled as error:
            raise ConfigError(f"{self.id} cannot be rendered: {error}") from error
        if rendered is None and not self._has_rendered:
            raise ConfigError(
                f"{self.id} returns no image from render() with render_mode='rgb_array': train it with "
                "--observe state --no-video (continuous actions only)"
            )
        if rendered is None:
            raise self._return_error("render", "NoneType, not a picture")
        frame = np.asarray(rendered)
        wrong = _frame_error(frame)
        if wrong:
            raise self._return_error("render", f"a picture of {wrong}")
        self._has_rendered = True
        return frame.astype(np.uint8, copy=False)

    def close(self) -> None:
        close(self.id, self._env.close)

    def _return_error(self, method: str, what: str) -> WorkerError:
        return WorkerError(f"the environment {self.id}: {method}() returned {what}")


def _is_finite(control: Control) -> bool:
    return bool(np.isfinite(control).all())


def _frame_error(frame: np.ndarray) -> str:
    shape, kind = frame.shape, frame.dtype.kind
    is_frame = len(shape) == 2 or (len(shape) == 3 and (shape[0] == 3 or shape[-1] != 2))
    if 0 in shape or not is_frame:
        return f"shape {shape}: use (height, width, 3)"
    if frame.dtype == np.uint8:
        return ""
    if kind not in "iuf":
        return f"{frame.dtype}: use uint8"
    low, high = frame.min(), frame.max()
    # numbers from 0 to 1 would all become black
    from_0_to_1 = kind == "f" and 0.0 < high <= 1.0
    if low >= 0 and high <= 255 and not from_0_to_1:
        return ""
    return f"{frame.dtype} from {low} to {high}: use uint8 from 0 to 255"


def make_gymnasium(env_id: str, observe: ObservationType = "pixels") -> CheckedEnv:
    """The environment, with the wrappers it is registered with."""
    # pygame, which many of them render with, would need a display. A value set by the user stays.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    return CheckedEnv(env_id, call(env_id, "make", _make, env_id), observe)


def _make(env_id: str) -> GymnasiumEnvironment:
    try:
        with warnings.catch_warnings():
            # `_render` raises a clearer error if a frame is needed
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
        raise ConfigError(
            f"unknown Gymnasium environment {env_id!r}{did_you_mean(env_id, gymnasium.registry)}"
        ) from error
    except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
        raise ConfigError(
            f"Gymnasium cannot make {env_id!r} with render_mode='rgb_array': {error}"
        ) from error
