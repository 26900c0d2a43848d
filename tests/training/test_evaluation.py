"""Evaluation: the observations of the policy, the returns, and that training is not affected."""

import numpy as np
import pytest
import torch

from cclf.algorithms.registry import make_learner
from cclf.storage import checkpoint
from cclf.training.evaluation import (
    evaluate,
    evaluate_vector,
    wait_for_evaluation,
)
from cclf.training.video import _number_of_frames, write_video
from cclf.training.workers import LocalPool
from cclf.types import EnvSpec, EnvStep, VectorStep
from tiny_runs import CPU, differing, make_training, rows, run, tables, tiny_config


class Clock:
    """An environment whose frame shows the seed of the episode plus the number of steps. Its
    rewards are 1, 2, ..., and it ends after seed % 3 + 2 steps."""

    spec = EnvSpec((1, 2, 2), 1, 1, None)

    def __init__(self):
        self.actions, self.pictures = [], 0

    def _frame(self):
        return np.full((1, 2, 2), self.seed + self.steps, np.uint8)

    def reset(self, seed=None):
        self.seed, self.steps = seed, 0
        return self._frame()

    def step(self, action):
        self.actions.append(action)
        self.steps += 1
        ended = self.steps == self.seed % 3 + 2
        return EnvStep(
            self._frame(),
            float(self.steps),
            ended and self.seed % 2 == 0,
            ended and self.seed % 2 == 1,
        )

    def render(self):
        self.pictures += 1
        return np.full((4, 4, 3), self.seed + self.steps, np.uint8)


class RecordingPolicy:
    """A policy that records its observations and returns the newest pixel."""

    def __init__(self):
        self.seen = []

    def evaluation_action(self, observation):
        assert observation.shape == (1, 3, 2, 2)
        assert observation.dtype == torch.uint8
        self.seen.append(observation[0, :, 0, 0].tolist())
        return observation[:, -1, 0, 0].float()[:, None]


@pytest.mark.parametrize("record", [False, True])
def test_evaluate_plays_one_episode_per_seed_and_records_the_first(record):
    env, policy = Clock(), RecordingPolicy()
    result = wait_for_evaluation(
        evaluate(LocalPool([env]), policy, [10, 21, 32], 3, device=CPU, record=record)
    )
    assert policy.seen == [
        *([10, 10, 10], [10, 10, 11], [10, 11, 12]),  # 10 % 3 + 2 = 3 steps, terminated
        *([21, 21, 21], [21, 21, 22]),  # truncated
        *([32, 32, 32], [32, 32, 33], [32, 33, 34], [33, 34, 35]),
    ]
    assert [float(action[0]) for action in env.actions] == [10, 11, 12, 21, 22, 32, 33, 34, 35]
    assert result.returns == [6.0, 3.0, 10.0]
    assert result.mean == pytest.approx(19 / 3)
    assert result.std == pytest.approx(np.std([6, 3, 10]))
    assert [picture[0, 0, 0] for picture in result.pictures] == ([10, 11, 12] if record else [])
    assert env.pictures == len(result.pictures)


class VectorCounter:
    """Three environments: number i ends every i + 1 steps and has the reward 1 in each step."""

    num_envs, num_actions = 3, 2

    def reset(self, seeds=None):
        self.seeds, self.steps = seeds, np.zeros(3, int)
        return self.steps.copy()

    def step(self, actions):
        assert actions.shape == (3,)
        self.steps += 1
        ended = self.steps % (np.arange(3) + 1) == 0
        return VectorStep(
            self.steps.copy(), np.ones(3), ended & [True, False, True], ended & [False, True, False]
        )

    def render(self, index):
        return np.full((4, 4, 3), index + self.steps[index], np.uint8)


class Chooser:
    def __init__(self):
        self.uniform = []

    def act(self, observation, uniform):
        self.uniform.append(uniform)
        return np.zeros(len(observation), int)


def test_only_the_first_episode_in_each_environment_counts():
    result = wait_for_evaluation(
        evaluate_vector(VectorCounter(), Chooser(), [5, 6, 7], action_seed=1, record=True)
    )
    assert result.returns == [1.0, 2.0, 3.0]
    assert [picture[0, 0, 0] for picture in result.pictures] == [0], (
        "the first world, while its first episode lasts"
    )


