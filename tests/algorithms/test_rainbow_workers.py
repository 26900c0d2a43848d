"""Games in worker processes."""

import os
import signal
import sys

import pytest

from cclf.errors import WorkerError
from rainbow_inputs import batched_learner, tiny
from tiny_runs import differing


def test_games_in_workers_equal_games_in_this_process():
    """Three games in two workers, which are also saved and loaded."""
    configs = [tiny("rainbow", seed=seed) for seed in (1, 2, 3)]
    here, there = batched_learner(configs), batched_learner(configs, workers=2)
    try:
        for t in range(15):
            for one, two in zip(here.runs, there.runs, strict=True):
                assert one.step(t).finished_returns == two.step(t).finished_returns
            if t == 7:
                for run in there.runs:
                    run.load_state_dict(run.state_dict())
        for one, two in zip(here.runs, there.runs, strict=True):
            assert differing(one.state_dict(), two.state_dict()) == []
    finally:
        there.games.close()


def test_a_lost_worker_ends_all_runs_of_the_batch():
    """Its games cannot be restored, so no run may continue."""
    learner = batched_learner([tiny("rainbow", seed=seed) for seed in (1, 2)], workers=2)
    try:
        for run in learner.runs:
            run.step(0)
        os.kill(learner.games.pool._workers[1].process.pid, signal.SIGKILL)
        for run in learner.runs:
            with pytest.raises(WorkerError, match="killed by signal 9"):
                run.step(1)
    finally:
        learner.games.close()


def test_workers_do_not_import_torch():
    modules = "cclf.algorithms.rainbow.game_workers, cclf.envs.make"
    program = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", program]) == 0
