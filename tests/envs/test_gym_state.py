"""Gymnasium environments with `observe="state"`: observations and actions, saved states, and runs."""

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
from healthy_machine import frames as rendering_facts  # noqa: E402
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
RESETS = 0  # of all environments in this process


class Walk(gymnasium.Env):
    """Its state is its position and its last action. It returns the same array after every step, with
    other values. It has no `render_mode` and cannot render."""

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
        global RESETS
        super().reset(seed=seed)
        del options
        RESETS += 1
        self.steps = 0
        self.state[:] = self.np_random.normal() if self.seeded else RESETS, 0.0
        return self._observation(), {}

    def step(self, action):
        self.steps += 1
        self.state += float(action[0]), 0.0
        self.state[1] = float(action[0])
        return self._observation(), -float(abs(self.state[0])), self.steps == 30, False, {}


class SilentWalk(Walk):
    """Accepts every `render_mode`, but renders nothing."""

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


def make_state_env(name="Vector", action_repeat=1, seed=1):
    return GymnasiumEnv(f"cclf-state/{name}-v0", "state", 84, action_repeat, seed)


def tiny_state_config(name="Vector", method="cclf", **settings):
    return tiny_config(f"gym/cclf-state/{name}-v0", method, observe="state", **settings)


# --- observations and actions


def test_frame_of_a_step_is_the_observation_of_the_environment():
    env = make_state_env(action_repeat=3)
    assert env.spec == ((2,), 1, 3, 3, None)
    first = env.reset()
    assert (first.dtype, first.shape) == (np.float32, (2,))
    before, step = first.copy(), env.step(np.array([0.5]))
    assert step.frame[1] == 4.0, "an action in [-1, 1] is scaled to the bounds"
    assert step.frame[0] == np.float32(before[0] + 12.0), "the action is repeated"
    assert np.array_equal(first, before), "the returned array is a copy"
    env.step(np.zeros(1))
    assert env.step(np.zeros(1))[2:4] == (False, True), (
        "a time limit truncates the episode and does not terminate it"
    )


@pytest.mark.parametrize(
    ("name", "state_dim"), [("Table", 6), ("Bytes", 4), ("Number", 5), ("Named", 3)]
)
def test_other_observation_spaces_are_flattened_to_one_vector(name, state_dim):
    env = make_state_env(name)
    state = env.reset()
    assert (state.shape, state.dtype) == ((state_dim,), np.float32)
    assert env.spec.state_dim == state_dim
    inner = env._env._env.unwrapped
    inner.observation_space.seed(0)
    expected = spaces.flatten(inner.observation_space, inner.observation_space.sample())
    assert np.array_equal(state, np.asarray(expected, np.float32).ravel())


@pytest.mark.parametrize("name", ["Image", "Growing"])
def test_images_and_sequences_are_refused_as_state(name):
    with pytest.raises(
        ConfigError, match=f"cclf-state/{name}-v0 has .* observations that are not a state"
    ):
        make_state_env(name)


@pytest.mark.parametrize("name", ["Buttons", "Boundless"])
def test_actions_other_than_bounded_boxes_are_refused(name):
    with pytest.raises(ConfigError, match=r"has actions .* a Box with finite bounds"):
        make_state_env(name)


def test_inspect_env_describes_the_observations():
    facts = gymnasium_env.inspect_env("cclf-state/Named-v0")
    assert facts.kind == "continuous"
    assert facts.state_note == "has Dict observations: learning from 3 numbers of state"
    assert facts.note == (
        "has Dict observations: learning from rendered frames (or from the numbers: --observe state)"
    )
    assert "--observe" in gymnasium_env.inspect_env("cclf-state/Choice-v0").note, (
        "MR.Q can learn discrete actions from state"
    )
    assert "--observe" not in gymnasium_env.inspect_env("cclf-state/Growing-v0").note


@pytest.mark.parametrize("name", ["Vector", "Silent"])
def test_environment_without_rendering_supports_state_only(name, tmp_path, recwarn):
    message = rf"cclf-state/{name}-v0 returns no image from .* --observe state --no-video"
    pixel_env = GymnasiumEnv(f"cclf-state/{name}-v0")
    with pytest.raises(ConfigError, match=message):
        pixel_env.reset()
    env = make_state_env(name)
    env.reset()
    with pytest.raises(ConfigError, match=message):
        env.render()
    assert [str(warning.message) for warning in recwarn if "render_mode" in str(warning)] == []
    pixel_config = tiny_config(
        f"gym/cclf-state/{name}-v0", "rad", env={"frame_pixels": 20, "crop_pixels": 16}
    )
    assert_refused(
        cclf("train", *tiny_options(pixel_config), "--out", tmp_path),
        "returns no image from render()",
    )


# --- saving


def test_environment_that_is_not_reproducible_begins_a_new_episode_on_resume(tmp_path, capsys):
    config = tiny_state_config("Unseeded", env_steps=40, eval_every_env_steps=40, eval_episodes=1)
    stopped, _ = run(config, tmp_path / "run", stop_at=25)
    assert stopped.in_episode
    learner = make_learner(config, CPU)
    learner.load_state_dict(stopped.state_dict())
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
def test_invalid_state_dict_is_refused(change):
    env = make_state_env()
    env.reset()
    with pytest.raises(ValueError, match="env"):
        env.load_state_dict(env.state_dict() | change)


