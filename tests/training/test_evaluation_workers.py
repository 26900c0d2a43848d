"""Evaluation episodes in worker processes: runs share the workers, returns equal those of this
process, and an episode is played again if its worker is lost."""

import os
from functools import partial

import pytest

from cclf.algorithms.rainbow.evaluation import EvaluationWorker
from cclf.algorithms.registry import make_agent
from cclf.envs.make import make_env
from cclf.errors import WorkerError
from cclf.training.evaluation import (
    EvaluationStoppedError,
    EvaluationWorkers,
    poll,
    wait_for_evaluation,
)
from faulty_envs import FaultyPlayer
from rainbow_inputs import tiny
from tiny_runs import CPU


@pytest.fixture
def make():
    """Makes workers that are closed when the test ends."""
    made = []

    def make_(*arguments):
        made.append(EvaluationWorkers(*arguments))
        return made[-1]

    yield make_
    for workers in made:
        workers.close()


def test_runs_that_share_workers_get_their_own_returns(make):
    workers = make(FaultyPlayer, 2)
    first, second = (
        workers.evaluate_async(("a", 1.0), [1, 2, 3, 4, 5]),
        workers.evaluate_async(("b", 10.0), [6, 7]),
    )
    results = {}
    while len(results) < 2:
        for name, steps in (("first", first), ("second", second)):
            if name not in results and (result := poll(steps, 0.05)) is not None:
                results[name] = result.returns
    assert results == {"first": [1.0, 2.0, 3.0, 4.0, 5.0], "second": [60.0, 70.0]}


@pytest.mark.quick("crash")
@pytest.mark.parametrize("fault", ["crash", "hang"])
def test_episode_whose_worker_is_lost_is_played_again(make, tmp_path, fault):
    workers = make(partial(FaultyPlayer, fault, tmp_path / "struck"), 2, 2.0)
    assert wait_for_evaluation(workers.evaluate_async(("a", 2.0), [1, 2, 3, 4])).returns == [
        2.0,
        4.0,
        6.0,
        8.0,
    ]
    assert (tmp_path / "struck").exists()


def test_error_in_an_episode_does_not_affect_other_runs(make, tmp_path):
    workers = make(partial(FaultyPlayer, "raise", tmp_path / "struck"), 1)
    first, second = (
        workers.evaluate_async(("a", 1.0), [3]),
        workers.evaluate_async(("b", 10.0), [6, 7]),
    )
    assert poll(first) is None
    assert wait_for_evaluation(second).returns == [60.0, 70.0]
    with pytest.raises(WorkerError, match="the environment raised RuntimeError: a joint broke"):
        wait_for_evaluation(first)


def test_stopped_evaluation_does_not_delay_the_next(make):
    workers = make(FaultyPlayer, 1)
    steps = workers.evaluate_async(("a", 1.0), list(range(10, 30)))
    with pytest.raises(EvaluationStoppedError):
        wait_for_evaluation(steps, lambda: True)
    steps.close()
    assert wait_for_evaluation(workers.evaluate_async(("b", 1.0), [1, 2])).returns == [1.0, 2.0]


def test_workers_return_what_this_process_returns(make):
    config = tiny("rainbow")
    seeds = [3, 4, 5]
    local = make_agent(config, CPU)
    workers = make(partial(EvaluationWorker, make_env), 1)  # each imports PyTorch
    remote = make_agent(config, CPU, evaluation_workers=workers)
    for value in local.policy.networks.state_dict().values():
        value.add_(0.05)
    remote.policy.networks.load_state_dict(local.policy.networks.state_dict())
    assert remote.evaluate(seeds).returns == local.evaluate(seeds).returns
    policies = {os.sched_getscheduler(worker.process.pid) for worker in workers._pool._workers}
    assert policies == {os.SCHED_IDLE}, "training's games come first"
    recorded = remote.evaluate(seeds, record=True)
    assert len(recorded.pictures) == len(local.evaluate(seeds[:1], record=True).pictures) > 0
