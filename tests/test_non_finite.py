"""Non-finite values: a run stops before it writes a checkpoint or a return that has one, and leaves a
folder that reproduces the failure."""

import json
import math
import shutil

import numpy as np
import pytest
import torch

from cclf.algorithms.common.off_policy import OffPolicyLearner
from cclf.storage import checkpoint
from cclf.storage.failure import first_non_finite
from cclf.training import loop
from cclf.training.agent import Agent
from test_cli import assert_refused, cclf, contents
from test_reliability import assert_same_end, signalled
from tiny_runs import tiny_config, tiny_options

# Rows at steps 25 and 50, evaluations and checkpoints at 30 and 60.
CONFIG = tiny_config(log_every_agent_steps=25, final_eval_episodes=1)
NAN = float("nan")


def train(out):
    return cclf("train", *tiny_options(CONFIG), "--out", out)


@pytest.fixture(scope="module")
def uninterrupted(trained):
    return trained(CONFIG)


def spoil_after(patch, step, spoil):
    """Call `spoil(learner)` after this agent step."""
    original = OffPolicyLearner.observe

    def observe(self, *rest):
        original(self, *rest)
        if self.agent_steps == step:
            with torch.no_grad():
                spoil(self)

    patch.setattr(OffPolicyLearner, "observe", observe)


def spoil_critic(learner):
    next(learner.algorithm.critic.parameters()).view(-1)[0] = NAN


def spoil_temperature(learner):
    learner.algorithm.log_temperature.fill_(math.inf)


def spoil_priority(learner):
    learner.replay.priorities[3] = NAN


def spoil_reward(learner):
    learner.replay.rewards[5] = -math.inf


def spoil_return(learner):
    learner.episode_return = NAN


# By moment: the agent step and what becomes non-finite, the value that the error names, the step at
# which it is detected, and the step of the newest checkpoint.
MOMENTS = {
    "before a row": (45, spoil_critic, "critic_loss is nan", 50, 30),
    "between the last row and the last evaluation": (
        51,
        spoil_critic,
        "critic_loss is nan",
        60,
        30,
    ),
    "before the first checkpoint": (26, spoil_critic, "critic_loss is nan", 30, None),
    "in the step of an evaluation": (30, spoil_critic, "learner/algorithm/", 30, None),
    "in the last step": (60, spoil_critic, "learner/algorithm/", 60, 30),
    "on a signal": (41, spoil_critic, "learner/algorithm/", 41, 30),
    "temperature": (60, spoil_temperature, "learner/algorithm/log_temperature is inf", 60, 30),
    "priority": (60, spoil_priority, "learner/replay/priorities is nan", 60, 30),
    "reward": (60, spoil_reward, "learner/replay/rewards is -inf", 60, 30),
    "episode return": (30, spoil_return, "learner/episode_return is nan", 30, None),
}


# the toy environment gets a non-finite action
@pytest.mark.quick("before a row", "before the first checkpoint", "priority")
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
@pytest.mark.parametrize("moment", MOMENTS)
def test_non_finite_value_stops_the_run_and_is_reproduced(
    tmp_path, uninterrupted, monkeypatch, moment
):
    step, spoil, named, seen_at, saved = MOMENTS[moment]
    out, folder = tmp_path / "out", tmp_path / "out" / CONFIG.run_name()
    with monkeypatch.context() as patch:
        spoil_after(patch, step, spoil)
        if moment == "on a signal":
            patch.setattr(OffPolicyLearner, "act", signalled(OffPolicyLearner.act, step))
        code, stdout, err = train(out)
        assert (code, stdout) == (1, ""), err
        line = err.splitlines()[-1]
        assert line.startswith(f"cclf: {named}")
        assert f" at {seen_at} env steps: stopped; {folder / 'failure'} reproduces it" in line
        assert "Traceback" not in err
        for place in (folder, folder / "failure"):
            state = checkpoint.load(place / "checkpoint")
            assert (state and state["agent_steps"]) == saved
        files = {path.name for path in (folder / "failure").iterdir()} - {"checkpoint"}
        assert files == {"config.json", "manifest.json", "failure.json"}
        failure = json.loads((folder / "failure" / "failure.json").read_text())
        assert failure["metric"].startswith(named.split()[0])
        assert failure["row"]["env_steps"] == seen_at
        before = contents(out)
        assert_refused(train(out), "failed before", f"delete {folder / 'failure'}")
        assert contents(out) == before
        if moment == "before a row":
            replayed = tmp_path / "replayed" / CONFIG.run_name()
            shutil.copytree(folder / "failure", replayed)
            assert train(tmp_path / "replayed")[0] == 1
            assert json.loads((replayed / "failure" / "failure.json").read_text()) == failure
    shutil.rmtree(folder / "failure")
    code, _, err = train(out)
    assert code == 0, err
    assert_same_end(folder, uninterrupted)


def with_infinite_return(original):
    def evaluate(*args):
        result = original(*args)
        return result and result._replace(returns=[1.0, math.inf])

    return evaluate


# the standard deviation of returns that are not finite
@pytest.mark.quick("cclf.training.loop-poll-eval.csv")
@pytest.mark.filterwarnings("ignore:invalid value encountered in subtract")
@pytest.mark.parametrize(
    ("owner", "name", "table"),
    [(loop, "poll", "eval.csv"), (Agent, "evaluate", "final.csv")],
)
def test_non_finite_return_is_a_failure_and_no_row(
    tmp_path, uninterrupted, monkeypatch, owner, name, table
):
    folder = tmp_path / CONFIG.run_name()
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, with_infinite_return(getattr(owner, name)))
        code, stdout, err = train(tmp_path)
    assert (code, stdout) == (1, ""), err
    assert err.splitlines()[-1].startswith("cclf: return_mean is inf at ")
    assert not (folder / table).exists() or "inf" not in (folder / table).read_text()
    assert_refused(train(tmp_path), "failed before")
    shutil.rmtree(folder / "failure")
    assert train(tmp_path)[0] == 0
    assert_same_end(folder, uninterrupted)


def test_which_values_of_a_state_are_checked():
    state = {
        "counts": torch.tensor([1, 2]),
        "env": {"a model that leaves a number unset": np.array([NAN])},
        "half": torch.zeros(3, dtype=torch.bfloat16),
        "none": torch.zeros(0),
        "words": ["inf", None, True, 7],
    }
    assert first_non_finite(state) is None
    found = first_non_finite(state | {"list": [0.5, -math.inf], "tensor": torch.tensor([1.0, NAN])})
    assert found == ("list/1", -math.inf), "the first of several"
    name, value = first_non_finite(
        state | {"inner": {"array": np.array([[0.0, NAN]], dtype=np.float32)}}
    )
    assert (name, math.isnan(value)) == ("inner/array", True)


def test_state_is_checked_at_evaluations_and_checkpoints_only(tmp_path, monkeypatch):
    """The check waits for the GPU, so 40 updates must not make it 40 times."""
    calls = []
    original = loop.TrainingRun._check_finite
    monkeypatch.setattr(
        loop.TrainingRun,
        "_check_finite",
        lambda self: calls.append(self.env_steps) or original(self),
    )
    assert train(tmp_path)[0] == 0
    assert calls == [30, 30, 60, 60], "before each evaluation, and before its checkpoint"
