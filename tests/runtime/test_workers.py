"""Environments in other processes: the same numbers as in this one, and no fault of theirs is waited for without end."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path

import numpy as np
import pytest

from cclf import build
from cclf.envs.make import make_env
from cclf.runtime import loop
from cclf.runtime.evaluate import EvaluationStoppedError, evaluate, finish
from cclf.runtime.workers import LOST, EnvWorkers, LocalEnvs, WorkerError
from faulty_envs import Faulty
from tiny_runs import CPU, differing, run, tables, tiny_config

CONFIG = tiny_config()
SEEDS = [11, 22, 33]
SECONDS = 1.0


@pytest.fixture
def pool_of():
    """Pools that are closed when the test ends, however it does."""
    pools = []

    def make(*makes, workers=None, **options):
        pools.append(EnvWorkers(makes, workers or len(makes), "toy/faulty", **{"timeout_seconds": SECONDS} | options))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def answers(pool, count):
    found = []
    while len(found) < count:
        found += pool.receive()
        wait(pool.busy(), timeout=0.05)
    return found


def processes(pool):
    return [worker.process.pid for worker in pool._workers]


def gone(pid):
    """Whether it ended, reaped or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_until_gone(pids):
    while not all(gone(pid) for pid in pids):  # the test's own time limit ends a wait in vain
        time.sleep(0.02)


# --- the same environments, elsewhere --------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_environments_answer_as_they_do_here(pool_of, workers):
    makes = [partial(make_env, CONFIG, seed) for seed in range(3)]
    here, there = LocalEnvs([make() for make in makes]), pool_of(*makes, workers=workers)
    given = {}
    for pool in (here, there):
        for env in range(3):
            pool.send(env, "reset")
            pool.send(env, "step", np.full(1, 0.5, np.float32))
            pool.send(env, "state_dict")
            pool.send(env, "picture")
            pool.send(env, "step", np.full(1, -0.25, np.float32))
        found = answers(pool, 15)
        given[pool] = {env: [(command, value) for number, command, value in found if number == env] for env in range(3)}
    assert len(set(processes(there))) == workers
    for env in range(3):
        assert [command for command, _ in given[there][env]] == ["reset", "step", "state_dict", "picture", "step"]
        for (_, ours), (_, theirs) in zip(given[here][env], given[there][env], strict=True):
            np.testing.assert_equal(theirs, ours)
    assert given[there][0][0][1].tobytes() != given[there][1][0][1].tobytes(), "each has its own seed"


def test_an_environment_takes_up_where_another_stood(pool_of):
    pool = pool_of(*[partial(make_env, CONFIG, 1)] * 2)
    pool.send(0, "reset", 5)
    pool.send(0, "state_dict")
    (_, _, frame), (_, _, state) = answers(pool, 2)
    pool.send(1, "load_state_dict", state)
    for env in (0, 1):
        pool.send(env, "step", np.ones(1, np.float32))
    found = {(env, command): value for env, command, value in answers(pool, 3)}
    np.testing.assert_equal(found[0, "step"], found[1, "step"])
    assert not np.array_equal(found[0, "step"].frame, frame)


def test_a_worker_never_imports_torch(pool_of):
    pool = pool_of(partial(Faulty, "none", "nowhere"))
    pool.send(0, "modules")
    modules = answers(pool, 1)[0].value
    assert "numpy" in modules
    assert "torch" not in modules


def test_answers_to_what_is_forgotten_do_not_come(pool_of):
    pool = pool_of(partial(make_env, CONFIG, 1))
    for _ in range(3):
        pool.send(0, "reset", 5)
    pool.forget()
    pool.send(0, "step", np.ones(1, np.float32))
    assert [answer.command for answer in answers(pool, 1)] == ["step"]
    assert not pool.busy()


# --- evaluation ------------------------------------------------------------------------------------------------------------


def evaluated(pool, record=False):
    policy = build.make_agent(CONFIG, CPU).policy
    return finish(evaluate(pool, policy, SEEDS, CONFIG.env.frame_stack, CPU, record))


@pytest.fixture(scope="module")
def expected():
    return evaluated(LocalEnvs([make_env(CONFIG, 0)]), record=True)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_number_of_workers_changes_no_return_by_a_bit(pool_of, expected, workers):
    result = evaluated(pool_of(*[partial(make_env, CONFIG, 0)] * workers), record=True)
    assert result.returns == expected.returns
    assert len(set(expected.returns)) == 3
    np.testing.assert_equal(result.pictures, expected.pictures)


def test_an_evaluation_after_an_abandoned_one_is_its_own(pool_of, expected):
    pool, policy = pool_of(*[partial(make_env, CONFIG, 0)] * 2), build.make_agent(CONFIG, CPU).policy
    asked = []
    with pytest.raises(EvaluationStoppedError):
        finish(evaluate(pool, policy, [7, 8], CONFIG.env.frame_stack, CPU), lambda: asked.append(1) or len(asked) == 9)
    assert evaluated(pool).returns == expected.returns


# --- faults ----------------------------------------------------------------------------------------------------------------

LINES = {
    ("crash", "step"): "worker 0 of toy/faulty ended with exit code 3: the driver said goodbye",
    ("kill", "step"): "worker 0 of toy/faulty was killed by signal 9 (is memory short?)",
    ("hang", "reset"): "worker 0 of toy/faulty did not answer within 1 seconds (in hang, faulty_envs.py:",
    ("hang", "step"): "worker 0 of toy/faulty did not answer within 1 seconds (in hang, faulty_envs.py:",
    ("stop", "step"): "worker 0 of toy/faulty did not answer within 1 seconds",
}


