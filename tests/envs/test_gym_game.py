"""Gymnasium environments from their pixels, with continuous and with discrete actions: an environment
that shows its own clock, and Pendulum and CartPole through their renderers."""

import os

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")

from cclf import presets  # noqa: E402
from cclf.algorithms.rainbow.rainbow import make_rainbow  # noqa: E402
from cclf.algorithms.registry import make_learner  # noqa: E402
from cclf.config import EnvConfig  # noqa: E402
from cclf.envs.frame_stack import StackedEnv  # noqa: E402
from cclf.envs.gymnasium_env import GymnasiumEnv, rgb_frame  # noqa: E402
from cclf.envs.registry import task_note  # noqa: E402
from cclf.errors import ConfigError  # noqa: E402
from cclf.storage.migrations import migrate_config  # noqa: E402
from rainbow_inputs import games_in  # noqa: E402
from test_cli import assert_refused, cclf  # noqa: E402
from tiny_runs import CPU, run, tiny_config, tiny_options  # noqa: E402

PIXELS = 24
Box, Discrete = gymnasium.spaces.Box, gymnasium.spaces.Discrete
IMAGE = Box(0, 255, (PIXELS, PIXELS, 3), np.uint8)
BOUNDS = Box(-2.0, 6.0, (2,), np.float32)


