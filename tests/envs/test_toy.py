"""The toy tasks implement `Env`, show all objects in every crop, and give a good policy a higher
return than a bad one."""

import numpy as np
import pytest

from cclf import presets
from cclf.config import EnvConfig
from cclf.envs.frame_stack import StackedEnv
from cclf.envs.toy import CATCH_BALLS, EPISODE_STEPS, STEP_LENGTH, Catch
from cclf.envs.toy import make as make_env
from cclf.errors import ConfigError

TOYS = {"reach-1d": 1, "reach": 2}


def make(name="reach", frame_pixels=20, crop_pixels=16, action_repeat=1, seed=0):
    env = EnvConfig(
        frame_pixels=frame_pixels,
        crop_pixels=crop_pixels,
        frame_stack=1,
        action_repeat=action_repeat,
    )
    return make_env(name, env, seed)


def scripted(env):
    """The optimal policy: straight to the goal."""
    return np.clip((env.goal - env.agent) / STEP_LENGTH, -1.0, 1.0)


def play(env, policy, seed=None):
    env.reset(seed)
    rewards, ended = [], False
    while not ended:
        step = env.step(policy(env))
        rewards.append(step.reward)
        ended = step.terminated or step.truncated
    return rewards


@pytest.mark.parametrize(("name", "axes"), TOYS.items())
def test_spec_frames_and_seeds(name, axes):
    env, other = make(name, action_repeat=2, seed=1), make(name, seed=2)
    assert env.spec == ((3, 20, 20), axes, 2, 13, None)
    first = env.reset()
    for frame in (first, env.step(np.zeros(axes)).frame):
        assert (frame.shape, frame.dtype) == ((3, 20, 20), np.uint8)
        assert frame.max() > 200
    assert (env.render().shape, env.render().dtype) == ((240, 240, 3), np.uint8)
    assert np.array_equal(make(name, seed=1).reset(), first)
    assert not np.array_equal(other.reset(), first)
    assert not np.array_equal(env.reset(), first), "episodes without a seed differ"
    assert np.array_equal(other.reset(7), env.reset(7)), "a seed given to reset decides alone"


