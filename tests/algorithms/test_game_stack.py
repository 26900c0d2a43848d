"""Stacked runs of Rainbow against each alone, exact resume, the schedule, and evaluation. One turn:
test_plain_turn.py."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from cclf import presets
from cclf.algorithms.rainbow.batched import make_kernels
from cclf.algorithms.rainbow.learner import make_rainbow_stack
from cclf.algorithms.rainbow.schedule import TrainingSchedule
from cclf.algorithms.registry import make_agent, make_learner
from cclf.envs.make import make_env
from cclf.storage.checkpoint import Checkpoints
from cclf.training.evaluation import EvaluationStoppedError, evaluate_games, wait_for_evaluation
from rainbow_inputs import CPU, game_stack, plain, tiny
from tiny_runs import differing, run, tables

SCHEDULE = TrainingSchedule(
    learn_start=1600,
    uniform_warmup=False,
    updates_per_step=1,
    target_every=2000,
    beta=0.4,
    beta_steps=98_400,
    epsilon=0.0,
    epsilon_steps=0,
)


def test_a_run_of_100k_steps_makes_98401_updates_and_copies_the_target_every_2000():
    steps = range(1, 100_001)
    assert sum(SCHEDULE.updates_at(step) for step in steps) == 98_401
    assert presets.resolve("atari/Pong").planned_updates == 98_401
    assert [step for step in steps if SCHEDULE.updates_target_at(step)] == list(
        range(2000, 100_001, 2000)
    )
    late = SCHEDULE._replace(learn_start=2500)
    assert next(step for step in steps if late.updates_target_at(step)) == 4000, (
        "none before there is something to copy"
    )


def test_beta_rises_from_above_its_start_to_one():
    assert SCHEDULE.beta_at(1600) == pytest.approx(0.4 + 0.6 / 98_400)
    assert SCHEDULE.beta_at(99_999) == pytest.approx(1.0)
    assert SCHEDULE.beta_at(100_000) == 1.0


def test_epsilon():
    assert SCHEDULE.epsilon_at(1) == SCHEDULE.epsilon_at(5000) == 0.0
    assert SCHEDULE._replace(uniform_warmup=True).epsilon_at(1599) == 1.0
    assert SCHEDULE._replace(uniform_warmup=True).epsilon_at(1600) == 0.0
    drq = SCHEDULE._replace(epsilon=0.1, epsilon_steps=5000)
    assert [drq.epsilon_at(step) for step in (1, 1600, 4100, 6600, 9000)] == pytest.approx(
        [1.0, 1.0, 0.55, 0.1, 0.1]
    )


def longer(method, env_steps=48):
    return replace(tiny(method), run=replace(tiny(method).run, env_steps=env_steps))


def states(learners):
    return [copy.deepcopy(learner.state_dict()) for learner in learners]


def advance_all(stack, turns, start=0):
    for t in range(start, start + turns):
        for learner in stack.runs:
            learner.step(t)


def close(one, two):
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize(("task", "turns"), [("toy/catch", 60), ("atari/Breakout", 250)])
def test_what_is_acted_on_is_what_the_games_show(task, turns):
    """Only the newest frame comes from a table, and the whole stack where an episode ended, as with
    a life in Breakout."""
    configs = [
        tiny("rainbow", seed=seed, task=task, learn_start_agent_steps=1000, epsilon_train=1.0)
        for seed in (1, 2)
    ]
    stack = game_stack(configs, CPU)
    games, endings = [player.game for player in stack.tables.pool.envs[0].players], 0
    for t in range(turns):
        stack.step(t)
        endings += sum(one.age == 0 for one in stack.runs)
        assert np.array_equal(stack._seen.numpy(), [game.stack for game in games])
    assert endings > 4


@pytest.mark.parametrize("method", ["rainbow", "cclf"])
def test_stacked_runs_play_and_learn_as_each_alone(method):
    configs = [tiny(method, seed=seed) for seed in (1, 2, 3)]
    together = game_stack(configs, CPU)
    advance_all(together, 20)
    for number, config in enumerate(configs):
        alone = game_stack([config], CPU)
        advance_all(alone, 20)
        one, two = together.runs[number].state_dict(), alone.runs[0].state_dict()
        for name in ("frames", "actions", "rewards", "ended", "ages"):
            assert torch.equal(one["replay"][name], two["replay"][name]), name
        assert not differing(one["env"], two["env"])
        close(one["algorithm"]["networks"], two["algorithm"]["networks"])
        torch.testing.assert_close(
            one["replay"]["priorities"], two["replay"]["priorities"], rtol=1e-4, atol=1e-5
        )
    assert not torch.equal(together.replay.frames[0], together.replay.frames[1])


def test_a_run_of_a_stack_goes_on_alone_and_back():
    """Sixteen turns of three, then one of them alone for four, then in a stack of two for four: as
    if always alone."""
    configs = [tiny("cclf", seed=seed) for seed in (1, 2, 3)]
    three = game_stack(configs, CPU)
    advance_all(three, 16)
    one = game_stack([configs[1]], CPU)
    one.runs[0].load_state_dict(copy.deepcopy(three.runs[1].state_dict()))
    advance_all(one, 4, start=16)
    two = game_stack([configs[0], configs[1]], CPU)
    advance_all(three, 4, start=16)
    two.runs[1].load_state_dict(copy.deepcopy(one.runs[0].state_dict()))
    two.runs[0].load_state_dict(copy.deepcopy(three.runs[0].state_dict()))
    advance_all(two, 4, start=20)
    alone = game_stack([configs[1]], CPU)
    advance_all(alone, 24)
    found, expected = two.runs[1].state_dict(), alone.runs[0].state_dict()
    assert torch.equal(found["replay"]["frames"], expected["replay"]["frames"])
    close(found["algorithm"]["networks"], expected["algorithm"]["networks"])
    assert (found["agent_steps"], found["updates"]) == (24, 13)


def test_a_stack_computes_with_what_it_is_given():
    """A compiler takes the place of these parts by value: no method is replaced."""
    called = []

    def counted(function):
        def call(*arguments):
            called.append(function.__name__)
            return function(*arguments)

        return call

    config, stack = tiny("cclf"), game_stack([tiny("cclf")], CPU)
    stack.algorithm = make_rainbow_stack([config], [3], CPU, compute=make_kernels(counted, counted))
    expected = game_stack([config], CPU)
    for t in range(14):
        stack.step(t)
        expected.step(t)
    updates = ["sample_batch", "compute_losses", "descend", "write_back"]
    assert called == ["act"] * 11 + ["act", *updates] * 3
    assert torch.equal(stack.algorithm.rows["online"], expected.algorithm.rows["online"])


def test_runs_that_are_out_of_step_are_refused():
    configs = [tiny("rainbow", seed=seed) for seed in (1, 2)]
    ahead = game_stack([configs[0]], CPU)
    advance_all(ahead, 3)
    stack = game_stack(configs, CPU)
    stack.runs[0].load_state_dict(ahead.runs[0].state_dict())
    with pytest.raises(ValueError, match=r"agent steps \[0, 3\]"):
        stack.runs[0].step(0)


def test_a_run_is_not_saved_in_the_middle_of_its_turn():
    stack = game_stack([tiny("rainbow", seed=seed) for seed in (1, 2)], CPU)
    stack.runs[0].step(0)
    stack.runs[0].state_dict()
    with pytest.raises(AssertionError, match="between its steps"):
        stack.runs[1].state_dict()
    stack.runs[1].step(0)
    stack.runs[1].state_dict()


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["rainbow", "curl", "cclf", "cclf-shuffled", "drq"])
def test_on_a_gpu_graphs_and_the_compiler_change_nothing_but_the_last_bits(method):
    device, ends = torch.device("cuda"), []
    for fast in (False, True):
        configs = [longer(method, 60), replace(longer(method, 60), seed=2)]
        configs = [
            replace(each, run=replace(each.run, cuda_graphs=fast, compile=fast)) for each in configs
        ]
        stack = game_stack(configs, device)
        advance_all(stack, 60)
        ends.append(stack.runs[1].state_dict())
    assert torch.equal(ends[0]["replay"]["actions"], ends[1]["replay"]["actions"])
    close(ends[0]["algorithm"]["networks"], ends[1]["algorithm"]["networks"])


# Resume


@pytest.mark.parametrize("method", ["rainbow", "cclf", "cclf-shuffled", "drq"])
def test_a_run_that_stops_and_goes_on_ends_as_one_that_did_not(tmp_path, method):
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


def test_a_larger_budget_changes_nothing_that_was_learned(tmp_path):
    small, large = tiny("cclf"), longer("cclf", 36)
    run(small, tmp_path / "grown")
    grown, _ = run(large, tmp_path / "grown")
    straight, _ = run(large, tmp_path / "straight")
    assert differing(straight.state_dict(), grown.state_dict()) == []


@pytest.mark.parametrize("game", ["Qbert", "Breakout"])
def test_an_atari_run_goes_on_exactly_in_mid_game(tmp_path, game):
    config = tiny("cclf", task=f"atari/{game}", env={"frame_stack": 4})
    config = replace(
        config, run=replace(config.run, env_steps=96, eval_every_env_steps=10**6, eval_episodes=1)
    )
    ends = []
    for name, stop_at in (("straight", None), ("stopped", 72)):
        learner = make_learner(config, CPU)
        for t in range(24):
            if stop_at == 4 * t:
                saved = Checkpoints(tmp_path / name)
                saved.save({"learner": learner.state_dict()})
                learner = make_learner(config, CPU)
                learner.load_state_dict(saved.load()["learner"])
            learner.step(4 * t)
        ends.append(learner.state_dict())
    assert differing(*ends) == []
    assert ends[0]["updates"] == 13


# Evaluation


class Scripted:
    """Goes left while its observation is dark in a corner; remembers how many it was asked for at
    once."""

    num_actions = 3

    def __init__(self):
        self.asked = []

    def evaluation_action(self, observation):
        self.asked.append(len(observation))
        return observation.flatten(1).long().sum(1) % 3


def game():
    return make_env(tiny("rainbow"), 0, evaluation=True)


def test_what_an_episode_returns_depends_on_its_seed_alone():
    seeds, policy = [11, 12, 13, 14, 15], Scripted()
    returns = wait_for_evaluation(evaluate_games(game(), policy, seeds, 0.2, 2)).returns
    assert len(set(returns)) > 1
    assert [
        wait_for_evaluation(evaluate_games(game(), policy, [seed], 0.2, 2)).returns[0]
        for seed in seeds
    ] == returns
    assert set(policy.asked) == {1}, "sums over a batch may depend on its size"


def test_epsilon_of_one_is_a_random_agent_and_recording_shows_the_first_episode():
    result = wait_for_evaluation(
        evaluate_games(game(), Scripted(), range(1, 9), 1.0, 2, record=True)
    )
    assert len(result.pictures) == 12
    assert result.pictures[0].shape == (100, 100, 3)
    greedy = wait_for_evaluation(evaluate_games(game(), Scripted(), range(1, 9), 0.0, 2))
    assert result.returns != greedy.returns


def test_an_evaluation_is_given_up_when_asked():
    with pytest.raises(EvaluationStoppedError):
        wait_for_evaluation(evaluate_games(game(), Scripted(), [1], 0.0, 2), lambda: True)


def test_evaluation_is_without_noise_and_leaves_training_alone():
    config = tiny("rainbow")
    learner = plain(config)
    for t in range(20):
        learner.step(t)
    before = copy.deepcopy(learner.state_dict())
    agent = make_agent(config, CPU)
    agent.policy.networks.load_state_dict(learner.algorithm.networks.state_dict())
    first, second = (agent.evaluate([5, 6], False).returns for _ in range(2))
    assert first == second
    assert differing(before, learner.state_dict()) == []
    images = torch.randint(0, 256, (3, 2, 25, 25), dtype=torch.uint8)
    actions = learner.algorithm.evaluation_action(images)
    for name, value in learner.algorithm.parameters().items():
        if name.endswith("sigma"):
            value.fill_(100.0)
    assert torch.equal(actions, learner.algorithm.evaluation_action(images))
