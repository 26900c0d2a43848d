"""Whatever a user's Gymnasium environment raises or answers: one line that names it."""

import errno
import sys
from pathlib import Path

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")

from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Tuple  # noqa: E402

import cclf as package  # noqa: E402
import hostile_envs  # noqa: E402
from cclf.envs import gymnasium_env, toy  # noqa: E402
from cclf.envs.gymnasium_env import GymnasiumEnv  # noqa: E402
from cclf.envs.gymnasium_spaces import RescaleAction  # noqa: E402
from cclf.errors import ConfigError, WorkerError  # noqa: E402
from hostile_envs import IMAGE, LAYERS, NAMED, gives, leaves, put, sees, throws  # noqa: E402
from test_cli import assert_refused, cclf  # noqa: E402
from tiny_runs import tables, tiny_config, tiny_options  # noqa: E402

NAN, INF = float("nan"), float("inf")
NAME = "hostile/Row-v0"


def state():
    return GymnasiumEnv(NAME, "state")


def pixels():
    return GymnasiumEnv(NAME, frame_pixels=16)


def played(make, place, fault, limit=None, action=0.0, **settings):
    """Make, reset and step an environment with a fault; what its last step gave."""
    settings = {"at_call": 1 if place in ("make", "reset", "close") else 3} | settings
    gymnasium.register(
        NAME,
        entry_point=hostile_envs.Steady,
        kwargs={"place": place, "fault": fault} | settings,
        max_episode_steps=limit,
        disable_env_checker=True,
    )
    try:
        env = make()
        env.reset()
        for _ in range(4):
            step = env.step(np.full(1, action, np.float32))
        env.close()
        return step
    finally:
        del gymnasium.registry[NAME]


RAISED = {
    "ValueError: boom": ValueError("boom"),
    "RuntimeError: a b": RuntimeError("a\n b"),
    "StopIteration: ": StopIteration(),
    "GeneratorExit: ": GeneratorExit(),
    "BaseException: ": BaseException(),
    "SystemExit: 0": SystemExit(0),
    "MemoryError: ": MemoryError(),
    "FileNotFoundError: [Errno 2] gone": FileNotFoundError(2, "gone"),
    "OSError: [Errno 28] full": OSError(errno.ENOSPC, "full"),
    "KeyError: 'goal'": KeyError("goal"),
    "RecursionError: deep": RecursionError("deep"),
    "ValueError: " + 288 * "x" + "...": ValueError(900 * "x"),
    "UnprintableError": hostile_envs.UnprintableError(),
}


@pytest.mark.parametrize("place", ["make", "reset", "step"])
@pytest.mark.parametrize("said", RAISED)
def test_what_an_environment_raises_names_it_and_the_call(said, place):
    with pytest.raises(ValueError) as caught:
        played(state, place, throws(RAISED[said]))
    if place == "make" and said.startswith("ValueError"):
        assert str(caught.value).startswith(f"Gymnasium cannot make '{NAME}'")
        return
    assert type(caught.value) is WorkerError
    assert str(caught.value) == f"the environment {NAME} failed in {place}(): {said.strip(' :')}"
    assert "hostile_envs.py" in caught.value.details
    assert caught.value.details.endswith("\n")


