"""Any registered Gymnasium environment with a Box of continuous actions or with discrete actions.

Image observations are used as they are; where there are none, the rendered frame is used. Both are
resized. With `observe="state"` the observation is flattened to a vector.
"""

from functools import cache

import numpy as np
from gymnasium import spaces

from cclf.config import EnvConfig, ObservationType
from cclf.console import warn
from cclf.envs.gymnasium_checks import (
    make_gymnasium,
    minigrid_hint,
    require_actions,
    require_no_image_key,
    require_state,
    why_not_state,
)
from cclf.envs.registry import EnvInfo
from cclf.storage.safe_loading import check_data, check_same_structure
from cclf.types import Action, EnvSpec, EnvStep, StateDict

GRAY_WEIGHTS = np.array([0.299, 0.587, 0.114], np.float32)  # of R, G, B, from ITU-R BT.601
NUM_SEEDS = 2**31  # Gymnasium is given seeds from 0 to this, exclusive


class EpisodeRecorder:
    """Records the seed and the actions of the current episode, so that it can be replayed. Gymnasium
    cannot save an environment, so a resumed run resets it with this seed and takes the same actions.
    Each episode has a seed of its own."""

    def __init__(self, seed: int, action_shape: tuple[int, ...], dtype: type):
        self._random = np.random.default_rng(seed)
        self.no_actions: np.ndarray = np.zeros((0, *action_shape), dtype)  # gives shape and dtype
        self.episode_seed, self.actions = 0, list[np.ndarray]()
        self.started, self.over = False, False

    def begin(self, seed: int | None) -> int:
        """Begin an episode and return its seed. `seed` restarts the stream of episode seeds."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self.episode_seed, self.actions = int(self._random.integers(NUM_SEEDS)), []
        self.started, self.over = True, False
        return self.episode_seed

    def add(self, action: Action, over: bool) -> None:
        self.actions.append(action)
        self.over = over

    def state_dict(self) -> StateDict:
        actions = np.array(self.actions, self.no_actions.dtype)
        return {
            "episode_seed": self.episode_seed,
            "actions": actions.reshape(-1, *self.no_actions.shape[1:]),
            "playing": self.started,
            "game_over": self.over,
            "random": self._random.bit_generator.state,
        }

    def load_state_dict(self, state: StateDict) -> None:
        self.episode_seed, self.actions = state["episode_seed"], list(state["actions"])
        self.started, self.over = state["playing"], state["game_over"]
        self._random.bit_generator.state = state["random"]


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


class GymnasiumEnv:
    """Frames are RGB (3, P, P) for continuous actions, gray (1, P, P) for discrete ones, and
    float32 vectors (D,) of state.

    A time limit truncates. Gray frames and state are cheap to compute, so environments with them are
    restored by replaying the episode. Environments with RGB frames have an empty state dict.
    """

    def __init__(
        self,
        env_id: str,
        observe: ObservationType = "pixels",
        frame_pixels: int = 84,
        action_repeat: int = 1,
        seed: int = 0,
        observe_key: str = "",
    ):
        self._env = make_gymnasium(env_id, observe, observe_key)
        self._observe, self._repeat = observe, action_repeat
        space = require_actions(env_id, self._env.action_space)
        if isinstance(space, spaces.Box):
            self._rescale, num_actions = RescaleAction(space), None
            action_dim = int(np.prod(space.shape))
        else:
            self._first_action, num_actions, action_dim = int(space.start), int(space.n), 1
        channels = 3 if num_actions is None else 1
        shape: tuple[int, ...] = (channels, frame_pixels, frame_pixels)
        if observe == "state":
            shape = (require_state(env_id, self._env.observation_space),)
        elif not self._env.has_images:
            require_no_image_key(env_id, self._env.observation_space, observe_key)
        limit = self._env.spec.max_episode_steps if self._env.spec else None
        steps = None if limit is None else -(-limit // action_repeat)
        self.spec = EnvSpec(shape, action_dim, action_repeat, steps, num_actions)
        self._recorder: EpisodeRecorder | None = None
        if num_actions is not None:
            self._recorder = EpisodeRecorder(seed, (), np.int64)
        elif observe == "state":
            self._recorder = EpisodeRecorder(seed, (action_dim,), np.float32)
        self._first_seed: int | None = seed  # for the first reset, if there is no recorder
        self._frame = np.zeros(shape, self.spec.frame_dtype)
        self._reward = 0.0  # of the last step

    def reset(self, seed: int | None = None) -> np.ndarray:
        if self._recorder is not None:
            episode_seed: int | None = self._recorder.begin(seed)
        else:
            given = self._first_seed if seed is None else seed
            # without a seed the environment continues its random stream
            episode_seed, self._first_seed = None if given is None else given % NUM_SEEDS, None
        self._frame, self._reward = self._to_frame(self._env.reset(episode_seed)), 0.0
        return self._frame

    def step(self, action: Action) -> EnvStep:
        if self._recorder is not None:
            action = np.array(action, self._recorder.no_actions.dtype)
        step = self._play(action)
        if self._recorder is not None:
            self._recorder.add(action, step.game_over)
        self._frame, self._reward = self._to_frame(step.frame), step.reward
        truncated = step.truncated and not step.terminated
        return EnvStep(self._frame, step.reward, step.terminated, truncated)

    def _play(self, action: np.ndarray) -> EnvStep:
        is_discrete = self.spec.num_actions is not None
        mapped = self._first_action + int(action) if is_discrete else self._rescale(action)
        return self._env.repeat(mapped, self._repeat)

    def render(self) -> np.ndarray:
        return self._env.render()

    def close(self) -> None:
        self._env.close()

    def state_dict(self) -> StateDict:
        if self._recorder is None:
            return {}
        state = self._recorder.state_dict() | {"frame": self._frame}
        return state if self.spec.num_actions is None else state | {"raw_reward": self._reward}

    def load_state_dict(self, state: StateDict) -> bool:
        """Replay the saved episode. Returns False if that is impossible or ends in another state."""
        if self._recorder is None:
            return False
        expected = self.state_dict() | {"actions": self._recorder.no_actions}
        check_same_structure(expected, state, "env of gym")
        actions, count = state["actions"], self.spec.num_actions
        valid = np.isfinite(actions) if count is None else (actions >= 0) & (actions < count)
        check_data(valid.all(), f"env: it holds actions that {self._env.id} does not have")
        self._recorder.load_state_dict(state)
        self._frame, self._reward = np.array(state["frame"]), state.get("raw_reward", 0.0)
        return not self._recorder.started or self._replay_actions(self._recorder)

    def _replay_actions(self, episode: EpisodeRecorder) -> bool:
        observation, over = self._env.reset(episode.episode_seed), False
        for action in episode.actions:
            if over:
                break
            step = self._play(action)
            observation, over = step.frame, step.game_over
        if over == episode.over and np.array_equal(self._to_frame(observation), self._frame):
            return True
        warn(
            f"the saved episode of {self._env.id} cannot be restored, because its seed and actions "
            "do not determine it: a new episode begins"
        )
        return False

    def _to_frame(self, observation: np.ndarray) -> np.ndarray:
        if self._observe == "state":
            return observation
        image = to_rgb(observation if self._env.has_images else self._env.render())
        pixels = self.spec.frame_shape[1]
        return (
            rgb_frame(image, pixels) if self.spec.num_actions is None else gray_frame(image, pixels)
        )


def to_rgb(image: np.ndarray) -> np.ndarray:
    """An observation or a rendered frame as (H, W, 3) uint8, perhaps a view of the same memory."""
    if image.dtype == np.bool_:
        # Boolean layers (H, W, n) are drawn as MinAtar does it: each layer has its own brightness, and
        # the brightest layer at a cell is visible.
        layers = image.shape[-1]
        brightness = np.arange(1, layers + 1) * 255 // layers
        image = (image * brightness).max(-1).astype(np.uint8)
    elif image.ndim == 3 and image.shape[0] == 3 and image.shape[-1] != 3:
        image = image.transpose(1, 2, 0)
    if image.ndim == 2 or image.shape[-1] == 1:
        image = np.repeat(image.reshape(*image.shape[:2], 1), 3, axis=2)
    return image[..., :3]


def rgb_frame(image: np.ndarray, pixels: int) -> np.ndarray:
    """(H, W, 3) uint8 to (3, pixels, pixels)."""
    frame = image.transpose(2, 0, 1).copy()  # an environment may reuse its array
    return frame if frame.shape[1:] == (pixels, pixels) else resize(frame, pixels)


def gray_frame(image: np.ndarray, pixels: int) -> np.ndarray:
    """(H, W, 3) uint8 to (1, pixels, pixels). A small image is enlarged without interpolation, so
    that its edges stay sharp."""
    gray = np.rint(image @ GRAY_WEIGHTS).astype(np.uint8)
    if max(gray.shape) > pixels:
        return resize(gray[None], pixels)
    rows, columns = (np.arange(pixels) * side // pixels for side in gray.shape)
    enlarged: np.ndarray = gray[rows[:, None], columns]
    return enlarged[None]


def resize(image: np.ndarray, pixels: int) -> np.ndarray:
    """(C, H, W) uint8 to (C, pixels, pixels) by antialiased bilinear interpolation."""
    import torch  # imported late: no other environment needs it
    from torch.nn import functional as F

    batch = torch.from_numpy(image)[None].float()
    resized = F.interpolate(
        batch, (pixels, pixels), mode="bilinear", antialias=True, align_corners=False
    )
    return resized[0].round().clamp(0, 255).to(torch.uint8).numpy()


def make(name: str, env: EnvConfig, seed: int, evaluation: bool = False) -> GymnasiumEnv:  # noqa: ARG001
    validate(name, env)
    return GymnasiumEnv(
        name, env.observe, env.frame_pixels, env.action_repeat, seed, env.observe_key
    )


@cache
def validate(name: str, env: EnvConfig) -> None:
    """Raise ConfigError for an environment that can be made, but not learned from. A separate
    instance is used, so that the random streams of the run do not change."""
    trial = GymnasiumEnv(name, env.observe, observe_key=env.observe_key)
    try:
        if env.observe == "pixels" and not trial._env.has_images:
            trial._env.reset(0)
            trial.render()
    finally:
        trial.close()


@cache
def inspect_env(name: str) -> EnvInfo:
    """Make the environment and read its spaces."""
    env = make_gymnasium(name)
    try:
        is_discrete = isinstance(require_actions(name, env.action_space), spaces.Discrete)
        space = env.observation_space
    finally:
        env.close()
    state_dim = 0 if why_not_state(space) else spaces.flatdim(space)
    described = "vectors" if len(space.shape or ()) == 1 else f"{type(space).__name__} observations"
    hint = minigrid_hint(name)
    if state_dim:
        hint = " (or from the numbers: --observe state)"
    return EnvInfo(
        "discrete" if is_discrete else "continuous",
        note="" if env.has_images else f"has {described}: learning from rendered frames{hint}",
        state_note=f"has {described}: learning from {state_dim} numbers of state",
    )
