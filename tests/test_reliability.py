"""What can end a run early: another process in its folder, a signal in each phase, a full disk."""

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch

from cclf.algorithms.common.off_policy import OffPolicyLearner
from cclf.algorithms.registry import make_learner
from cclf.storage import atomic_files, checkpoint, replay_chunks
from cclf.storage.atomic_files import folder_lock
from cclf.storage.tables import CsvTable
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
    for _ in range(2):  # the lock is released with its context
        with folder_lock(tmp_path), pytest.raises(ValueError, match=f"process {os.getpid()}"):
            folder_lock(tmp_path).__enter__()


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
    evaluated = [int(row["env_steps"]) for row in rows(folder / "eval.csv")]
    last = env_steps if phase == "a checkpoint" else env_steps - 1
    assert evaluated == [step for step in (30, 60) if step <= last]
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


# --- a full disk


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


def test_other_error_of_the_disk_ends_the_run_in_one_line(tmp_path, monkeypatch):
    def fail(path, _):
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))

    monkeypatch.setattr(checkpoint, "fsync_write", fail)
    code, stdout, err = train(tmp_path)
    assert (code, stdout) == (1, "")
    line = err.splitlines()[-1]
    assert "File too large; repair this and run the same command" in line
    assert str(tmp_path) in line


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


def test_rows_are_synced_to_the_disk_before_each_checkpoint(tmp_path, monkeypatch):
    """After a power loss a checkpoint must not be newer than the rows before it."""
    calls = []

    def recorded(name, original):
        return lambda *args: calls.append(name) or original(*args)

    monkeypatch.setattr(CsvTable, "sync", recorded("sync", CsvTable.sync))
    save = recorded("save", checkpoint.Checkpoints.save)
    monkeypatch.setattr(checkpoint.Checkpoints, "save", save)
    assert train(tmp_path)[0] == 0
    assert calls == ["sync", "sync", "save"] * 2, "both tables, at steps 30 and 60"


@pytest.mark.slow("test_full_disk_ends_the_run_with_the_last_checkpoint_intact")
@pytest.mark.parametrize("tensorboard", [False, True])
def test_run_on_a_disk_that_is_really_full(tmp_path, uninterrupted, tensorboard):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", disk]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a small disk")
    try:
        config = tiny_config(method="rad", tensorboard=tensorboard)
        filler, folder = disk / "filler", disk / config.run_name()
        run(tiny_config(method="rad", env_steps=30), folder)
        filler.write_bytes(bytes(shutil.disk_usage(disk).free - 40_000))
        code, stdout, err = train(disk, config)
        assert (code, stdout) == (1, ""), err
        assert "the disk is full" in err.splitlines()[-1]
        assert checkpoint.load(folder / "checkpoint")["agent_steps"] == 30
        filler.unlink()
        assert train(disk, config)[0] == 0
        assert_same_end(folder, uninterrupted)
    finally:
        subprocess.run(["umount", disk], check=True)


# --- readers of the folder


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
