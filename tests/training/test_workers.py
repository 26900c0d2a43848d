"""Pools of objects in worker processes: results equal those of objects in this process, and no fault
of a worker blocks the parent."""

import json
import mmap
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
import torch

from cclf.algorithms.common import off_policy
from cclf.algorithms.common.off_policy import num_eval_workers
from cclf.algorithms.registry import make_agent
from cclf.envs.make import make_env
from cclf.errors import ConfigError, WorkerError
from cclf.storage import checkpoint
from cclf.training import loop
from cclf.training.evaluation import EvaluationStoppedError, evaluate, wait_for_evaluation
from cclf.training.workers import LocalPool, WorkerLostError, WorkerPool, anonymous_file
from cclf.types import Env
from faulty_envs import Adder, Faulty
from test_cli import cclf
from test_reliability import signalled, train
from tiny_runs import CPU, differing, rows, run, tables, tiny_config

CONFIG = tiny_config(method="rad")
SEEDS = [11, 22, 33]
TIMEOUT_SECONDS = 1.0


@pytest.fixture
def pool_of():
    """Makes pools that are closed when the test ends."""
    pools = []

    def make(*factories, **options):
        pools.append(
            WorkerPool(factories, "toy/faulty", **{"timeout_seconds": TIMEOUT_SECONDS} | options)
        )
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def process_ids(pool):
    return [worker.process.pid for worker in pool._workers]


