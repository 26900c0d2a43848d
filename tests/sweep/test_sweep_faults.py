"""What a sweep meets in its folders: another sweep, links and pipes, a full disk, refusals."""

import errno
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cclf import cli, presets
from cclf.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED
from cclf.storage import atomic_files
from cclf.sweep import child, scheduler
from cclf.sweep.child import LOG, Child, last_message
from cclf.sweep.local import LocalBackend
from cclf.sweep.plan import (
    FAILURE_MARK,
    Job,
    RunOutcome,
    RunSpec,
    make_run_spec,
    read_progress,
)
from cclf.training.signals import StopSignal

POPEN = subprocess.Popen
HOLDS_ITS_FOLDER = """
import pathlib, sys, time
from cclf.storage.atomic_files import folder_lock
with folder_lock(pathlib.Path(sys.argv[1])):
    print("first line", flush=True)
    print("   500/2,500  10.59 ± 0            2.1    -  left -", flush=True)
    time.sleep(60)
"""
ROW = "    500/2,500  10.59 ± 0                  2.1        8.1  left 00:01:02"


def call(out: Path, seed: int = 1) -> RunSpec:
    config = presets.resolve("minigrid/DoorKey-5x5", "a2c", seed=seed)
    return make_run_spec(replace(config, run=replace(config.run, threads=1)), out)


def becomes(monkeypatch: pytest.MonkeyPatch, program: str, *arguments: str) -> None:
    """Every run is this program instead."""
    words = [sys.executable, "-c", program, *arguments]
    monkeypatch.setattr(child.subprocess, "Popen", lambda _, **options: POPEN(words, **options))


def sweep(*runs: RunSpec) -> list[RunOutcome]:
    return scheduler.run_all(runs, LocalBackend(jobs=1, gpus=()), StopSignal())


def full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


def test_second_sweep_on_a_folder_is_refused_and_leaves_the_log_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic_files, "LOCK_GRACE_SECONDS", 0.1)
    run = call(tmp_path)
    becomes(monkeypatch, HOLDS_ITS_FOLDER, str(run.folder))
    first = Child(Job((run,)), tmp_path, {})
    try:
        log = run.folder / LOG
        eventually(lambda: "left -" in log.read_text())
        before = log.read_bytes()
        [outcome] = sweep(run)
        why = f"process {first.process.pid} is training in {run.folder}: wait for it, or use"
        assert outcome.exit_code == EXIT_BAD_INPUT
        assert outcome.last_line == f"{why} another --out"
        assert log.read_bytes() == before
        assert first.process.poll() is None
        assert not (run.folder / FAILURE_MARK).exists()
    finally:
        first.process.kill()
        first.process.wait()
    assert first.poll() == (
        -9,
        "ended by SIGKILL: 500/2,500  10.59 ± 0            2.1    -  left -",
    )