# what it answers -> what the line ends with
ANSWERS = [
    ("reset", gives(np.zeros(3, np.float32)), "reset() returned ndarray"),
    ("reset", gives(np.zeros(2, np.float32)), "reset() returned ndarray"),
    ("reset", gives((np.zeros(3), 0.5)), "reset() returned info of type"),
    ("reset", gives(None), "reset() returned NoneType"),
    ("reset", sees(7.0), "an observation of shape (): its space has (3,)"),
    ("reset", sees(np.zeros((1, 3))), "an observation of shape (1, 3): its space has (3,)"),
    ("step", sees(7.0), "an observation of shape (): its space has (3,)"),
    ("step", sees(np.zeros(4)), "an observation of shape (4,): its space has (3,)"),
    ("step", sees("seven"), "an observation of shape (): its space has (3,)"),
    ("step", sees(["a", "b", "c"]), "an observation of <U1: its space has float32"),
    ("step", sees([None] * 3), "an observation of object: its space has float32"),
    ("step", sees([1j] * 3), "an observation of complex128: its space has float32"),
    ("step", sees([0.0, NAN, 0.0]), "an observation that is not finite in float32"),
    ("step", sees([0.0, 1e300, 0.0]), "an observation that is not finite in float32"),
    ("step", sees([[0.0], [1.0, 2.0], 3.0]), "failed in step(): ValueError: setting an array"),
    ("step", gives(None), "step() returned NoneType"),
    ("step", lambda answer: answer[:4], "step() returned tuple of 4"),
    ("step", put(1, None), "step() returned the reward None"),
    ("step", put(1, "1.0"), "step() returned the reward '1.0'"),
    ("step", put(1, np.zeros(2)), "step() returned the reward array([0., 0.])"),
    ("step", put(1, 1j), "step() returned the reward 1j"),
    ("step", put(1, np.complex64(1)), "step() returned the reward np.complex64(1+0j)"),
    ("step", put(1, 1e300), "step() returned a reward of 1e+300"),
    ("step", put(1, NAN), "step() returned a reward of nan"),
    ("step", put(1, -INF), "step() returned a reward of -inf"),
    ("step", put(1, 10**400), "failed in step(): OverflowError"),
    ("step", put(2, np.zeros(2, bool)), "step() returned terminated=array([False, False])"),
    ("step", put(3, "no"), "step() returned truncated='no'"),
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("row", ANSWERS, ids=[row[2] for row in ANSWERS])
def test_a_wrong_answer_is_refused_by_name(row):
    place, fault, said = row
    with pytest.raises(WorkerError) as caught:
        played(state, place, fault)
    line = str(caught.value)
    assert line.startswith(f"the environment {NAME}")
    assert said in line
    assert "\n" not in line


SPACES = [
    (NAMED, {"goal": np.zeros(2)}, "an observation without 'at'"),
    (
        NAMED,
        {"goal": np.zeros(3), "at": 0},
        "observation['goal'] of shape (3,): its space has (2,)",
    ),
    (NAMED, {"goal": np.zeros(2), "at": 3}, "observation['at']=3: its space is Discrete(3)"),
    (NAMED, [1, 2], "an observation of list: its space is Dict"),
    (Discrete(3, start=1), 0, "observation=0: its space is Discrete(3, start=1)"),
    (Discrete(3), -1, "observation=-1: its space is Discrete(3)"),
    (MultiDiscrete([2, 2]), np.array([0, -1]), "its space is MultiDiscrete"),
    (MultiBinary(2), np.array([0, 2], np.int8), "its space is MultiBinary"),
    (Tuple([Discrete(2), Discrete(2)]), (0,), "an observation of tuple of 1: its space has 2"),
    (Box(0, 9, (2,), np.int64), [0.5, 1.0], "an observation of float64: its space has int64"),
    (Box(0, 255, (2,), np.uint8), [0, 256], "an observation from 0 to 256: its space has uint8"),
]


@pytest.mark.parametrize("row", SPACES, ids=[row[2] for row in SPACES])
def test_an_observation_outside_of_its_space_is_refused(row):
    space, value, said = row
    with pytest.raises(WorkerError) as caught:
        played(state, "step", sees(value), observation_space=space)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [[1, 2, 3], (1.0, 2.0, 3.0), np.arange(3), np.arange(3.0), np.ones(3, bool), np.ones(3, "f2")],
    ids=repr,
)
def test_numbers_of_another_kind_that_fit_are_accepted(value):
    step = played(state, "step", sees(value))
    assert np.array_equal(step.frame, np.asarray(value, np.float32))


@pytest.mark.parametrize("value", [1, True, np.float32(1), np.ones(1), np.array(1)], ids=repr)
def test_one_number_in_any_form_is_a_reward_and_a_truth_value(value):
    assert played(state, "step", put(1, value)).reward == 1.0
    assert played(state, "step", put(2, value)).terminated is True


PICTURES = [
    (np.zeros((0, 0, 3), np.uint8), "render() returned a picture of shape (0, 0, 3)"),
    (np.zeros((4, 4, 2), np.uint8), "render() returned a picture of shape (4, 4, 2)"),
    (np.zeros((2, 4, 4, 3), np.uint8), "render() returned a picture of shape (2, 4, 4, 3)"),
    (np.full((4, 4, 3), 0.5), "render() returned a picture of float64 from 0.5 to 0.5"),
    (np.full((4, 4, 3), 256), "render() returned a picture of int64 from 256 to 256"),
    (np.full((4, 4, 3), "a"), "render() returned a picture of <U1"),
    (None, "render() returned NoneType"),
]


