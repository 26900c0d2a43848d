"""MR.Q and DR.Q: updates compared with numbers of the authors' code, episode borders in replay, and
resume."""

import numpy as np
import pytest
import torch

import mrq_inputs
from cclf import presets
from cclf.algorithms.mrq.mrq import encoder_losses, symexp_bins, two_hot
from cclf.algorithms.registry import make_learner
from cclf.data.replay import Replay
from cclf.errors import ConfigError
from mrq_inputs import CASES, GOLDEN, noise, sequences, transitions
from tiny_runs import CPU, differing, make_training, run, tables, tiny_config


@pytest.fixture
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("case", CASES)
def test_updates_equal_those_of_the_authors(case):
    agent, golden = mrq_inputs.agent(case), GOLDEN["cases"][case]
    one = torch.ones(())
    losses = [
        agent.update_encoder(sequences(case, update), None, one)["encoder_loss"].item()
        for update in range(2)
    ]
    assert losses == pytest.approx(golden["encoder_loss"], rel=1e-9)
    for update, expected in enumerate(golden["updates"]):
        result = agent.update(transitions(case, update), noise(case, update), one)
        for name in ("critic_loss", "policy_loss"):
            assert result.metrics[name].item() == pytest.approx(expected[name], rel=1e-9)
        assert result.priority.tolist() == pytest.approx(expected["priority"], rel=1e-9)
        assert result.metrics["target_mean"].item() == pytest.approx(np.mean(expected["target"]))
    sums = {
        name: [parameter.sum().item(), parameter.abs().sum().item()]
        for name, parameter in agent.networks.named_parameters()
    }
    assert sums.keys() == golden["parameters"].keys()
    for name, expected in golden["parameters"].items():
        assert sums[name] == pytest.approx(expected, rel=1e-9, abs=1e-9), name


@pytest.mark.usefixtures("float64")
def test_encoder_loss_ignores_what_follows_a_termination():
    agent, batch = mrq_inputs.agent("vectors"), sequences("vectors", 0)
    next_z_s = torch.randn(5, mrq_inputs.BATCH, 16)
    z_s, one = torch.randn(mrq_inputs.BATCH, 16), torch.ones(())
    loss = encoder_losses(agent, z_s, next_z_s, batch, one)["encoder_loss"]
    later = batch.reward.clone()
    later[0, 1:] += 5.0  # sample 0 terminates with its first step, sample 1 with its third
    later[1, 3:] += 5.0
    changed = next_z_s.clone()
    changed[1:, 0] += 1.0
    changed[3:, 1] += 1.0
    others = batch._replace(reward=later)
    assert encoder_losses(agent, z_s, changed, others, one)["encoder_loss"] == loss
    changed[2, 1] += 1.0
    assert encoder_losses(agent, z_s, changed, others, one)["encoder_loss"] != loss


@pytest.mark.usefixtures("float64")
def test_termination_is_not_learned_before_the_first_one():
    agent, batch = mrq_inputs.agent("vectors"), sequences("vectors", 0)
    z_s, next_z_s = torch.randn(mrq_inputs.BATCH, 16), torch.randn(5, mrq_inputs.BATCH, 16)
    without, with_one = (
        encoder_losses(agent, z_s, next_z_s, batch, torch.tensor(flag)) for flag in (0.0, 1.0)
    )
    difference = (with_one["encoder_loss"] - without["encoder_loss"]).item()
    assert difference == pytest.approx(0.1 * with_one["termination_loss"].item())


def test_two_hot_weights_average_to_the_value():
    bins = symexp_bins(65, 10.0, CPU)
    values = torch.tensor([-22025.0, -3.3, 0.0, 1e-4, 1.0, 250.0])
    weights = two_hot(values, bins)
    assert torch.allclose(weights @ bins, values, rtol=1e-4, atol=1e-6)
    assert ((weights > 0).sum(1) <= 2).all()


def replay(**changes):
    arguments = {"n_steps": 2, "discount": 0.5, "dtype": torch.float32, "horizon_steps": 3}
    return Replay(40, (1,), 1, 1, None, CPU, **arguments | changes)


def play(memory, first, steps, ends):
    """States first, first + 1, ...; action and reward of step t are its state."""
    memory.begin_episode(np.float32([first]))
    for state in range(first, first + steps):
        terminated = ends and state == first + steps - 1
        memory.add(np.float32([state]), float(state), terminated, np.float32([state + 1]))


def starts(memory):
    return sorted(memory.frames[memory.valid, 0].tolist())


