"""Any registered Gymnasium environment, from its pixels: continuous actions here, discrete ones in
`gym_game`. From its state: `gym_state`.

An image observation is used as it is; for any other the rendered picture is. Both are resized to
the frame's size.
"""

import os
import warnings
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from cclf.config import EnvConfig, Play
from cclf.data.types import EnvSpec, EnvStep
from cclf.envs.gym_episode import repeated
from cclf.envs.registry import TaskFacts
from cclf.errors import ConfigError, nearest

if TYPE_CHECKING:
    from cclf.envs.gym_game import GymnasiumGame
    from cclf.envs.gym_state import GymnasiumState


class GymnasiumPixels:
    def __init__(self, env_id: str, frame_pixels: int, action_repeat: int, seed: int):
        self._id, self._env = env_id, made(env_id)
        if play_of_actions(env_id, self._env) != "continuous":
            raise ConfigError(
                f"{env_id} has actions {self._env.action_space}: SAC and DrQ-v2 need a Box with "
                "finite bounds"
            )
        self._shows = shows_images(self._env)
        self._frame_pixels, self._repeat = frame_pixels, action_repeat
        self._first_seed: int | None = seed % 2**31
        self.spec = EnvSpec(
            (3, frame_pixels, frame_pixels),
            int(np.prod(self._env.action_space.shape)),
            action_repeat,
            agent_step_limit(self._env, action_repeat),
        )

    def reset(self, seed: int | None = None) -> np.ndarray:
        chosen = self._first_seed if seed is None else seed % 2**31
        self._first_seed = None
        observation, _ = self._env.reset(seed=chosen)
        return self._frame(observation)

    def step(self, action: np.ndarray) -> EnvStep:
        control = control_of(self._env.action_space, action)
        observation, reward, terminated, truncated = repeated(self._env, control, self._repeat)
        return EnvStep(self._frame(observation), reward, terminated, truncated and not terminated)

    def picture(self) -> np.ndarray:
        return rendered(self._id, self._env)

    def close(self) -> None:
        self._env.close()

    def state_dict(self) -> dict[str, Any]:
        """Empty: Gymnasium has no common way to save an environment, so a resumed run begins a new
        episode."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        del state

    def _frame(self, observation: Any) -> np.ndarray:
        image = picture_of(observation if self._shows else rendered(self._id, self._env))
        # an environment may reuse its array
        channels_first = image.transpose(2, 0, 1).copy()
        if channels_first.shape[1:] == (self._frame_pixels, self._frame_pixels):
            return channels_first
        return resized(channels_first, self._frame_pixels)


def make(
    name: str,
    env: EnvConfig,
    seed: int,
    evaluation: bool = False,  # noqa: ARG001
) -> "GymnasiumPixels | GymnasiumGame | GymnasiumState":
    if env.observe == "state":
        from cclf.envs.gym_state import GymnasiumState

        return GymnasiumState(name, env.action_repeat, seed)
    refuse_unrendered(name)
    if facts(name).play == "continuous":
        return GymnasiumPixels(name, env.frame_pixels, env.action_repeat, seed)
    from cclf.envs.gym_game import GymnasiumGame

    return GymnasiumGame(name, env.frame_pixels, env.frame_stack, env.action_repeat, seed)


@cache
def facts(name: str) -> TaskFacts:
    """What can be known of an environment only by making it."""
    from cclf.envs.gym_state import state_dim

    env = made(name)
    try:
        play, space, numbers = play_of_actions(name, env), env.observation_space, state_dim(env)
        flat = len(space.shape or ()) == 1
        seen = f"gives {'vectors' if flat else f'no images but {type(space).__name__}'}: "
        other = " (--observe state: from its numbers)" if numbers and play == "continuous" else ""
        pixels = "" if shows_images(env) else f"{seen}learning from its rendered pictures{other}"
        state = f"{seen}learning from {numbers} numbers of state"
        module, colon, _ = name.partition(":")
        imports = f"imports the Python module {module}" if colon else ""
        remarks = ("; ".join(filter(None, (said, imports))) for said in (pixels, state))
        return TaskFacts(play, *remarks)
    finally:
        env.close()


@cache
def refuse_unrendered(env_id: str) -> None:
    """Before a run begins: one that gives no images must render them. Tried on one that is thrown
    away, so that nothing of the run moves."""
    env = made(env_id)
    try:
        if not shows_images(env):
            env.reset(seed=0)
            rendered(env_id, env)
    finally:
        env.close()


def made(env_id: str) -> Any:
    """The environment, with whatever wrappers it is registered with."""
    # pygame, which many of them draw with, would look for a screen and complain; the user's wins
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    try:
        import gymnasium
    except ModuleNotFoundError as error:
        raise ConfigError(
            "gym tasks need the package gymnasium: pip install 'cclf[gym]'"
        ) from error
    try:
        return _rendering_if_it_can(gymnasium.make, env_id)
    except gymnasium.error.UnregisteredEnv as error:
        raise ConfigError(
            f"unknown Gymnasium environment {env_id!r}{nearest(env_id, gymnasium.registry)}"
        ) from error
    except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
        raise ConfigError(
            f"Gymnasium cannot make {env_id!r} with render_mode='rgb_array': {error}"
        ) from error


def _rendering_if_it_can(make: Any, env_id: str) -> Any:
    """One that cannot render is made too: its observations may be all that is asked for."""
    with warnings.catch_warnings():
        # said again, with what to do, where a picture is asked for
        warnings.filterwarnings("ignore", ".*render_mode='rgb_array' that is not in the possible")
        try:
            return make(env_id, render_mode="rgb_array")
        except TypeError as error:
            if "'render_mode'" not in str(error):
                raise
            return make(env_id)


def rendered(env_id: str, env: Any) -> np.ndarray:
    """Its picture, (H, W, 3) or (H, W)."""
    try:
        image: np.ndarray = np.asarray(env.render())
    except NotImplementedError:
        image = np.asarray(None)
    if image.ndim not in (2, 3):
        raise ConfigError(
            f"{env_id} renders no picture with render_mode='rgb_array': it can be learned by "
            "--observe state --no-video alone, where actions are continuous"
        )
    return image.astype(np.uint8, copy=False)


def control_of(space: Any, action: np.ndarray) -> np.ndarray:
    """What a Box takes, from an action whose numbers are each in [-1, 1]."""
    part = (np.clip(action, -1.0, 1.0).reshape(space.low.shape) + 1.0) * 0.5
    control: np.ndarray = space.low + part * (space.high - space.low)
    return control.astype(space.low.dtype)


def play_of_actions(env_id: str, env: Any) -> Play:
    from gymnasium import spaces

    space = env.action_space
    if isinstance(space, spaces.Discrete):
        return "discrete"
    if isinstance(space, spaces.Box) and np.all(np.isfinite([space.low, space.high])):
        return "continuous"
    raise ConfigError(
        f"{env_id} has actions {space}: learned are Discrete ones (by Rainbow) and a Box with "
        "finite bounds (by SAC, DrQ-v2); register it with a wrapper that makes them so"
    )


def agent_step_limit(env: Any, action_repeat: int) -> int | None:
    """Agent steps until the time limit, where there is one."""
    limit = env.spec.max_episode_steps if env.spec else None
    return None if limit is None else -(-limit // action_repeat)


def shows_images(env: Any) -> bool:
    """Whether its observations are images, or layers of cells that are on or off (MinAtar's)."""
    from gymnasium import spaces

    space = env.observation_space
    if not isinstance(space, spaces.Box):
        return False
    if space.dtype == np.bool_:
        return len(space.shape) == 3
    return space.dtype == np.uint8 and _is_image(space.shape)


def _is_image(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 or (len(shape) == 3 and (shape[-1] in (1, 3) or shape[0] == 3))


def picture_of(image: Any) -> np.ndarray:
    """An observation or a rendered picture as (H, W, 3) uint8, perhaps still the same memory."""
    shown: np.ndarray = np.asarray(image)
    if shown.dtype == np.bool_:
        # As MinAtar shows them: each layer (H, W, n) has a brightness, the brightest is on top.
        layers = shown.shape[-1]
        brightness = np.arange(1, layers + 1) * 255 // layers
        shown = (shown * brightness).max(-1).astype(np.uint8)
    elif shown.shape[0] == 3 and shown.shape[-1] != 3:
        shown = shown.transpose(1, 2, 0)
    if shown.ndim == 2 or shown.shape[-1] == 1:
        shown = np.repeat(shown.reshape(*shown.shape[:2], 1), 3, axis=2)
    colours: np.ndarray = shown[..., :3]
    return colours


def resized(image: np.ndarray, pixels: int) -> np.ndarray:
    """(C, H, W) uint8 to (C, pixels, pixels), each pixel the mean of what it covers."""
    import torch  # late: the one environment that needs it, on the CPU
    from torch.nn import functional as F

    batch = torch.from_numpy(image)[None].float()
    resized = F.interpolate(
        batch, (pixels, pixels), mode="bilinear", antialias=True, align_corners=False
    )
    return resized[0].round().clamp(0, 255).to(torch.uint8).numpy()
