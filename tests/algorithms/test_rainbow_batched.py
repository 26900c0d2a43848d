"""Batched runs against each run alone, moving runs between batches, exact resume, the schedule, and
evaluation. One agent step: test_rainbow_step.py."""

import copy
from dataclasses import replace

import pytest
import torch

from cclf import presets
from cclf.algorithms.rainbow.batched import BatchedRainbow
from cclf.algorithms.rainbow.config import RainbowConfig
from cclf.algorithms.rainbow.learner import BatchedLearner
from cclf.algorithms.registry import make_agent
from cclf.envs.make import make_env
from cclf.storage.safe_loading import load_state
from cclf.training.evaluation import evaluate_games, wait_for_evaluation
from rainbow_inputs import CPU, batched_learner, learner_of, step_all, tiny
from tiny_runs import differing, make_learners, run, tables


def schedule(**settings):
    return replace(RainbowConfig(), **settings)


def test_a_run_of_100k_steps_makes_98401_updates_and_updates_the_target_every_2000():
    steps, published = range(1, 100_001), schedule()
    assert sum(published.updates_in_step(step) for step in steps) == 98_401
    assert presets.resolve("atari/Pong").planned_updates == 98_401
    targets = [step for step in steps if published.updates_target_at(step)]
    assert targets == list(range(2000, 100_001, 2000))
    late = schedule(learn_start_agent_steps=2500)
    assert next(step for step in steps if late.updates_target_at(step)) == 4000, (
        "not before the first update"
    )


def test_update_index_counts_all_updates_of_earlier_steps():
    assert schedule().update_index(7) == 7
    several = schedule(updates_per_agent_step=8)
    assert [several.update_index(7), several.update_index(7, 3)] == [56, 59]


def test_beta_increases_from_above_its_start_to_one():
    assert schedule().beta_at(1600) == pytest.approx(0.4 + 0.6 / 98_400)
    assert schedule().beta_at(99_999) == pytest.approx(1.0)
    assert schedule().beta_at(100_000) == 1.0


def test_epsilon_by_warmup_policy_and_decay():
    assert schedule().epsilon_at(1) == schedule().epsilon_at(5000) == 0.0
    assert schedule(warmup_policy="uniform").epsilon_at(1599) == 1.0
    assert schedule(warmup_policy="uniform").epsilon_at(1600) == 0.0
    drq = schedule(epsilon_train=0.1, epsilon_decay_agent_steps=5000)
    assert [drq.epsilon_at(step) for step in (1, 1600, 4100, 6600, 9000)] == pytest.approx(
        [1.0, 1.0, 0.55, 0.1, 0.1]
    )


def longer(method, env_steps=48):
    return replace(tiny(method), run=replace(tiny(method).run, env_steps=env_steps))


def close(one, two):
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-5, msg=name)


def test_a_run_moves_between_batches_of_any_size():
    """A run makes 16 steps in a batch of three, 4 alone and 4 in a batch of two, and ends as if
    always alone."""
    configs = [tiny("cclf", seed=seed) for seed in (1, 2, 3)]
    three = batched_learner(configs)
    step_all(three, 16)
    one = learner_of(configs[1])
    one.load_state_dict(copy.deepcopy(three.runs[1].state_dict()))
    for t in range(16, 20):
        one.step(t)
    two = batched_learner([configs[0], configs[1]])
    step_all(three, 4, start=16)
    two.runs[1].load_state_dict(copy.deepcopy(one.state_dict()))
    two.runs[0].load_state_dict(copy.deepcopy(three.runs[0].state_dict()))
    step_all(two, 4, start=20)
    alone = batched_learner([configs[1]])
    step_all(alone, 24)
    found, expected = two.runs[1].state_dict(), alone.runs[0].state_dict()
    assert torch.equal(found["replay"]["frames"], expected["replay"]["frames"])
    close(found["algorithm"]["networks"], expected["algorithm"]["networks"])
    assert (found["agent_steps"], found["updates"]) == (24, 13)


def test_compiler_wraps_every_function_of_a_step():
    called = []

    def counted(function):
        def call(*arguments):
            called.append(function.__name__)
            return function(*arguments)

        return call

    config = tiny("cclf")
    expected, other = batched_learner([config]), batched_learner([config])
    rainbow = BatchedRainbow([config], [3], CPU, compiler=counted)
    learner = BatchedLearner(other.games, rainbow, other.replay, 10, compiler=counted)
    for t in range(14):
        learner.step(t)
        expected.step(t)
    updates = ["sample_batch", "compute_losses", "optimizer_step", "write_back"]
    assert called == ["act"] * 11 + ["act", *updates] * 3
    assert torch.equal(learner.algorithm.rows["online"], expected.algorithm.rows["online"])