def test_resumed_run_equals_an_uninterrupted_one(tmp_path):
    config = tiny_state_config(env_steps=60, algorithm={"replay_capacity_transitions": 30})
    config = replace(config, env=replace(config.env, frame_stack=2))
    uninterrupted, finished = run(config, tmp_path / "uninterrupted")
    assert finished
    for stop_at in (17, 38):  # before and after the first update, within an episode
        assert not run(config, tmp_path / "resumed", stop_at=stop_at)[1]
    resumed, finished = run(config, tmp_path / "resumed")
    assert finished
    assert tables(tmp_path / "resumed") == tables(tmp_path / "uninterrupted")
    assert differing(uninterrupted.state_dict(), resumed.state_dict()) == []
    frames = read_checkpoint(tmp_path / "resumed")["learner"]["replay"]["frames"]
    assert frames.dtype == torch.float32
    assert torch.equal(frames, uninterrupted.replay.frames[: len(frames)])


def test_replay_stores_state_without_rounding():
    config = tiny_state_config(env_steps=20)
    learner = make_learner(config, CPU)
    env = make_state_env(seed=learner.env._recorder._random.bit_generator.seed_seq.entropy)
    states = [env.reset()]
    for step in range(5):
        learner.step(step)
        states.append(env.step(learner.replay.actions[step].numpy()).frame)
    assert np.array_equal(learner.replay.frames[:6].numpy(), np.stack(states))
    transitions, num_bytes = replay_size(config)
    tensors = [getattr(learner.replay, name) for name in learner.replay._TENSORS]
    assert transitions == 20
    assert num_bytes == sum(tensor.nbytes for tensor in tensors) + learner.replay.valid.nbytes
    learner.close()


# --- runs


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on Pendulum from state by `cclf train`: config, folder, stdout and stderr."""
    out = tmp_path_factory.mktemp("state")
    config = tiny_config("gym/Pendulum-v1", "cclf", observe="state", env_steps=40)
    code, stdout, stderr = cclf("train", *tiny_options(config), "--out", out)
    assert code == 0, stderr
    return config, out / config.run_name(), stdout, stderr


def test_state_run_names_its_observations_and_resumes(trained):
    config, folder, stdout, stderr = trained
    assert stdout.strip() == str(folder)
    assert stderr.splitlines()[0] == (
        "gym/Pendulum-v1 has vectors: learning from 3 numbers of state"
    )
    written = json.loads((folder / "config.json").read_text())
    assert written["env"]["observe"] == "state"
    assert presets.from_dict(written) == config.resolve_precision(gpu=False)
    assert run_key(written).profile == "released-state", (
        "results from state and from pixels are not merged"
    )
    out = folder.parents[3]
    assert_refused(
        cclf("train", "--from", folder, "--observe", "pixels", "--out", out), "--observe"
    )
    code, _, stderr = cclf("train", "--from", folder, "--env-steps", "50", "--out", out)
    assert code == 0, stderr
    assert "resuming at 40 env steps" in stderr


def test_agent_of_a_state_run_evaluates_and_acts(trained):
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
def test_policy_of_a_state_run_is_exported(trained, tmp_path):
    _, folder, *_ = trained
    code, stdout, stderr = cclf("export", folder, "--out", tmp_path / "policy.pt2")
    assert code == 0, stderr
    assert "float32 (batch, 3) -> action float32 (batch, 1)" in stdout


def test_model_card_of_a_state_run_describes_the_observations(trained, tmp_path):
    code, _, stderr = cclf("export", trained[1], "--card", "--out", tmp_path / "agent")
    assert code == 0, stderr
    card = (tmp_path / "agent" / "README.md").read_text()
    assert "| observes | the state of the environment, as numbers, frame stack 1" in card
    assert "--observe state" in card
    # The default batch size is 512 on pixels, but not on state.
    large_batch = replace(trained[0].algorithm, batch_size=512)
    assert "--batch-size" in train_command(replace(trained[0], algorithm=large_batch))


def test_cclf_inspect_refuses_a_state_run(trained, tmp_path):
    _, folder, *_ = trained
    out = tmp_path / "page.html"
    assert_refused(
        cclf("inspect", folder, "--out", out), "observe=state: cclf inspect shows pictures"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
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
def test_options_that_conflict_with_state_are_refused(arguments, message):
    assert_refused(cclf("train", *arguments, "--dry-run"), message)


def test_doctor_forecasts_a_run_from_state(monkeypatch):
    assert_refused(cclf("doctor", "--observe", "state"), "--observe state needs --task")
    monkeypatch.setattr(doctor, "check_rendering", rendering_facts)
    monkeypatch.setattr(doctor, "check_atari", lambda _: None)
    sizes = [
        doctor.examine("gym/Pendulum-v1", observe=observe)["forecast"]["replay_bytes"]
        for observe in ("state", "pixels")
    ]
    assert sizes[0] == replay_size(presets.resolve("gym/Pendulum-v1", observe="state"))[1]
    assert sizes[0] < sizes[1] / 100


def test_config_with_state_on_a_pixel_task_is_refused():
    config = tiny_state_config()
    with pytest.raises(ConfigError, match="observe=state conflicts with toy/reach"):
        make_learner(replace(config, task="toy/reach"), CPU)
