"""Gymnasium environments by their state: what they give, how they are saved, and whole runs."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

gymnasium = pytest.importorskip("gymnasium")

import cclf as package  # noqa: E402
from cclf import (  # noqa: E402
    doctor,
    presets,
)
from cclf.algorithms.registry import make_learner  # noqa: E402
from cclf.analysis.variants import run_key  # noqa: E402
from cclf.envs import gymnasium_env  # noqa: E402
from cclf.envs.gymnasium_env import GymnasiumEnv  # noqa: E402
from cclf.envs.make import make_env  # noqa: E402
from cclf.errors import ConfigError  # noqa: E402
from cclf.share import train_command  # noqa: E402
from cclf.storage.run_folder import read_checkpoint  # noqa: E402
from cclf.training.trainer import replay_size  # noqa: E402
from healthy_machine import frames  # noqa: E402
from test_cli import assert_refused, cclf  # noqa: E402
from tiny_runs import CPU, differing, run, tables, tiny_config, tiny_options  # noqa: E402

spaces = gymnasium.spaces
VECTOR = spaces.Box(-np.inf, np.inf, (2,), np.float64)
SPACES = {
    "Vector": VECTOR,
    "Table": spaces.Box(-1.0, 1.0, (2, 3), np.float32),
    "Bytes": spaces.Box(0, 255, (4,), np.uint8),
    "Number": spaces.Discrete(5),
    "Named": spaces.Dict({"goal": spaces.Box(-1.0, 1.0, (2,)), "at": spaces.Box(-1.0, 1.0, (1,))}),
    "Image": spaces.Box(0, 255, (8, 8, 3), np.uint8),
    "Growing": spaces.Sequence(spaces.Discrete(2)),
}
ACTIONS = {
    "Buttons": spaces.MultiDiscrete([3, 2]),
    "Choice": spaces.Discrete(3),
    "Boundless": spaces.Box(-np.inf, np.inf, (1,)),
}
BEGUN = 0


class Walk(gymnasium.Env):
    """Its state is where it is and what it did last; it hands out one array that it writes again.
    It takes no `render_mode` and renders nothing."""

    def __init__(self, observation_space=VECTOR, action_space=None, seeded=True):
        self.observation_space = observation_space
        self.action_space = action_space or spaces.Box(-2.0, 6.0, (1,), np.float32)
        self.seeded, self.state = seeded, np.zeros(2)

    def _observation(self):
        if self.observation_space == VECTOR:
            return self.state
        self.observation_space.seed(self.steps)
        return self.observation_space.sample()

    def reset(self, *, seed=None, options=None):
        global BEGUN
        super().reset(seed=seed)
        del options
        BEGUN += 1
        self.steps = 0
        self.state[:] = self.np_random.normal() if self.seeded else BEGUN, 0.0
        return self._observation(), {}

    def step(self, action):
        self.steps += 1
        self.state += float(action[0]), 0.0
        self.state[1] = float(action[0])
        return self._observation(), -float(abs(self.state[0])), self.steps == 30, False, {}


class SilentWalk(Walk):
    """One that takes every `render_mode`."""

    def __init__(self, render_mode=None, **settings):
        super().__init__(**settings)
        self.render_mode = render_mode

    def render(self):
        return None


@pytest.fixture(autouse=True, scope="module")
def registered():
    variants = {name: {"observation_space": space} for name, space in SPACES.items()}
    variants |= {name: {"action_space": space} for name, space in ACTIONS.items()}
    for name, kwargs in (variants | {"Unseeded": {"seeded": False}, "Silent": {}}).items():
        settings = {"kwargs": kwargs, "max_episode_steps": 7, "disable_env_checker": True}
        entry_point = SilentWalk if name == "Silent" else Walk
        gymnasium.register(f"cclf-state/{name}-v0", entry_point=entry_point, **settings)
    yield
    for name in [name for name in gymnasium.registry if name.startswith("cclf-state/")]:
        del gymnasium.registry[name]


def make(name="Vector", action_repeat=1, seed=1):
    return GymnasiumEnv(f"cclf-state/{name}-v0", "state", 84, action_repeat, seed)


def tiny_state(name="Vector", method="cclf", **run):
    return tiny_config(f"gym/cclf-state/{name}-v0", method, observe="state", **run)


# --- what it gives


def test_state_is_the_observation_of_the_environment():
    env = make(action_repeat=3)
    assert env.spec == ((2,), 1, 3, 3, None)
    first = env.reset()
    assert (first.dtype, first.shape) == (np.float32, (2,))
    before, step = first.copy(), env.step(np.array([0.5]))
    assert step.frame[1] == 4.0, "the action is scaled to the bounds"
    assert step.frame[0] == np.float32(before[0] + 12.0), "and repeated"
    assert np.array_equal(first, before), "an environment may write its array again"
    env.step(np.zeros(1))
    assert env.step(np.zeros(1))[2:4] == (False, True), "a time limit is no end of the task"


@pytest.mark.parametrize(
    ("name", "numbers"), [("Table", 6), ("Bytes", 4), ("Number", 5), ("Named", 3)]
)
def test_other_observations_become_one_vector(name, numbers):
    env = make(name)
    state = env.reset()
    assert (state.shape, state.dtype) == ((numbers,), np.float32)
    assert env.spec.state_dim == numbers
    inner = env._env._env.unwrapped
    inner.observation_space.seed(0)
    expected = spaces.flatten(inner.observation_space, inner.observation_space.sample())
    assert np.array_equal(state, np.asarray(expected, np.float32).ravel())


@pytest.mark.parametrize("name", ["Image", "Growing"])
def test_observations_that_are_not_a_state_are_refused(name):
    with pytest.raises(
        ConfigError, match=f"cclf-state/{name}-v0 has .* observations that are not a state"
    ):
        make(name)


@pytest.mark.parametrize("name", ["Buttons", "Boundless"])
def test_other_actions_are_refused(name):
    with pytest.raises(ConfigError, match=r"has actions .* a Box with finite bounds"):
        make(name)


def test_inspect_env_describes_the_observations():
    facts = gymnasium_env.inspect_env("cclf-state/Named-v0")
    assert facts.kind == "continuous"
    assert facts.state_note == "has Dict observations: learning from 3 numbers of state"
    assert facts.note == (
        "has Dict observations: learning from rendered frames (or from the numbers: --observe state)"
    )
    assert "--observe" in gymnasium_env.inspect_env("cclf-state/Choice-v0").note, "MR.Q can"
    assert "--observe" not in gymnasium_env.inspect_env("cclf-state/Growing-v0").note


@pytest.mark.parametrize("name", ["Vector", "Silent"])
def test_an_environment_without_rendering_supports_state_only(name, tmp_path, recwarn):
    said = rf"cclf-state/{name}-v0 returns no image from .* --observe state --no-video"
    pixels = GymnasiumEnv(f"cclf-state/{name}-v0")
    with pytest.raises(ConfigError, match=said):
        pixels.reset()
    env = make(name)
    env.reset()
    with pytest.raises(ConfigError, match=said):
        env.render()
    assert [str(warning.message) for warning in recwarn if "render_mode" in str(warning)] == []
    pixels = tiny_config(
        f"gym/cclf-state/{name}-v0", "rad", env={"frame_pixels": 20, "crop_pixels": 16}
    )
    assert_refused(
        cclf("train", *tiny_options(pixels), "--out", tmp_path), "returns no image from render()"
    )


# --- saving


def test_an_environment_that_its_seed_does_not_determine_begins_a_new_episode(tmp_path, capsys):
    config = tiny_state("Unseeded", env_steps=40, eval_every_env_steps=40, eval_episodes=1)
    cut, _ = run(config, tmp_path / "run", stop_at=25)
    assert cut.in_episode
    learner = make_learner(config, CPU)
    learner.load_state_dict(cut.state_dict())
    assert not learner.in_episode
    learner.close()
    assert "cannot be restored" in capsys.readouterr().err
    assert run(config, tmp_path / "run")[1]


@pytest.mark.parametrize(
    "change",
    [
        {"actions": np.array([7])},
        {"actions": np.full((1, 1), np.nan, np.float32)},
        {"frame": np.zeros(3, np.float32)},
        {"frame": np.zeros(2, np.uint8)},
    ],
)
def test_a_state_of_another_environment_is_refused(change):
    env = make()
    env.reset()
    with pytest.raises(ValueError, match="env"):
        env.load_state_dict(env.state_dict() | change)


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path):
    config = tiny_state(env_steps=60, algorithm={"replay_capacity_transitions": 30})
    config = replace(config, env=replace(config.env, frame_stack=2))
    whole, finished = run(config, tmp_path / "whole")
    assert finished
    for stop_at in (17, 38):  # before and after learning began, in the middle of an episode
        assert not run(config, tmp_path / "cut", stop_at=stop_at)[1]
    cut, finished = run(config, tmp_path / "cut")
    assert finished
    assert tables(tmp_path / "cut") == tables(tmp_path / "whole")
    assert differing(whole.state_dict(), cut.state_dict()) == []
    frames = read_checkpoint(tmp_path / "cut")["learner"]["replay"]["frames"]
    assert frames.dtype == torch.float32
    assert torch.equal(frames, whole.replay.frames[: len(frames)])


def test_replay_stores_state_without_rounding():
    config = tiny_state(env_steps=20)
    learner = make_learner(config, CPU)
    env = make(seed=learner.env._recorder._random.bit_generator.seed_seq.entropy)
    seen = [env.reset()]
    for step in range(5):
        learner.step(step)
        seen.append(env.step(learner.replay.actions[step].numpy()).frame)
    assert np.array_equal(learner.replay.frames[:6].numpy(), np.stack(seen))
    transitions, size = replay_size(config)
    held = [getattr(learner.replay, name) for name in learner.replay._TENSORS]
    assert transitions == 20
    assert size == sum(tensor.nbytes for tensor in held) + learner.replay.valid.nbytes
    learner.close()


# --- runs


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Pendulum from state, by the command line: its config, its folder, what was said."""
    out = tmp_path_factory.mktemp("state")
    config = tiny_config("gym/Pendulum-v1", "cclf", observe="state", env_steps=40)
    code, stdout, stderr = cclf("train", *tiny_options(config), "--out", out)
    assert code == 0, stderr
    return config, out / config.run_name(), stdout, stderr


