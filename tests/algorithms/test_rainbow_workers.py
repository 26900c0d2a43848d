"""Batched runs in the training loop, resumed from different checkpoints; and games in worker
processes."""

import os
import shutil
import signal
import sys
from dataclasses import replace

import pytest

from cclf.errors import WorkerError
from cclf.storage import checkpoint
from cclf.storage.loggers import RunLog
from cclf.training.loop import TrainingRun, train_loop
from cclf.training.progress import Progress
from cclf.training.signals import StopSignal
from rainbow_inputs import CPU, batched_learner, tiny
from tiny_runs import differing, make_learners, make_training, rows, tables

CONFIGS = [tiny("cclf", seed=seed) for seed in (1, 2)]


class StopWhen(StopSignal):
    """A stop that asks for itself once `happened()`."""

    def __init__(self, happened=lambda: False):
        self.happened = happened

    @property
    def requested(self):
        return self.happened()


def run_both(folders, happened=lambda: False, configs=CONFIGS):
    """Go on with both runs from what is saved; their learners."""
    points = checkpoint.common_checkpoint_steps([folder / "checkpoint" for folder in folders])
    learners = make_learners(configs, CPU, points)
    prepared = []
    for config, folder, learner, point in zip(configs, folders, learners, points, strict=True):
        folder.mkdir(parents=True, exist_ok=True)
        training, _, agent = make_training(config, folder, CPU, learner)
        training.resume(point)
        training.checkpoints.discard_later(point)
        if not training.finished:
            log = RunLog(folder, learner.metric_names, (), training.rows)
            training.start(log, Progress(config.run.env_steps, 0, 0))
            prepared.append((training, agent))
    failed = train_loop([run for run, _ in prepared], StopWhen(happened))
    for run, agent in prepared:
        run.log.close()
        agent.close()
    assert failed == {}
    return learners


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    folders = [tmp_path_factory.mktemp("straight") / str(config.seed) for config in CONFIGS]
    return folders, [learner.state_dict() for learner in run_both(folders)]


def evaluated(folder, env_steps):
    return (folder / "eval.csv").exists() and any(
        row["env_steps"] == str(env_steps) for row in rows(folder / "eval.csv")
    )


def test_stop_between_two_evaluations_of_a_batch_is_bitwise_equal(tmp_path, straight, monkeypatch):
    """The first run has made its evaluation of step 12, the second has not."""
    folders, poll = [tmp_path / "1", tmp_path / "2"], TrainingRun._poll_evaluation

    def poll_first_run(self, timeout_seconds):
        return poll(self, timeout_seconds) if self.folder == folders[0] else None

    with monkeypatch.context() as patch:
        patch.setattr(TrainingRun, "_poll_evaluation", poll_first_run)
        run_both(folders, lambda: evaluated(folders[0], 12))
    assert not evaluated(folders[1], 12)
    learners = run_both(folders)
    for folder, learner, expected, state in zip(folders, learners, *straight, strict=True):
        assert differing(state, learner.state_dict()) == []
        assert tables(folder) == tables(expected)


def test_runs_without_a_common_step_resume_separately(tmp_path, straight):
    folders = [tmp_path / "1", tmp_path / "2"]
    run_both(folders, lambda: evaluated(folders[1], 12))
    shutil.rmtree(folders[1])  # as if it had never saved
    learners = run_both(folders)
    assert learners[0].batch is not learners[1].batch
    for folder, learner, expected, state in zip(folders, learners, *straight, strict=True):
        assert differing(state, learner.state_dict()) == []
        assert tables(folder) == tables(expected)


def test_a_finished_run_does_not_delay_a_new_one(tmp_path, straight):
    """They have no step in common: the first saved twice, so that its beginning is gone."""
    folders = [tmp_path / "1", tmp_path / "2"]
    shutil.copytree(straight[0][0], folders[0])
    learners = run_both(folders)
    assert learners[0].batch is not learners[1].batch
    assert learners[1].agent_steps == 24
    assert tables(folders[1]) == tables(straight[0][1])


def test_a_larger_budget_continues_finished_runs_as_a_batch(tmp_path, straight):
    folders = [tmp_path / "1", tmp_path / "2"]
    for folder, source in zip(folders, straight[0], strict=True):
        shutil.copytree(source, folder)
    longer = [replace(config, run=replace(config.run, env_steps=30)) for config in CONFIGS]
    learners = run_both(folders, configs=longer)
    assert learners[0].batch is learners[1].batch
    assert [learner.agent_steps for learner in learners] == [30, 30]


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
