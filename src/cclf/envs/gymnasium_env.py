"""Any registered Gymnasium environment, from its pixels: continuous actions here, discrete ones in
`gym_game`. From its state: `gym_state`.

An image observation is used as it is; for any other the rendered picture is. Both are resized to
the frame's size.
"""

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from cclf.config import EnvConfig
from cclf.envs.gymnasium_checks import make_gymnasium
from cclf.envs.gymnasium_spaces import (
    Controls,
    agent_step_limit,
    has_image_observations,
    own_suite,
    play_of_actions,
    refuse_no_state,
    state_dim,
)
from cclf.envs.registry import EnvInfo
from cclf.errors import ConfigError
from cclf.types import EnvSpec, EnvStep

if TYPE_CHECKING:
    from cclf.envs.gymnasium_game import GymnasiumGame
    from cclf.envs.gymnasium_state import GymnasiumState


class GymnasiumPixels:
    def __init__(self, env_id: str, frame_pixels: int, action_repeat: int, seed: int):
        self._env = make_gymnasium(env_id)
        if play_of_actions(env_id, self._env) != "continuous":
            raise ConfigError(
                f"{env_id} has actions {self._env.action_space}: SAC and DrQ-v2 need a Box with "
                "finite bounds"
            )
        self._shows, self._control_of = (
            has_image_observations(self._env),
            Controls(self._env.action_space),
        )
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
        return self._frame(self._env.reset(chosen))

    def step(self, action: np.ndarray) -> EnvStep:
        observation, reward, terminated, truncated = self._env.repeat(
            self._control_of(action), self._repeat
        )
        return EnvStep(self._frame(observation), reward, terminated, truncated and not terminated)

    def picture(self) -> np.ndarray:
        return self._env.render()

    def close(self) -> None:
        self._env.close()

    def state_dict(self) -> dict[str, Any]:
        """Empty: Gymnasium has no common way to save an environment, so a resumed run begins a new
        episode."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        del state

    def _frame(self, observation: Any) -> np.ndarray:
        image = to_rgb(observation if self._shows else self._env.render())
        # an environment may reuse its array
        channels_first = image.transpose(2, 0, 1).copy()
        if channels_first.shape[1:] == (self._frame_pixels, self._frame_pixels):
            return channels_first
        return resize(channels_first, self._frame_pixels)


def make(
    name: str,
    env: EnvConfig,
    seed: int,
    evaluation: bool = False,  # noqa: ARG001
) -> "GymnasiumPixels | GymnasiumGame | GymnasiumState":
    if env.observe == "state":
        from cclf.envs.gymnasium_state import GymnasiumState

        return GymnasiumState(name, env.action_repeat, seed)
    refuse_unrendered(name)
    if inspect_env(name).play == "continuous":
        return GymnasiumPixels(name, env.frame_pixels, env.action_repeat, seed)
    from cclf.envs.gymnasium_game import GymnasiumGame

    return GymnasiumGame(name, env.frame_pixels, env.frame_stack, env.action_repeat, seed)


def refuse(name: str, env: EnvConfig) -> None:
    """What `make` would refuse of an environment that can be made."""
    if env.observe == "pixels":
        refuse_unrendered(name)
    else:
        refuse_no_state(name, make_gymnasium(name))


@cache
def inspect_env(name: str) -> EnvInfo:
    """What can be known of an environment only by making it."""
    env = make_gymnasium(name)
    try:
        play, space, numbers = play_of_actions(name, env), env.observation_space, state_dim(env)
        flat = len(space.shape or ()) == 1
        seen = f"gives {'vectors' if flat else f'no images but {type(space).__name__}'}: "
        other = " (--observe state: from its numbers)" if numbers and play == "continuous" else ""
        other = other or own_suite(name)
        pixels = (
            ""
            if has_image_observations(env)
            else f"{seen}learning from its rendered pictures{other}"
        )
        state = f"{seen}learning from {numbers} numbers of state"
        module, colon, _ = name.partition(":")
        imports = f"imports the Python module {module}" if colon else ""
        remarks = ("; ".join(filter(None, (said, imports))) for said in (pixels, state))
        return EnvInfo(play, *remarks)
    finally:
        env.close()


@cache
def refuse_unrendered(env_id: str) -> None:
    """Before a run begins: one that gives no images must render them. Tried on one that is thrown
    away, so that nothing of the run moves."""
    env = make_gymnasium(env_id)
    try:
        if not has_image_observations(env):
            env.reset(0)
            env.render()
    finally:
        env.close()


def to_rgb(image: Any) -> np.ndarray:
    """An observation or a rendered picture as (H, W, 3) uint8, perhaps still the same memory."""
    shown: np.ndarray = np.asarray(image)
    if shown.dtype == np.bool_:
        # As MinAtar shows them: each layer (H, W, n) has a brightness, the brightest is on top.
        layers = shown.shape[-1]
        brightness = np.arange(1, layers + 1) * 255 // layers
        shown = (shown * brightness).max(-1).astype(np.uint8)
    elif shown.ndim == 3 and shown.shape[0] == 3 and shown.shape[-1] != 3:
        shown = shown.transpose(1, 2, 0)
    if shown.ndim == 2 or shown.shape[-1] == 1:
        shown = np.repeat(shown.reshape(*shown.shape[:2], 1), 3, axis=2)
    colours: np.ndarray = shown[..., :3]
    return colours


def resize(image: np.ndarray, pixels: int) -> np.ndarray:
    """(C, H, W) uint8 to (C, pixels, pixels), each pixel the mean of what it covers."""
    import torch  # late: the one environment that needs it, on the CPU
    from torch.nn import functional as F

    batch = torch.from_numpy(image)[None].float()
    resized = F.interpolate(
        batch, (pixels, pixels), mode="bilinear", antialias=True, align_corners=False
    )
    return resized[0].round().clamp(0, 255).to(torch.uint8).numpy()
