"""The Atari environment against a slow, separate reading of its rules on the same emulator, and
against OpenCV's numbers."""

import functools
import hashlib
import json
import sys
from pathlib import Path

import ale_py
import numpy as np
import pytest
from ale_py import roms

from cclf.algorithms.rainbow.presets import CCLF_COEFFICIENTS, CURL_COEFFICIENTS
from cclf.envs.atari import AtariGame, BilinearResize
from cclf.envs.atari_games import ATARI_GAMES
from cclf.envs.frame_stack import StackedEnv
from cclf.errors import ConfigError
from cclf.storage.checkpoint import Checkpoints

# Sizes of the minimal action sets of ale-py 0.12.1; the other thirteen games use all 18 actions.
NUM_ACTIONS = {
    "KungFuMaster": 14,
    "Amidar": 10,
    "Asterix": 9,
    "CrazyClimber": 9,
    "MsPacman": 9,
    "Gopher": 8,
    "Assault": 7,
}
NUM_ACTIONS |= dict.fromkeys(("DemonAttack", "Pong", "Qbert", "UpNDown"), 6) | {
    "Breakout": 4,
    "Freeway": 3,
}


class Stacked(StackedEnv):
    """A game with its frame stack, and what its emulator knows."""

    def __init__(self, *arguments, **options):
        super().__init__(AtariGame(*arguments, **options), 4)
        self._ale, self.game = self.env._ale, self.env.game

    @property
    def game_over(self):
        return bool(self._ale.game_over())


def training(name, seed=0, **options):
    return Stacked(name, seed, **({"clip_reward": True, "life_loss_terminates": True} | options))


def whole_games(name, seed=0, **options):
    return Stacked(name, seed, clip_reward=False, life_loss_terminates=False, **options)


def emulator(rom, max_raw_frames):
    ale = ale_py.ALEInterface()
    ale.setLoggerMode(ale_py.LoggerMode.Error)
    ale.setFloat("repeat_action_probability", 0.0)
    ale.setInt("max_num_frames_per_episode", max_raw_frames)
    ale.loadROM(roms.get_rom_path(rom))
    return ale


def raw_frames(env):
    return env._ale.getEpisodeFrameNumber()


# --- the resize
# -------------------------------------------------------------------------------------------------------

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "opencv_resize.json").read_text())[
    "sizes"
]


def drawn(kind, height):
    y, x = np.mgrid[0:height, 0:160]
    pictures = {
        "noise": (y * y * 31 + x * x * 17 + x * y * 7 + x * 5) % 251 + (x * y) % 5,
        "checkers": 255 * ((y + x) % 2),
        "ramp": (3 * y + 5 * x) % 256,
    }
    return pictures[kind].astype(np.uint8)


make_shrink = functools.cache(BilinearResize)


def shrunk(picture, pixels=84):
    shrink = make_shrink(*picture.shape, pixels)
    shrink.screen[...] = picture
    return shrink()


@pytest.mark.parametrize("height", [int(height) for height in GOLDEN])
@pytest.mark.parametrize("kind", ["noise", "checkers", "ramp"])
def test_resize_is_bitwise_equal_to_opencv(kind, height):
    """Every height of screen that ale-py's games have."""
    small, golden = shrunk(drawn(kind, height)), GOLDEN[str(height)][kind]
    assert (small.shape, small.dtype) == ((84, 84), np.uint8)
    assert small[41].tolist() == golden["row_41"]
    assert hashlib.sha256(small.tobytes()).hexdigest() == golden["sha256"]


def test_frames_are_never_enlarged():
    with pytest.raises(ConfigError, match="frame_pixels=161 must be 1 to 160"):
        whole_games("Pong", frame_pixels=161)
    picture = drawn("noise", 160)
    np.testing.assert_array_equal(shrunk(picture, 160), picture)


# --- the rules, read again
# --------------------------------------------------------------------------------------------


