"""Environments in other processes: the same numbers as in this one, and no fault of theirs is
waited for without end."""

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

from cclf.algorithms.common import pixel_learner
from cclf.algorithms.common.pixel_learner import num_eval_workers
from cclf.algorithms.registry import make_agent
from cclf.envs.make import make_env
from cclf.errors import ConfigError, WorkerError
from cclf.storage import checkpoint
from cclf.training import loop
from cclf.training.evaluation import EvaluationStoppedError, evaluate, wait_for_evaluation
from cclf.training.workers import WORKER_LOST, EnvWorkers, LocalEnvs, anonymous_file
from faulty_envs import Adder, Faulty
from test_cli import cclf
from test_reliability import signalled, train
from tiny_runs import CPU, differing, rows, run, tables, tiny_config

CONFIG = tiny_config()
SEEDS = [11, 22, 33]
SECONDS = 1.0


@pytest.fixture
def pool_of():
    """Pools that are closed when the test ends, however it does."""
    pools = []

    def make(*makes, workers=None, **options):
        pools.append(
            EnvWorkers(
                makes, workers or len(makes), "toy/faulty", **{"timeout_seconds": SECONDS} | options
            )
        )
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


# --- the same environments, elsewhere
# --------------------------------------------------------------------------------------


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
            pool.send(env, "render")
            pool.send(env, "step", np.full(1, -0.25, np.float32))
        found = answers(pool, 15)
        given[pool] = {
            env: [(command, value) for number, command, value in found if number == env]
            for env in range(3)
        }
    assert len(set(processes(there))) == workers
    for env in range(3):
        assert [command for command, _ in given[there][env]] == [
            "reset",
            "step",
            "state_dict",
            "render",
            "step",
        ]
        for (_, ours), (_, theirs) in zip(given[here][env], given[there][env], strict=True):
            np.testing.assert_equal(theirs, ours)
    assert given[there][0][0][1].tobytes() != given[there][1][0][1].tobytes(), (
        "each has its own seed"
    )


@pytest.mark.parametrize("place", ["here", "there"])
def test_a_ring_asks_and_answers_in_shared_memory(pool_of, place):
    with anonymous_file() as file:
        file.truncate(24)
        pool = LocalEnvs([Adder()]) if place == "here" else pool_of(Adder, shared=[file.fileno()])
        numbers = np.frombuffer(mmap.mmap(file.fileno(), 24), np.int64)
        pool.send(0, "map", file.fileno())
        assert [answer.command for answer in answers(pool, 1)] == ["map"]
        for first, second in ((3, 4), (-5, 1)):
            numbers[:2] = first, second
            pool.ring(0)
            (answer,) = answers(pool, 1)
            assert answer[:2] == (0, "ring")
            assert place == "here" or answer.value is None, "nothing but the ring is sent"
            assert numbers[2] == first + second
        # between rings a word is understood as ever
        pool.send(0, "ring")
        assert [answer.value for answer in answers(pool, 1)] == ["not sent"]


@pytest.mark.parametrize(
    ("fault", "said"),
    [("crash", "ended with exit code 3"), ("kill", "killed by signal 9"), ("hang", "(in hang")],
)
def test_a_ring_that_goes_wrong_is_told_as_any_call(pool_of, fault, said):
    pool = pool_of(partial(Faulty, fault, "ring", at_call=2))
    pool.ring(0)
    assert [answer.command for answer in answers(pool, 1)] == ["ring"]
    pool.ring(0)
    (answer,) = answers(pool, 1)
    assert answer.command == WORKER_LOST
    assert said in answer.value


def test_what_is_raised_by_a_ring_is_raised_here(pool_of):
    pool = pool_of(partial(Faulty, "raise", "ring"))
    pool.ring(0)
    with pytest.raises(WorkerError, match="the environment raised RuntimeError: a joint broke"):
        answers(pool, 1)


def test_a_worker_of_several_environments_cannot_be_rung(pool_of):
    pool = pool_of(*[partial(make_env, CONFIG, 1)] * 2, workers=1)
    with pytest.raises(AssertionError, match="a ring names no environment"):
        pool.ring(0)


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


def test_a_worker_starts_when_it_is_first_asked(pool_of):
    pool = pool_of(*[partial(make_env, CONFIG, 1)] * 2)
    pool.send(1, "reset", 5)
    answers(pool, 1)
    assert [worker.process is None for worker in pool._workers] == [True, False]


