"""Exceptions and invalid return values of a user's Gymnasium environment: one line that names it."""

import errno
import sys
from pathlib import Path

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")

from gymnasium.spaces import Box, Discrete, MultiBinary, Tuple  # noqa: E402

import cclf as package  # noqa: E402
import hostile_envs  # noqa: E402
from cclf.envs import gymnasium_env, toy  # noqa: E402
from cclf.envs.gymnasium_checks import is_image_space  # noqa: E402
from cclf.envs.gymnasium_env import GymnasiumEnv, RescaleAction  # noqa: E402
from cclf.errors import ConfigError, WorkerError  # noqa: E402
from hostile_envs import IMAGE, LAYERS, NAMED, exits, observes, raises, replaces, returns  # noqa: E402
from test_cli import assert_refused, cclf  # noqa: E402
from tiny_runs import tables, tiny_config, tiny_options  # noqa: E402

NAN, INF = float("nan"), float("inf")
NAME = "hostile/Row-v0"


def state():
    return GymnasiumEnv(NAME, "state")


def pixels():
    return GymnasiumEnv(NAME, frame_pixels=16)


def play(make, place, fault, limit=None, action=0.0, **settings):
    """Make, reset and step an environment with a fault. Returns its last step."""
    settings = {"at_call": 1 if place in ("make", "reset", "close") else 3} | settings
    gymnasium.register(
        NAME,
        entry_point=hostile_envs.ReliableEnv,
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
    "StopIteration": StopIteration(),
    "GeneratorExit": GeneratorExit(),
    "SystemExit: 0": SystemExit(0),
    "OSError: [Errno 28] full": OSError(errno.ENOSPC, "full"),
    "ValueError: " + 288 * "x" + "...": ValueError(900 * "x"),
    "UnprintableError": hostile_envs.UnprintableError(),
}


PLACES = [*((message, "step") for message in RAISED), ("SystemExit: 0", "make")]
PLACES += [("OSError: [Errno 28] full", "make"), ("ValueError: boom", "reset")]


@pytest.mark.parametrize(("message", "place"), PLACES)
def test_an_exception_names_the_environment_and_the_method(message, place):
    with pytest.raises(WorkerError) as caught:
        play(state, place, raises(RAISED[message]))
    assert str(caught.value) == f"the environment {NAME} failed in {place}(): {message}"
    assert "hostile_envs.py" in caught.value.details
    assert caught.value.details.endswith("\n")


def test_an_exception_that_gymnasium_documents_is_bad_input():
    with pytest.raises(ConfigError, match=f"^Gymnasium cannot make '{NAME}'.*boom$"):
        play(state, "make", raises(ValueError("boom")))


# method, fault, part of the message
RESULTS = [
    ("reset", returns(np.zeros(3, np.float32)), "reset() returned ndarray"),
    ("reset", returns((np.zeros(3), 0.5)), "reset() returned info of type"),
    ("reset", observes(7.0), "observation has shape (), its space has (3,)"),
    ("step", observes(np.zeros(4)), "observation has shape (4,), its space has (3,)"),
    ("step", observes([None] * 3), "observation is object"),
    ("step", observes([0.0, NAN, 0.0]), "an observation that is not finite in float32"),
    ("step", observes([0.0, 1e300, 0.0]), "an observation that is not finite in float32"),
    ("step", observes([[0.0], [1.0, 2.0], 3.0]), "failed in step(): ValueError: setting an array"),
    ("step", returns(None), "step() returned NoneType"),
    (
        "step",
        lambda result: result[:4],
        "step() returned (ndarray, float, bool, bool): use (observation, reward",
    ),
    ("step", replaces(1, None), "step() returned reward=None"),
    ("step", replaces(1, np.zeros(2)), "step() returned reward=array([0., 0.])"),
    ("step", replaces(1, 1j), "step() returned reward=1j"),
    ("step", replaces(1, 1e300), "step() returned a reward of 1e+300"),
    ("step", replaces(1, NAN), "step() returned a reward of nan"),
    ("step", replaces(1, 10**400), "failed in step(): OverflowError"),
    ("step", replaces(2, np.zeros(2, bool)), "step() returned terminated=array([False, False])"),
    ("step", replaces(3, "no"), "step() returned truncated='no'"),
]


