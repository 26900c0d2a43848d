"""Faults of a sweep: another sweep in its folder, links and pipes, a full disk, invalid options."""

import errno
import os
import stat
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cclf import cli, presets
from cclf.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED
from cclf.storage import atomic_files
from cclf.sweep import scheduler
from cclf.sweep.child import LOG, Child, last_message
from cclf.sweep.local import LocalBackend
from cclf.sweep.plan import FAILURE_MARK, Job, RunOutcome, RunSpec, make_run_spec
from cclf.training.signals import StopSignal
from tiny_sweep import becomes, save, spec

HOLDS_ITS_FOLDER = """
import pathlib, sys, time
from cclf.storage.atomic_files import folder_lock
with folder_lock(pathlib.Path(sys.argv[1])):
    print("first line", flush=True)
    print("   500/2,500  10.59 ± 0            2.1    -  left -", flush=True)
    time.sleep(60)
"""
ROW = "    500/2,500  10.59 ± 0                  2.1        8.1  left 00:01:02"
FULL = "the disk is full ({}): free space there, then run the same command"


def sweep(*runs: RunSpec) -> list[RunOutcome]:
    return scheduler.run_all(runs, LocalBackend(jobs=1, gpus=()), StopSignal())


def full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def lines_of_errors(capsys: pytest.CaptureFixture[str]) -> int:
    return len(capsys.readouterr().err.splitlines())