def test_answers_to_what_is_forgotten_do_not_come(pool_of):
    pool = pool_of(partial(make_env, CONFIG, 1))
    for _ in range(3):
        pool.send(0, "reset", 5)
    pool.forget()
    pool.send(0, "step", np.ones(1, np.float32))
    assert [answer.command for answer in answers(pool, 1)] == ["step"]
    assert not pool.busy()


# --- evaluation
# ------------------------------------------------------------------------------------------------------------


def evaluated(pool, record=False):
    policy = make_agent(CONFIG, CPU).policy
    return wait_for_evaluation(evaluate(pool, policy, SEEDS, CONFIG.env.frame_stack, CPU, record))


@pytest.fixture(scope="module")
def expected():
    return evaluated(LocalEnvs([make_env(CONFIG, 0)]), record=True)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_number_of_workers_changes_no_return_by_a_bit(pool_of, expected, workers):
    result = evaluated(pool_of(*[partial(make_env, CONFIG, 0)] * workers), record=True)
    assert result.returns == expected.returns
    assert len(set(expected.returns)) == 3
    np.testing.assert_equal(result.pictures, expected.pictures)


@pytest.mark.gpu
@pytest.mark.parametrize("workers", [1, 3])
def test_on_a_gpu_too(pool_of, workers):
    device = torch.device("cuda")
    policy = make_agent(CONFIG, device).policy
    pools = LocalEnvs([make_env(CONFIG, 0)]), pool_of(*[partial(make_env, CONFIG, 0)] * workers)
    here, there = (
        wait_for_evaluation(evaluate(pool, policy, SEEDS, CONFIG.env.frame_stack, device))
        for pool in pools
    )
    assert here.returns == there.returns


def test_an_evaluation_after_an_abandoned_one_is_its_own(pool_of, expected):
    pool, policy = (
        pool_of(*[partial(make_env, CONFIG, 0)] * 2),
        make_agent(CONFIG, CPU).policy,
    )
    asked = []
    with pytest.raises(EvaluationStoppedError):
        wait_for_evaluation(
            evaluate(pool, policy, [7, 8], CONFIG.env.frame_stack, CPU),
            lambda: asked.append(1) or len(asked) == 9,
        )
    assert evaluated(pool).returns == expected.returns


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
# ----------------------------------------------------------------------------------------------------------------

LINES = {
    ("crash", "step"): "worker 0 of toy/faulty ended with exit code 3: the driver said goodbye",
    ("kill", "step"): "worker 0 of toy/faulty was killed by signal 9 (is memory short?)",
    (
        "hang",
        "reset",
    ): "worker 0 of toy/faulty did not answer within 1 seconds (in hang, faulty_envs.py:",
    (
        "hang",
        "step",
    ): "worker 0 of toy/faulty did not answer within 1 seconds (in hang, faulty_envs.py:",
    (
        "hang in driver",
        "step",
    ): "worker 0 of toy/faulty did not answer within 1 seconds (in hang_in_driver, faulty_envs.py:",
    ("stop", "step"): "worker 0 of toy/faulty did not answer within 1 seconds",
}


@pytest.mark.parametrize(("fault", "place"), LINES)
def test_an_episode_that_loses_its_worker_ends_as_it_would_have(
    pool_of, expected, tmp_path, fault, place
):
    at_call = 2 if place == "reset" else 30  # in the second episode
    pool = pool_of(partial(Faulty, fault, place, at_call, str(tmp_path / "struck")))
    lines, original, pids = [], pool.receive, set()

    def receive():
        pids.update(processes(pool))
        found = original()
        lines.extend(answer.value for answer in found if answer.command == WORKER_LOST)
        return found

    pool.receive = receive
    assert evaluated(pool).returns == expected.returns
    assert (tmp_path / "struck").exists()
    assert len(lines) == 1
    assert lines[0].startswith(LINES[fault, place])
    assert len(pids) == 2
    assert [pid for pid in pids if not gone(pid)] == processes(pool)


def test_all_environments_of_a_lost_worker_are_lost_and_no_other(pool_of, tmp_path):
    well, ill = (
        partial(make_env, CONFIG, 0),
        partial(Faulty, "crash", "reset", 1, str(tmp_path / "struck")),
    )
    pool = pool_of(well, well, ill, workers=2)  # the first worker owns 0 and 2
    pool.send(2, "reset", 1)
    pool.send(1, "reset", 1)
    assert sorted((env, command) for env, command, _ in answers(pool, 3)) == [
        (0, WORKER_LOST),
        (1, "reset"),
        (2, WORKER_LOST),
    ]
    pool.send(0, "reset", 1)
    pool.send(2, "reset", 1)
    assert [command for _, command, _ in answers(pool, 2)] == ["reset"] * 2


