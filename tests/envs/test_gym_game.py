"""Gymnasium environments with discrete actions, learned by Rainbow: one that shows layers of cells
as MinAtar's games do, and CartPole through its renderer."""

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")

from cclf import presets  # noqa: E402
from cclf.algorithms.rainbow.rainbow import make_rainbow  # noqa: E402
from cclf.algorithms.registry import make_learner  # noqa: E402
from cclf.config import EnvConfig  # noqa: E402
from cclf.envs.frame_stack import StackedEnv  # noqa: E402
from cclf.envs.gymnasium_env import GymnasiumEnv, inspect_env, to_rgb  # noqa: E402
from cclf.envs.registry import task_kind, task_note  # noqa: E402
from cclf.errors import ConfigError  # noqa: E402
from cclf.storage.migrations import migrate_config  # noqa: E402
from rainbow_inputs import games_in  # noqa: E402
from test_cli import assert_refused, cclf  # noqa: E402
from tiny_runs import CPU, run, tiny_config, tiny_options  # noqa: E402

CELLS, PIXELS = 10, 50


class Falling(gymnasium.Env):
    """Catch a ball on 10x10 cells: layers of paddle, ball and the ball's trail, on or off. Three
    actions, counted from `first`."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012

    def __init__(self, render_mode=None, first=0, seeded=True):
        self.render_mode, self.first, self.seeded = render_mode, first, seeded
        self.observation_space = gymnasium.spaces.Box(0, 1, (CELLS, CELLS, 3), np.bool_)
        self.action_space = gymnasium.spaces.Discrete(3, start=first)
        self.layers = np.zeros((CELLS, CELLS, 3), np.bool_)
        self.resets = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        del options
        self.resets += 1
        self.paddle, self.row = CELLS // 2, 0
        self.column = int(self.np_random.integers(CELLS)) if self.seeded else self.resets % CELLS
        return self._seen(), {}

    def step(self, action):
        assert action in self.action_space, action
        self.paddle = min(max(self.paddle + int(action) - self.first - 1, 0), CELLS - 1)
        self.row += 1
        over = self.row == CELLS - 1
        caught = over and self.paddle == self.column
        return self._seen(), 5.0 * caught, over, False, {}

    def _seen(self):
        """One array, written again each time, as some environments do."""
        self.layers[:] = False
        self.layers[CELLS - 1, self.paddle, 0] = True
        self.layers[self.row, self.column, 1] = True
        self.layers[: self.row, self.column, 2] = True
        return self.layers

    def render(self):
        return to_rgb(self.layers).repeat(4, 0).repeat(4, 1)


class Still(Falling):
    """The same, of which only a vector is given."""

    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (3,))

    def _seen(self):
        super()._seen()
        return np.zeros(3, np.float32)


VARIANTS = {
    "Falling": (Falling, {}),
    "FromOne": (Falling, {"kwargs": {"first": 1}}),
    "Short": (Falling, {"max_episode_steps": 4}),
    "Unseeded": (Falling, {"kwargs": {"seeded": False}}),
    "Still": (Still, {}),
}


@pytest.fixture(autouse=True, scope="module")
def registered():
    for name, (kind, settings) in VARIANTS.items():
        gymnasium.register(
            f"cclf-game/{name}-v0", entry_point=kind, disable_env_checker=True, **settings
        )
    yield
    for name in VARIANTS:
        del gymnasium.registry[f"cclf-game/{name}-v0"]


def make(name="Falling", action_repeat=1, seed=1, pixels=PIXELS, frame_stack=2):
    env = GymnasiumEnv(f"cclf-game/{name}-v0", "pixels", pixels, action_repeat, seed)
    return StackedEnv(env, frame_stack)


def tiny_game(name="Falling", method="rainbow", **changes):
    return tiny_config(
        f"gym/cclf-game/{name}-v0",
        method,
        env={"frame_pixels": PIXELS, "crop_pixels": PIXELS, "frame_stack": 2},
        algorithm={
            "learn_start_agent_steps": 12,
            "n_steps": 3,
            "batch_size": 4,
            "hidden_dim": 8,
            "replay_capacity_transitions": 40,
        },
        **changes,
    )


# --- what is seen


def test_boolean_layers_are_enlarged_without_blur_each_with_its_own_gray():
    game = make()
    frame = game.reset()
    assert (frame.shape, frame.dtype) == ((1, PIXELS, PIXELS), np.uint8)
    assert game.spec == ((1, PIXELS, PIXELS), 1, 1, None, 3)
    cells = frame[0].reshape(CELLS, 5, CELLS, 5)
    assert (cells == cells[:, :1, :, :1]).all(), "every cell is one square of 5x5 pixels"
    game.step(1)
    grey = game.stack[-1][::5, ::5]
    env = game.env._env._env.unwrapped
    assert grey[CELLS - 1, env.paddle] == 85
    assert (grey[1, env.column], grey[0, env.column]) == (170, 255)
    assert np.count_nonzero(grey) == 3
    assert not np.array_equal(game.stack[0], game.stack[1])


def test_a_frame_does_not_change_when_the_environment_writes_its_array_again():
    game = make()
    first = game.reset()
    kept = first.copy()
    game.step(2)
    assert np.array_equal(first, kept)


def test_large_images_are_resized_to_gray():
    game = make("Still", pixels=20)
    frame = game.reset()[0]
    env = game.env._env._env.unwrapped
    assert frame.shape == (20, 20)
    assert (frame[-2:, 2 * env.paddle : 2 * env.paddle + 2] > 40).all()


# --- rules of play


@pytest.mark.parametrize(("repeat", "steps"), [(1, 9), (2, 5), (4, 3)])
def test_rewards_are_not_clipped_and_termination_stops_the_action_repeat(repeat, steps):
    game = make(action_repeat=repeat)
    game.reset()
    game.env._env._env.unwrapped.column = CELLS // 2  # where the paddle stands
    outcomes = [game.step(1) for _ in range(steps)]
    assert [step.reward for step in outcomes] == [0.0] * (steps - 1) + [5.0]
    assert [step.terminated for step in outcomes] == [False] * (steps - 1) + [True]
    assert outcomes[-1].game_over
    assert outcomes[-1].unclipped_reward == 5.0


def test_a_time_limit_ends_the_game_too():
    game = make("Short", action_repeat=2)
    assert game.spec.max_episode_agent_steps == 2
    game.reset()
    assert game.step(1)[2:4] == (False, False)
    step = game.step(1)
    assert step[2:4] == (False, True)
    assert step.game_over


def test_discrete_actions_may_start_at_another_number():
    game = make("FromOne")
    game.reset()
    game.step(0)
    assert game.env._env._env.unwrapped.paddle == CELLS // 2 - 1
    assert game.spec.num_actions == 3


def test_seeds_are_reproducible_and_different():
    def firsts(seed, reset_seed=None):
        game = make(seed=seed)
        return [game.reset(reset_seed).tobytes(), *(game.reset().tobytes() for _ in range(5))]

    assert firsts(1) == firsts(1) != firsts(2)
    assert len(set(firsts(1))) > 1
    assert firsts(1, 2**62 + 3) == firsts(2, 2**62 + 3)


# --- saving


def test_a_game_saved_in_the_middle_has_the_same_future():
    game, other = make(seed=3), make(seed=9)
    for game_steps in (0, 3, 8):
        game.reset()
        for _ in range(game_steps):
            game.step(2)
        assert other.load_state_dict(game.state_dict()) is True
        assert np.array_equal(game.stack, other.stack)
        for _ in range(12):  # over the end of the game
            one, two = (each.step(0) for each in (game, other))
            assert one[1:] == two[1:]
            assert np.array_equal(one.frame, two.frame)
            if one.game_over:
                assert np.array_equal(game.reset(), other.reset())


def test_a_game_that_its_seed_does_not_determine_is_not_restored(capsys):
    game, other = make("Unseeded"), make("Unseeded")
    game.reset()
    game.reset()
    assert other.load_state_dict(game.state_dict()) is False
    assert "cannot be restored" in capsys.readouterr().err


@pytest.mark.parametrize("change", [{"actions": np.array([7])}, {"actions": [1]}, {"stack": 3}])
def test_a_state_of_another_environment_is_refused(change):
    game = make()
    game.reset()
    with pytest.raises(ValueError, match="env"):
        game.load_state_dict(game.state_dict() | change)


# --- runs


def test_a_game_that_cannot_be_restored_begins_again(tmp_path):
    config = tiny_game("Unseeded", env_steps=40, eval_every_env_steps=40, eval_episodes=1)
    cut, _ = run(config, tmp_path / "run", stop_at=12)  # in its second game
    assert (cut.age, games_in(cut.batch)[0].begun) == (3, True)
    assert run(config, tmp_path / "run")[1]
    learner = make_learner(config, CPU)
    learner.load_state_dict(cut.state_dict())
    (game,) = games_in(learner.batch)
    assert (learner.age, game.begun, game.game_return) == (0, False, 0.0)
    learner.close()


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
    assert config.base == "rainbow"
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
    config = tiny_game("Short", env_steps=14, eval_every_env_steps=14, eval_episodes=1)
    assert cclf("train", *tiny_options(config), "--out", tmp_path)[0] == 0
    folder = tmp_path / config.run_name()
    ages = []
    monkeypatch.setattr(Falling, "step", lambda env, action: _counted(env, action, ages))
    code, _, err = cclf("export", folder, "--out", tmp_path / "policy.pt2")
    assert code == 0, err
    assert max(ages) == 4, "no step is taken after the end of a game"


def _counted(env, action, ages, step=Falling.step):
    answer = step(env, action)
    ages.append(env.row)
    return answer


# --- which base algorithm plays it


def test_the_action_space_decides_the_base_algorithm():
    assert presets.resolve("gym/cclf-game/Falling-v0").base == "rainbow"
    assert presets.resolve("gym/Pendulum-v1").base == "sac"
    assert presets.resolve("gym/Pendulum-v1", base_name="drqv2").base == "drqv2"
    assert_refused(
        cclf("train", "gym/cclf-game/Falling-v0", "--base", "sac"),
        "--base sac conflicts with gym/cclf-game/Falling-v0, which is discrete: use one of rainbow",
    )


def test_both_networks_see_frames_without_cropping():
    for method in ("rainbow", "efficient-dqn"):
        config = presets.resolve("gym/cclf-game/Falling-v0", method)
        network = make_rainbow(config, num_actions=3).online
        assert network.encoder.visible_pixels == config.env.frame_pixels == 100


def test_task_note_names_rendered_frames():
    assert task_note("gym/cclf-game/Falling-v0", EnvConfig()) == ""
    assert task_note("gym/cclf-game/Still-v0", EnvConfig()).startswith(
        "has vectors: learning from render"
    )
    assert task_note("toy/catch", EnvConfig()) == ""


def test_presets_of_a_name_from_a_file_make_no_environment():
    """Names that a file gave: see docs/protocol.md."""
    task = "gym/a_module_that_is_not_there:Any-v0"
    values = presets.resolve(task, make_env=False).to_dict()
    del values["base"]  # as version 0.1 wrote it
    assert migrate_config(values)["base"] == "sac"
    with pytest.raises(ConfigError, match="a_module_that_is_not_there"):
        presets.resolve(task)


def test_an_environment_is_inspected_once():
    inspect_env.cache_clear()
    task_kind("gym/cclf-game/Falling-v0")
    task_kind("gym/cclf-game/Falling-v0")
    assert inspect_env.cache_info().misses == 1
