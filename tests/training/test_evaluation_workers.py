"""Episodes played in worker processes: shared by runs, equal to those played here, played again
when a worker is lost."""

import os
from functools import partial

import pytest

from cclf.algorithms.rainbow.evaluation import EvaluationWorker
from cclf.algorithms.registry import make_agent
from cclf.envs.make import make_env
from cclf.errors import WorkerError
from cclf.training.evaluation import EvaluationStoppedError, poll, wait_for_evaluation
from cclf.training.evaluation_workers import EvaluationWorkers
from faulty_envs import FaultyPlayer
from rainbow_inputs import tiny
from tiny_runs import CPU


@pytest.fixture
def make():
    """Evaluators that are closed when the test is over."""
    made = []

    def make_(*arguments):
        made.append(EvaluationWorkers(*arguments))
        return made[-1]

    yield make_
    for evaluators in made:
        evaluators.close()


def test_runs_that_share_workers_get_their_own_returns(make):
    evaluators = make(FaultyPlayer, 2)
    first, second = (
        evaluators.evaluate_async(("a", 1.0), [1, 2, 3, 4, 5]),
        evaluators.evaluate_async(("b", 10.0), [6, 7]),
    )
    results = {}
    while len(results) < 2:  # in turn, as runs in one process do
        for name, rounds in (("first", first), ("second", second)):
            if name not in results and (result := poll(rounds, 0.05)) is not None:
                results[name] = result.returns
    assert results == {"first": [1.0, 2.0, 3.0, 4.0, 5.0], "second": [60.0, 70.0]}


@pytest.mark.parametrize("fault", ["crash", "hang"])
def test_an_episode_whose_worker_is_lost_is_played_again(make, tmp_path, fault):
    evaluators = make(partial(FaultyPlayer, fault, tmp_path / "struck"), 2, 2.0)
    assert wait_for_evaluation(evaluators.evaluate_async(("a", 2.0), [1, 2, 3, 4])).returns == [
        2.0,
        4.0,
        6.0,
        8.0,
    ]
    assert (tmp_path / "struck").exists()


def test_a_player_that_raises_ends_the_evaluation_with_its_words(make, tmp_path):
    evaluators = make(partial(FaultyPlayer, "raise", tmp_path / "struck"), 1)
    with pytest.raises(WorkerError):
        wait_for_evaluation(evaluators.evaluate_async(("a", 2.0), [3]))


def test_an_episode_that_raises_ends_the_evaluation_of_its_run_alone(make, tmp_path):
    evaluators = make(partial(FaultyPlayer, "raise", tmp_path / "struck"), 1)
    first, second = (
        evaluators.evaluate_async(("a", 1.0), [3]),
        evaluators.evaluate_async(("b", 10.0), [6, 7]),
    )
    assert poll(first) is None
    assert wait_for_evaluation(second).returns == [60.0, 70.0]
    with pytest.raises(WorkerError, match="the environment raised RuntimeError: a joint broke"):
        wait_for_evaluation(first)


def test_an_evaluation_that_is_given_up_leaves_nothing_to_the_next(make):
    evaluators = make(FaultyPlayer, 1)
    rounds = evaluators.evaluate_async(("a", 1.0), list(range(10, 30)))
    with pytest.raises(EvaluationStoppedError):
        wait_for_evaluation(rounds, lambda: True)
    rounds.close()
    assert wait_for_evaluation(evaluators.evaluate_async(("b", 1.0), [1, 2])).returns == [1.0, 2.0]


def test_workers_play_what_this_process_would_play(make):
    config = tiny("rainbow")
    seeds = [3, 4, 5]
    here = make_agent(config, CPU)
    evaluators = make(partial(EvaluationWorker, make_env), 2)
    elsewhere = make_agent(config, CPU, evaluation_workers=evaluators)
    for value in here.policy.networks.state_dict().values():
        value.add_(0.05)
    elsewhere.policy.networks.load_state_dict(here.policy.networks.state_dict())
    assert elsewhere.evaluate(seeds).returns == here.evaluate(seeds).returns
    policies = {os.sched_getscheduler(worker.process.pid) for worker in evaluators._pool._workers}
    assert policies == {os.SCHED_IDLE}, "training's games come first"
    recorded = elsewhere.evaluate(seeds, record=True)
    assert len(recorded.pictures) == len(here.evaluate(seeds[:1], record=True).pictures) > 0
