"""Any Gymnasium environment from its pixels: a small one registered here, and Pendulum through its
renderer."""

import os

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")

from cclf.envs.gymnasium_env import GymnasiumEnv, rgb_frame  # noqa: E402
from cclf.errors import ConfigError  # noqa: E402

PIXELS = 24


class Counter(gymnasium.Env):
    """Shows its own clock: every pixel is the number of steps, the reward too. Ends after `length`
    steps by itself.

    Like some environments it hands out one array that it writes again.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012

    def __init__(
        self, render_mode=None, shape=(PIXELS, PIXELS, 3), length=1_000, bounds=(-2.0, 6.0)
    ):
        self.render_mode, self.length = render_mode, length
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = gymnasium.spaces.Box(*bounds, (2,), np.float32)
        self.image = np.zeros(shape, np.uint8)
        self.given = []

    def _observation(self):
        self.image[...] = min(255, self.steps)
        return self.image

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        del options
        self.steps = int(self.np_random.integers(100))
        self.first = self.steps
        return self._observation(), {}

    def step(self, action):
        self.given.append(action)
        self.steps += 1
        return (
            self._observation(),
            float(self.steps),
            self.steps - self.first == self.length,
            False,
            {},
        )

    def render(self):
        return np.full((40, 60, 3), 7, np.uint8)


VARIANTS = {
    "cclf-test/Counter-v0": {"kwargs": {}, "max_episode_steps": 10},
    "cclf-test/Ending-v0": {"kwargs": {"length": 5}, "max_episode_steps": 10},
    "cclf-test/Endless-v0": {"kwargs": {}},
    "cclf-test/ChannelsFirst-v0": {"kwargs": {"shape": (3, PIXELS, PIXELS)}},
    "cclf-test/Grey-v0": {"kwargs": {"shape": (PIXELS, PIXELS)}},
    "cclf-test/GreyChannel-v0": {"kwargs": {"shape": (PIXELS, PIXELS, 1)}},
    "cclf-test/Wide-v0": {"kwargs": {"shape": (30, 50, 3)}},
    "cclf-test/Vector-v0": {"kwargs": {"shape": (5,)}},
}


@pytest.fixture(autouse=True, scope="module")
def registered():
    for name, settings in VARIANTS.items():
        gymnasium.register(name, entry_point=Counter, disable_env_checker=True, **settings)
    yield
    for name in VARIANTS:
        del gymnasium.registry[name]


def make(name="Counter", action_repeat=1, seed=1, pixels=PIXELS):
    return GymnasiumEnv(f"cclf-test/{name}-v0", "pixels", pixels, action_repeat, seed)


def clock(frame):
    assert len(np.unique(frame)) == 1
    return int(frame.flat[0])


@pytest.mark.parametrize(("repeat", "steps"), [(1, 10), (2, 5), (3, 4), (4, 3)])
def test_lengths_rewards_and_truncation(repeat, steps):
    env = make(action_repeat=repeat)
    assert env.spec == ((3, PIXELS, PIXELS), 2, repeat, steps, None)
    first = clock(env.reset())
    results = [env.step(np.zeros(2)) for _ in range(steps)]
    assert [r.truncated for r in results] == [False] * (steps - 1) + [True]
    assert not any(r.terminated for r in results)
    per_step = [first + 1 + n for n in range(10)]
    assert [r.reward for r in results] == [
        sum(per_step[n : n + repeat]) for n in range(0, 10, repeat)
    ]
    assert clock(results[-1].frame) == first + 10


def test_termination_is_not_truncation_and_stops_the_action_repeat():
    env = make("Ending", action_repeat=3)
    env.reset()
    first, second = env.step(np.zeros(2)), env.step(np.zeros(2))
    assert first[2:4] == (False, False)
    assert second[2:4] == (True, False)
    assert clock(second.frame) == clock(first.frame) + 2
    assert make("Endless").spec.max_episode_agent_steps is None


@pytest.mark.parametrize("name", ["Counter", "ChannelsFirst", "Grey", "GreyChannel", "Wide"])
def test_image_observations_become_new_frames(name):
    env = make(name)
    first = env.reset()
    assert first.shape == (3, PIXELS, PIXELS)
    assert first.dtype == np.uint8
    number = clock(first)
    second = env.step(np.zeros(2)).frame
    assert clock(second) == number + 1
    assert clock(first) == number, (
        "a frame must not change when the environment writes its array again"
    )


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


def test_without_an_image_the_rendered_frame_is_the_observation():
    env = make("Vector")
    assert clock(env.reset()) == 7
    assert env.render().shape == (40, 60, 3)


def test_actions_are_clipped_and_scaled_to_the_bounds():
    env = make()
    env.reset()
    for action in ([-1.0, 1.0], [0.0, 0.5], [3.0, -3.0]):
        env.step(np.array(action))
    given = env._env._env.unwrapped.given
    assert np.allclose(given, [[-2.0, 6.0], [2.0, 4.0], [6.0, -2.0]])
    assert all(action.dtype == np.float32 for action in given)


def test_seeds_are_reproducible_and_different():
    def firsts(env):
        return [clock(env.reset()) for _ in range(4)]

    one, two = make(seed=1), make(seed=2)
    assert firsts(one) == firsts(make(seed=1)) != firsts(two)
    assert len(set(firsts(one))) > 1, "episodes without a seed differ"
    assert clock(one.reset(2**62 + 3)) == clock(two.reset(2**62 + 3))


def test_it_has_no_state_to_save():
    env = make()
    assert env.state_dict() == {}
    assert env.load_state_dict({}) is False


def test_pendulum_from_its_renderer():
    pytest.importorskip("pygame")
    env = GymnasiumEnv("Pendulum-v1", "pixels", 84, 2, seed=1)
    assert env.spec == ((3, 84, 84), 1, 2, 100, None)
    frame = env.reset()
    assert (frame.shape, frame.dtype) == ((3, 84, 84), np.uint8)
    step = env.step(np.ones(1))
    assert step.reward < 0
    assert not np.array_equal(frame, step.frame)
    other = GymnasiumEnv("Pendulum-v1", "pixels", 84, 2, seed=1)
    assert np.array_equal(frame, other.reset())
    for e in (env, other):
        e.close()


def test_an_environment_that_cannot_be_made_is_refused():
    with pytest.raises(ConfigError, match="cannot make 'nowhere:Counter-v0'"):
        GymnasiumEnv("nowhere:Counter-v0")


def test_rendering_needs_no_display(monkeypatch):
    monkeypatch.delenv("SDL_VIDEODRIVER", raising=False)
    make("Vector")
    assert os.environ["SDL_VIDEODRIVER"] == "dummy"