def test_folder_of_a_run_is_held_before_its_process_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that does not know of the lock yet, as an interpreter that is still importing."""
    monkeypatch.setattr(atomic_files, "LOCK_GRACE_SECONDS", 0.0)
    becomes(monkeypatch, "import time; time.sleep(60)")
    run = call(tmp_path)
    first = Child(Job((run,)), tmp_path, {})
    try:
        assert [outcome.exit_code for outcome in sweep(run)] == [EXIT_BAD_INPUT]
    finally:
        first.process.kill()
        first.process.wait()
    with atomic_files.folder_lock(run.folder):
        pass


def test_reason_is_read_from_the_log_of_the_own_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = call(tmp_path)
    begun = []
    for word in ("first", "second"):
        becomes(monkeypatch, f"print({word!r}); raise SystemExit(1)")
        begun.append(Child(Job((run,)), tmp_path, {}))
        begun[-1].process.wait()
    assert [ended.poll().message for ended in begun] == ["first", "second"]
    assert (run.folder / LOG).read_text() == "second\n"


@pytest.mark.parametrize("kind", ["link", "link to nothing", "link to a folder", "pipe"])
def test_link_or_pipe_in_the_place_of_the_log_is_replaced(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    becomes(monkeypatch, "print('goodbye')")
    run = call(tmp_path / "runs")
    run.folder.mkdir(parents=True)
    log, precious = run.folder / LOG, tmp_path / "precious"
    precious.write_text("mine")
    if kind == "pipe":
        os.mkfifo(log)
    else:
        log.symlink_to({"link": precious, "link to a folder": tmp_path}.get(kind, "nothing"))
    [outcome] = sweep(run)
    assert outcome.last_line.endswith(": goodbye")
    assert stat.S_ISREG(log.lstat().st_mode)
    assert (log.read_text(), precious.read_text()) == ("goodbye\n", "mine")


@pytest.mark.parametrize("name", [LOG, "lock"])
def test_folder_in_the_place_of_a_file_is_one_line_and_the_others_go_on(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    becomes(monkeypatch, "print('goodbye')")
    runs = [call(tmp_path, seed) for seed in (1, 2)]
    (runs[0].folder / name).mkdir(parents=True)
    outcomes = sweep(*runs)
    assert [outcome.exit_code for outcome in outcomes] == [EXIT_BAD_INPUT, EXIT_FAILED]
    assert f"cannot start the run in {runs[0].folder}: " in outcomes[0].last_line
    assert "Is a directory" in outcomes[0].last_line
    assert len(capsys.readouterr().err.splitlines()) == len(runs)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ""),
        (f"run folder x\n{ROW}\n", ROW.strip()),
        (f"cclf: the disk is full\n{ROW}\n", "the disk is full"),
        (f"toy/catch seed 2: {ROW.strip()}\ncclf: no\n\n", "no"),
        (f"cclf: no\ntoy/catch seed 2: {ROW.strip()}\n", "no"),
        ("cclf: it failed\nTraceback (most recent call last):\n  x\nValueError: boom\n"
         "the last checkpoint is good: run the same command to go on\n", "it failed"),
        ("cclf: it failed\nthe last checkpoint is good: run\n", "it failed"),
        ("cclf: warning: no video\nbudget 5\nTraceback (most recent call last):\n  x\nOSError: e",
         "OSError: e"),
        ("10 of 20 green bottles", "10 of 20 green bottles"),
    ],
)  # fmt: skip
def test_last_message_is_the_last_error_or_else_the_last_line(text: str, message: str) -> None:
    assert last_message(text) == message


def test_last_message_of_a_stopped_run_is_its_last_line() -> None:
    text = "cclf: runs/a goes back to 500 env steps\nstopped at 900 env steps and saved\n"
    assert last_message(text, is_error=False) == "stopped at 900 env steps and saved"


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_failure_mark_follows_no_link_and_a_folder_there_is_said(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    becomes(monkeypatch, "print('goodbye'); raise SystemExit(1)")
    run = call(tmp_path / "runs")
    run.folder.mkdir(parents=True)
    path, precious = run.folder / FAILURE_MARK, tmp_path / "precious"
    precious.write_text("mine")
    if kind == "link":
        path.symlink_to(precious)
    else:
        path.mkdir()
    [outcome] = sweep(run)
    assert (outcome.exit_code, precious.read_text()) == (EXIT_FAILED, "mine")
    said = f"goodbye; cannot change {path}: Is a directory" if kind == "folder" else "goodbye"
    assert outcome.last_line == said
    assert not path.is_symlink()
    assert not list(run.folder.glob("*.tmp"))


def test_full_disk_when_a_failure_is_marked_is_one_line_and_leaves_no_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    becomes(monkeypatch, "raise SystemExit(1)")
    monkeypatch.setattr(atomic_files.os, "fsync", full)
    runs = [call(tmp_path, seed) for seed in (1, 2)]
    for outcome in sweep(*runs):
        why = f"without a message; the disk is full ({tmp_path}): free space there, then run the same command"
        assert (outcome.exit_code, outcome.last_line) == (EXIT_FAILED, why)
        assert sorted(os.listdir(outcome.spec.folder)) == ["lock", LOG]
    assert len(capsys.readouterr().err.splitlines()) == len(runs)


def test_disk_too_full_to_start_runs_is_one_line_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    becomes(monkeypatch, "")
    monkeypatch.setattr(atomic_files, "open_file", full)
    outcomes = sweep(*(call(tmp_path, seed) for seed in (1, 2)))
    assert [outcome.exit_code for outcome in outcomes] == [EXIT_FAILED] * 2
    assert {outcome.last_line for outcome in outcomes} == {
        f"the disk is full ({tmp_path}): free space there, then run the same command"
    }
    assert len(capsys.readouterr().err.splitlines()) == 2
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("table", ["", "a,b\n1,2\n", "env_steps,episode_return\nx,y\n", "\0\n\0\n"])
def test_progress_of_a_damaged_table_is_that_of_none(table: str, tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(table)
    assert read_progress(tmp_path).env_steps == 0
    (tmp_path / "train.csv").write_bytes(b"\xff\xfe,env_steps\n1,2\n")
    assert read_progress(tmp_path).env_steps == 0


@pytest.mark.parametrize(
    ("words", "extra", "message"),
    [
        ((), ("--device", "cuda:99"), "device 'cuda:99' is not available"),
        ((), ("--device", "nowhere"), "unknown device 'nowhere'"),
        (
            (),
            ("--device", "cpu", "--precision", "bf16"),
            "precision=bf16 conflicts with device=cpu",
        ),
        ((), ("--device", "cpu", "--replay-device", "cuda"), "replay_device=cuda conflicts"),
        ((), ("--tracker", "wandb"), "--tracker wandb needs wandb: pip install 'cclf[wandb]'"),
        ((), ("--encoder", "missing_module:f"), "Python finds no module 'missing_module'"),
        (("--tasks", "toy/reach-3d"), (), "unknown task 'toy/reach-3d'"),
        (("--seeds", "1", "2", "1"), (), "2 runs share the folder of"),
        (("--stop-after-seconds", "nan"), (), "--stop-after-seconds nan must be a finite number"),
        (("--stop-after-seconds", "inf"), (), "--stop-after-seconds inf must be a finite number"),
        (("--stop-after-seconds", "-1"), (), "--stop-after-seconds -1.0 must be 0 or more"),
        (
            ("--runs-per-gpu", "100000000000"),
            (),
            "--runs-per-gpu 100000000000 must lie in [1, 1000]",
        ),
    ],
)
def test_sweep_refuses_before_the_first_run_what_every_run_would_be_refused_for(
    words: tuple[str, ...],
    extra: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    out = tmp_path / "runs"
    sweep = ["sweep", "--tasks", "toy/reach-1d", "--methods", "drq", "--seeds", "1"]
    assert cli.main([*sweep, *words, "--out", str(out), "--", *extra]) == EXIT_BAD_INPUT
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_finished_runs_are_not_asked_for_a_device(
    tmp_path: Path,
) -> None:
    """Such a sweep may be repeated on a machine without a GPU."""
    words = ["sweep", "--tasks", "toy/reach-1d", "--methods", "drq", "--seeds", "1"]
    config = presets.resolve("toy/reach-1d", "drq")
    state = tmp_path / config.run_name() / "checkpoint/00000001/state.json"
    state.parent.mkdir(parents=True)
    facts = {"agent_steps": config.planned_agent_steps, "evaluation_due": False}
    state.write_text(json.dumps(facts))
    assert cli.main([*words, "--out", str(tmp_path), "--", "--device", "cuda:99"]) == EXIT_DONE
