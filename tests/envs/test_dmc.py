"""DeepMind Control against dm_control itself: same seeds, same actions, everything compared."""

import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("dm_control")

from cclf.envs import dmc
from cclf.envs.dmc import DeepMindControl
from cclf.errors import ConfigError
from cclf.storage import checkpoint
from cclf.training.seeding import derive

ACTION_DIM = {
    "cartpole-swingup": 1,
    "reacher-easy": 2,
    "cheetah-run": 6,
    "finger-spin": 2,
    "walker-walk": 6,
    "ball_in_cup-catch": 2,
}
A_TASK = {
    "acrobot": "swingup",
    "ball_in_cup": "catch",
    "cartpole": "swingup",
    "finger": "spin",
}


@pytest.fixture
def make():
    made = []

    def build(name="cartpole-swingup", frame_pixels=100, action_repeat=8, seed=1):
        made.append(DeepMindControl(name, frame_pixels, action_repeat, seed))
        return made[-1]

    yield build
    for env in made:
        env.close()


@pytest.fixture
def blind(make, monkeypatch):
    """Environments that render nothing: the physics alone takes a hundredth of the time."""

    def build(*args, **kwargs):
        env = make(*args, **kwargs)
        monkeypatch.setattr(env, "_frame", lambda: np.zeros(env.spec.frame_shape, np.uint8))
        return env

    return build


def dm_control_env(name, seed):
    domain, task = name.split("-")
    return dmc._import_suite().load(domain, task, task_kwargs={"random": seed})


def actions_for(env, count, seed=0):
    """Random actions in float32, as from policies."""
    return (
        np.random.default_rng(seed).uniform(-1, 1, (count, env.spec.action_dim)).astype(np.float32)
    )


@pytest.mark.quick("cartpole-swingup")
@pytest.mark.parametrize("name", ACTION_DIM)
def test_frames_and_rewards_equal_dm_control(make, name):
    env, theirs = make(name, action_repeat=4, seed=5), dm_control_env(name, seed=5)
    assert env.spec == ((3, 100, 100), ACTION_DIM[name], 4, 250, None)
    theirs.reset()
    frame = env.reset()
    assert frame.dtype == np.uint8
    assert frame.flags.c_contiguous
    assert np.array_equal(frame, theirs.physics.render(100, 100, camera_id=0).transpose(2, 0, 1))
    for action in actions_for(env, 3):
        step = env.step(action)
        expected = sum(theirs.step(action).reward for _ in range(4))
        assert step.reward == pytest.approx(expected, abs=1e-12)
        assert np.array_equal(
            step.frame, theirs.physics.render(100, 100, camera_id=0).transpose(2, 0, 1)
        )
        assert not step.terminated
        assert not step.truncated


@pytest.mark.slow("test_frames_and_rewards_equal_dm_control")
@pytest.mark.parametrize("domain", dmc.DOMAINS_WITHOUT_FLOOR_SHADOW)
def test_skipping_the_floor_shadow_changes_no_frame(make, monkeypatch, domain):
    env = make(f"{domain}-{A_TASK[domain]}")
    for seed in range(3):
        env.reset(seed)
        for action in actions_for(env, 3, seed):
            frame = env.step(action).frame
            floor = env._renderers[100].scene.geoms[0]
            assert (floor.type, floor.category) == (dmc.PLANE, dmc.DECORATION)
            with monkeypatch.context() as patch:
                patch.setattr(env, "_skip_floor_shadow", False)
                assert np.array_equal(env._frame(), frame)
            assert floor.category != dmc.DECORATION


@pytest.mark.quick("walker-walk")
@pytest.mark.parametrize("task", ["walker-walk", "pendulum-swingup", "reacher-easy"])
def test_the_floor_shadow_is_kept_in_other_domains(make, task):
    env = make(task)
    env.reset()
    floor = env._renderers[100].scene.geoms[0]
    assert (floor.type, floor.category) == (dmc.PLANE, 1)  # static


