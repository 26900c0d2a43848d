"""VectorMiniGrid against the minigrid package itself: same seeds, same actions, everything
compared."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("minigrid")

from minigrid.core.grid import Grid  # noqa: E402
from minigrid.core.world_object import Key  # noqa: E402
from minigrid.envs import DoorKeyEnv, EmptyEnv  # noqa: E402

import cclf.envs.minigrid as minigrid_module  # noqa: E402
from cclf.envs.minigrid import VectorMiniGrid, make  # noqa: E402
from cclf.envs.minigrid_package import PackageMiniGrid  # noqa: E402
from cclf.envs.minigrid_rules import (  # noqa: E402
    CODES,
    DONE,
    EMPTY,
    ENCODING,
    FORWARD,
    LEFT,
    PADDING,
    POSES,
    RIGHT,
    WALL,
    IntegerGenerator,
)
from cclf.errors import ConfigError  # noqa: E402

TASKS = ("Empty-16x16", "DoorKey-6x6", "DoorKey-8x8")


# --- the reference: the package, one environment at a time
# ------------------------------------------------------------


def package_env(name, max_episode_steps=None):
    family, size = name.split("-")
    kind = {"Empty": EmptyEnv, "DoorKey": DoorKeyEnv}[family]
    return kind(size=int(size.split("x")[0]), max_steps=max_episode_steps)


def assert_step_equals(vector_step, index, package_step):
    seen, reward, terminated, truncated, _ = package_step
    np.testing.assert_array_equal(vector_step.observation[index], seen["image"])
    assert vector_step.reward[index] == np.float32(reward)
    assert (vector_step.terminated[index], vector_step.truncated[index]) == (terminated, truncated)


def compare_with_package(name, num_steps, num_envs=4, max_episode_steps=None, first_seed=0):
    """Step both side by side by random actions, and assert that all they return is equal. Returns the
    number of episodes that ended, and of those that a time limit truncated."""
    seeds = [first_seed + 7 * i for i in range(num_envs)]
    vector_env = VectorMiniGrid(name, num_envs, seed=99, max_episode_steps=max_episode_steps)
    envs = [package_env(name, max_episode_steps) for _ in seeds]
    expected = [env.reset(seed=seed)[0]["image"] for env, seed in zip(envs, seeds, strict=True)]
    np.testing.assert_array_equal(vector_env.reset(seeds), expected)
    ended = truncated = 0
    for actions in np.random.default_rng(first_seed).integers(7, size=(num_steps, num_envs)):
        step = vector_env.step(actions)
        for i, env in enumerate(envs):
            theirs = env.step(int(actions[i]))
            ended, truncated = ended + any(theirs[2:4]), truncated + theirs[3]
            if any(theirs[2:4]):
                theirs = (env.reset()[0], *theirs[1:])
            assert_step_equals(step, i, theirs)
    return ended, truncated


# --- equality with the package
# ----------------------------------------------------------------------------------------


@pytest.mark.quick("DoorKey-6x6", "Empty-16x16")
@pytest.mark.parametrize("name", TASKS)
def test_random_actions_with_short_episodes_equal_the_package(name):
    ended, truncated = compare_with_package(name, num_steps=400, max_episode_steps=11)
    assert ended >= truncated > 100


@pytest.mark.quick("DoorKey-6x6")
@pytest.mark.parametrize("name", TASKS)
def test_full_length_random_episodes_equal_the_package(name):
    limit = make(name, 1, 0).max_episode_steps
    assert compare_with_package(name, num_steps=limit + 20, num_envs=2)[1] >= 1


def test_every_rule_and_view_equals_the_package():
    """From random positions and directions: each action in front of each kind of cell, with and
    without the key."""
    vector_env, env = VectorMiniGrid("DoorKey-7x7", 1, 0), package_env("DoorKey-7x7")
    random = np.random.default_rng(0)
    vector_env.reset()
    env.reset()
    state, cases = vector_env.state_dict(), set()
    for _ in range(120):
        grid = np.full((7, 7), WALL, np.uint8)
        grid[1:-1, 1:-1] = random.choice(range(EMPTY, CODES), (5, 5), p=[0.4, *[0.1] * 6])
        (x, y), pose = random.integers(1, 6, 2), random.integers(POSES, size=1)
        grid[y, x] = EMPTY
        cell = np.array([(y + PADDING) * (7 + 2 * PADDING) + x + PADDING])
        vector_env.load_state_dict(state | {"rooms": grid[None], "cell": cell, "pose": pose})
        env.grid, env.agent_pos, env.step_count = Grid.decode(ENCODING[grid.T])[0], (x, y), 0
        env.agent_dir, env.carrying = pose[0] % 4, Key("yellow") if pose[0] >= 4 else None
        for action in random.integers(7, size=10).tolist():
            ahead = env.grid.get(*env.front_pos)
            cases.add((action, env.carrying is None, ahead and ahead.encode()))
            ours, theirs = vector_env.step([action]), env.step(action)
            assert ours.reward[0] == np.float32(theirs[1])
            assert ours.terminated[0] == theirs[2]
            if theirs[2]:
                break
            np.testing.assert_array_equal(ours.observation[0], theirs[0]["image"])
            ours = vector_env.state_dict()
            np.testing.assert_array_equal(ENCODING[ours["rooms"][0].T], env.grid.encode())
    assert len(cases) == 7 * 2 * (CODES - 1), "a case did not occur"


@pytest.mark.quick("DoorKey-6x6", "Empty-8x8")
@pytest.mark.parametrize(
    "name", ["DoorKey-5x5", "DoorKey-6x6", "DoorKey-8x8", "DoorKey-16x16", "Empty-8x8"]
)
def test_complete_layouts_of_many_episodes_equal_the_package(name):
    """With episodes of one step, also the hidden parts of the grid equal those of the package after
    each reset."""
    num_envs, num_episodes = 3, 200
    vector_env = VectorMiniGrid(name, num_envs, seed=5, max_episode_steps=1)
    vector_env.reset()
    envs = [package_env(name, 1) for _ in range(num_envs)]
    for i, env in enumerate(envs):
        env.reset(seed=5 + 10_000 * i)
    layouts, padded_size = set(), envs[0].width + 2 * PADDING
    for _ in range(num_episodes):
        state = vector_env.state_dict()
        for i, env in enumerate(envs):
            np.testing.assert_array_equal(ENCODING[state["rooms"][i].T], env.grid.encode())
            assert state["pose"][i] == env.agent_dir
            padded_y, padded_x = divmod(int(state["cell"][i]) - i * padded_size**2, padded_size)
            assert (padded_x - PADDING, padded_y - PADDING) == tuple(env.agent_pos)
            layouts.add(state["rooms"][i].tobytes())
            env.reset()
        vector_env.step(np.full(num_envs, DONE))
    assert len(layouts) == 1 if name.startswith("Empty") else len(layouts) > 5


@given(
    seed=st.integers(0, 2**70),
    spans=st.lists(
        st.one_of(st.integers(1, 20), st.integers(2**31, 2**32 - 1)), min_size=1, max_size=150
    ),
)
def test_integer_generator_equals_numpy(seed, spans):
    stream, numpys = (
        IntegerGenerator(seed),
        np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed))),
    )
    assert [stream.integer(3, 3 + span) for span in spans] == [
        numpys.integers(3, 3 + span) for span in spans
    ]


# --- numbers by hand
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "limit"), [("Empty-16x16", 1024), ("DoorKey-6x6", 360), ("DoorKey-8x8", 640)]
)
def test_episode_limit_is_that_of_the_registered_id(name, limit):
    vector_env = make(name, 2, 0)
    assert isinstance(vector_env, VectorMiniGrid)
    assert vector_env.max_episode_steps == limit
    assert gymnasium.make(f"MiniGrid-{name}-v0").unwrapped.max_steps == limit
    assert (vector_env.num_envs, vector_env.observation_shape, vector_env.num_actions) == (
        2,
        (7, 7, 3),
        7,
    )


def test_shortest_way_through_empty_earns_the_published_return():
    vector_env = make("Empty-16x16", 1, 0)
    first = vector_env.reset()
    way = [FORWARD] * 13 + [RIGHT] + [FORWARD] * 13
    steps = [vector_env.step(np.array([action])) for action in way]
    assert [bool(step.terminated[0]) for step in steps] == [False] * 26 + [True]
    assert [float(step.reward[0]) for step in steps[:-1]] == [0.0] * 26
    assert steps[-1].reward[0] == pytest.approx(1 - 0.9 * 27 / 1024)
    assert not steps[-1].truncated[0]
    np.testing.assert_array_equal(steps[-1].observation, first)


def test_goal_on_the_last_step_both_terminates_and_truncates():
    vector_env = VectorMiniGrid("Empty-5x5", 1, 0, max_episode_steps=5)
    vector_env.reset()
    for action in (FORWARD, FORWARD, RIGHT, FORWARD):
        assert not vector_env.step(np.array([action])).truncated[0]
    step = vector_env.step(np.array([FORWARD]))
    assert (step.terminated[0], step.truncated[0]) == (True, True)
    assert step.reward[0] == pytest.approx(0.1)


# --- episodes, seeds, state
# -------------------------------------------------------------------------------------------


def futures(vector_env, num_steps=400, num_actions=7):
    rng = np.random.default_rng(1)
    return [
        vector_env.step(rng.integers(0, num_actions, vector_env.num_envs)) for _ in range(num_steps)
    ]


def assert_same_steps(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        for left, right in zip(a, b, strict=True):
            np.testing.assert_array_equal(left, right)


def through_json(state):
    """The state after a conversion to arrays and JSON, as in a checkpoint."""
    arrays = {key: value for key, value in state.items() if isinstance(value, np.ndarray)}
    plain = {key: value for key, value in state.items() if key not in arrays}
    return {**arrays, **json.loads(json.dumps(plain))}


@pytest.mark.parametrize("name", ["DoorKey-6x6", "Dynamic-Obstacles-Random-5x5"])
def test_a_saved_state_has_the_same_future(name):
    vector_env, resumed = make(name, 4, seed=1), make(name, 4, seed=2)
    vector_env.reset()
    futures(vector_env, 37, vector_env.num_actions)
    state = through_json(vector_env.state_dict())
    expected = futures(vector_env, 80, vector_env.num_actions)
    resumed.reset()
    futures(resumed, 11, vector_env.num_actions)
    resumed.load_state_dict(state)
    assert_same_steps(futures(resumed, 80, vector_env.num_actions), expected)
    vector_env.load_state_dict(state)  # the state was a copy: going on did not change it
    assert_same_steps(futures(vector_env, 80, vector_env.num_actions), expected)


@pytest.mark.parametrize("name", ["DoorKey-6x6", "Dynamic-Obstacles-Random-5x5"])
def test_a_state_saved_before_the_first_reset(name):
    vector_env, resumed = make(name, 2, seed=1), make(name, 2, seed=2)
    resumed.reset()
    resumed.load_state_dict(through_json(vector_env.state_dict()))
    np.testing.assert_array_equal(resumed.reset(), vector_env.reset())


def test_reset_without_seeds_continues_the_random_stream():
    vector_env = make("DoorKey-8x8", 8, 0)
    first, second = vector_env.reset(), vector_env.reset()
    assert (first != second).any()
    np.testing.assert_array_equal(vector_env.reset([10_000 * i for i in range(8)]), first)
    np.testing.assert_array_equal(vector_env.reset(), second)


@pytest.mark.parametrize("name", ["DoorKey-6x6", "Dynamic-Obstacles-6x6"])
def test_later_steps_do_not_write_into_returned_arrays(name):
    vector_env = make(name, 4, 0)
    first = vector_env.reset()
    kept_first = first.copy()
    steps = futures(vector_env, 30, vector_env.num_actions)
    copies = [tuple(part.copy() for part in step) for step in steps]
    futures(vector_env, 200, vector_env.num_actions)
    assert_same_steps(steps, copies)
    np.testing.assert_array_equal(first, kept_first)
    dtypes = [part.dtype for part in steps[0]]
    assert dtypes == [np.uint8, np.float32, np.bool_, np.bool_]
    assert steps[0].observation.flags.c_contiguous


# --- pictures
# ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Empty-16x16", "DoorKey-6x6"])
def test_render_equals_the_package(name):
    vector_env, env = VectorMiniGrid(name, 2, seed=0), package_env(name)
    vector_env.reset([0, 4])
    env.reset(seed=4)
    for action in np.random.default_rng(0).integers(7, size=30).tolist():
        vector_env.step([LEFT, action])
        env.step(action)
        picture = vector_env.render(1, tile_pixels=8)
        np.testing.assert_array_equal(picture, env.get_frame(highlight=True, tile_size=8))
    assert picture.dtype == np.uint8
    np.testing.assert_array_equal(vector_env.render(-1, tile_pixels=8), picture)


# --- PackageMiniGrid
# ----------------------------------------------------------------------------------------


@pytest.mark.quick("FourRooms")
@pytest.mark.parametrize("name", ["FourRooms", "Dynamic-Obstacles-Random-5x5"])
def test_other_ids_are_stepped_by_the_package(name):
    vector_env = make(name, 3, seed=2)
    assert isinstance(vector_env, PackageMiniGrid)
    envs = [gymnasium.make(f"MiniGrid-{name}-v0") for _ in range(3)]
    assert vector_env.num_actions == envs[0].action_space.n
    expected = [env.reset(seed=2 + 10_000 * i)[0]["image"] for i, env in enumerate(envs)]
    np.testing.assert_array_equal(vector_env.reset(), expected)
    rng, ends = np.random.default_rng(0), 0
    for _ in range(220):
        actions = rng.integers(0, vector_env.num_actions, 3)
        step = vector_env.step(actions)
        for i, env in enumerate(envs):
            theirs = env.step(actions[i])
            if any(theirs[2:4]):
                theirs, ends = (env.reset()[0], *theirs[1:]), ends + 1
            assert_step_equals(step, i, theirs)
    assert ends > 0
    np.testing.assert_array_equal(
        vector_env.render(1), envs[1].unwrapped.get_frame(highlight=True, tile_size=16)
    )
    vector_env.close()


def test_a_state_that_does_not_replay_is_refused():
    vector_env = make("FourRooms", 1, 0)
    vector_env.reset()
    state = vector_env.state_dict()
    state["observation"][0, 0, 0, 0] += 1
    with pytest.raises(RuntimeError, match="gave other observations"):
        vector_env.load_state_dict(state)


# --- bad input
# --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("DorKey-6x6", "DoorKey-6x6"),
        ("DoorKey-6x8", "DoorKey-8x8"),
        ("MiniGrid-FourRooms-v0", "FourRooms"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(name, suggestion):
    with pytest.raises(
        ConfigError, match=rf"unknown task 'minigrid/{name}'; did you mean minigrid/{suggestion}\?"
    ) as caught:
        make(name, 1, 0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["DoorKey-4x4", "Empty-3x3"])
def test_a_grid_too_small_is_refused(name):
    with pytest.raises(ConfigError, match=rf"^minigrid/{name} is too small: .* or more$"):
        make(name, 1, 0)


@pytest.mark.parametrize("name", ["DoorKey-6x6", "FourRooms"])
def test_actions_must_be_integers(name):
    vector_env = make(name, 2, 0)
    vector_env.reset()
    for dtype in (np.uint8, np.uint64):
        vector_env.step(np.array([0, 1], dtype))
    with pytest.raises(TypeError, match=r"float64.*int64"):
        vector_env.step(np.array([0.0, 1.0]))


@pytest.mark.parametrize("name", ["DoorKey-6x6", "FourRooms"])
def test_a_state_of_other_environments_is_refused(name):
    vector_env = make(name, 2, 0)
    with pytest.raises(ValueError, match=r"the state is of 2 x .*DoorKey-8x8, not 2 x"):
        vector_env.load_state_dict(make("DoorKey-8x8", 2, 0).state_dict())


def test_vector_minigrid_does_not_import_the_package():
    source_root = Path(minigrid_module.__file__).parents[2]
    code = (
        "import sys; from cclf.envs.minigrid import make; w = make('DoorKey-6x6', 2, 0);"
        "w.reset(); w.step([1, 2]); print(sorted({'gymnasium', 'minigrid', 'pygame'} & "
        "set(sys.modules)))"
    )
    env = {**os.environ, "PYTHONPATH": str(source_root)}
    out = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    ).stdout
    assert out.strip() == "[]"
