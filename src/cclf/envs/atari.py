"""Atari games by the emulator (ale-py), bitwise equal to the preprocessing of CURL's Rainbow; see
docs/algorithms.md.

A step repeats one action for four raw frames. Its frame is the maximum of the last two, each resized
first. A game begins after 0 to 29 no-ops. A lost life may end an episode without ending the game.
"""

import contextlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cclf.config import EnvConfig
from cclf.console import message_stream
from cclf.envs.atari_games import game_name
from cclf.envs.registry import unknown_task
from cclf.errors import ConfigError, require_extras
from cclf.storage.safe_loading import check_same_structure
from cclf.types import Action, EnvSpec, EnvStep, StateDict

Bytes = NDArray[np.uint8]
NOOP = 0  # the emulator's action that does nothing
MAX_NOOPS = 30  # exclusive: a game begins after 0 to 29 of them


class BilinearResize:
    """Resizes gray screens to squares, bitwise equal to OpenCV's `resize(..., INTER_LINEAR)` of
    uint8. Each output pixel is a weighted mean of 2x2 pixels p[y, x] of the screen. The weights r of
    the right column and d of the lower row are integers in units of 1 / 2048:

        h[y] = (2048 - r) p[y, x] + r p[y, x+1]        out = ( (2048 - d) (h[y] >> 4) >> 16  +  d (h[y+1] >> 4) >> 16  +  2 ) >> 2
    """

    def __init__(self, height: int, width: int, pixels: int):
        left, right_weight = _interpolation_weights(width, pixels)
        top, lower_weight = _interpolation_weights(height, pixels)
        self._num_pixels = height * width
        # Gathering pixels takes most of the time, so p[x] and p[x+1] are gathered as one 16-bit
        # number. For odd x it comes from a copy of the screen that is shifted by one byte.
        self._screen_twice = np.zeros(2 * self._num_pixels, np.uint8)
        self._pairs = self._screen_twice.view("<u2")
        self.screen = self._screen_twice[: self._num_pixels].reshape(height, width)  # the input
        start = np.stack([top, top + 1])[:, :, None] * width + left  # (2, P, P)
        self._index = start // 2 + start % 2 * (self._num_pixels // 2)
        # Weights have the full shape (2, P, P): broadcasting would take twice the time.
        weights = (
            2048 - right_weight,
            right_weight,
            np.stack([2048 - lower_weight, lower_weight])[:, :, None],
        )
        self._left_weight, self._right_weight, self._row_weight = (
            np.full(start.shape, weight, np.int32) for weight in weights
        )

    def __call__(self) -> Bytes:
        """The contents of `screen`, resized to (P, P)."""
        self._screen_twice[self._num_pixels : -1] = self._screen_twice[1 : self._num_pixels]
        pairs = self._pairs.take(self._index)
        rows = (pairs & 255).astype(np.int32)
        rows *= self._left_weight
        right = (pairs >> 8).astype(np.int32)
        right *= self._right_weight
        rows += right
        rows >>= 4
        rows *= self._row_weight
        rows >>= 16
        result: NDArray[np.int32] = rows[0] + rows[1]
        result += 2
        result >>= 2
        return result.astype(np.uint8)