def test_constants_equal_those_of_mujoco():
    import mujoco

    assert mujoco.mjtGeom.mjGEOM_PLANE == dmc.PLANE
    assert mujoco.mjtCatBit.mjCAT_DECOR == dmc.DECORATION


def controls(env, actions):
    """The control of the physics for each action."""
    env.reset()
    found = []
    for action in actions:
        env.step(action)
        found.append(env._env.physics.control())
    return np.array(found)


@pytest.mark.parametrize("name", ["cartpole-swingup", "cheetah-run"])
def test_where_bounds_are_one_an_action_reaches_the_physics_without_rounding(blind, name):
    env = blind(name, action_repeat=1)
    actions = actions_for(env, 100)
    assert np.array_equal(controls(env, actions), actions)


def test_other_bounds_are_reached_with_the_roundings_of_the_released_codes_wrapper(blind):
    env = blind("quadruped-walk", action_repeat=1)
    actions = actions_for(env, 20) * np.float32(1.2)
    spec = env._env.action_spec()
    low, high = spec.minimum.astype(np.float32), spec.maximum.astype(np.float32)
    assert high[1] == np.float32(1.1)
    # dmc2gym: bounds and result in float32, what lies between in float64
    wide = np.clip(actions, -1.0, 1.0).astype(np.float64)
    expected = ((wide - np.float32(-1.0)) / np.float32(2.0) * (high - low) + low).astype(np.float32)
    assert np.array_equal(controls(env, actions), expected)


def test_other_frame_sizes_and_render(make):
    env = make(frame_pixels=64)
    assert env.spec.frame_shape == env.reset().shape == (3, 64, 64)
    picture = env.render()
    assert picture.shape == (256, 256, 3)
    frame = env.step(np.zeros(1)).frame  # rendering a picture does not change the size of frames
    assert np.array_equal(frame, env._env.physics.render(64, 64, camera_id=0).transpose(2, 0, 1))


def test_one_render_per_agent_step(make, monkeypatch):
    env = make(action_repeat=8)  # first: it chooses the renderer before MuJoCo is imported
    renders = []
    renderer = env._mujoco.Renderer
    original = renderer.render
    monkeypatch.setattr(
        renderer, "render", lambda self, **kwargs: renders.append(1) or original(self, **kwargs)
    )
    assert len(renders) == 0
    env.reset()
    assert len(renders) == 1
    for _ in range(5):
        env.step(np.zeros(1))
    assert len(renders) == 6


@pytest.mark.quick("cheetah-run-3-334")
@pytest.mark.parametrize(
    ("name", "repeat", "steps"),
    [("cartpole-swingup", 8, 125), ("cheetah-run", 3, 334), ("reacher-easy", 1, 1000)],
)
def test_episodes_have_exactly_a_thousand_env_steps_and_a_time_limit_truncates(
    blind, name, repeat, steps
):
    env = blind(name, action_repeat=repeat)
    assert env.spec.max_episode_agent_steps == steps
    for _ in range(2):
        env.reset()
        ends = [env.step(action)[2:4] for action in actions_for(env, steps)]
        assert ends == [(False, False)] * (steps - 1) + [(False, True)]
        assert env._env._step_count == 1000


def test_an_early_end_is_a_termination_and_stops_the_repeat(blind, monkeypatch):
    env = blind(action_repeat=4)
    env.reset()
    results = iter([None] * 5 + [0.0])
    monkeypatch.setattr(env._env.task, "get_termination", lambda _: next(results))
    monkeypatch.setattr(env._env.task, "get_reward", lambda _: 1.0)
    first, second = env.step(np.zeros(1)), env.step(np.zeros(1))
    assert first[1:4] == (4.0, False, False)
    assert second[1:4] == (2.0, True, False)


def test_a_task_without_a_time_limit_has_no_episode_length(blind):
    assert blind("lqr-lqr_2_1").spec.max_episode_agent_steps is None