# space, observation of a step, part of the message
SPACES = [
    (NAMED, {"goal": np.zeros(2)}, "which has no 'at'"),
    (NAMED, {"goal": np.zeros(3), "at": 0}, "observation['goal'] has shape (3,), its space has"),
    (NAMED, [1, 2], "observation is [1, 2], which has no 'at'"),
    (Discrete(3, start=1), 0, "observation is 0, its space is Discrete(3, start=1)"),
    (MultiBinary(2), np.array([0, 2], np.int8), "its space is MultiBinary"),
    (Tuple([Discrete(2), Discrete(2)]), (0,), "observation is (0,), which has no 1"),
    (Box(0, 9, (2,), np.int64), [0.5, 1.0], "observation is float64"),
    (Box(0, 255, (2,), np.uint8), [0, 256], "its space uint8"),
    (IMAGE, np.full((8, 8, 3), 0.5), "observation is float64"),
    (LAYERS, np.full((6, 6, 4), 2), "its space bool"),
]
# rendered frame, part of the message
FRAMES = [
    (np.zeros((0, 0, 3), np.uint8), "render() returned uint8 of shape (0, 0, 3)"),
    (np.zeros((4, 4, 2), np.uint8), "render() returned uint8 of shape (4, 4, 2)"),
    (np.zeros((2, 4, 4, 3), np.uint8), "render() returned uint8 of shape (2, 4, 4, 3)"),
    (np.full((4, 4, 3), 0.5), "render() returned float64 of shape"),
    (None, "render() returned object of shape ()"),
]
INVALID = [(message, state, place, fault, {}) for place, fault, message in RESULTS]
INVALID += [(message, pixels, "render", returns(frame), {}) for frame, message in FRAMES]
INVALID += [
    (
        message,
        pixels if is_image_space(space) else state,
        "step",
        observes(value),
        {"observation_space": space},
    )
    for space, value, message in SPACES
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("row", INVALID, ids=[row[0] for row in INVALID])
def test_an_invalid_return_value_is_one_line(row):
    message, make, place, fault, settings = row
    with pytest.raises(WorkerError) as caught:
        play(make, place, fault, **settings)
    line = str(caught.value)
    assert line.startswith(f"the environment {NAME}")
    assert message in line
    assert "\n" not in line


@pytest.mark.parametrize(
    "value",
    [[1, 2, 3], np.arange(3.0), np.ones(3, bool), np.ones(3, "f2")],
    ids=repr,
)
def test_other_dtypes_that_fit_are_accepted(value):
    step = play(state, "step", observes(value))
    assert np.array_equal(step.frame, np.asarray(value, np.float32))


@pytest.mark.parametrize("value", [1, True, np.float32(1), np.ones(1)], ids=repr)
def test_one_number_of_any_type_is_a_reward_and_a_flag(value):
    assert play(state, "step", replaces(1, value)).reward == 1.0
    assert play(state, "step", replaces(2, value)).terminated is True


def test_an_unused_observation_is_not_checked():
    assert play(pixels, "step", observes("whatever")).frame.shape == (3, 16, 16)


def test_an_exception_of_a_wrapper_names_the_environment():
    with pytest.raises(WorkerError, match=r"failed in step\(\): ValueError: not enough values"):
        play(state, "step", lambda result: result[:4], limit=20)


def test_an_environment_that_fails_to_close_gives_one_warning(capsys):
    for _ in range(2):
        play(state, "close", raises(ValueError("no\nend")))
    play(state, "close", exits)
    assert capsys.readouterr().err.splitlines() == [
        f"cclf: warning: the environment {NAME} failed in close(): ValueError: no end",
        f"cclf: warning: the environment {NAME} failed in close(): SystemExit: 0",
    ]


def test_an_interrupt_is_not_caught():
    with pytest.raises(KeyboardInterrupt):
        play(state, "step", raises(KeyboardInterrupt()))
    with pytest.raises(SystemExit, match="130"):  # the second signal to a run raises it
        play(state, "step", raises(SystemExit(130)))


def test_actions_without_a_number_are_refused():
    with pytest.raises(ConfigError, match=r"has actions Box\(\[\], \[\], \(0,\), float32\)"):
        play(state, "", None, action_space=Box(-1.0, 1.0, (0,), np.float32))


def test_a_non_finite_action_is_not_an_error_of_the_environment():
    """The run detects non-finite numbers of its networks itself."""

    def nan(result):
        return (np.full(3, NAN), NAN, *result[2:])

    step = play(state, "step", nan, action=NAN, at_call=1)
    assert np.isnan([*step.frame, step.reward]).all()
    with pytest.raises(WorkerError, match=r"boom; its action was array\(\[nan\]"):
        play(state, "step", raises(ValueError("boom")), action=NAN, at_call=1)


def test_a_gray_image_of_three_rows_is_not_channels_first():
    image = np.arange(24, dtype=np.uint8).reshape(3, 8)
    assert np.array_equal(gymnasium_env.to_rgb(image), np.stack([image] * 3, -1))


def test_a_renderer_that_is_not_installed_is_refused():
    missing = gymnasium.error.DependencyNotInstalled("pygame is not installed")
    with pytest.raises(ConfigError, match="cannot be rendered: pygame is not installed"):
        play(pixels, "render", raises(missing), at_call=1)


LIMITS = np.finfo(np.float32).max


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [(-LIMITS, LIMITS, np.float32), (-128, 127, np.int8), (-(2**63), 2**63 - 1, np.int64)],
)
def test_bounds_as_wide_as_their_dtype_do_not_overflow(low, high, dtype):
    space = Box(low, high, (1,), dtype)
    rescale = RescaleAction(space)
    given = [rescale(np.array([a], np.float32))[0] for a in (-1.0, 0.0, 0.5, 1.0)]
    assert all(np.isfinite(given))
    assert given == sorted(given)
    assert given[0] == space.low[0]
    assert given[1] == 0
    assert given[-1] == space.high[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8])