class SlowGame:
    """Section by section what docs/algorithms.md says, with lists and loops."""

    def __init__(self, rom, seed, clip, life_loss, max_raw_frames=108_000):
        self.ale, self.random = emulator(rom, max_raw_frames), np.random.default_rng(seed)
        self.clip, self.life_loss = clip, life_loss
        self.continues = False

    def seen(self):
        return shrunk(np.array(self.ale.getScreenGrayscale()))

    def reset(self):
        if self.continues:
            self.ale.act(0)
        else:
            self.frames = [np.zeros((84, 84), np.uint8)] * 4
            self.ale.reset_game()
            waits = int(self.random.integers(30))
            while waits > 0:
                self.ale.act(0)
                waits -= 1
                if self.ale.game_over():
                    self.ale.reset_game()
        self.continues = False
        self.lives = self.ale.lives()
        self.frames = [*self.frames[1:], self.seen()]
        return self.frames[-1]

    def step(self, action):
        raw, reward = [], 0
        for _ in range(4):
            reward += self.ale.act(self.ale.getMinimalActionSet()[action])
            raw.append(self.seen())
            if self.ale.game_over():
                break
        black = np.zeros((84, 84), np.uint8)
        third, fourth = [*raw, black, black, black, black][2:4]
        frame = np.maximum(third, fourth)
        self.frames = [*self.frames[1:], frame]
        lost = self.life_loss and 0 < self.ale.lives() < self.lives
        self.lives = self.ale.lives()
        self.continues = lost and not self.ale.game_over()
        paid = min(max(reward, -1), 1) if self.clip else reward
        return frame, paid, reward, self.ale.game_over() or lost


@pytest.mark.quick("Breakout-breakout-400-True-6", "MsPacman-ms_pacman-100-True-0")
@pytest.mark.parametrize(
    ("name", "rom", "steps", "in_training", "fewest_ends"),
    [
        ("Breakout", "breakout", 400, True, 6),  # more than the five lives of a game
        ("MsPacman", "ms_pacman", 100, True, 0),  # rewards are clipped
        ("Qbert", "qbert", 300, True, 1),
        ("Pong", "pong", 120, True, 0),
        ("Breakout", "breakout", 250, False, 1),
    ],
)
def test_every_step_equals_the_slow_reference(name, rom, steps, in_training, fewest_ends):
    """MsPacman differs where frames are shrunk after their maximum, and where rewards are not clipped."""
    env = Stacked(name, 5, clip_reward=in_training, life_loss_terminates=in_training)
    slow, random = SlowGame(rom, 5, in_training, in_training), np.random.default_rng(1)
    np.testing.assert_array_equal(env.reset()[0], slow.reset())
    ended, rewarded = 0, set()
    for _ in range(steps):
        action = random.integers(env.spec.num_actions)
        step, (frame, paid, raw, end) = env.step(action), slow.step(action)
        np.testing.assert_array_equal(step.frame[0], frame)
        np.testing.assert_array_equal(env.stack, np.stack(slow.frames))
        assert (step.reward, step.unclipped_reward, step.terminated, step.truncated) == (
            paid,
            raw,
            end,
            False,
        )
        rewarded.add(step.reward)
        if end:
            ended += 1
            np.testing.assert_array_equal(env.reset()[0], slow.reset())
            np.testing.assert_array_equal(env.stack, np.stack(slow.frames))
    assert len(rewarded) > 1, "nothing was paid"
    assert ended >= fewest_ends


# --- games, lives and caps
# --------------------------------------------------------------------------------------------


def test_a_game_begins_after_0_to_29_noops():
    env = whole_games("Freeway", seed=7)
    waits = []
    for _ in range(40):
        env.reset()
        waits.append(raw_frames(env))
    assert waits == [int(wait) for wait in np.random.default_rng(7).integers(30, size=40)]


def play_until(env, wanted, limit=3000, seed=2):
    random = np.random.default_rng(seed)
    for _ in range(limit):
        step = env.step(random.integers(env.spec.num_actions))
        if wanted(step):
            return step
        assert not step.terminated, "an episode ended before"
    raise AssertionError("it never came")


def test_a_lost_life_ends_an_episode_and_the_game_continues():
    env = training("Breakout")
    env.reset()
    step = play_until(env, lambda step: step.terminated)
    assert (env._ale.lives(), env.game_over) == (4, False)
    assert (step.game_over, step.life_lost) == (False, True)
    stack, frames = env.stack, raw_frames(env)
    first = env.reset()
    assert raw_frames(env) == frames + 1, "one raw frame of NOOP, no new game"
    np.testing.assert_array_equal(env.stack, np.concatenate((stack[1:], first)))


def test_in_evaluation_lives_do_not_end_an_episode():
    env = whole_games("Breakout")
    env.reset()
    play_until(env, lambda step: step.terminated)
    assert (env._ale.lives(), env.game_over) == (0, True)