@pytest.mark.parametrize(("fault", "place"), LINES)
def test_an_episode_that_loses_its_worker_ends_as_it_would_have(pool_of, expected, tmp_path, fault, place):
    at_call = 2 if place == "reset" else 30  # in the second episode
    pool = pool_of(partial(Faulty, fault, place, at_call, str(tmp_path / "struck")))
    lines, original, before = [], pool.receive, processes(pool)

    def receive():
        found = original()
        lines.extend(answer.value for answer in found if answer.command == LOST)
        return found

    pool.receive = receive
    assert evaluated(pool).returns == expected.returns
    assert (tmp_path / "struck").exists()
    assert len(lines) == 1
    assert lines[0].startswith(LINES[fault, place])
    assert gone(before[0])


def test_all_environments_of_a_lost_worker_are_lost_and_no_other(pool_of, tmp_path):
    well, ill = partial(make_env, CONFIG, 0), partial(Faulty, "crash", "reset", 1, str(tmp_path / "struck"))
    pool = pool_of(well, well, ill, workers=2)  # the first worker owns 0 and 2
    pool.send(2, "reset", 1)
    pool.send(1, "reset", 1)
    assert sorted((env, command) for env, command, _ in answers(pool, 3)) == [(0, LOST), (1, "reset"), (2, LOST)]
    pool.send(0, "reset", 1)
    pool.send(2, "reset", 1)
    assert [command for _, command, _ in answers(pool, 2)] == ["reset"] * 2


def test_an_episode_that_is_lost_again_and_again_is_reported(pool_of):
    pool = pool_of(partial(Faulty, "crash", "step", 5))
    with pytest.raises(WorkerError, match=r"worker 0 of toy/faulty ended with exit code 3: .*; 4 times in one episode") as caught:
        evaluated(pool)
    assert "\n" not in str(caught.value)


def test_what_an_environment_raises_reaches_the_user(pool_of):
    with pytest.raises(WorkerError) as caught:
        evaluated(pool_of(partial(Faulty, "raise", "step", 5)))
    assert str(caught.value) == "worker 0 of toy/faulty: the environment raised RuntimeError: a joint broke"
    assert "Traceback" in caught.value.details
    assert "faulty_envs.py" in caught.value.details


def test_an_environment_that_cannot_be_made_is_reported(pool_of):
    with pytest.raises(WorkerError, match=r"raised ConfigError: unknown toy task 'nonsense'"):
        evaluated(pool_of(partial(make_env, replace(CONFIG, task="toy/nonsense"), 0)))


def test_closing_ends_the_workers_also_those_that_hang(pool_of):
    pool = pool_of(
        partial(make_env, CONFIG, 0), *(partial(Faulty, fault, "close") for fault in ("hang", "crash", "raise", "stop"))
    )
    for env in range(5):
        pool.send(env, "reset", 1)
    answers(pool, 5)
    pids = processes(pool)
    pool.close()
    assert all(gone(pid) for pid in pids)


def test_no_worker_outlives_a_parent_that_is_killed():
    script = f"""
import sys, time
from functools import partial
from cclf.runtime.workers import EnvWorkers
from faulty_envs import Faulty
pool = EnvWorkers([partial(Faulty, fault, "step") for fault in ("none", "hang")], 2, "toy/faulty", timeout_seconds={SECONDS})
found = []
for env in (0, 1):
    pool.send(env, "process")
while len(found) < 2:
    found += pool.receive()
pool.send(1, "step", 0.0)
print(*(answer.value for answer in found), flush=True)
time.sleep(600)
"""
    search = os.pathsep.join(sys.path)
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": search}
    )
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    assert not any(gone(pid) for pid in pids)
    parent.kill()
    parent.communicate()
    wait_until_gone(pids)  # the idle one at once, the one that hangs when its own watchdog barks


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_signals_are_for_the_parent(pool_of, number):
    pool = pool_of(partial(Faulty, "none", "nowhere"))
    pool.send(0, "process")
    pid = answers(pool, 1)[0].value
    os.kill(pid, number)
    pool.send(0, "process")
    assert answers(pool, 1)[0].value == pid
    assert os.getpgid(pid) != os.getpgid(0), "Ctrl-C goes to a whole group"


# --- evaluation beside training --------------------------------------------------------------------------------------------

BESIDE = tiny_config(eval_workers=2)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return run(CONFIG, folder)[0].state_dict(), tables(folder)


def assert_same_end(folder, learner, undisturbed):
    assert tables(folder) == undisturbed[1]
    assert differing(learner.state_dict(), undisturbed[0]) == []


def test_evaluation_beside_training_changes_nothing(tmp_path, undisturbed, monkeypatch):
    """Not a row, not a weight; and training did go on meanwhile."""
    turns_beside = []
    original = loop.Training._turn
    monkeypatch.setattr(
        loop.Training, "_turn", lambda self, *a: turns_beside.append(self.under_way is not None) or original(self, *a)
    )
    learner, finished = run(BESIDE, tmp_path)
    assert finished
    assert_same_end(tmp_path, learner, undisturbed)
    assert any(turns_beside)


@pytest.mark.parametrize("stops", [[10], [30], [31], [45], [59], [29, 30, 32, 58]], ids=lambda stops: "+".join(map(str, stops)))
def test_a_stop_beside_an_evaluation_changes_nothing(tmp_path, undisturbed, monkeypatch, stops):
    monkeypatch.setattr(loop, "STOP_GRACE_SECONDS", 0.0 if 45 in stops else 5.0)
    for stop in stops:
        _, finished = run(BESIDE, tmp_path, stop_at=stop)
        assert not finished
    learner, finished = run(BESIDE, tmp_path)
    assert finished
    assert_same_end(tmp_path, learner, undisturbed)