@pytest.mark.parametrize("action_repeat", [1, 3, 40])
def test_exact_length_always_truncated_and_rewards_add_up(action_repeat):
    env, single = make(action_repeat=action_repeat), make(action_repeat=1)
    action = np.array([0.3, -0.2])
    rewards = play(env, lambda _: action, seed=3)
    assert len(rewards) == env.spec.max_episode_agent_steps == -(-EPISODE_STEPS // action_repeat)
    each = play(single, lambda _: action, seed=3)
    assert len(each) == EPISODE_STEPS
    sums = [
        sum(each[start : start + action_repeat]) for start in range(0, EPISODE_STEPS, action_repeat)
    ]
    assert rewards == pytest.approx(sums)
    env.reset(3)
    steps = [env.step(action) for _ in rewards]
    assert [step.truncated for step in steps] == [False] * (len(steps) - 1) + [True]
    assert not any(step.terminated for step in steps)


def test_actions_move_the_agent_by_a_fixed_step_within_bounds():
    env = make("reach-1d")
    env.reset(0)
    env.agent[:] = 0.5
    env.step(np.array([0.5]))
    assert env.agent == pytest.approx([0.65])
    env.step(np.array([-9.0]))
    assert env.agent == pytest.approx([0.35]), "actions are clipped to [-1, 1]"
    for _ in range(9):
        step = env.step(np.array([1.0]))
    assert env.agent == pytest.approx([1.0])
    assert step.reward == pytest.approx(max(0.0, 1.0 - abs(1.0 - env.goal[0])))


@pytest.mark.parametrize("name", [*TOYS, "catch"])
def test_a_saved_state_has_the_same_future(name):
    env, twin = make(name, frame_pixels=50, seed=1), make(name, frame_pixels=50, seed=2)
    random = np.random.default_rng(0)
    axes = TOYS.get(name)
    actions = random.uniform(-1, 1, (60, axes)) if axes else random.integers(3, size=60).tolist()
    env.reset()
    for action in actions[:7]:
        env.step(action)
    twin.load_state_dict(env.state_dict())
    for action in actions[7:]:
        ours, theirs = env.step(action), twin.step(action)
        assert ours[1:] == theirs[1:]
        assert np.array_equal(ours.frame, theirs.frame)
        if ours.game_over:
            assert np.array_equal(env.reset(), twin.reset())


@pytest.mark.parametrize(("name", "axes"), TOYS.items())
@pytest.mark.parametrize(("frame_pixels", "crop_pixels"), [(20, 16), (100, 84), (24, 20)])
def test_both_dots_stay_in_every_crop(name, axes, frame_pixels, crop_pixels):
    """At every corner of the field the brightest pixels of both dots lie in each crop, the last
    offset included."""
    env, preset = make(name, frame_pixels, crop_pixels), presets.resolve(f"toy/{name}").env
    assert (preset.frame_pixels, preset.crop_pixels) == (20, 16)
    offsets = (0, frame_pixels - crop_pixels)
    corners = np.array(np.meshgrid(*[[-1.0, 1.0]] * axes)).reshape(axes, -1).T
    for agent, goal in [(a, g) for a in corners for g in corners]:
        env.agent, env.goal = agent, goal
        frame = env._frame()
        assert frame[0].max() > 200
        assert frame[2].max() == 0
        for y in offsets:
            for x in offsets:
                crop = frame[:, y : y + crop_pixels, x : x + crop_pixels]
                assert crop[0].max() == frame[0].max(), f"the agent leaves the crop at {(y, x)}"
                assert crop[1].max() == frame[1].max(), f"the goal leaves the crop at {(y, x)}"


@pytest.mark.quick("reach-1d-24.3-11.0")
@pytest.mark.parametrize(
    ("name", "best", "random_mean"), [("reach-1d", 24.3, 11.0), ("reach", 23.7, 4.3)]
)
def test_a_scripted_policy_has_a_high_return_and_a_random_one_a_low_return(name, best, random_mean):
    env = make(name)
    random = np.random.default_rng(0)
    good = [sum(play(env, scripted, seed)) for seed in range(60)]
    bad = [sum(play(env, lambda e: random.uniform(-1, 1, e.axes), seed)) for seed in range(60)]
    assert np.mean(good) == pytest.approx(best, abs=0.4)
    assert min(good) > 20.0
    assert np.mean(bad) == pytest.approx(random_mean, abs=1.5)


def test_an_unknown_toy_is_refused():
    with pytest.raises(ConfigError, match=r"reach-3d.*reach, reach-1d"):
        make("reach-3d")


def under_the_ball(game):
    return int(np.sign(game.column - game.paddle)) + 1


def caught(policy, games=50):
    game, total = Catch(50, seed=0), 0.0
    for _ in range(games):
        game.reset()
        ended = False
        while not ended:
            step = game.step(policy(game))
            total, ended = total + step.reward, step.terminated
            assert ended == step.game_over
    return total / games


def test_catch_is_solved_by_following_the_ball_and_not_by_chance():
    random = np.random.default_rng(0)
    assert caught(under_the_ball) == CATCH_BALLS
    assert caught(lambda _: int(random.integers(3))) < 0.0
    assert caught(lambda _: 1) < 0.0


def test_catch_shows_ball_and_paddle_in_every_shift_and_keeps_its_stack():
    catch = Catch(50, seed=3)
    game = StackedEnv(catch, 2)
    first = game.reset()
    assert game.spec == ((1, 50, 50), 1, 1, 12, 3)
    assert np.array_equal(game.stack, np.concatenate([np.zeros((1, 50, 50), np.uint8), first]))
    for _ in range(30):
        before = game.stack[-1]
        step = game.step(under_the_ball(catch))
        assert np.array_equal(game.stack, np.concatenate([before[None], step.frame]))
        assert not step.frame[0, :4].any()
        assert not step.frame[0, 46:].any()
        if step.terminated:
            game.reset()
    assert game.render().shape == (200, 200, 3)