def test_zero_lives_in_a_running_game_are_not_a_lost_life():
    """BankHeist shows zero lives during its last one."""
    env = training("BankHeist")
    env.reset()
    random, shown_as_zero = np.random.default_rng(0), 0
    while not env.game_over:
        step = env.step(random.integers(18))
        if env._ale.lives() == 0 and not env.game_over:
            shown_as_zero += 1
            assert not step.terminated
        elif step.terminated and not env.game_over:
            env.reset()
    assert step.terminated
    assert shown_as_zero > 0, "the game never did it: this shows nothing"


def test_a_seeded_reset_begins_a_new_game_also_after_a_lost_life():
    env = training("Breakout")
    env.reset()
    play_until(env, lambda step: step.terminated)
    env.reset(3)
    assert (env._ale.lives(), raw_frames(env)) == (5, np.random.default_rng(3).integers(30))


@pytest.mark.parametrize("extra", [1, 4])
def test_the_frame_limit_terminates_and_missing_frames_are_black(extra):
    """The limit counts raw frames, those of the no-ops too."""
    limit = int(np.random.default_rng(0).integers(30)) + 8 + extra
    capped = whole_games("MsPacman", max_raw_frames_per_game=limit)
    slow = SlowGame("ms_pacman", 0, False, False, limit)
    assert capped.spec.max_episode_agent_steps == -(-limit // 4)
    np.testing.assert_array_equal(capped.reset()[0], slow.reset())
    ended = False
    while not ended:
        step, (frame, _, _, ended) = capped.step(1), slow.step(1)
        np.testing.assert_array_equal(step.frame[0], frame)
        assert (step.terminated, step.truncated, step.game_over) == (ended, False, ended)
    assert step.frame.any() == (extra == 4)
    np.testing.assert_array_equal(capped.reset()[0], slow.reset())


def test_a_life_lost_at_the_frame_limit_ends_the_game():
    free = training("Breakout")
    free.reset()
    play_until(free, lambda step: step.terminated)
    capped = training("Breakout", max_raw_frames_per_game=raw_frames(free))
    capped.reset()
    play_until(capped, lambda step: step.terminated)
    assert (capped.game_over, capped._ale.lives()) == (True, 4)
    capped.reset()
    assert (capped.game_over, capped._ale.lives()) == (False, 5)


def test_a_game_that_ends_during_noops_begins_again():
    env = whole_games("Pong", max_raw_frames_per_game=3)
    for _ in range(10):
        env.reset()
        assert not env.game_over


# --- seeds and states
# -------------------------------------------------------------------------------------------------


def future(env, steps, seed=11):
    """A fingerprint of all that a random player would meet, resets included."""
    random, seen = np.random.default_rng(seed), hashlib.sha256()
    for _ in range(steps):
        step = env.step(random.integers(env.spec.num_actions))
        seen.update(step.frame.tobytes() + env.stack.tobytes() + env._ale.getRAM().tobytes())
        seen.update(str((step[1:], env._ale.lives(), raw_frames(env))).encode())
        if step.terminated:
            seen.update(env.reset().tobytes())
    return seen.hexdigest()


@pytest.mark.quick("Assault")
@pytest.mark.parametrize("name", ["Assault", "KungFuMaster", "Qbert"])
def test_a_seeded_game_does_not_depend_on_the_previous_one(name):
    """Two of these keep bytes of memory over a reset of the emulator."""
    fresh, used = whole_games(name, 3), whole_games(name, 4)
    used.reset()
    future(used, 400)
    np.testing.assert_array_equal(used.reset(3), fresh.reset())
    assert future(used, 150) == future(fresh, 150)


def through_a_checkpoint(state, folder):
    Checkpoints(folder).save(state)
    return Checkpoints(folder).load()


@pytest.mark.quick("Qbert")
@pytest.mark.parametrize("name", ATARI_GAMES)
def test_every_game_resumes_exactly_in_a_new_emulator(name, tmp_path):
    env = training(name, seed=1)
    first = env.reset()
    assert (first.shape, first.dtype) == ((1, 84, 84), np.uint8)
    assert env.spec == ((1, 84, 84), 1, 4, 27_000, NUM_ACTIONS.get(name, 18))
    future(env, 55)
    state = through_a_checkpoint(env.state_dict(), tmp_path)
    resumed = training(name, seed=2)
    resumed.load_state_dict(state)
    np.testing.assert_array_equal(resumed.stack, env.stack)
    assert future(resumed, 90) == future(env, 90)


def test_a_state_between_a_lost_life_and_its_reset(tmp_path):
    env, resumed = training("Breakout"), training("Breakout", 7)
    env.reset()
    play_until(env, lambda step: step.terminated)
    resumed.load_state_dict(through_a_checkpoint(env.state_dict(), tmp_path))
    frames = raw_frames(env)
    np.testing.assert_array_equal(resumed.reset(), env.reset())
    assert raw_frames(resumed) == frames + 1
    assert future(resumed, 200) == future(env, 200)


def test_a_state_after_the_last_frame_of_a_game_and_one_before_the_first(tmp_path):
    env, resumed = whole_games("Breakout"), whole_games("Breakout", 7)
    resumed.load_state_dict(through_a_checkpoint(env.state_dict(), tmp_path / "first"))
    np.testing.assert_array_equal(resumed.reset(), env.reset())
    play_until(env, lambda step: step.terminated)
    resumed.load_state_dict(through_a_checkpoint(env.state_dict(), tmp_path / "last"))
    assert resumed.game_over
    np.testing.assert_array_equal(resumed.reset(), env.reset())
    assert future(resumed, 30) == future(env, 30)


def test_a_state_of_another_game_or_a_damaged_one_is_refused():
    env = training("Pong")
    env.reset()
    state = env.state_dict()
    with pytest.raises(ConfigError, match="this state is of pong, not of breakout"):
        training("Breakout").load_state_dict(state)
    for damaged in (state["emulator"][:100], np.zeros(14_000, np.uint8), np.zeros(0, np.uint8)):
        with pytest.raises(ConfigError, match="the emulator's state is damaged"):
            env.load_state_dict(state | {"emulator": damaged})


def test_later_steps_do_not_write_into_returned_arrays():
    env = training("Breakout")
    first = env.reset()
    step, state = env.step(1), env.state_dict()
    arrays = (first, step.frame, env.stack, state["stack"], state["emulator"])
    copies = [array.copy() for array in arrays]
    future(env, 40)
    for array, kept in zip(arrays, copies, strict=True):
        np.testing.assert_array_equal(array, kept)


# --- names, actions, pictures
# -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Brekout", "unknown task 'atari/Brekout'; did you mean atari/Breakout?"),
        ("ms_packman", "unknown task 'atari/MsPackman'; did you mean atari/MsPacman?"),
        ("../pong", "unknown task"),
        ("", "unknown task"),
        (
            "Combat",
            "'atari/Combat' is not supported: the emulator has this game for several players only",
        ),
    ],
)
def test_other_names_are_refused_in_one_line(name, message):
    with pytest.raises(
        ConfigError, match=message.replace("?", r"\?").replace(".", r"\.")
    ) as caught:
        whole_games(name)
    assert "\n" not in str(caught.value)


