"""How far a fast update is from the plain one."""

from dataclasses import replace

import pytest

from cclf.benchmark import parity, updates
from tiny_runs import CPU


def test_the_parity_of_an_update_sees_a_difference_and_takes_the_worst_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other discounts: other targets, other steps. Over two batches the least is below the median."""
    config = updates.bench_configs("toy/reach-1d", None, ["drq"], "fp32")[0]
    config = replace(config, algorithm=replace(config.algorithm, batch_size=8))
    learner = updates.make_off_policy_learner(config, CPU)
    updates._fill_replay(learner, updates._random_frames(learner, 20))
    assert parity.step_parity(config, learner)["least_step_cosine"] == pytest.approx(1.0, abs=1e-12)
    other = replace(config, algorithm=replace(config.algorithm, discount=0.5))
    monkeypatch.setattr(parity, "float32_config", lambda _: other)
    monkeypatch.setattr(parity, "BATCHES_ON_CPU", 2)
    found = parity.step_parity(config, learner)
    assert found["least_step_cosine"] < found["step_cosine"] < 1.0 - 1e-6
    assert found["critic_loss_relative_difference"] > 0.0
    learner.close()