def has_ended(pid):
    """Whether the process has ended, or is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_for_end(pids):
    while not all(has_ended(pid) for pid in pids):  # or until the timeout of the test
        time.sleep(0.02)


# --- calls


def test_workers_return_what_local_objects_return(pool_of):
    factories = [partial(make_env, CONFIG, seed) for seed in range(3)]
    local, pool = LocalPool([make() for make in factories]), pool_of(*factories)

    def results(pool):
        return [
            pool.wait(
                [
                    pool.submit(env, Env.reset),
                    pool.submit(env, Env.step, np.full(1, 0.5, np.float32)),
                    pool.submit(env, Env.state_dict),
                    pool.submit(env, Env.render),
                    pool.submit(env, Env.step, np.full(1, -0.25, np.float32)),
                ]
            )
            for env in range(3)
        ]

    local_results, worker_results = results(local), results(pool)
    np.testing.assert_equal(worker_results, local_results)
    assert len(set(process_ids(pool))) == 3
    assert worker_results[0][0].tobytes() != worker_results[1][0].tobytes(), (
        "each environment has its own seed"
    )


def test_results_arrive_in_the_order_of_the_calls(pool_of):
    pool = pool_of(partial(make_env, CONFIG, 1))
    calls = [pool.submit(0, Env.reset, seed) for seed in (5, 6, 5)]
    assert pool.connections()
    while not calls[-1].done:
        assert [call.done for call in calls] == sorted((call.done for call in calls), reverse=True)
        pool.poll()
        wait(pool.connections(), timeout=0.05)
    first, second, third = (call.result() for call in calls)
    assert np.array_equal(first, third)
    assert not np.array_equal(first, second)
    assert not pool.connections()


@pytest.mark.parametrize("place", ["local", "worker"])
def test_notify_exchanges_arguments_and_results_in_shared_memory(pool_of, place):
    with anonymous_file() as file:
        file.truncate(24)
        pool = LocalPool([Adder()]) if place == "local" else pool_of(Adder, shared=[file.fileno()])
        numbers = np.frombuffer(mmap.mmap(file.fileno(), 24), np.int64)
        pool.wait([pool.submit(0, Adder.attach, file.fileno())])
        for first, second in ((3, 4), (-5, 1)):
            numbers[:2] = first, second
            (result,) = pool.wait([pool.notify(0)])
            assert place == "local" or result is None, "a worker does not send the result"
            assert numbers[2] == first + second
        assert pool.wait([pool.submit(0, Adder.total)]) == [-4], (
            "other calls are possible after notify"
        )


@pytest.mark.quick("crash", "raise")
@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        ("crash", WorkerLostError, "ended with exit code 3"),
        ("kill", WorkerLostError, "killed by signal 9"),
        ("hang", WorkerLostError, "(in hang"),
        ("raise", WorkerError, "the environment raised RuntimeError: a joint broke"),
    ],
    ids=["crash", "kill", "hang", "raise"],
)
def test_fault_during_notify_is_reported_as_for_any_call(pool_of, fault, kind, message):
    pool = pool_of(partial(Faulty, fault, "notify", at_call=2))
    pool.wait([pool.notify(0)])
    with pytest.raises(kind) as caught:
        pool.wait([pool.notify(0)])
    assert message in str(caught.value)


def test_worker_starts_at_its_first_call_and_does_not_import_torch(pool_of):
    pool = pool_of(*[partial(Faulty, "none", "nowhere")] * 2)
    (modules,) = pool.wait([pool.submit(1, Faulty.modules)])
    assert "numpy" in modules
    assert "torch" not in modules
    assert [worker.process is None for worker in pool._workers] == [True, False]


# --- evaluation


def evaluate_with(pool, record=False, device=CPU):
    policy, stack = make_agent(CONFIG, device).policy, CONFIG.env.frame_stack
    return wait_for_evaluation(evaluate(pool, policy, SEEDS, stack, device, record))


@pytest.fixture(scope="module")
def local_evaluation():
    """The evaluation in this process."""
    return evaluate_with(LocalPool([make_env(CONFIG, 0)]), record=True)


@pytest.mark.quick("2")
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_returns_do_not_depend_on_the_number_of_workers(pool_of, local_evaluation, workers):
    result = evaluate_with(pool_of(*[partial(make_env, CONFIG, 0)] * workers), record=True)
    assert result.returns == local_evaluation.returns
    assert len(set(local_evaluation.returns)) == 3
    np.testing.assert_equal(result.pictures, local_evaluation.pictures)


@pytest.mark.gpu
@pytest.mark.parametrize("workers", [1, 3])
def test_returns_on_a_gpu_do_not_depend_on_the_number_of_workers(pool_of, workers):
    pools = LocalPool([make_env(CONFIG, 0)]), pool_of(*[partial(make_env, CONFIG, 0)] * workers)
    local_result, worker_result = (
        evaluate_with(pool, device=torch.device("cuda")) for pool in pools
    )
    assert local_result.returns == worker_result.returns


def test_evaluation_after_a_stopped_one_is_not_affected(pool_of, local_evaluation):
    pool, policy = (
        pool_of(*[partial(make_env, CONFIG, 0)] * 2),
        make_agent(CONFIG, CPU).policy,
    )
    polls = []
    with pytest.raises(EvaluationStoppedError):
        wait_for_evaluation(
            evaluate(pool, policy, [7, 8], CONFIG.env.frame_stack, CPU),
            lambda: polls.append(1) or len(polls) == 9,
        )
    assert evaluate_with(pool).returns == local_evaluation.returns


@pytest.mark.parametrize(
    ("device", "eval_workers", "episodes", "expected"),
    [
        ("cpu", None, 10, 0),
        ("cuda", None, 10, 10),
        ("cuda", None, 20, 16),
        ("cuda", 0, 10, 0),
        ("cpu", 4, 10, 4),
        ("cpu", 40, 10, 10),
    ],
)
def test_num_eval_workers_by_device_and_option(
    monkeypatch, device, eval_workers, episodes, expected
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    config = tiny_config(eval_workers=eval_workers, eval_episodes=episodes)
    assert num_eval_workers(config, torch.device(device)) == expected


# --- faults

NO_ANSWER = "did not answer within 1 seconds"
EXPECTED_ERRORS = {  # by fault and by the method in which it occurs
    ("crash", "step"): "ended with exit code 3: the driver said goodbye",
    ("kill", "step"): "was killed by signal 9 (is memory short?)",
    ("hang", "reset"): f"{NO_ANSWER} (in hang, faulty_envs.py:",
    ("hang", "step"): f"{NO_ANSWER} (in hang, faulty_envs.py:",
    ("hang in driver", "step"): f"{NO_ANSWER} (in hang_in_driver, faulty_envs.py:",
    ("stop", "step"): NO_ANSWER,
}


@pytest.mark.quick("crash-step", "hang-step")
@pytest.mark.parametrize(("fault", "place"), EXPECTED_ERRORS)
def test_episode_that_loses_its_worker_has_the_same_return(
    pool_of, local_evaluation, tmp_path, monkeypatch, fault, place
):
    at_call = 2 if place == "reset" else 30  # in the second episode
    pool = pool_of(partial(Faulty, fault, place, at_call, str(tmp_path / "fault_occurred")))
    messages, pids, original = [], set(), WorkerLostError.__init__

    def record(self, message):
        messages.append(message)
        original(self, message)

    def submit(index, method, /, *args):
        call = WorkerPool.submit(pool, index, method, *args)
        pids.update(process_ids(pool))
        return call

    monkeypatch.setattr(WorkerLostError, "__init__", record)
    monkeypatch.setattr(pool, "submit", submit)
    assert evaluate_with(pool).returns == local_evaluation.returns
    assert (tmp_path / "fault_occurred").exists()
    assert len(set(messages)) == 1
    assert messages[0].startswith(f"worker 0 of toy/faulty {EXPECTED_ERRORS[fault, place]}")
    assert len(pids) == 2
    assert [pid for pid in pids if not has_ended(pid)] == process_ids(pool)


def test_lost_worker_fails_all_its_calls_and_no_others(pool_of, tmp_path):
    healthy = partial(make_env, CONFIG, 0)
    pool = pool_of(healthy, partial(Faulty, "crash", "reset", 1, str(tmp_path / "fault_occurred")))
    calls = [pool.submit(index, Env.reset, 1) for index in (1, 0, 1)]
    while not all(call.done for call in calls):
        pool.poll(0.05)
    assert [isinstance(call.error, WorkerLostError) for call in calls] == [True, False, True]
    assert len(pool.wait([pool.submit(1, Env.reset, 1)])) == 1, "a new worker replaces it"


def test_episode_that_loses_four_workers_is_an_error(pool_of):
    line = "worker 0 of toy/faulty ended with exit code 3: .*; 4 times in one episode"
    with pytest.raises(WorkerError, match=line) as caught:
        evaluate_with(pool_of(partial(Faulty, "crash", "step", 5)))
    assert "\n" not in str(caught.value)


def test_error_of_an_environment_is_raised_with_its_traceback(pool_of):
    line = "worker 0 of toy/faulty: the environment raised RuntimeError: a joint broke"
    with pytest.raises(WorkerError, match=f"^{line}$") as caught:
        evaluate_with(pool_of(partial(Faulty, "raise", "step", 5)))
    assert "Traceback" in caught.value.details
    assert "faulty_envs.py" in caught.value.details


def test_environment_that_cannot_be_made_is_a_config_error(pool_of):
    with pytest.raises(ConfigError, match=r"^unknown toy task 'nonsense'"):
        evaluate_with(pool_of(partial(make_env, replace(CONFIG, task="toy/nonsense"), 0)))


@pytest.mark.slow("test_no_worker_outlives_a_killed_parent")
def test_close_ends_all_workers_even_if_they_hang(pool_of):
    pool = pool_of(
        partial(make_env, CONFIG, 0),
        *(partial(Faulty, fault, "close") for fault in ("hang", "crash", "raise", "stop")),
    )
    pool.wait([pool.submit(env, Env.reset, 1) for env in range(5)])
    pids = process_ids(pool)
    pool.close()
    assert all(has_ended(pid) for pid in pids)


def test_no_worker_outlives_a_killed_parent():
    script = f"""
