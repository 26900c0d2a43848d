"""Wrapper for a user's Gymnasium environment: errors name the environment, and every returned value
is checked before it is used. PyTorch and numpy would broadcast, cast or fail much later."""

import os
import warnings
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from cclf.config import ObservationType
from cclf.envs.gymnasium_spaces import (
    FLOAT32_MAX,
    describe_type,
    has_image_observations,
    make_space_check,
    require_space,
    short_repr,
)
from cclf.envs.named_calls import call, close
from cclf.errors import ConfigError, WorkerError, did_you_mean


class EpisodeStep(NamedTuple):
    """Result of one agent step; the reward is summed over action repeats."""

    observation: Any
    reward: float
    terminated: bool
    truncated: bool


class CheckedEnv:
    """Checks every value that a Gymnasium environment returns. `reset` and `repeat` return the
    observation used for training: a float32 vector for state, the image for pixels. Where rendered
    frames replace the observation, the environment's own observation is not checked."""

    def __init__(self, env_id: str, env: Any, observe: ObservationType = "pixels"):
        self.id, self._env, self.spec = env_id, env, env.spec
        self.action_space = call(env_id, "action_space", getattr, env, "action_space")
        self.observation_space = call(
            env_id, "observation_space", getattr, env, "observation_space"
        )
        require_space(env_id, "the action space", self.action_space)
        require_space(env_id, "the observation space", self.observation_space)
        self._as_vector = observe == "state"
        self._as_image = observe == "pixels" and has_image_observations(self)
        self._check = make_space_check(self.observation_space)
        self._has_rendered = False

    @property
    def unwrapped(self) -> Any:
        return self._env.unwrapped

    def reset(self, seed: int | None = None) -> Any:
        """The first observation."""
        return call(self.id, "reset", self._reset, seed)

    def _reset(self, seed: int | None) -> Any:
        answer = self._env.reset(seed=seed)
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

    def repeat(self, control: Any, times: int) -> EpisodeStep:
        """One agent step: the same control `times` times, or until the episode ends."""
        try:
            return call(self.id, "step", self._repeat, control, times)
        except WorkerError as error:
            if np.isfinite(control).all():
                raise
            raise WorkerError(
                f"{error}; its action was {short_repr(control)}", error.details
            ) from error

    def _repeat(self, control: Any, times: int) -> EpisodeStep:
        total = 0.0
        for _ in range(times):
            answer = self._env.step(control)
            if not isinstance(answer, (tuple, list)) or len(answer) != 5:
                raise self._return_error(
                    "step",
                    f"{describe_type(answer)}: expected (observation, reward, terminated, truncated, info)",
                )
            observation, reward, terminated, truncated, _ = answer
            number, ends, cuts = one_number(reward), one_number(terminated), one_number(truncated)
            if number is None:
                raise self._return_error(
                    "step", f"the reward {short_repr(reward)}: expected a scalar"
                )
            if ends is None:
                raise self._return_error(
                    "step", f"terminated={short_repr(terminated)}: use True or False"
                )
            if cuts is None:
                raise self._return_error(
                    "step", f"truncated={short_repr(truncated)}: use True or False"
                )
            total += number
            if ends or cuts:
                break
        # nan fails every comparison
        if not abs(total) <= FLOAT32_MAX and _is_finite(control):
            raise self._return_error(
                "step",
                f"a reward of {total} in one agent step: expected a finite number of float32",
            )
        return EpisodeStep(
            self._checked_observation("step", observation, control), total, bool(ends), bool(cuts)
        )

    def _checked_observation(self, method: str, observation: Any, control: Any = 0) -> Any:
        if not (self._as_vector or self._as_image):
            return observation
        wrong = self._check(observation)
        if wrong:
            raise self._return_error(method, wrong)
        if self._as_image:
            return np.asarray(observation, self.observation_space.dtype)
        from gymnasium import spaces

        with np.errstate(over="ignore"):
            flat: Any = spaces.flatten(self.observation_space, observation)
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
        """Its picture, (H, W, C), (3, H, W) or (H, W), uint8."""
        return call(self.id, "render", self._render)

    def _render(self) -> np.ndarray:
        import gymnasium

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
            raise self._return_error("render", f"{describe_type(rendered)}, not a picture")
        picture = np.asarray(rendered)
        wrong = _frame_error(picture)
        if wrong:
            raise self._return_error("render", f"a picture of {wrong}")
        self._has_rendered = True
        return picture.astype(np.uint8, copy=False)

    def close(self) -> None:
        close(self.id, self._env.close)

    def _return_error(self, method: str, what: str) -> WorkerError:
        return WorkerError(f"the environment {self.id}: {method}() returned {what}")


def one_number(value: Any) -> float | None:
    """A number, bool or array of one element as a float; None for anything else."""
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, (str, bytes)):
        return None
    given = np.asarray(value)
    return float(given.item()) if given.size == 1 and given.dtype.kind in "biuf" else None


def _is_finite(control: Any) -> bool:
    return bool(np.isfinite(control).all())


def _frame_error(picture: np.ndarray) -> str:
    shape, kind = picture.shape, picture.dtype.kind
    is_picture = len(shape) == 2 or (len(shape) == 3 and (shape[0] == 3 or shape[-1] != 2))
    if 0 in shape or not is_picture:
        return f"shape {shape}: use (height, width, 3)"
    if picture.dtype == np.uint8:
        return ""
    if kind not in "iuf":
        return f"{picture.dtype}: use uint8"
    least, most = picture.min(), picture.max()
    # numbers from 0 to 1 would all become black
    from_0_to_1 = kind == "f" and 0.0 < most <= 1.0
    if least >= 0 and most <= 255 and not from_0_to_1:
        return ""
    return f"{picture.dtype} from {least} to {most}: use uint8 from 0 to 255"


def make_gymnasium(env_id: str, observe: ObservationType = "pixels") -> CheckedEnv:
    """The environment, with whatever wrappers it is registered with."""
    # pygame, which many of them draw with, would need a display. A value set by the user stays.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    try:
        import gymnasium
    except ModuleNotFoundError as error:
        raise ConfigError(
            "gym tasks need the package gymnasium: pip install 'cclf[gym]'"
        ) from error
    return CheckedEnv(env_id, call(env_id, "make", _make, gymnasium, env_id), observe)


def _make(gymnasium: Any, env_id: str) -> Any:
    try:
        return _make_with_rendering(gymnasium.make, env_id)
    except gymnasium.error.UnregisteredEnv as error:
        raise ConfigError(
            f"unknown Gymnasium environment {env_id!r}{did_you_mean(env_id, gymnasium.registry)}"
        ) from error
    except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
        raise ConfigError(
            f"Gymnasium cannot make {env_id!r} with render_mode='rgb_array': {error}"
        ) from error


def _make_with_rendering(make: Any, env_id: str) -> Any:
    """Environments without render_mode are created, too: state observations may be enough."""
    with warnings.catch_warnings():
        # `_render` raises a clearer error if a frame is needed
        warnings.filterwarnings("ignore", ".*render_mode='rgb_array' that is not in the possible")
        try:
            return make(env_id, render_mode="rgb_array")
        except TypeError as error:
            if "'render_mode'" not in str(error):
                raise
            return make(env_id)