def test_actions_are_rescaled_in_the_dtype_of_their_box(dtype):
    low, high = np.array([-3], dtype), np.array([7], dtype)
    actions = np.random.default_rng(0).uniform(-1.2, 1.2, (200, 1)).astype(np.float32)
    expected = (low + (np.clip(actions, -1.0, 1.0) + 1.0) * 0.5 * (high - low)).astype(dtype)
    rescale = RescaleAction(Box(low, high, (1,), dtype))
    assert np.array_equal([rescale(action) for action in actions], expected)


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


RESUMES = "the last checkpoint is good: run the same command to go on"
BEGINS_AGAIN = "nothing was saved yet: the same command begins again"
RUNS = {
    "it raises": ("Raise", "failed in step(): ValueError: boom", RESUMES),
    "it exits": ("Exit", "failed in step(): SystemExit: 0", RESUMES),
    "its disk is full": ("Full", "failed in step(): OSError: [Errno 28] full", RESUMES),
    "it answers wrongly": (
        "Scalar",
        "step() returned an invalid observation: observation has shape ()",
        RESUMES,
    ),
    "before a checkpoint": ("Early", "failed in step(): ValueError: boom", BEGINS_AGAIN),
    "in an evaluation": ("RaiseInEvaluation", "failed in step(): ValueError: boom", BEGINS_AGAIN),
    "in the final evaluation": ("Late", "failed in step(): ValueError: boom", RESUMES),
    "it changes PyTorch's dtype": (
        "Dtype",
        "failed in step(): RuntimeError: it changed PyTorch's",
        RESUMES,
    ),
    "in reset": ("RaiseInReset", "failed in reset(): ValueError: boom", BEGINS_AGAIN),
}


@pytest.mark.quick("it raises", "it exits", "before a checkpoint", "it changes PyTorch's dtype")
@pytest.mark.parametrize("row", RUNS)
def test_a_failed_run_names_the_error_and_how_to_resume(row, tmp_path):
    name, message, advice = RUNS[row]
    changes = {"final_eval_episodes": 20} if name == "Late" else {}
    _, (code, out, err) = trained(name, tmp_path, **changes)
    lines = err.splitlines()
    assert (code, out) == (1, "")
    begin = f"cclf: the environment hostile_envs:{name}-v0"
    (place,) = [place for place, line in enumerate(lines) if line.startswith(begin)]
    assert message in lines[place]
    assert lines[-1] == advice
    traced = lines[place + 1 : -1]
    assert not traced or traced[0] == "Traceback (most recent call last):"
    assert bool(traced) == ("failed" in message)


def test_a_failed_run_resumes_after_the_environment_is_repaired(tmp_path, monkeypatch):
    config, (code, _, err) = trained("Raise", tmp_path / "cut")
    assert (code, err.splitlines()[-1]) == (1, RESUMES)
    monkeypatch.setitem(gymnasium.registry["Raise-v0"].kwargs, "fault", lambda result: result)
    for out in ("cut", "whole"):
        code, _, err = trained("Raise", tmp_path / out)[1]
        assert code == 0, err
        assert ("resuming at 30 env steps" in err) == (out == "cut")
    cut, whole = (tables(tmp_path / out / config.run_name()) for out in ("cut", "whole"))
    assert cut == whole