def test_without_ale_py_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(ConfigError, match=r"pip install 'cclf\[atari\]'"):
        whole_games("Pong")


def test_missing_roms_are_refused(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("ALE_ROMS_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match="cannot read the ROM of Pong"):
        whole_games("Pong")
    assert capsys.readouterr().out == ""


def test_an_action_is_an_integer_of_any_kind():
    env, twin = whole_games("Freeway"), whole_games("Freeway")
    env.reset()
    twin.reset()
    for action in (np.int64(2), np.array([2], np.int32)):
        np.testing.assert_array_equal(env.step(action).frame, twin.step(2).frame)


def test_render_returns_the_screen_in_color():
    env = whole_games("Breakout")
    env.reset()
    picture = env.render()
    assert (picture.shape, picture.dtype) == ((210, 160, 3), np.uint8)
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 5
    env.close()


# --- the table
# --------------------------------------------------------------------------------------------------------


def test_the_table_holds_26_games_and_both_lists_of_coefficients():
    assert len(ATARI_GAMES) == 26
    assert all(ATARI_GAMES.values()), "each says what it is"
    for coefficients, rare, common, count in (
        (CURL_COEFFICIENTS, 0.01, 1.0, 4),
        (CCLF_COEFFICIENTS, 1.0, 1e-4, 6),
    ):
        assert set(coefficients) == set(ATARI_GAMES)
        assert list(coefficients.values()).count(rare) == count
        assert list(coefficients.values()).count(common) == 26 - count