def test_second_sweep_on_a_folder_is_refused_and_leaves_the_log_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the process of the first sweep is still importing and has not locked the folder
    yet."""
    monkeypatch.setattr(atomic_files, "LOCK_GRACE_SECONDS", 0.0)
    run = spec(tmp_path)
    becomes(monkeypatch, HOLDS_ITS_FOLDER, str(run.folder))
    first, log = Child(Job((run,)), {}), run.folder / LOG
    try:
        assert [outcome.exit_code for outcome in sweep(run)] == [EXIT_BAD_INPUT]
        deadline = time.monotonic() + 30
        while "left -" not in log.read_text() and time.monotonic() < deadline:
            time.sleep(0.02)
        before = log.read_bytes()
        [outcome] = sweep(run)
        reason = f"process {first.process.pid} is training in {run.folder}: wait for it, or use"
        assert outcome[1:] == (EXIT_BAD_INPUT, f"{reason} another --out")
        assert log.read_bytes() == before
        assert first.process.poll() is None
        assert not (run.folder / FAILURE_MARK).exists()
    finally:
        first.process.kill()
        first.process.wait()
    message = "ended by signal 9 (Killed): 500/2,500  10.59 ± 0            2.1    -  left -"
    assert first.poll() == (-9, message)
    with atomic_files.folder_lock(run.folder):
        pass


def test_message_is_read_from_the_log_of_the_own_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, children = spec(tmp_path), []
    for word in ("first", "second"):
        becomes(monkeypatch, f"print({word!r}); raise SystemExit(1)")
        children.append(Child(Job((run,)), {}))
        children[-1].process.wait()
    assert [each.poll() for each in children] == [(1, "first"), (1, "second")]
    assert (run.folder / LOG).read_text() == "second\n"


@pytest.mark.quick("link", "pipe")
@pytest.mark.parametrize("kind", ["link", "link to nothing", "link to a folder", "pipe"])
def test_link_or_pipe_in_the_place_of_the_log_is_replaced(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    becomes(monkeypatch, "print('goodbye')")
    run = spec(tmp_path / "runs")
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
    runs = [spec(tmp_path, seed) for seed in (1, 2)]
    (runs[0].folder / name).mkdir(parents=True)
    outcomes = sweep(*runs)
    assert [outcome.exit_code for outcome in outcomes] == [EXIT_BAD_INPUT, EXIT_FAILED]
    assert f"cannot start the run in {runs[0].folder}: " in outcomes[0].last_line
    assert "Is a directory" in outcomes[0].last_line
    assert lines_of_errors(capsys) == 2


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_link_in_the_place_of_the_failure_mark_is_not_followed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    becomes(monkeypatch, "print('goodbye'); raise SystemExit(1)")
    run = spec(tmp_path / "runs")
    run.folder.mkdir(parents=True)
    mark, precious = run.folder / FAILURE_MARK, tmp_path / "precious"
    precious.write_text("mine")
    if kind == "link":
        mark.symlink_to(precious)
    else:
        mark.mkdir()
    [outcome] = sweep(run)
    assert (outcome.exit_code, precious.read_text()) == (EXIT_FAILED, "mine")
    problem = f"goodbye; cannot change {mark}: Is a directory" if kind == "folder" else "goodbye"
    assert outcome.last_line == problem
    assert not mark.is_symlink()
    assert not list(run.folder.glob("*.tmp"))


def test_full_disk_is_one_line_for_each_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    becomes(monkeypatch, "raise SystemExit(1)")
    runs = [spec(tmp_path / "mark", seed) for seed in (1, 2)]
    with monkeypatch.context() as patch:
        patch.setattr(atomic_files.os, "fsync", full)
        for outcome in sweep(*runs):
            line = f"without a message; {FULL.format(tmp_path / 'mark')}"
            assert outcome[1:] == (EXIT_FAILED, line)
            assert sorted(os.listdir(outcome.spec.folder)) == ["lock", LOG]
    assert lines_of_errors(capsys) == 2
    monkeypatch.setattr(atomic_files, "open_file", full)
    outcomes = sweep(*(spec(tmp_path / "start", seed) for seed in (1, 2)))
    assert {outcome[1:] for outcome in outcomes} == {(EXIT_FAILED, FULL.format(tmp_path / "start"))}
    assert lines_of_errors(capsys) == 2
    assert not [path for path in (tmp_path / "start").rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ""),
        (f"run folder x\n{ROW}\n", ROW.strip()),
        (f"cclf: the disk is full\n{ROW}\n", "the disk is full"),
        (f"toy/catch seed 2: {ROW.strip()}\ncclf: no\n\n", "no"),
        ("cclf: it failed\nTraceback (most recent call last):\n  x\nValueError: boom\n"
         "the last checkpoint is good: run the same command to go on\n", "it failed"),
        ("cclf: warning: no video\nbudget 5\nTraceback (most recent call last):\n  x\nOSError: e",
         "OSError: e"),
        ("10 of 20 green bottles", "10 of 20 green bottles"),
    ],
)  # fmt: skip
def test_last_message_is_the_last_error_or_else_the_last_line(text: str, message: str) -> None:
    assert last_message(text) == message
    stopped = "cclf: runs/a goes back to 500 env steps\nstopped at 900 env steps and saved\n"
    assert last_message(stopped, is_error=False) == "stopped at 900 env steps and saved"


# --- what is refused before the first run

TOY = ["sweep", "--tasks", "toy/reach-1d", "--methods", "drq", "--seeds", "1"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-- --device cuda:99", "device 'cuda:99' is not available"),
        ("-- --device nowhere", "unknown device 'nowhere'"),
        ("-- --device cpu --precision bf16", "precision=bf16 conflicts with device=cpu"),
        ("-- --device cpu --replay-device cuda", "replay_device=cuda conflicts"),
        ("-- --tracker wandb", "--tracker wandb needs wandb: pip install 'cclf[wandb]'"),
        ("-- --encoder missing_module:f", "Python finds no module 'missing_module'"),
        ("--tasks toy/reach-3d", "unknown task 'toy/reach-3d'"),
        ("--seeds 1 2 1", "2 runs share the folder of"),
        ("--stop-after-seconds nan", "--stop-after-seconds nan must be a finite number"),
        ("--stop-after-seconds inf", "--stop-after-seconds inf must be a finite number"),
        ("--stop-after-seconds -1", "--stop-after-seconds -1.0 must be 0 or more"),
        ("--runs-per-gpu 100000000000", "--runs-per-gpu 100000000000 must lie in [1, 1000]"),
    ],
)
def test_sweep_refuses_what_every_run_would_refuse(
    words: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    out = tmp_path / "runs"
    assert cli.main([*TOY, "--out", str(out), *words.split()]) == EXIT_BAD_INPUT
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_sweep_of_finished_runs_needs_no_device(tmp_path: Path) -> None:
    """The command may be repeated on a machine without a GPU."""
    config = presets.resolve("toy/reach-1d", "drq")
    save(make_run_spec(config, tmp_path), config.planned_agent_steps)
    assert cli.main([*TOY, "--out", str(tmp_path), "--", "--device", "cuda:99"]) == EXIT_DONE