def test_runs_that_resume_from_the_same_step_are_one_batch():
    configs = [tiny("rainbow", seed=seed) for seed in (1, 2, 3)]
    first, second, third = make_learners(configs, CPU, [5, 3, 5])
    assert first.batch is third.batch
    assert [len(each.batch.runs) for each in (first, second)] == [2, 1]


def test_a_run_is_not_saved_while_other_runs_wait_for_their_step():
    learner = batched_learner([tiny("rainbow", seed=seed) for seed in (1, 2)])
    learner.runs[0].step(0)
    learner.runs[0].state_dict()
    with pytest.raises(AssertionError, match="between its steps"):
        learner.runs[1].state_dict()
    learner.runs[1].step(0)
    learner.runs[1].state_dict()


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["rainbow", "curl", "cclf", "cclf-shuffled", "drq"])
def test_on_a_gpu_graphs_and_the_compiler_change_only_the_last_bits(method):
    device, ends = torch.device("cuda"), []
    for fast in (False, True):
        configs = [longer(method, 60), replace(longer(method, 60), seed=2)]
        configs = [
            replace(each, run=replace(each.run, cuda_graphs=fast, compile=fast)) for each in configs
        ]
        learner = batched_learner(configs, device, workers=2)
        step_all(learner, 60)
        ends.append(learner.runs[1].state_dict())
        learner.games.close()
    assert torch.equal(ends[0]["replay"]["actions"], ends[1]["replay"]["actions"])
    close(ends[0]["algorithm"]["networks"], ends[1]["algorithm"]["networks"])


# Resume


@pytest.mark.quick("cclf")
@pytest.mark.parametrize("method", ["rainbow", "cclf", "cclf-shuffled", "drq"])
def test_resume_is_bitwise_equal(tmp_path, method):
    config = tiny(method)
    straight, finished = run(config, tmp_path / "straight")
    assert finished
    _, finished = run(config, tmp_path / "stopped", stop_at=17)
    assert not finished
    resumed, finished = run(config, tmp_path / "stopped")
    assert finished
    assert differing(straight.state_dict(), resumed.state_dict()) == []
    assert tables(tmp_path / "straight") == tables(tmp_path / "stopped")
    assert straight.updates == 24 - 12 + 1


# Evaluation


class Scripted:
    """A policy whose action depends on the observation only. It records the batch sizes."""

    num_actions = 3

    def __init__(self):
        self.sizes = []

    def evaluation_action(self, observation):
        self.sizes.append(len(observation))
        return observation.flatten(1).long().sum(1) % 3


def game():
    return make_env(tiny("rainbow"), 0, evaluation=True)


def test_return_of_an_episode_depends_on_its_seed_only():
    seeds, policy = [11, 12, 13, 14, 15], Scripted()
    returns = wait_for_evaluation(evaluate_games(game(), policy, seeds, 0.2, 2)).returns
    assert len(set(returns)) > 1
    assert [
        wait_for_evaluation(evaluate_games(game(), policy, [seed], 0.2, 2)).returns[0]
        for seed in seeds
    ] == returns
    assert set(policy.sizes) == {1}, "sums over a batch may depend on its size"


def test_epsilon_of_one_is_random_and_the_first_episode_is_recorded():
    result = wait_for_evaluation(
        evaluate_games(game(), Scripted(), range(1, 9), 1.0, 2, record=True)
    )
    assert len(result.pictures) == 12
    assert result.pictures[0].shape == (100, 100, 3)
    greedy = wait_for_evaluation(evaluate_games(game(), Scripted(), range(1, 9), 0.0, 2))
    assert result.returns != greedy.returns


def test_evaluation_has_no_noise_and_does_not_change_training():
    config = tiny("cclf")
    learner, agent = learner_of(config), make_agent(config, CPU)
    for t in range(20):
        learner.step(t)
    before = copy.deepcopy(learner.state_dict())
    load_state(agent.policy, before["algorithm"], "learner/algorithm")
    assert differing(before["algorithm"]["networks"], agent.policy.networks.state_dict()) == []
    first, second = (agent.evaluate([5, 6], False).returns for _ in range(2))
    assert first == second
    assert differing(before, learner.state_dict()) == []
    images = torch.randint(0, 256, (3, 2, 25, 25), dtype=torch.uint8)
    batch = learner.batch.algorithm
    expected = batch.q_values(batch.rows["online"][0], images, (), batch.action_mask[0])
    torch.testing.assert_close(agent.policy.q_network(images), expected.detach())