@pytest.mark.parametrize("row", PICTURES, ids=[row[1] for row in PICTURES])
def test_a_picture_that_is_none_is_refused_once_a_run_goes_on(row):
    with pytest.raises(WorkerError) as caught:
        played(pixels, "render", gives(row[0]))
    assert row[1] in str(caught.value)


IMAGES = [
    (IMAGE, np.zeros((8, 8), np.uint8), "an observation of shape (8, 8): its space has (8, 8, 3)"),
    (IMAGE, np.full((8, 8, 3), 0.5), "an observation of float64: its space has uint8"),
    (IMAGE, np.full((8, 8, 3), 256), "an observation from 256 to 256: its space has uint8"),
    (LAYERS, np.full((6, 6, 4), 2), "an observation from 2 to 2: its space has bool"),
]


@pytest.mark.parametrize("row", IMAGES, ids=[row[2] for row in IMAGES])
def test_an_image_of_another_shape_or_kind_is_refused(row):
    space, value, said = row
    with pytest.raises(WorkerError) as caught:
        played(pixels, "step", sees(value), observation_space=space)
    assert said in str(caught.value)


def test_an_observation_that_is_not_used_is_not_looked_at():
    assert played(pixels, "step", sees("whatever")).frame.shape == (3, 16, 16)


def test_a_wrapper_that_stumbles_over_a_wrong_answer_is_named_too():
    with pytest.raises(WorkerError, match=r"failed in step\(\): ValueError: not enough values"):
        played(state, "step", lambda answer: answer[:4], limit=20)


def test_an_environment_that_fails_to_close_costs_one_warning_line(capsys):
    for _ in range(2):
        played(state, "close", throws(ValueError("no\nend")))
    played(state, "close", leaves)
    assert capsys.readouterr().err.splitlines() == [
        f"cclf: warning: the environment {NAME} failed in close(): ValueError: no end",
        f"cclf: warning: the environment {NAME} failed in close(): SystemExit: 0",
    ]


def test_an_interrupt_passes_through():
    with pytest.raises(KeyboardInterrupt):
        played(state, "step", throws(KeyboardInterrupt()))
    with pytest.raises(SystemExit, match="130"):  # of the second signal to a run
        played(state, "step", throws(SystemExit(130)))


def test_actions_without_a_number_are_refused():
    with pytest.raises(ConfigError, match=r"has actions Box\(\[\], \[\], \(0,\), float32\)"):
        played(state, "", None, action_space=Box(-1.0, 1.0, (0,), np.float32))


def test_an_action_that_is_not_finite_is_not_blamed_on_the_environment():
    """The run itself finds the number that is not finite in its networks."""

    def nan(answer):
        return (np.full(3, NAN), NAN, *answer[2:])

    step = played(state, "step", nan, action=NAN, at_call=1)
    assert np.isnan([*step.frame, step.reward]).all()
    with pytest.raises(WorkerError, match=r"boom; its action was array\(\[nan\]"):
        played(state, "step", throws(ValueError("boom")), action=NAN, at_call=1)


def test_a_grey_image_of_three_rows_is_an_image():
    image = np.arange(24, dtype=np.uint8).reshape(3, 8)
    assert np.array_equal(gymnasium_env.to_rgb(image), np.stack([image] * 3, -1))


def test_a_renderer_that_is_not_installed_is_refused():
    missing = gymnasium.error.DependencyNotInstalled("pygame is not installed")
    with pytest.raises(ConfigError, match="cannot be rendered: pygame is not installed"):
        played(pixels, "render", throws(missing), at_call=1)


LIMITS = np.finfo(np.float32).max


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [(-LIMITS, LIMITS, np.float32), (-128, 127, np.int8), (-(2**63), 2**63 - 1, np.int64)],
)
def test_actions_as_wide_as_their_type_do_not_overflow(low, high, dtype):
    space = Box(low, high, (1,), dtype)
    rescale = RescaleAction(space)
    given = [rescale(np.array([a], np.float32))[0] for a in (-1.0, 0.0, 0.5, 1.0)]
    assert all(np.isfinite(given))
    assert given == sorted(given)
    assert given[0] == space.low[0]
    assert given[1] == 0
    assert given[-1] == space.high[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int8])
