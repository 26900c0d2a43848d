"""What can end a run early: another process in its folder, a signal in each phase, non-finite
values, a full disk."""

import errno
import fcntl
import json
import os
import resource
import shutil
import signal
import subprocess
import sys

import pytest
import torch

from cclf.algorithms.a2c.a2c import A2C
from cclf.algorithms.common.off_policy import OffPolicyLearner
from cclf.algorithms.registry import make_learner
from cclf.storage import atomic_files, checkpoint, replay_chunks
from cclf.storage.atomic_files import folder_lock
from cclf.storage.tables import CsvTable, rows_until
from cclf.training import loop, trainer
from cclf.training.evaluation import EvaluationStoppedError, evaluate, wait_for_evaluation
from cclf.training.workers import LocalPool
from faulty_envs import REACH
from test_cli import assert_refused, cclf, contents
from tiny_runs import CPU, Killed, differing, rows, run, tables, tiny_config, tiny_options

CONFIG = tiny_config(method="rad")


@pytest.fixture(scope="module")
def uninterrupted(trained):
    return trained(CONFIG)


def train(out, config=CONFIG):
    return cclf("train", *tiny_options(config), "--out", out)


def learned(folder):
    return checkpoint.load(folder / "checkpoint")["learner"]


def assert_same_end(folder, uninterrupted):
    assert tables(folder) == tables(uninterrupted)
    assert differing(learned(folder), learned(uninterrupted)) == []


# --- one process per run folder
# ------------------------------------------------------------------------------------------


def test_second_process_on_a_run_folder_is_refused(tmp_path):
    folder = tmp_path / CONFIG.run_name()
    folder.mkdir(parents=True)
    script = f"""
import pathlib, sys
from cclf.storage.atomic_files import folder_lock
with folder_lock(pathlib.Path({str(folder)!r})):
    print("held", flush=True)
    sys.stdin.read()
"""
    holder = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        before = contents(tmp_path)
        assert_refused(train(tmp_path), f"process {holder.pid} is training in {folder}")
        assert contents(tmp_path) == before
    finally:
        holder.kill()
        holder.communicate()
    assert (folder / "lock").exists(), "a stale file, which is harmless"
    assert train(tmp_path)[0] == 0


def test_lock_is_released_with_its_context(tmp_path):
    for _ in range(2):
        with (
            folder_lock(tmp_path),
            pytest.raises(ValueError, match=f"process {os.getpid()}"),
            folder_lock(tmp_path),
        ):
            pass


def test_lock_waits_for_a_forked_worker_of_a_killed_run(tmp_path, monkeypatch):
    """It holds the lock of its parent until it executes its own program. The same command, started
    immediately again, must not be refused."""
    monkeypatch.setattr(atomic_files, "LOCK_GRACE_SECONDS", 60.0)
    holder = (tmp_path / "lock").open("a+")
    fcntl.flock(holder, fcntl.LOCK_EX)
    # the worker ends while the lock is awaited
    monkeypatch.setattr(atomic_files.time, "sleep", lambda _: holder.close())
    with folder_lock(tmp_path):
        assert holder.closed


# --- a signal in each phase
# ----------------------------------------------------------------------------------------------


def signalled(original, at_call):
    """`original`, which gets SIGTERM in its call number `at_call`."""
    calls = []

    def wrapped(*args, **kwargs):
        calls.append(1)
        if len(calls) == at_call:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(*args, **kwargs)

    return wrapped


PHASES = {
    "before the first step": (trainer, "make_agent", 1, 0),
    "the announcement": (trainer, "run_summary", 1, 0),
    "warm-up": (OffPolicyLearner, "act", 5, 5),
    "an update": (OffPolicyLearner, "update", 42, 42),
    "the first evaluation": (loop.TrainingRun, "_start_evaluation", 1, 30),
    "the last evaluation": (loop.TrainingRun, "_start_evaluation", 2, 60),
    "a checkpoint": (checkpoint, "index_bytes", 1, 30),
}


@pytest.mark.quick("an update")
@pytest.mark.parametrize("phase", PHASES)
def test_resume_after_a_signal_in_any_phase_is_bitwise_equal(
    tmp_path, uninterrupted, monkeypatch, phase
):
    owner, name, at_call, env_steps = PHASES[phase]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, signalled(getattr(owner, name), at_call))
        code, _, err = train(tmp_path)
    assert code == 75
    assert f"stopped at {env_steps} env steps and saved" in err.splitlines()[-1]
    folder = tmp_path / CONFIG.run_name()
    evaluated = [row["env_steps"] for row in rows(folder / "eval.csv")]
    assert evaluated == [
        step
        for step in ("30", "60")
        if int(step) < env_steps or (phase == "a checkpoint" and step == "30")
    ]
    assert train(tmp_path)[0] == 0
    assert_same_end(folder, uninterrupted)