def test_a_run_names_its_observations_and_resumes(trained):
    config, folder, stdout, stderr = trained
    assert stdout.strip() == str(folder)
    assert stderr.splitlines()[0] == (
        "gym/Pendulum-v1 has vectors: learning from 3 numbers of state"
    )
    written = json.loads((folder / "config.json").read_text())
    assert written["env"]["observe"] == "state"
    assert presets.from_dict(written) == config.resolve_precision(gpu=False)
    assert run_key(written).profile == "released-state", "no table mixes it with pixels"
    out = folder.parents[3]
    assert_refused(
        cclf("train", "--from", folder, "--observe", "pixels", "--out", out), "--observe"
    )
    code, _, stderr = cclf("train", "--from", folder, "--env-steps", "50", "--out", out)
    assert code == 0, stderr
    assert "resuming at 40 env steps" in stderr


def test_its_agent_evaluates_and_acts(trained):
    config, folder, *_ = trained
    code, stdout, stderr = cclf("evaluate", folder, "--episodes", "1", "--json")
    assert code == 0, stderr
    agent = package.load(folder, device="cpu")
    env = make_env(config, 0)
    total, step = 0.0, None
    state = env.reset(package.training.seeding.derive(0, "evaluate", 0))
    while step is None or not step.truncated:
        step = env.step(agent.act(state.astype(np.float64)))
        state, total = step.frame, total + step.reward
    assert total == json.loads(stdout)["return_mean"]
    assert agent.evaluate(1).mean == total
    agent.reset()
    assert agent.act(np.zeros((4, 3), np.float32)).shape == (4, 1)
    with pytest.raises(ConfigError, match="the observation is object: state is a vector"):
        agent.act({"a": 1})
    with pytest.raises(ConfigError, match=r"has the shape \(2,\): use one newest frame \(3,\)"):
        agent.act(np.zeros(2))


