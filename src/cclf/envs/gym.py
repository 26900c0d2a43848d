"""Any registered Gymnasium environment with continuous actions, from its pixels.

An image observation is used as it is; for any other the rendered picture is. Both are resized to
the frame's size.
"""

from typing import Any

import numpy as np

from cclf.config import EnvConfig
from cclf.data.types import EnvSpec, EnvStep
from cclf.errors import ConfigError, nearest


class GymnasiumPixels:
    def __init__(self, env_id: str, frame_pixels: int, action_repeat: int, seed: int):
        try:
            import gymnasium
        except ModuleNotFoundError as error:
            raise ConfigError(
                "gym tasks need the package gymnasium: pip install 'cclf[gym]'"
            ) from error
        try:
            self._env = gymnasium.make(env_id, render_mode="rgb_array")
        except gymnasium.error.UnregisteredEnv as error:
            raise ConfigError(
                f"unknown Gymnasium environment {env_id!r}{nearest(env_id, gymnasium.registry)}"
            ) from error
        except (gymnasium.error.Error, ImportError, TypeError) as error:
            raise ConfigError(
                f"Gymnasium cannot make {env_id!r} with render_mode='rgb_array': {error}"
            ) from error
        space = self._env.action_space
        if not isinstance(space, gymnasium.spaces.Box) or not np.all(
            np.isfinite([space.low, space.high])
        ):
            raise ConfigError(f"{env_id} has actions {space}: SAC needs a Box with finite bounds")
        self._low, self._high = space.low, space.high
        image = self._env.observation_space
        self._image_observation = (
            isinstance(image, gymnasium.spaces.Box)
            and image.dtype == np.uint8
            and _is_image(image.shape)
        )
        self._frame_pixels, self._repeat = frame_pixels, action_repeat
        self._first_seed: int | None = seed % 2**31
        limit = self._env.spec.max_episode_steps if self._env.spec else None
        steps = None if limit is None else -(-limit // action_repeat)
        self.spec = EnvSpec(
            (3, frame_pixels, frame_pixels), int(np.prod(space.shape)), action_repeat, steps
        )

    def reset(self, seed: int | None = None) -> np.ndarray:
        chosen = self._first_seed if seed is None else seed % 2**31
        self._first_seed = None
        observation, _ = self._env.reset(seed=chosen)
        return self._frame(observation)

    def step(self, action: np.ndarray) -> EnvStep:
        control = self._low + (np.clip(action, -1.0, 1.0).reshape(self._low.shape) + 1.0) * 0.5 * (
            self._high - self._low
        )
        reward = 0.0
        for _ in range(self._repeat):
            observation, step_reward, terminated, truncated, _ = self._env.step(
                control.astype(self._low.dtype)
            )
            reward += float(step_reward)
            if terminated or truncated:
                break
        return EnvStep(
            self._frame(observation), reward, bool(terminated), bool(truncated and not terminated)
        )

    def picture(self) -> np.ndarray:
        return np.asarray(self._env.render(), dtype=np.uint8)

    def close(self) -> None:
        self._env.close()

    def state_dict(self) -> dict[str, Any]:
        """Empty: Gymnasium has no common way to save an environment, so a resumed run begins a new
        episode."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        del state

    def _frame(self, observation: Any) -> np.ndarray:
        image = np.asarray(observation if self._image_observation else self._env.render())
        if image.shape[0] == 3 and image.shape[-1] != 3:
            image = image.transpose(1, 2, 0)
        if image.ndim == 2 or image.shape[-1] == 1:
            image = np.repeat(image.reshape(*image.shape[:2], 1), 3, axis=2)
        # an environment may reuse its array
        channels_first = image[..., :3].transpose(2, 0, 1).copy()
        if channels_first.shape[1:] == (self._frame_pixels, self._frame_pixels):
            return channels_first
        return _resized(channels_first, self._frame_pixels)


def make(name: str, env: EnvConfig, seed: int, evaluation: bool = False) -> GymnasiumPixels:  # noqa: ARG001
    return GymnasiumPixels(name, env.frame_pixels, env.action_repeat, seed)


def _resized(image: np.ndarray, pixels: int) -> np.ndarray:
    import torch  # late: the one environment that needs it, on the CPU
    from torch.nn import functional as F

    batch = torch.from_numpy(image)[None].float()
    resized = F.interpolate(
        batch, (pixels, pixels), mode="bilinear", antialias=True, align_corners=False
    )
    return resized[0].round().clamp(0, 255).to(torch.uint8).numpy()


def _is_image(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 or (len(shape) == 3 and (shape[-1] in (1, 3) or shape[0] == 3))