def test_evaluation_stops_within_a_step():
    env, policy = REACH(), make_learner(CONFIG, CPU).algorithm
    asked = []
    with pytest.raises(EvaluationStoppedError):
        wait_for_evaluation(
            evaluate(LocalPool([env]), policy, [1, 2], CONFIG.env.frame_stack, CPU),
            lambda: asked.append(1) or len(asked) == 4,
        )
    assert len(asked) == 4


def test_kill_after_a_repeated_evaluation_leaves_no_duplicate_row(
    tmp_path, uninterrupted, monkeypatch
):
    """Its row is in the file, its checkpoint is not: the row of that step must be removed when the
    run resumes."""
    folder = tmp_path / CONFIG.run_name()
    with monkeypatch.context() as patch:
        patch.setattr(
            loop.TrainingRun, "_start_evaluation", signalled(loop.TrainingRun._start_evaluation, 1)
        )
        assert train(tmp_path)[0] == 75

    def kill(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.Checkpoints, "save", kill)
        with pytest.raises(Killed):
            train(tmp_path)
    assert [row["env_steps"] for row in rows(folder / "eval.csv")] == ["30"]
    assert train(tmp_path)[0] == 0
    assert_same_end(folder, uninterrupted)


# --- non-finite values
# -----------------------------------------------------------------------------------


def poisoned(monkeypatch, updates):
    """A weight of the critic is nan from this update on."""
    original = OffPolicyLearner.update

    def update(self, env_steps):
        if self.updates == updates:
            with torch.no_grad():
                next(self.algorithm.critic.parameters()).fill_(float("nan"))
        return original(self, env_steps)

    monkeypatch.setattr(OffPolicyLearner, "update", update)


# the toy environment gets a non-finite action
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_non_finite_loss_stops_the_run_and_saves_what_reproduces_it(
    tmp_path, uninterrupted, monkeypatch
):
    out, folder = tmp_path / "out", tmp_path / "out" / CONFIG.run_name()
    with monkeypatch.context() as patch:
        # at step 46: after the checkpoint of step 30, seen in the row of step 50
        poisoned(patch, 25)
        code, stdout, err = train(out)
        assert (code, stdout) == (1, "")
        line = err.splitlines()[-1]
        assert line.startswith("cclf: critic_loss is nan at 50 env steps")
        assert str(folder / "failure") in line
        facts = json.loads((folder / "failure" / "failure.json").read_text())
        assert (facts["metric"], facts["value"], facts["row"]["env_steps"]) == (
            "critic_loss",
            "nan",
            50,
        )
        assert checkpoint.load(folder / "failure" / "checkpoint")["agent_steps"] == 30, (
            "the state before"
        )
        before = contents(out)
        assert_refused(train(out), "failed before", f"delete {folder / 'failure'}")
        assert contents(out) == before

        replayed = tmp_path / "replayed" / CONFIG.run_name()
        shutil.copytree(folder / "failure", replayed)
        assert train(tmp_path / "replayed")[0] == 1
        assert json.loads((replayed / "failure" / "failure.json").read_text()) == facts
    shutil.rmtree(folder / "failure")
    assert train(out)[0] == 0
    assert_same_end(folder, uninterrupted)


def test_non_finite_loss_of_a2c_before_the_first_checkpoint(tmp_path, monkeypatch):
    config = tiny_config(
        "minigrid/Empty-16x16", "re3+cclf", env_steps=320, eval_every_env_steps=1_000
    )
    original = A2C.update
    monkeypatch.setattr(
        A2C, "update", lambda *args: original(*args) | {"value_loss": torch.tensor(float("inf"))}
    )
    code, _, err = train(tmp_path, config)
    assert code == 1
    assert "value_loss is inf at 16 env steps" in err
    assert {path.name for path in (tmp_path / config.run_name() / "failure").iterdir()} == {
        *("config.json", "manifest.json", "failure.json"),
    }


# --- a full disk
# ---------------------------------------------------------------------------------------------------------


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_from(original, at_call):
    calls = []

    def wrapped(*args, **kwargs):
        calls.append(1)
        return full() if len(calls) >= at_call else original(*args, **kwargs)

    return wrapped