def test_sampled_actions_depend_on_the_seed_only():
    draws = []
    for seed in (1, 1, 2):
        chooser = Chooser()
        wait_for_evaluation(evaluate_vector(VectorCounter(), chooser, [5, 6, 7], action_seed=seed))
        draws.append(np.stack(chooser.uniform))
    assert draws[0].shape == (3, 3, 2)
    assert np.array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])


def test_video_has_every_picture(tmp_path):
    imageio = pytest.importorskip("imageio.v2")
    pictures = [np.full((36, 50, 3), shade, np.uint8) for shade in (0, 80, 160, 240)]
    write_video(str(tmp_path / "episode.mp4"), pictures)
    frames = list(imageio.get_reader(tmp_path / "episode.mp4").iter_data())
    assert len(frames) == 4
    assert frames[0].shape == (36, 50, 3)
    assert [int(frame.mean()) for frame in frames] == pytest.approx([0, 80, 160, 240], abs=4)


def test_truncated_video_is_not_complete(tmp_path):
    pytest.importorskip("imageio.v2")
    path = tmp_path / "episode.mp4"
    write_video(str(path), [np.full((36, 50, 3), 80, np.uint8)] * 4)
    data = path.read_bytes()
    for size_bytes in (0, 1, len(data) // 4, len(data) // 2):
        path.write_bytes(data[:size_bytes])
        assert _number_of_frames(path) < 4, size_bytes
    path.write_bytes(data)
    assert _number_of_frames(path) == 4
    assert [file.name for file in tmp_path.iterdir()] == ["episode.mp4"]


CHANGES = {
    "schedule": {"eval_every_env_steps": 7},
    "never before the end": {"eval_every_env_steps": 10_000},
    "episodes": {"eval_episodes": 5},
    "logging": {"log_every_agent_steps": 3},
    "video": {"video": True},
    "tensorboard": {"tensorboard": True},
}


@pytest.fixture(scope="module")
def plain(trained):
    folder = trained(tiny_config())
    return checkpoint.load(folder / "checkpoint")["learner"], folder


@pytest.mark.quick("video")
@pytest.mark.parametrize("change", CHANGES)
def test_evaluation_and_logging_options_do_not_change_training(plain, tmp_path, change):
    learner, _ = run(tiny_config(**CHANGES[change]), tmp_path)
    assert differing(learner.state_dict(), plain[0]) == []
    if change == "video":
        assert len(list(tmp_path.glob("*.mp4"))) == 1
    if change == "tensorboard":
        assert list((tmp_path / "tensorboard").iterdir())
    if "log" not in change:
        assert tables(tmp_path)[0] == tables(plain[1])[0]


def test_evaluation_at_a_step_does_not_depend_on_the_schedule(plain, tmp_path):
    run(tiny_config(eval_every_env_steps=15, eval_episodes=3), tmp_path)
    by_step, often = (
        {row["env_steps"]: row["returns"].split() for row in rows(folder / "eval.csv")}
        for folder in (plain[1], tmp_path)
    )
    assert sorted(by_step) == ["30", "60"]
    assert sorted(often) == ["15", "30", "45", "60"]
    for step, returns in by_step.items():
        assert often[step][:2] == returns, "more episodes begin with the same ones"
    assert often["15"] != often["30"], "another moment, other episodes"


def test_repeated_evaluation_has_the_same_returns_and_changes_nothing(tmp_path):
    training, learner, agent = make_training(tiny_config(), tmp_path, CPU)

    def state():
        return {key: value for key, value in learner.state_dict().items() if key != "env"}

    def returns_at(env_steps):
        return wait_for_evaluation(training.evaluate(env_steps, False)).returns

    before = state()
    assert returns_at(30) == returns_at(30) != returns_at(60)
    assert differing(before, state()) == []
    fresh = make_learner(tiny_config(), CPU).env.state_dict()
    assert learner.env.state_dict() == fresh, "the training environment is not used"
    agent.close()