class Clock(gymnasium.Env):
    """All numbers of an observation and the reward equal the clock; with boolean layers one number
    is True. An episode ends `length` steps after a random start. Like some environments it returns
    the same array in every step."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012
    starts = 0

    def __init__(self, render_mode=None, space=IMAGE, actions=BOUNDS, length=1_000, seeded=True):
        self.render_mode, self.length, self.seeded = render_mode, length, seeded
        self.observation_space, self.action_space = space, actions
        self.array, self.given = np.zeros(space.shape, space.dtype), []

    def _observation(self):
        self.array[...] = 0 if self.array.dtype == np.bool_ else self.clock
        self.array.flat[self.clock % self.array.size] |= self.array.dtype == np.bool_
        return self.array

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        del options
        Clock.starts += 1
        self.start = int(self.np_random.integers(100)) if self.seeded else Clock.starts % 100
        self.clock = self.start
        return self._observation(), {}

    def step(self, action):
        assert action in self.action_space, action
        self.given.append(action)
        self.clock += 1
        over = self.clock - self.start == self.length
        return self._observation(), float(self.clock), over, False, {}

    def render(self):
        return np.full((40, 60, 3), 7, np.uint8)


GAME = {"actions": Discrete(3, start=1), "length": 9}
LIMITED = {"max_episode_steps": 10}
VARIANTS = {
    "Limited": ({}, LIMITED),
    "LimitedGame": (GAME | {"length": 1_000}, LIMITED),
    "Ending": ({"length": 5}, LIMITED),
    "Endless": ({}, {}),
    "ChannelsFirst": ({"space": Box(0, 255, (3, PIXELS, PIXELS), np.uint8)}, {}),
    "Gray": ({"space": Box(0, 255, (PIXELS, PIXELS), np.uint8)}, {}),
    "GrayChannel": ({"space": Box(0, 255, (PIXELS, PIXELS, 1), np.uint8)}, {}),
    "Wide": ({"space": Box(0, 255, (30, 50, 3), np.uint8)}, {}),
    "Vector": ({"space": Box(0, 255, (5,), np.uint8)}, {}),
    "Game": (GAME, {}),
    "Layers": (GAME | {"space": Box(0, 1, (10, 10, 3), np.bool_)}, {}),
    "VectorGame": (GAME | {"space": Box(0, 255, (5,), np.uint8)}, {}),
    "UnseededGame": (GAME | {"seeded": False}, {}),
}


@pytest.fixture(autouse=True, scope="module")
def registered():
    for name, (kwargs, settings) in VARIANTS.items():
        settings = settings | {"kwargs": kwargs, "disable_env_checker": True}
        gymnasium.register(f"cclf-test/{name}-v0", entry_point=Clock, **settings)
    yield
    for name in VARIANTS:
        del gymnasium.registry[f"cclf-test/{name}-v0"]


def make(name="Limited", action_repeat=1, seed=1, pixels=PIXELS):
    return GymnasiumEnv(f"cclf-test/{name}-v0", "pixels", pixels, action_repeat, seed)


def inner(env):
    return env._env._env.unwrapped


def clock(frame):
    assert len(np.unique(frame)) == 1
    return int(frame.flat[0])


def an_action(env):
    return np.zeros(2) if env.spec.num_actions is None else 1


def tiny_game(name="Game", **changes):
    return tiny_config(
        f"gym/cclf-test/{name}-v0",
        "rainbow",
        env={"frame_pixels": 50, "crop_pixels": 50, "frame_stack": 2},
        algorithm={
            "learn_start_agent_steps": 12,
            "n_steps": 3,
            "batch_size": 4,
            "hidden_dim": 8,
            "replay_capacity_transitions": 40,
        },
        **changes,
    )


# --- observations


@pytest.mark.parametrize("name", ["Endless", "ChannelsFirst", "Gray", "GrayChannel", "Wide"])
def test_image_observations_become_new_frames(name):
    env = make(name)
    first = env.reset()
    assert (first.shape, first.dtype) == ((3, PIXELS, PIXELS), np.uint8)
    number = clock(first)
    assert clock(env.step(np.zeros(2)).frame) == number + 1
    assert clock(first) == number, "a frame must not change when the array is written again"


def test_resizing_averages_the_image():
    image = np.zeros((30, 50, 3), np.uint8)
    image[:, :25, 0], image[:15, :, 1] = 200, 100
    frame = rgb_frame(image, 10)
    assert frame.shape == (3, 10, 10)
    assert (frame[0, :, :4] == 200).all()
    assert (frame[0, :, 6:] == 0).all()
    assert (frame[1, :4] == 100).all()
    assert (frame[1, 6:] == 0).all()
    assert frame[2].max() == 0


def test_boolean_layers_are_enlarged_without_blur_each_with_its_own_gray():
    game = make("Layers", pixels=50)
    cells = game.reset()[0].reshape(10, 5, 10, 5)
    assert (cells == cells[:, :1, :, :1]).all(), "every cell is one square of 5x5 pixels"
    for _ in range(3):
        gray = game.step(1).frame[0, ::5, ::5]
        row, column, layer = np.unravel_index(inner(game).clock, (10, 10, 3))
        assert gray[row, column] == (85, 170, 255)[layer]
        assert np.count_nonzero(gray) == 1


@pytest.mark.parametrize(("name", "channels"), [("Vector", 3), ("VectorGame", 1)])
def test_without_an_image_the_rendered_frame_is_the_observation(name, channels):
    env = make(name)
    frame = env.reset()
    assert (frame.shape, clock(frame)) == ((channels, PIXELS, PIXELS), 7)
    assert env.render().shape == (40, 60, 3)


# --- steps


@pytest.mark.parametrize("name", ["Limited", "LimitedGame"])
@pytest.mark.parametrize(("repeat", "steps"), [(1, 10), (3, 4)])
def test_lengths_rewards_and_truncation(name, repeat, steps):
    env = make(name, repeat)
    game = name == "LimitedGame"
    expected = (1 if game else 3, PIXELS, PIXELS), 1 if game else 2, repeat, steps
    assert env.spec == (*expected, 3 if game else None)
    first = clock(env.reset())
    results = [env.step(an_action(env)) for _ in range(steps)]
    assert [r.truncated for r in results] == [False] * (steps - 1) + [True]
    assert not any(r.terminated for r in results)
    rewards = [first + 1 + n for n in range(10)]
    sums = [sum(rewards[n : n + repeat]) for n in range(0, 10, repeat)]
    assert [r.unclipped_reward for r in results] == [r.reward for r in results] == sums
    assert clock(results[-1].frame) == first + 10


@pytest.mark.parametrize(("name", "repeat"), [("Ending", 3), ("Game", 5)])
def test_termination_is_not_truncation_and_stops_the_action_repeat(name, repeat):
    env = make(name, repeat)
    env.reset()
    first, second = env.step(an_action(env)), env.step(an_action(env))
    assert first[2:4] == (False, False)
    assert second[2:4] == (True, False)
    assert clock(second.frame) == clock(first.frame) + repeat - 1
    assert second.game_over
    assert make("Endless").spec.max_episode_agent_steps is None


def test_actions_are_clipped_and_scaled_to_the_bounds_or_counted_from_the_first():
    env = make()
    env.reset()
    for action in ([-1.0, 1.0], [0.0, 0.5], [3.0, -3.0]):
        env.step(np.array(action))
    assert np.allclose(inner(env).given, [[-2.0, 6.0], [2.0, 4.0], [6.0, -2.0]])
    assert all(action.dtype == np.float32 for action in inner(env).given)
    game = make("Game")
    game.reset()
    game.step(0)
    assert inner(game).given == [1]


@pytest.mark.parametrize("name", ["Limited", "Game"])
def test_seeds_are_reproducible_and_different(name):
    def firsts(seed, reset_seed=None):
        env = make(name, seed=seed)
        return [clock(env.reset(reset_seed)), *(clock(env.reset()) for _ in range(4))]

    assert firsts(1) == firsts(1) != firsts(2)
    assert len(set(firsts(1))) > 1, "episodes without a seed differ"
    assert firsts(1, 2**62 + 3) == firsts(2, 2**62 + 3)


# --- saving


def test_continuous_actions_from_pixels_have_no_state_to_save():
    env = make()
    assert env.state_dict() == {}
    assert env.load_state_dict({}) is False


def test_a_game_saved_in_the_middle_has_the_same_future():
    game, other = (StackedEnv(make("Game", seed=seed), 2) for seed in (3, 9))
    for game_steps in (0, 3, 8):
        game.reset()
        for _ in range(game_steps):
            game.step(2)
        assert other.load_state_dict(game.state_dict()) is True
        assert np.array_equal(game.stack, other.stack)
        for _ in range(12):  # beyond the end of the game
            one, two = (each.step(0) for each in (game, other))
            assert one[1:] == two[1:]
            assert np.array_equal(one.frame, two.frame)
            if one.game_over:
                assert np.array_equal(game.reset(), other.reset())


def test_a_game_that_its_seed_does_not_determine_is_not_restored(capsys):
    game, other = make("UnseededGame"), make("UnseededGame")
    game.reset()
    game.reset()
    assert other.load_state_dict(game.state_dict()) is False
    assert "cannot be restored" in capsys.readouterr().err


@pytest.mark.parametrize("change", [{"actions": np.array([7])}, {"actions": [1]}, {"stack": 3}])
def test_a_state_of_another_environment_is_refused(change):
    game = StackedEnv(make("Game"), 2)
    game.reset()
    with pytest.raises(ValueError, match="env"):
        game.load_state_dict(game.state_dict() | change)


def test_a_game_that_cannot_be_restored_begins_again(tmp_path):
    config = tiny_game("UnseededGame", env_steps=40, eval_every_env_steps=40, eval_episodes=1)
    cut, _ = run(config, tmp_path / "run", stop_at=12)  # in its second game
    assert (cut.batch.ages[0], games_in(cut.batch)[0].begun) == (3, True)
    assert run(config, tmp_path / "run")[1]
    learner = make_learner(config, CPU)
    learner.load_state_dict(cut.state_dict())
    (game,) = games_in(learner.batch)
    assert (learner.batch.ages[0], game.begun, game.game_return) == (0, False, 0.0)
    learner.close()


# --- registered environments and commands


def test_pendulum_from_its_renderer():
    pytest.importorskip("pygame")
    env, other = (GymnasiumEnv("Pendulum-v1", "pixels", 84, 2, seed=1) for _ in range(2))
    assert env.spec == ((3, 84, 84), 1, 2, 100, None)
    frame = env.reset()
    assert (frame.shape, frame.dtype) == ((3, 84, 84), np.uint8)
    assert np.array_equal(frame, other.reset())
    step = env.step(np.ones(1))
    assert step.reward < 0
    assert not np.array_equal(frame, step.frame)


def test_an_environment_that_cannot_be_made_is_refused():
    with pytest.raises(ConfigError, match=r"cannot make 'nowhere:Clock-v0'.* in PYTHONPATH"):
        GymnasiumEnv("nowhere:Clock-v0")
    with pytest.raises(ConfigError, match=r"did you mean the task minigrid/Nowhere\?"):
        GymnasiumEnv("MiniGrid-Nowhere-v0")
    with pytest.raises(ConfigError, match=r"not the path of a file: e\.g\. nowhere:clock, with"):
        GymnasiumEnv("nowhere.py:clock")


def test_rendering_needs_no_display(monkeypatch):
    monkeypatch.delenv("SDL_VIDEODRIVER", raising=False)
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    make("Vector")
    assert (os.environ["SDL_VIDEODRIVER"], os.environ["MUJOCO_GL"]) == ("dummy", "egl")


def test_cartpole_from_the_command_line(tmp_path):
    pytest.importorskip("pygame")
    pytest.importorskip("imageio_ffmpeg")
    config = tiny_config(
        "gym/CartPole-v1",
        "rainbow",
        env={"frame_pixels": 25, "crop_pixels": 25},
        algorithm={"learn_start_agent_steps": 21, "batch_size": 4, "hidden_dim": 8},
        env_steps=30,
        eval_every_env_steps=30,
        eval_episodes=1,
    )
    words = [*tiny_options(config), "--out", tmp_path]
    code, out, err = cclf("train", *words)
    assert code == 0, err
    assert err.splitlines()[0] == (
        "gym/CartPole-v1 has vectors: learning from rendered frames (or from the numbers: --observe "
        "state)"
    )
    folder = tmp_path / config.run_name()
    assert out.strip() == str(folder)
    code, _, err = cclf("train", *words, "--env-steps", "40")
    assert code == 0
    assert "resuming at 30 env steps" in err
    code, out, err = cclf("evaluate", folder, "--episodes", "1")
    assert code == 0, err
    assert "over 1 episodes at 40 env steps" in out


@pytest.mark.slow("analysis/test_export.py::test_pt2_of_rainbow_is_its_q_values_on_stacks")
def test_a_policy_is_exported_where_a_time_limit_ends_its_games(tmp_path, monkeypatch):
    config = tiny_game("LimitedGame", env_steps=24, eval_every_env_steps=24, eval_episodes=1)
    assert cclf("train", *tiny_options(config), "--out", tmp_path)[0] == 0
    ages, step = [], Clock.step

    def counted_step(env, action):
        ages.append(env.clock - env.start)
        return step(env, action)

    monkeypatch.setattr(Clock, "step", counted_step)
    code, _, err = cclf("export", tmp_path / config.run_name(), "--out", tmp_path / "policy.pt2")
    assert code == 0, err
    assert max(ages) == 9, "no step is taken after the end of a game"


def test_the_action_space_decides_the_base_algorithm():
    game = "gym/cclf-test/Game-v0"
    assert presets.resolve(game).base == "rainbow"
    assert presets.resolve("gym/Pendulum-v1").base == "sac"
    assert presets.resolve("gym/Pendulum-v1", base_name="drqv2").base == "drqv2"
    assert_refused(
        cclf("train", game, "--base", "sac"),
        f"--base sac conflicts with {game}, which is discrete: use one of rainbow",
    )


def test_both_networks_see_frames_without_cropping():
    for method in ("rainbow", "efficient-dqn"):
        config = presets.resolve("gym/cclf-test/Game-v0", method)
        network = make_rainbow(config, num_actions=3).online
        assert network.encoder.visible_pixels == config.env.frame_pixels == 100


def test_task_note_names_rendered_frames():
    assert task_note("gym/cclf-test/Game-v0", EnvConfig()) == ""
    note = task_note("gym/cclf-test/VectorGame-v0", EnvConfig())
    assert note.startswith("has vectors: learning from render")
    assert task_note("toy/catch", EnvConfig()) == ""


def test_presets_of_a_name_from_a_file_make_no_environment():
    """Names in a file must not import modules: see docs/protocol.md."""
    task = "gym/a_module_that_is_not_there:Any-v0"
    values = presets.resolve(task, make_env=False).to_dict()
    del values["base"]  # as version 0.1 wrote it
    assert migrate_config(values)["base"] == "sac"
    with pytest.raises(ConfigError, match="a_module_that_is_not_there"):
        presets.resolve(task)
