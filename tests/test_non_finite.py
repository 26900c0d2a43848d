"""Non-finite values: detected before every checkpoint, so that the last ones are always valid, and
in evaluations."""

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
from test_cli import assert_refused, cclf
from test_reliability import assert_same_end, signalled
from tiny_runs import tiny_config, tiny_options

# Rows at steps 25 and 50, evaluations and checkpoints at 30 and 60: between a row and the next
# checkpoint lie steps.
CONFIG = tiny_config(log_every_agent_steps=25, final_eval_episodes=1)
NAN = float("nan")


def train(out):
    return cclf("train", *tiny_options(CONFIG), "--out", out)


@pytest.fixture(scope="module")
def uninterrupted(trained):
    return trained(CONFIG)


def at_step(patch, step, spoil):
    """`spoil(learner)` once this agent step is over."""
    original = OffPolicyLearner.observe

    def observe(self, *rest):
        original(self, *rest)
        if self.agent_steps == step:
            spoil(self)

    patch.setattr(OffPolicyLearner, "observe", observe)


@torch.no_grad()
def spoil_critic(learner):
    next(learner.algorithm.critic.parameters()).view(-1)[0] = NAN


@torch.no_grad()
def spoil_temperature(learner):
    learner.algorithm.log_temperature.fill_(math.inf)


def spoil_priority(learner):
    learner.replay.priorities[3] = NAN


def spoil_reward(learner):
    learner.replay.rewards[5] = -math.inf


def spoil_return(learner):
    learner.episode_return = NAN


def poison(patch, step, spoil):
    at_step(patch, step, spoil)


def poison_then_stop(patch, step, spoil):
    at_step(patch, step, spoil)
    patch.setattr(OffPolicyLearner, "act", signalled(OffPolicyLearner.act, step))


# how, at the end of which step, by what -> the number that is named, where it is seen, and the
# checkpoint that stays the last
MOMENTS = {
    "after a row, before the last evaluation": (
        poison,
        51,
        spoil_critic,
        "critic_loss is nan",
        60,
        30,
    ),
    "before the first checkpoint": (poison, 26, spoil_critic, "critic_loss is nan", 30, None),
    "in the very step of an evaluation": (poison, 30, spoil_critic, "learner/algorithm/", 30, None),
    "in the last step": (poison, 60, spoil_critic, "learner/algorithm/", 60, 30),
    "on a signal": (poison_then_stop, 41, spoil_critic, "learner/algorithm/", 41, 30),
    "a temperature": (
        poison,
        60,
        spoil_temperature,
        "learner/algorithm/log_temperature is inf",
        60,
        30,
    ),
    "a priority": (poison, 60, spoil_priority, "learner/replay/priorities is nan", 60, 30),
    "a reward": (poison, 60, spoil_reward, "learner/replay/rewards is -inf", 60, 30),
    "a return under way": (poison, 30, spoil_return, "learner/episode_return is nan", 30, None),
}


# the toy, moved by an action that is no number
@pytest.mark.quick("a priority")
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
@pytest.mark.parametrize("moment", MOMENTS)
def test_no_checkpoint_has_non_finite_values(tmp_path, uninterrupted, monkeypatch, moment):
    how, step, spoil, named, seen_at, saved = MOMENTS[moment]
    folder = tmp_path / CONFIG.run_name()
    with monkeypatch.context() as patch:
        how(patch, step, spoil)
        code, stdout, err = train(tmp_path)
    assert (code, stdout) == (1, ""), err
    assert err.splitlines()[-1].startswith(f"cclf: {named}")
    assert f" at {seen_at} env steps: stopped" in err
    assert "Traceback" not in err
    for place in (folder, folder / "failure"):
        state = checkpoint.load(place / "checkpoint")
        assert (state and state["agent_steps"]) == saved
    facts = json.loads((folder / "failure" / "failure.json").read_text())
    assert (facts["metric"].startswith(named.split()[0]), facts["row"]["env_steps"]) == (
        True,
        seen_at,
    )
    assert_refused(train(tmp_path), "failed before", f"delete {folder / 'failure'}")
    shutil.rmtree(folder / "failure")
    code, _, err = train(tmp_path)
    assert code == 0, err
    assert_same_end(folder, uninterrupted)


def endless(original):
    def evaluate(*args):
        result = original(*args)
        return result and result._replace(returns=[1.0, math.inf])

    return evaluate


# the spread of returns that are no numbers
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
        patch.setattr(owner, name, endless(getattr(owner, name)))
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
    """It waits for a GPU, so 40 updates must not ask for it 40 times."""
    calls = []
    original = loop.TrainingRun._check_finite
    monkeypatch.setattr(
        loop.TrainingRun,
        "_check_finite",
        lambda self: calls.append(self.env_steps) or original(self),
    )
    assert train(tmp_path)[0] == 0
    assert calls == [30, 30, 60, 60], "before each evaluation, and before its checkpoint"