FULL = {
    "a row": (CsvTable, "write", 6, 30),
    "the frames of a checkpoint": (replay_chunks, "fsync_write", 2, 30),
    "the files of a checkpoint": (checkpoint, "fsync_write", 5, 30),
    "the index of a checkpoint": (checkpoint, "fsync_write", 6, 30),
    "the rename": (os, "rename", 2, 30),
    "the first checkpoint": (checkpoint, "fsync_write", 2, None),
    "the first file": (atomic_files, "replacing", 1, None),
    "the manifest": (atomic_files, "replacing", 3, None),
    "a table": (os, "fsync", 7, None),
}


@pytest.mark.quick("the index of a checkpoint")
@pytest.mark.parametrize("moment", FULL)
def test_full_disk_ends_the_run_with_the_last_checkpoint_intact(
    tmp_path, uninterrupted, monkeypatch, moment
):
    owner, name, at_call, saved = FULL[moment]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, full_from(getattr(owner, name), at_call))
        code, stdout, err = train(tmp_path)
    assert (code, stdout) == (1, "")
    assert "the disk is full" in err.splitlines()[-1]
    assert "Traceback" not in err
    folder = tmp_path / CONFIG.run_name()
    state = checkpoint.load(folder / "checkpoint")
    assert (state and state["agent_steps"]) == saved
    assert not list(folder.rglob("*.tmp*")), "incomplete files remain"
    assert train(tmp_path)[0] == 0
    assert_same_end(folder, uninterrupted)


@pytest.mark.slow("test_full_disk_ends_the_run_with_the_last_checkpoint_intact")
def test_file_that_may_not_grow_ends_the_run_in_one_line(tmp_path, uninterrupted):
    """Another error of the disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
        code, stdout, err = train(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert (code, stdout) == (1, "")
    assert "File too large; repair this and run the same command" in err.splitlines()[-1]
    assert str(tmp_path) in err.splitlines()[-1]
    assert train(tmp_path)[0] == 0
    assert_same_end(tmp_path / CONFIG.run_name(), uninterrupted)


def test_run_folder_that_is_removed_ends_the_run_at_its_next_checkpoint(tmp_path, monkeypatch):
    folder = tmp_path / CONFIG.run_name()

    def save(self, *given):
        shutil.rmtree(folder, ignore_errors=True)
        return original(self, *given)

    original = checkpoint.Checkpoints.save
    monkeypatch.setattr(checkpoint.Checkpoints, "save", save)
    code, stdout, err = train(tmp_path)
    assert (code, stdout) == (1, "")
    assert "cannot use" in err.splitlines()[-1]
    assert "No such file or directory" in err.splitlines()[-1]
    assert not folder.exists()


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("this user may not mount a small disk")
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.slow("test_full_disk_ends_the_run_with_the_last_checkpoint_intact")
@pytest.mark.parametrize("tensorboard", [False, True])
def test_run_on_a_disk_that_is_really_full(small_disk, uninterrupted, tensorboard):
    config = tiny_config(method="rad", tensorboard=tensorboard)
    filler = small_disk / "filler"
    run(tiny_config(method="rad", env_steps=30), small_disk / config.run_name())
    free = shutil.disk_usage(small_disk).free
    filler.write_bytes(bytes(free - 40_000))
    code, stdout, err = train(small_disk, config)
    assert (code, stdout) == (1, ""), err
    assert "the disk is full" in err.splitlines()[-1]
    folder = small_disk / config.run_name()
    assert checkpoint.load(folder / "checkpoint")["agent_steps"] == 30
    filler.unlink()
    assert train(small_disk, config)[0] == 0
    assert_same_end(folder, uninterrupted)


def test_incomplete_row_is_removed(tmp_path):
    """The first half of 1250 is 12, which looks like a row before the checkpoint."""
    path = tmp_path / "t.csv"
    path.write_text("env_steps,value\n10,1\n20,2\n12")
    CsvTable(path, ("env_steps", "value"), rows_until(tmp_path, "t", 100)).close()
    assert path.read_text() == "env_steps,value\n10,1\n20,2\n"


# --- readers of the folder
# ------------------------------------------------------------------------------------------


def test_reader_loads_the_newest_checkpoint_while_older_ones_are_removed(
    tmp_path, monkeypatch, capsys
):
    writer = checkpoint.Checkpoints(tmp_path)
    for number in range(2):
        writer.save({"number": number, "tensor": torch.full((2,), float(number))})
    original, numbers = checkpoint._read, iter(range(2, 4))

    def read(*args):
        for number in numbers:  # once: both checkpoints are removed
            writer.save({"number": number, "tensor": torch.full((2,), float(number))})
        return original(*args)

    monkeypatch.setattr(checkpoint, "_read", read)
    state = checkpoint.load(tmp_path)
    assert (state["number"], state["tensor"].tolist()) == (3, [3.0, 3.0])
    assert "warning" not in capsys.readouterr().err