def _interpolation_weights(size: int, pixels: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each output pixel, the index of the first of its two input pixels, and the weight of the
    second in units of 1 / 2048."""
    if not 0 < pixels <= size:
        raise ConfigError(
            f"frame_pixels={pixels} must be 1 to {size} on Atari: frames are shrunk, never enlarged"
        )
    center = (np.arange(pixels) + 0.5) * size / pixels - 0.5
    first = np.minimum(np.floor(center), size - 2)  # the last pixel has no successor
    return first.astype(np.int64), np.rint(2048 * (center - first)).astype(np.int64)


class AtariGame:
    """One game, with frames (1, P, P). Returned arrays are not overwritten by later steps."""

    def __init__(
        self,
        name: str,
        seed: int,
        *,
        clip_reward: bool,
        life_loss_terminates: bool,
        frame_pixels: int = 84,
        action_repeat: int = 4,
        max_raw_frames_per_game: int = 108_000,
    ):
        """`clip_reward` clips to [-1, 1]; `life_loss_terminates` ends the episode, but not the game,
        with each lost life. Training sets both, evaluation neither."""
        require_extras("an Atari game", ["atari"])
        import ale_py

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.game, path = _find_rom(name)
        self._state_from_bytes = ale_py.ALEState
        self._ale = ale_py.ALEInterface()
        # The emulator uses no random numbers: actions are not sticky, and no-ops are made here.
        self._ale.setInt("random_seed", 0)
        self._ale.setFloat("repeat_action_probability", 0.0)
        self._ale.setInt("frame_skip", 1)
        self._ale.setBool("color_averaging", False)
        self._ale.setInt("max_num_frames_per_episode", max_raw_frames_per_game)
        self._ale.loadROM(path)
        self._initial_state = self._ale.cloneState(include_rng=True)
        self._actions = self._ale.getMinimalActionSet()
        height, width = self._ale.getScreenDims()
        self._resize = BilinearResize(height, width, frame_pixels)
        self._random = np.random.default_rng(seed)
        self._clip, self._life_loss_terminates = clip_reward, life_loss_terminates
        self._repeat = action_repeat
        self._life_lost = False
        steps = -(-max_raw_frames_per_game // action_repeat)
        self.spec = EnvSpec(
            (1, frame_pixels, frame_pixels), 1, action_repeat, steps, num_actions=len(self._actions)
        )

    def reset(self, seed: int | None = None) -> Bytes:
        """Continue the game with one no-op after a lost life; otherwise, and with a seed, begin a new
        game."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
            # In Assault and KungFuMaster a reset of the game does not reset all of the memory.
            self._ale.restoreState(self._initial_state)
            self._life_lost = False
        if self._life_lost:
            self._ale.act(NOOP)
        else:
            self._begin_game()
        self._life_lost = False
        return self._frame()[None]

    def _begin_game(self) -> None:
        self._ale.reset_game()
        for _ in range(self._random.integers(MAX_NOOPS)):
            self._ale.act(NOOP)
            if self._ale.game_over():
                self._ale.reset_game()

    def step(self, action: Action) -> EnvStep:
        """`action` is an index of the minimal action set. A game that reaches the limit of raw frames
        is terminated."""
        ale_action = self._actions[np.asarray(action).item()]
        lives_before = self._ale.lives()
        # stays black if the game ends before the last two raw frames
        reward, frame = 0, np.zeros(self.spec.frame_shape[1:], np.uint8)
        for frames_left in reversed(range(self._repeat)):
            reward += self._ale.act(ale_action)
            if frames_left < 2:
                frame = np.maximum(frame, self._frame())
            if self._ale.game_over():
                break
        # Zero lives in a game that is not over are no loss: BankHeist shows zero during its last life
        # (and Q*bert once, before its end).
        lost, over = 0 < self._ale.lives() < lives_before, bool(self._ale.game_over())
        self._life_lost = self._life_loss_terminates and lost and not over
        raw = float(reward)
        clipped = max(-1.0, min(1.0, raw)) if self._clip else raw
        return EnvStep(frame[None], clipped, over or self._life_lost, False, raw, self._life_lost)

    def _frame(self) -> Bytes:
        self._ale.getScreenGrayscale(self._resize.screen)
        return self._resize()

    def render(self) -> Bytes:
        """The screen, (H, W, 3). It is not part of a state: after loading one, it is outdated until
        the next step."""
        return np.asarray(self._ale.getScreenRGB(), dtype=np.uint8)

    def close(self) -> None:
        """Nothing to release."""

    def state_dict(self) -> StateDict:
        """Everything that determines the following steps. The emulator's state is bytes of its own
        format, which contain no code."""
        emulator = self._ale.cloneState(include_rng=True).serialize()
        return {
            "game": self.game,
            "emulator": np.frombuffer(emulator, np.uint8).copy(),
            "random": self._random.bit_generator.state,
            "life_lost": self._life_lost,
        }

    def load_state_dict(self, state: StateDict) -> bool:
        if state["game"] != self.game:
            raise ConfigError(f"this state is of {state['game']}, not of {self.game}")
        expected = self.state_dict() | {"emulator": np.zeros(0, np.uint8)}
        check_same_structure(expected, state, "env of atari")
        # The emulator's state does not contain the flag that a frame is partially rendered (it matters
        # in Q*bert). A new game and one frame clear the flag.
        self._ale.reset_game()
        self._ale.act(NOOP)
        try:
            self._ale.restoreState(
                self._state_from_bytes(np.asarray(state["emulator"], np.uint8).tobytes())
            )
        except (RuntimeError, SystemError) as error:
            raise ConfigError("the emulator's state is damaged: ale-py cannot read it") from error
        self._random.bit_generator.state = state["random"]
        self._life_lost = state["life_lost"]
        return True


def _find_rom(name: str) -> tuple[str, Path]:
    """The emulator's name of a game, and the path of its ROM."""
    from ale_py import ALEInterface, roms

    known = {rom.replace("_", ""): rom for rom in roms.get_all_rom_ids()}
    rom = known.get(name.replace("_", "").lower())
    if rom is None:
        tasks = [f"atari/{game_name(rom)}" for rom in known.values()]
        raise unknown_task(f"atari/{game_name(name)}", tasks)
    try:
        # It prints the path of ALE_ROMS_DIR if that is set.
        with contextlib.redirect_stdout(message_stream()):
            path = roms.get_rom_path(rom)
    except OSError as error:
        raise ConfigError(
            f"cannot read the ROM of {name}: {error}; check ALE_ROMS_DIR or install ale-py again"
        ) from error
    # Loading an unsupported ROM would end the process.
    if path is None or ALEInterface.isSupportedROM(path) is None:
        raise ConfigError(
            f"'atari/{name}' is not supported: the emulator has this game for several players only"
        )
    return rom, path


def make(name: str, env: EnvConfig, seed: int, evaluation: bool = False) -> AtariGame:
    """In evaluation rewards are not clipped, and a lost life does not end the episode."""
    return AtariGame(
        name,
        seed,
        clip_reward=not evaluation,
        life_loss_terminates=not evaluation,
        frame_pixels=env.frame_pixels,
        action_repeat=env.action_repeat,
    )