@pytest.mark.slow("analysis/test_export.py::test_pt2_on_pixels_is_the_mean_action_on_whole_frames")
def test_its_policy_is_exported(trained, tmp_path):
    _, folder, *_ = trained
    code, stdout, stderr = cclf("export", folder, "--out", tmp_path / "policy.pt2")
    assert code == 0, stderr
    assert "float32 (batch, 3) -> action float32 (batch, 1)" in stdout


def test_its_model_card_describes_the_observations(trained, tmp_path):
    code, _, stderr = cclf("export", trained[1], "--card", "--out", tmp_path / "agent")
    assert code == 0, stderr
    card = (tmp_path / "agent" / "README.md").read_text()
    assert "| observes | the state of the environment, as numbers, frame stack 1" in card
    assert "--observe state" in card
    wide = replace(trained[0].algorithm, batch_size=512)  # what it is on pixels
    assert "--batch-size" in train_command(replace(trained[0], algorithm=wide))


def test_inspect_is_refused(trained, tmp_path):
    _, folder, *_ = trained
    out = tmp_path / "page.html"
    assert_refused(
        cclf("inspect", folder, "--out", out), "observe=state: cclf inspect shows pictures"
    )


@pytest.mark.slow("test_its_agent_evaluates_and_acts")
def test_it_is_played(trained, tmp_path):
    pytest.importorskip("pygame")
    pytest.importorskip("imageio_ffmpeg")
    code, _, stderr = cclf("play", trained[1], "--out", tmp_path / "episode.mp4")
    assert code == 0, stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["gym/CartPole-v1", "--observe", "state", "--base", "rainbow"],
            "observe=state conflicts with rainbow",
        ),
        (["dmc/walker-walk", "--observe", "state"], "tasks of dmc/ have pixels"),
        (["gym/Pendulum-v1", "--observe", "stat"], "tasks of gym/ have pixels or state"),
        (["gym/Pendulum-v1", "--observe", "state", "--method", "select"], "selection=overlap"),
        (["gym/Pendulum-v1", "--observe", "state", "--base", "drqv2"], "conflicts with drqv2"),
        (["gym/Pendulum-v1", "--observe", "state", "--augmentation", "none"], "augmentation=none"),
        (["gym/Pendulum-v1", "--noise-scale", "0.2"], "augmentation=random-crop"),
    ],
)
def test_the_command_line_refuses_in_one_line(words, said):
    assert_refused(cclf("train", *words, "--dry-run"), said)


def test_the_doctor_forecasts_a_run_from_state(monkeypatch):
    assert_refused(cclf("doctor", "--observe", "state"), "--observe state needs --task")
    monkeypatch.setattr(doctor, "check_rendering", frames)
    monkeypatch.setattr(doctor, "check_atari", lambda _: None)
    sizes = [
        doctor.examine("gym/Pendulum-v1", observe=seen)["forecast"]["replay_bytes"]
        for seen in ("state", "pixels")
    ]
    assert sizes[0] == replay_size(presets.resolve("gym/Pendulum-v1", observe="state"))[1]
    assert sizes[0] < sizes[1] / 100


def test_a_config_that_observes_state_never_gets_pixels():
    config = tiny_state()
    with pytest.raises(ConfigError, match="observe=state conflicts with toy/reach"):
        make_learner(replace(config, task="toy/reach"), CPU)