def test_starts_of_subsequences_cross_no_time_limit_but_may_terminate():
    memory = replay()
    play(memory, 10, 5, ends=False)
    assert starts(memory) == [10, 11, 12]  # three steps follow each
    play(memory, 20, 4, ends=True)
    assert starts(memory) == [10, 11, 12, 20, 21, 22, 23]


def test_subsequences_hold_the_steps_in_order():
    memory = replay()
    play(memory, 10, 8, ends=False)
    batch = memory.sample_sequences(50, 3, torch.Generator().manual_seed(1))
    first = batch.observations[0, :, 0]
    for step in range(4):
        assert torch.equal(batch.observations[step, :, 0], first + step)
    for step in range(3):
        assert torch.equal(batch.action[:, step, 0], first + step)
        assert torch.equal(batch.reward[:, step], first + step)
    assert set(first.tolist()) <= set(starts(memory))


def test_returns_of_a_longer_horizon_keep_their_n_steps():
    memory = replay()
    play(memory, 10, 6, ends=False)
    batch = memory.gather(torch.tensor([0]))
    assert batch.n_step_return.item() == 10 + 0.5 * 11
    assert batch.next_observation.item() == 12


def test_a_new_transition_has_the_largest_priority_so_far():
    memory = replay(new_priority="max")
    play(memory, 10, 5, ends=False)
    memory.set_priorities(torch.tensor([0, 1]), torch.tensor([3.0, 2.0]))
    memory.set_priorities(torch.tensor([0]), torch.tensor([0.5]))
    play(memory, 20, 4, ends=True)
    assert memory.priorities[memory.valid].tolist() == [0.5, 2.0, 1.0, 3.0, 3.0, 3.0, 3.0]


def test_priorities_decay_with_age_to_a_tenth():
    memory = replay(priority_decay=0.5)
    play(memory, 10, 8, ends=True)
    states = memory.sample_sequences(20_000, 1, torch.Generator().manual_seed(1)).observations[0]
    counts = torch.bincount(states[:, 0].long(), minlength=18)[10:18] / 20_000
    weights = torch.tensor([max(0.5**age, 0.1) for age in range(8, 0, -1)])
    assert torch.allclose(counts, weights / weights.sum(), atol=0.01)


def test_termination_flag_ignores_time_limits_and_unwritten_slots():
    memory = replay()
    play(memory, 10, 5, ends=False)
    assert memory.has_termination() == 0.0
    play(memory, 20, 4, ends=True)
    assert memory.has_termination() == 1.0


RUNS = {
    "state, continuous": {"task": "gym/Pendulum-v1", "observe": "state"},
    "state, discrete": {"task": "gym/CartPole-v1", "observe": "state"},
    "pixels": {"task": "toy/reach-1d"},
    "pixels, discrete": {"task": "toy/catch"},
}


@pytest.mark.quick("mr-q-pixels", "dr-q-state, discrete")
@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("method", ["mr-q", "dr-q"])
def test_resumed_run_is_bitwise_equal(tmp_path, kind, method):
    pytest.importorskip("gymnasium")
    config = tiny_config(method=method, base="mrq", **RUNS[kind])
    run(config, tmp_path / "whole")
    assert not run(config, tmp_path / "parts", stop_at=33)[1]  # within 7 updates after a copy
    run(config, tmp_path / "parts")
    assert tables(tmp_path / "whole") == tables(tmp_path / "parts")
    states = [make_training(config, tmp_path / part)[0] for part in ("whole", "parts")]
    for training in states:
        training.resume()
    ours, theirs = (training.learner.state_dict() for training in states)
    assert differing(ours, theirs) == []


def test_encoder_learns_in_bursts_after_each_copy_of_the_targets():
    pytest.importorskip("gymnasium")
    config = tiny_config("gym/Pendulum-v1", "mr-q", base="mrq", observe="state")
    learner = make_learner(config, CPU)
    agent, changed = learner.algorithm, []
    for step in range(20 + 15):
        before = agent.encoder.mlp.layers[0].weight.clone()
        learner.step(step)
        if not torch.equal(before, agent.encoder.mlp.layers[0].weight):
            changed.append(agent.updates)
    assert changed == [1, 8, 15]


def test_options_of_cclf_are_refused_without_a_piece_of_cclf():
    config = presets.resolve("toy/reach-1d", "mr-q", base_name="mrq")
    with pytest.raises(ConfigError, match=r"MR\.Q, which does not use CCLF"):
        presets.with_changes(config, {"bonus_temperature": 0.5})