import sys, time
from dataclasses import replace
from functools import partial
from cclf.training.workers import WorkerPool
from cclf.types import Env
from faulty_envs import Faulty
pool = WorkerPool([partial(Faulty, fault, "step") for fault in ("none", "hang")], "toy/faulty", timeout_seconds={TIMEOUT_SECONDS})
pids = pool.wait([pool.submit(env, Faulty.process) for env in (0, 1)])
pool.submit(1, Env.step, 0.0)
print(*pids, flush=True)
time.sleep(600)
"""
    search = os.pathsep.join(sys.path)
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": search},
    )
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    assert not any(has_ended(pid) for pid in pids)
    parent.kill()
    parent.communicate()
    wait_for_end(pids)  # the idle worker ends at once, the other one at the timeout of its call


@pytest.mark.quick("2")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_worker_ignores_signals(pool_of, number):
    pool = pool_of(partial(Faulty, "none", "nowhere"))
    (pid,) = pool.wait([pool.submit(0, Faulty.process)])
    os.kill(pid, number)
    assert pool.wait([pool.submit(0, Faulty.process)]) == [pid]
    assert os.getpgid(pid) != os.getpgid(0), "Ctrl-C signals a whole process group"


# --- asynchronous evaluation

ASYNCHRONOUS = tiny_config(method="rad", eval_workers=2)


@pytest.fixture(scope="module")
def uninterrupted(trained):
    folder = trained(CONFIG)
    return checkpoint.load(folder / "checkpoint")["learner"], tables(folder)


def assert_same_end(folder, uninterrupted):
    assert tables(folder) == uninterrupted[1]
    assert differing(checkpoint.load(folder / "checkpoint")["learner"], uninterrupted[0]) == []


def test_asynchronous_evaluation_does_not_change_training(tmp_path, uninterrupted, monkeypatch):
    """Rows and weights are equal although training continued during the evaluation."""
    during_evaluation = []
    original = loop.TrainingRun._step_learner
    monkeypatch.setattr(
        loop.TrainingRun,
        "_step_learner",
        lambda self: (
            during_evaluation.append(self.pending_evaluation is not None) or original(self)
        ),
    )
    assert run(ASYNCHRONOUS, tmp_path)[1]
    assert_same_end(tmp_path, uninterrupted)
    assert any(during_evaluation)


@pytest.mark.quick("29+31+58")
@pytest.mark.parametrize(
    ("stops", "grace_seconds"), [([45], 0.0), ([29, 31, 58], 5.0)], ids=["45", "29+31+58"]
)
def test_resume_after_a_stop_during_asynchronous_evaluation_is_bitwise_equal(
    tmp_path, uninterrupted, monkeypatch, stops, grace_seconds
):
    monkeypatch.setattr(loop, "STOP_GRACE_SECONDS", grace_seconds)
    for stop in stops:
        assert not run(ASYNCHRONOUS, tmp_path, stop_at=stop)[1]
    assert run(ASYNCHRONOUS, tmp_path)[1]
    assert_same_end(tmp_path, uninterrupted)


def use_faulty_eval_workers(monkeypatch, fault, place, at_call=1, timeout_seconds=TIMEOUT_SECONDS):
    """Replace the environments of evaluation workers by ones with a fault."""
    make = partial(Faulty, fault, place, at_call)
    monkeypatch.setattr(
        off_policy,
        "WorkerPool",
        lambda factories, *args: WorkerPool([make] * len(factories), *args, timeout_seconds),
    )


@pytest.mark.slow("test_resume_after_a_stop_during_asynchronous_evaluation_is_bitwise_equal")
def test_signal_during_asynchronous_evaluation_saves_the_run(tmp_path, uninterrupted, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(loop, "STOP_GRACE_SECONDS", 60.0)
        patch.setattr(loop, "poll", signalled(loop.poll, 7))
        code, _, err = train(tmp_path, ASYNCHRONOUS)
    assert code == 75
    assert "stopped at 37 env steps and saved" in err.splitlines()[-1], (
        "the evaluation ended within the grace period"
    )
    assert train(tmp_path, ASYNCHRONOUS)[0] == 0
    assert_same_end(tmp_path / ASYNCHRONOUS.run_name(), uninterrupted)


@pytest.mark.slow("test_resume_after_a_stop_during_asynchronous_evaluation_is_bitwise_equal")
def test_stop_does_not_wait_for_a_hung_worker(tmp_path, uninterrupted, monkeypatch):
    with monkeypatch.context() as patch:
        use_faulty_eval_workers(patch, "hang", "step", timeout_seconds=600)
        patch.setattr(loop, "STOP_GRACE_SECONDS", 0.2)
        patch.setattr(
            loop.TrainingRun, "_step_learner", signalled(loop.TrainingRun._step_learner, 42)
        )
        code, _, err = train(tmp_path, ASYNCHRONOUS)
    assert code == 75
    assert "stopped at 30 env steps and saved" in err.splitlines()[-1], (
        "the checkpoint at the start of the evaluation, which is repeated"
    )
    assert rows(tmp_path / ASYNCHRONOUS.run_name() / "eval.csv") == []
    assert train(tmp_path, ASYNCHRONOUS)[0] == 0
    assert_same_end(tmp_path / ASYNCHRONOUS.run_name(), uninterrupted)


@pytest.mark.slow("test_episode_that_loses_four_workers_is_an_error")
@pytest.mark.parametrize(("fault", "at_call", "saved"), [("crash", 5, 30), ("raise", 30, 60)])
def test_worker_that_keeps_failing_ends_the_run_after_its_checkpoint(
    tmp_path, uninterrupted, monkeypatch, fault, at_call, saved
):
    """The crash is in the first evaluation, the exception in the second episode of the last one."""
    folder = tmp_path / ASYNCHRONOUS.run_name()
    with monkeypatch.context() as patch:
        use_faulty_eval_workers(patch, fault, "step", at_call)
        code, out, err = train(tmp_path, ASYNCHRONOUS)
    assert (code, out) == (1, "")
    line = next(line for line in err.splitlines() if line.startswith("cclf: "))
    assert line.startswith("cclf: worker ")
    assert " of toy/reach-1d" in line
    assert err.splitlines()[-1] == "the last checkpoint is good: run the same command to go on"
    assert ("a joint broke" in line and "faulty_envs.py" in err) == (fault == "raise")
    assert checkpoint.load(folder / "checkpoint")["agent_steps"] == saved
    assert train(tmp_path, ASYNCHRONOUS)[0] == 0
    assert_same_end(folder, uninterrupted)


# --- commands


def test_error_of_a_worker_in_cclf_evaluate_is_reported(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    run(tiny_config(env_steps=5), folder)
    (folder / "config.json").write_text(json.dumps(tiny_config(eval_workers=1).to_dict()))
    use_faulty_eval_workers(monkeypatch, "raise", "reset")
    code, out, err = cclf("evaluate", folder, "--device", "cpu")
    assert (code, out) == (1, "")
    assert err.startswith(
        "cclf: worker 0 of toy/reach-1d: the environment raised RuntimeError: a joint broke\nTraceback"
    )