def test_an_episode_that_is_lost_again_and_again_is_reported(pool_of):
    pool = pool_of(partial(Faulty, "crash", "step", 5))
    with pytest.raises(
        WorkerError,
        match=r"worker 0 of toy/faulty ended with exit code 3: .*; 4 times in one episode",
    ) as caught:
        evaluated(pool)
    assert "\n" not in str(caught.value)


def test_what_an_environment_raises_reaches_the_user(pool_of):
    with pytest.raises(WorkerError) as caught:
        evaluated(pool_of(partial(Faulty, "raise", "step", 5)))
    assert (
        str(caught.value)
        == "worker 0 of toy/faulty: the environment raised RuntimeError: a joint broke"
    )
    assert "Traceback" in caught.value.details
    assert "faulty_envs.py" in caught.value.details


def test_an_environment_that_cannot_be_made_is_bad_input(pool_of):
    with pytest.raises(ConfigError, match=r"^unknown toy task 'nonsense'"):
        evaluated(pool_of(partial(make_env, replace(CONFIG, task="toy/nonsense"), 0)))


@pytest.mark.slow
def test_closing_ends_the_workers_also_those_that_hang(pool_of):
    pool = pool_of(
        partial(make_env, CONFIG, 0),
        *(partial(Faulty, fault, "close") for fault in ("hang", "crash", "raise", "stop")),
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
from cclf.training.workers import EnvWorkers
from faulty_envs import Faulty, REACH
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
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": search},
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


# --- evaluation beside training
# --------------------------------------------------------------------------------------------

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
    original = loop.TrainingRun._step_learner
    monkeypatch.setattr(
        loop.TrainingRun,
        "_step_learner",
        lambda self, *a: turns_beside.append(self.under_way is not None) or original(self, *a),
    )
    learner, finished = run(BESIDE, tmp_path)
    assert finished
    assert_same_end(tmp_path, learner, undisturbed)
    assert any(turns_beside)


@pytest.mark.parametrize("stops", [[45], [29, 31, 58]], ids=lambda stops: "+".join(map(str, stops)))
def test_a_stop_beside_an_evaluation_changes_nothing(tmp_path, undisturbed, monkeypatch, stops):
    monkeypatch.setattr(loop, "STOP_GRACE_SECONDS", 0.0 if 45 in stops else 5.0)
    for stop in stops:
        _, finished = run(BESIDE, tmp_path, stop_at=stop)
        assert not finished
    learner, finished = run(BESIDE, tmp_path)
    assert finished
    assert_same_end(tmp_path, learner, undisturbed)


def assert_same_folder(folder, undisturbed):
    assert tables(folder) == undisturbed[1]
    assert differing(checkpoint.load(folder / "checkpoint")["learner"], undisturbed[0]) == []


def use_faulty(monkeypatch, fault, place, at_call=1, once=None, timeout_seconds=SECONDS):
    make = partial(Faulty, fault, place, at_call, once)
    monkeypatch.setattr(
        pixel_learner,
        "EnvWorkers",
        lambda makes, *words: EnvWorkers([make] * len(makes), *words, timeout_seconds),
    )


def test_a_signal_in_an_evaluation_beside_training_saves_and_changes_nothing(
    tmp_path, undisturbed, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(loop, "STOP_GRACE_SECONDS", 60.0)
        patch.setattr(loop, "poll", signalled(loop.poll, 7))
        code, _, err = train(tmp_path, BESIDE)
    assert code == 75
    assert "stopped at 37 env steps and saved" in err.splitlines()[-1], (
        "the evaluation was over in time"
    )
    assert train(tmp_path, BESIDE)[0] == 0
    assert_same_folder(tmp_path / BESIDE.run_name(), undisturbed)


@pytest.mark.slow
def test_a_stop_does_not_wait_for_a_hung_worker(tmp_path, undisturbed, monkeypatch):
    with monkeypatch.context() as patch:
        use_faulty(patch, "hang", "step", timeout_seconds=600)
        patch.setattr(loop, "STOP_GRACE_SECONDS", 0.2)
        patch.setattr(
            loop.TrainingRun, "_step_learner", signalled(loop.TrainingRun._step_learner, 42)
        )
        code, _, err = train(tmp_path, BESIDE)
    assert code == 75
    assert "stopped at 30 env steps and saved" in err.splitlines()[-1], (
        "where the evaluation began: it is made again from there"
    )
    assert rows(tmp_path / BESIDE.run_name() / "eval.csv") == []
    assert train(tmp_path, BESIDE)[0] == 0
    assert_same_folder(tmp_path / BESIDE.run_name(), undisturbed)


def test_a_worker_that_crashes_once_is_no_news(tmp_path, undisturbed, monkeypatch):
    use_faulty(monkeypatch, "crash", "step", 7, str(tmp_path / "struck"))
    assert train(tmp_path, BESIDE)[0] == 0
    assert (tmp_path / "struck").exists()
    assert_same_folder(tmp_path / BESIDE.run_name(), undisturbed)


@pytest.mark.parametrize(("fault", "at_call", "saved"), [("crash", 5, 30), ("raise", 30, 60)])
def test_a_worker_that_fails_for_good_ends_the_run_with_its_checkpoint(
    tmp_path, undisturbed, monkeypatch, fault, at_call, saved
):
    """In the first evaluation, beside training, and in the last: there its environment is in its
    second episode."""
    folder = tmp_path / BESIDE.run_name()
    with monkeypatch.context() as patch:
        use_faulty(patch, fault, "step", at_call)
        code, out, err = train(tmp_path, BESIDE)
    assert (code, out) == (1, "")
    line = next(line for line in err.splitlines() if line.startswith("cclf: "))
    assert line.startswith("cclf: worker ")
    assert " of toy/reach-1d" in line
    assert err.splitlines()[-1] == "the last checkpoint is good: run the same command to go on"
    assert ("a joint broke" in line and "faulty_envs.py" in err) == (fault == "raise")
    assert checkpoint.load(folder / "checkpoint")["agent_steps"] == saved
    assert train(tmp_path, BESIDE)[0] == 0
    assert_same_folder(folder, undisturbed)


# --- what TensorBoard shows
# ------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """As a kill: nothing after it is done."""


def killed(original, at_call):
    calls = []

    def wrapped(*args):
        calls.append(1)
        if len(calls) == at_call:
            raise Killed
        return original(*args)

    return wrapped


def shown(folder):
    """Curves as TensorBoard draws them, but for the clock on the wall."""
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    mirror = events.EventAccumulator(str(folder / "tensorboard"))
    mirror.Reload()
    tags = [
        tag
        for tag in mirror.Tags()["scalars"]
        if tag != "eval/wall_seconds" and not tag.startswith("speed/")
    ]
    return {tag: sorted((event.step, event.value) for event in mirror.Scalars(tag)) for tag in tags}


@pytest.fixture(scope="module")
def curves(tmp_path_factory):
    folder = tmp_path_factory.mktemp("curves")
    run(tiny_config(tensorboard=True), folder)
    found = shown(folder)
    assert [step for step, _ in found["train/critic_loss"]] == [30, 40, 50, 60]
    assert [step for step, _ in found["eval/return_mean"]] == [30, 60]
    return found


@pytest.mark.parametrize(
    ("workers", "owner", "name", "at_call"),
    [
        # after the row of the first evaluation, on from the checkpoint where that began
        (2, loop.TrainingRun, "_step_learner", 56),
        (0, loop.TrainingRun, "_save", 2),  # after the row of the last, before its checkpoint
    ],
)
def test_nothing_is_shown_twice_after_a_kill(
    tmp_path, monkeypatch, curves, workers, owner, name, at_call
):
    config = tiny_config(tensorboard=True, eval_workers=workers)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, killed(getattr(owner, name), at_call))
        with pytest.raises(Killed):
            run(config, tmp_path)
    run(config, tmp_path)
    found = shown(tmp_path)
    assert found.keys() == curves.keys()
    for tag, curve in curves.items():
        assert np.array(found[tag]) == pytest.approx(np.array(curve), rel=1e-6), tag


def test_a_worker_that_fails_in_another_command_is_reported_too(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    run(tiny_config(env_steps=5), folder)
    (folder / "config.json").write_text(json.dumps(tiny_config(eval_workers=1).to_dict()))
    use_faulty(monkeypatch, "raise", "reset")
    code, out, err = cclf("evaluate", folder, "--device", "cpu")
    assert (code, out) == (1, "")
    assert err.startswith(
        "cclf: worker 0 of toy/reach-1d: the environment raised RuntimeError: a joint broke\nTraceback"
    )