@pytest.mark.quick("ChangesDirectory")
@pytest.mark.parametrize("name", ["ChangesDirectory", "ChangesDirectoryInMake"])
def test_a_changed_working_directory_does_not_move_the_run(tmp_path, monkeypatch, name):
    config = tiny_config(f"gym/hostile_envs:{name}-v0", "rad", observe="state")
    words = tiny_options(config)
    gymnasium_env.inspect_env.cache_clear()  # the command makes the environment anew
    monkeypatch.chdir(tmp_path)
    code, stdout, err = cclf("train", *words, "--out", "runs")
    assert code == 0, err
    assert stdout == f"{'runs' / Path(config.run_name())}\n"
    assert (tmp_path / "runs" / config.run_name() / "checkpoint").is_dir()


def test_games_learned_together_fail_together(tmp_path):
    """The other game does not repeat a step that one game could not complete."""
    others = ("--with-tasks", "gym/hostile_envs:SteadyGame-v0")
    game = {"base": "rainbow", "observe": "pixels"}
    _, (code, _, err) = trained("RaiseInGame", tmp_path, *others, **game)
    line = "the environment hostile_envs:RaiseInGame-v0 failed in step(): ValueError: boom"
    assert code == 1
    assert err.splitlines().count(f"cclf: {line}") == 2
    assert err.splitlines().count(RESUMES) == 2


def test_an_error_in_a_worker_has_the_same_message(tmp_path):
    _, (code, _, err) = trained("RaiseInWorker", tmp_path, "--eval-workers", "1")
    line = "the environment hostile_envs:RaiseInWorker-v0 failed in step(): ValueError: boom"
    assert code == 1
    assert f"cclf: worker 0 of gym/hostile_envs:RaiseInWorker-v0: {line}\nTraceback" in err
    assert err.splitlines()[-1] == RESUMES


def test_errors_of_other_suites_name_the_environment(tmp_path, monkeypatch):
    original = toy.Reach.step

    def step(self, action):
        if self.steps == 3:
            sys.exit(0)
        return original(self, action)

    monkeypatch.setattr(toy.Reach, "step", step)
    config = tiny_config(method="rad")
    code, _, err = cclf("train", *tiny_options(config), "--out", tmp_path)
    assert code == 1
    assert "cclf: the environment toy/reach-1d failed in step(): SystemExit: 0\nTraceback" in err


# --- before a run


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("dmc/cartpole-swing", "did you mean dmc/cartpole-swingup"),
        ("minigrid/FourRoom", "did you mean minigrid/FourRooms"),
        ("atari/Pongg", "did you mean atari/Pong"),
        ("gym/Pendulm-v1", "did you mean Pendulum-v1"),
        ("toy/rech", "did you mean toy/reach"),
    ],
)
def test_a_dry_run_refuses_an_unknown_task(task, message):
    assert_refused(cclf("train", task, "--dry-run"), message)
    if not task.startswith(("minigrid/", "gym/")):
        known = f"{task.partition('/')[0]}/{message.rpartition('/')[2]}"
        assert_refused(cclf("train", known, "--with-tasks", task, "--dry-run"), message)


def test_a_dry_run_refuses_unsupported_environments():
    assert_refused(
        cclf("train", "gym/hostile_envs:Blind-v0", "--dry-run"), "returns no image from render()"
    )
    words = ("train", "gym/hostile_envs:Words-v0", "--observe", "state", "--dry-run")
    assert_refused(cclf(*words), "observation['mission'] is Space", "use a wrapper")


def test_minigrid_of_gymnasium_is_refused_with_the_task_of_its_own_suite():
    pytest.importorskip("minigrid")
    words = ("train", "gym/minigrid:MiniGrid-Empty-5x5-v0", "--dry-run")
    assert_refused(cclf(*words), "--observe-key image", "or train minigrid/Empty-5x5")


@pytest.mark.parametrize("task", [None, 5, ["toy/reach"]])
def test_train_from_python_refuses_other_types_of_task(task):
    with pytest.raises(ConfigError, match=r"^task is .*, not a name such as toy/reach"):
        package.train(task)