def test_seeds_of_63_bits_are_reproducible_and_different(blind):
    big = derive(1, "eval", 10_000, 3)
    assert big > 2**32

    def starts(seed, reset_seed=None):
        env, found = blind("reacher-easy", seed=seed), []
        for given in (reset_seed, None):
            env.reset(given)
            physics = env._env.physics
            found += [*physics.data.qpos, *physics.model.geom_pos.ravel()]
        return found

    assert starts(big) == starts(big) == starts(1, big)
    assert starts(big) != starts(big + 1)
    half = len(starts(1)) // 2
    assert starts(1)[:half] != starts(1)[half:], "episodes without a seed differ"


@pytest.mark.quick("reacher-easy-True")
@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("name", ACTION_DIM)
def test_save_and_restore_mid_episode_gives_the_same_future(make, tmp_path, name, used):
    """Through the checkpoint files, into an object of another seed."""
    env, twin = make(name, action_repeat=4, seed=1), make(name, action_repeat=4, seed=2)
    actions = actions_for(env, 12)
    env.reset()
    if used:
        env.reset()
        twin.reset()
        for action in -actions[:3]:
            twin.step(action)
    for action in actions[:6]:
        env.step(action)
    checkpoint.Checkpoints(tmp_path / "checkpoint").save({"env": env.state_dict()})
    twin.load_state_dict(checkpoint.load(tmp_path / "checkpoint")["env"])
    for action in actions[6:]:
        ours, theirs = env.step(action), twin.step(action)
        assert np.array_equal(ours.frame, theirs.frame)
        assert ours[1:] == theirs[1:]
    assert np.array_equal(env._env.physics.data.qvel, twin._env.physics.data.qvel)
    assert np.array_equal(env.reset(), twin.reset()), "the next episode begins the same"
    assert env._env._step_count == twin._env._step_count


def test_saving_changes_nothing(blind):
    env, undisturbed = blind("cheetah-run"), blind("cheetah-run")
    env.reset(), undisturbed.reset()
    for action in actions_for(env, 20):
        env.state_dict()
        assert env.step(action)[1:] == undisturbed.step(action)[1:]


def test_the_end_of_an_episode_survives_a_restore(blind):
    env, twin = blind(action_repeat=8), blind(action_repeat=8, seed=2)
    env.reset()
    for _ in range(124):
        env.step(np.zeros(1))
    twin.load_state_dict(env.state_dict())
    assert twin.step(np.zeros(1)).truncated


def test_an_unknown_task_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean dmc/cartpole-swingup"):
        DeepMindControl("cartpole-swingpu", 100, 8, 1)


@pytest.mark.quick("sys")
@pytest.mark.parametrize("first", ["sys", "torch"])
def test_exit_without_close_is_silent(first):
    """The renderer must be closed before the display, whatever was imported first."""
    script = (
        f"import {first}; from cclf.envs.dmc import DeepMindControl as make; "
        "env = make('cartpole-swingup', 32, 8, 1); env.reset()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_renderer_facts_have_names_times_and_no_differing_frames(make):
    facts = make(frame_pixels=32).renderer_facts(frames=3)
    assert len(facts["renderer"]) > 2
    assert 0.0 < facts["ms_per_frame"] < 10_000.0
    assert (facts["blank"], facts["differing_frames"]) == (False, 0)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("physics",), np.zeros(3)),
        (("physics",), None),
        (("task", "get_reward"), 3),
        (("task", "no_such_name"), 3),
        (("model", "geom_pos"), np.zeros(1)),
        (("model", "no_such_array"), np.zeros(1)),
        (("random", "keys"), np.zeros(3, np.int64)),
        (("random", "position"), "x"),
        (("step_count",), -1),
        (("reset_next_step",), 1),
    ],
)
def test_a_state_of_another_task_is_refused(blind, place, value):
    """Names in a state become attributes: those of an unknown file must not replace a method."""
    env = blind()
    state = env.state_dict()
    inner = state
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    with pytest.raises(ValueError, match="env"):
        env.load_state_dict(state)