def test_ordinary_actions_keep_every_bit_beside_those_as_wide_as_their_type(dtype):
    random = np.random.default_rng(0)
    most = np.iinfo(dtype).max if np.issubdtype(dtype, np.integer) else np.finfo(dtype).max
    low, high = np.array([-3, -most], dtype), np.array([7, most], dtype)
    narrow, both = (
        RescaleAction(Box(low[:1], high[:1], (1,), dtype)),
        RescaleAction(Box(low, high, (2,), dtype)),
    )
    for action in random.uniform(-1.2, 1.2, (200, 2)).astype(np.float32):
        part = (np.clip(action[:1], -1.0, 1.0) + 1.0) * 0.5
        ordinary = (low[:1] + part * (high[:1] - low[:1])).astype(dtype)
        assert narrow(action[:1]) == ordinary
        assert both(action)[0] == ordinary


# --- whole runs


def trained(name, out, *words, base=None, observe="state", **changes):
    """`cclf train` of an environment of `hostile_envs`, with a checkpoint at step 30."""
    config = tiny_config(
        f"gym/hostile_envs:{name}-v0",
        "rad" if base != "rainbow" else "rainbow",
        base=base,
        observe=observe,
        eval_episodes=1,
        **changes,
    )
    return config, cclf("train", *tiny_options(config), "--out", out, *words)


GOOD = "the last checkpoint is good: run the same command to go on"
NOTHING = "nothing was saved yet: the same command begins again"
RUNS = {
    "it raises": ("Raise", "failed in step(): ValueError: boom", GOOD),
    "it exits": ("Exit", "failed in step(): SystemExit: 0", GOOD),
    "its disk is full": ("Full", "failed in step(): OSError: [Errno 28] full", GOOD),
    "it answers wrongly": ("Scalar", "step() returned an observation of shape ()", GOOD),
    "before a checkpoint": ("Early", "failed in step(): ValueError: boom", NOTHING),
    "in an evaluation": ("RaiseInEvaluation", "failed in step(): ValueError: boom", NOTHING),
    "in the final evaluation": ("Late", "failed in step(): ValueError: boom", GOOD),
    "it changes PyTorch's dtype": (
        "Dtype",
        "failed in step(): RuntimeError: it changed PyTorch's",
        GOOD,
    ),
    "in reset": ("RaiseInReset", "failed in reset(): ValueError: boom", NOTHING),
}


@pytest.mark.quick("it raises", "it exits", "before a checkpoint", "it changes PyTorch's dtype")
@pytest.mark.parametrize("row", RUNS)
def test_a_run_says_what_failed_and_how_to_go_on(row, tmp_path):
    name, said, way_on = RUNS[row]
    changes = {"final_eval_episodes": 20} if name == "Late" else {}
    _, (code, out, err) = trained(name, tmp_path, **changes)
    lines = err.splitlines()
    assert (code, out) == (1, "")
    begin = f"cclf: the environment hostile_envs:{name}-v0"
    (place,) = [place for place, line in enumerate(lines) if line.startswith(begin)]
    assert said in lines[place]
    assert lines[-1] == way_on
    traced = lines[place + 1 : -1]
    assert not traced or traced[0] == "Traceback (most recent call last):"
    assert bool(traced) == ("failed" in said)


def test_a_run_goes_on_from_its_checkpoint_once_its_environment_is_repaired(tmp_path, monkeypatch):
    config, (code, _, err) = trained("Raise", tmp_path / "cut")
    assert (code, err.splitlines()[-1]) == (1, GOOD)
    monkeypatch.setitem(gymnasium.registry["Raise-v0"].kwargs, "fault", lambda answer: answer)
    for out in ("cut", "whole"):
        code, _, err = trained("Raise", tmp_path / out)[1]
        assert code == 0, err
        assert ("resuming at 30 env steps" in err) == (out == "cut")
    cut, whole = (tables(tmp_path / out / config.run_name()) for out in ("cut", "whole"))
    assert cut == whole


@pytest.mark.quick("ChangesDirectory")
@pytest.mark.parametrize("name", ["ChangesDirectory", "ChangesDirectoryInMake"])
def test_an_environment_that_changes_the_working_directory_moves_no_run(
    tmp_path, monkeypatch, name
):
    config = tiny_config(f"gym/hostile_envs:{name}-v0", "rad", observe="state")
    words = tiny_options(config)
    gymnasium_env.inspect_env.cache_clear()  # the command makes the environment anew
    monkeypatch.chdir(tmp_path)
    code, stdout, err = cclf("train", *words, "--out", "runs")
    assert code == 0, err
    assert stdout == f"{'runs' / Path(config.run_name())}\n"
    assert (tmp_path / "runs" / config.run_name() / "checkpoint").is_dir()


def test_games_learned_together_fail_together(tmp_path):
    """A step that one of them could not end is not taken again by the other."""
    others = ("--with-tasks", "gym/hostile_envs:SteadyGame-v0")
    game = {"base": "rainbow", "observe": "pixels"}
    _, (code, _, err) = trained("RaiseOnceInGame", tmp_path, *others, **game)
    line = "the environment hostile_envs:RaiseOnceInGame-v0 failed in step(): ValueError: boom"
    assert code == 1
    assert err.splitlines().count(f"cclf: {line}") == 2
    assert err.splitlines().count(GOOD) == 2
    code, _, err = trained("RaiseOnceInGame", tmp_path, *others, **game)[1]
    assert code == 0, err
    assert err.count("resuming at 30 env steps") == 2


@pytest.mark.parametrize(
    ("name", "words", "way_on"),
    [
        ("RaiseInWorker", ["--eval-workers", "1"], GOOD),
    ],
)
def test_in_a_worker_it_is_the_same_line(name, words, way_on, tmp_path):
    _, (code, _, err) = trained(name, tmp_path, *words)
    assert code == 1
    error = "SystemExit: 0" if name == "Exit" else "ValueError: boom"
    line = f"the environment hostile_envs:{name}-v0 failed in step(): {error}"
    assert f"cclf: worker 0 of gym/hostile_envs:{name}-v0: {line}\nTraceback" in err
    assert err.splitlines()[-1] == way_on


def test_an_environment_of_another_suite_is_named_too(tmp_path, monkeypatch):
    original = toy.Reach.step

    def step(self, action):
        if self.steps == 3:
            sys.exit(0)
        return original(self, action)

    monkeypatch.setattr(toy.Reach, "step", step)
    config = tiny_config()
    code, _, err = cclf("train", *tiny_options(config), "--out", tmp_path)
    assert code == 1
    assert "cclf: the environment toy/reach-1d failed in step(): SystemExit: 0\nTraceback" in err


# --- before a run


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("dmc/cartpole-swing", "did you mean dmc/cartpole-swingup"),
        ("minigrid/FourRoom", "did you mean FourRooms"),
        ("atari/Pongg", "did you mean atari/Pong"),
        ("gym/Pendulm-v1", "did you mean Pendulum-v1"),
        ("toy/rech", "did you mean toy/reach"),
    ],
)
def test_a_dry_run_refuses_an_unknown_task(task, said):
    assert_refused(cclf("train", task, "--dry-run"), said)
    if not task.startswith(("minigrid/", "gym/")):
        known = f"{task.partition('/')[0]}/{said.rpartition('/')[2]}"
        assert_refused(cclf("train", known, "--with-tasks", task, "--dry-run"), said)


def test_a_dry_run_refuses_an_environment_that_no_run_could_learn():
    assert_refused(
        cclf("train", "gym/hostile_envs:Blind-v0", "--dry-run"), "returns no image from render()"
    )
    words = ("train", "gym/hostile_envs:Words-v0", "--observe", "state", "--dry-run")
    assert_refused(cclf(*words), "observation['mission'] is Space", "register it with a wrapper")


def test_minigrid_of_gymnasium_is_learned_from_pictures_and_its_own_suite_is_named():
    pytest.importorskip("minigrid")
    code, _, err = cclf("train", "gym/minigrid:MiniGrid-Empty-5x5-v0", "--dry-run")
    assert (code, err) == (0, "")
    assert gymnasium_env.inspect_env("minigrid:MiniGrid-Empty-5x5-v0").note == (
        "gives no images but Dict: learning from its rendered pictures, or learn "
        "minigrid/Empty-5x5; imports the Python module minigrid"
    )


@pytest.mark.parametrize("task", [None, 5, ["toy/reach"], hostile_envs.Steady(), lambda: None])
def test_train_from_python_refuses_what_is_no_name(task):
    with pytest.raises(ConfigError, match=r"^task is .*, not a name such as toy/reach") as caught:
        package.train(task)
    assert ("'gym/MODULE:ID'" in str(caught.value)) == (callable(task) or hasattr(task, "step"))
