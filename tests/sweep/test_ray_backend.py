"""Sweeps on Ray give the same numbers as on this machine, also when a node is lost."""

import _thread
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cclf import __version__, cli, presets
from cclf.commands.sweep import plan
from cclf.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, ConfigError
from cclf.storage import atomic_files
from cclf.sweep import child, ray_backend
from cclf.sweep.local import LocalBackend
from cclf.sweep.plan import NOT_STARTED, Job, RunSpec, read_progress
from cclf.sweep.ray_backend import RayBackend, train_job
from cclf.sweep.scheduler import run_all
from cclf.training.signals import StopSignal
from tiny_runs import tables
from tiny_sweep import GRID

pytestmark = pytest.mark.skipif(not find_spec("ray"), reason="needs Ray")

QUIET = "--eval-episodes 4 --no-tensorboard --no-video"
SHORT = f"--env-steps 40000 --eval-every-env-steps 20000 --log-every-agent-steps 800 {QUIET}"
LONG = f"--env-steps 120000 --eval-every-env-steps 4000 {QUIET}"
ENDLESS = f"--env-steps 3000000 --eval-every-env-steps 3000000 {QUIET}"


def calls(out: Path, options: str, seeds: tuple[int, ...] = (1,)) -> list[RunSpec]:
    return plan([GRID], ["a2c"], [presets.DEFAULT_PROFILE], seeds, out, options.split())


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)


def refusal(capsys: pytest.CaptureFixture[str], out: Path, *words: str) -> str:
    run = ["--tasks", GRID, "--methods", "a2c", "--seeds", "1", "2", "--out", str(out)]
    assert cli.main(["sweep", *run, *words, "--", *SHORT.split()]) == EXIT_BAD_INPUT
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert not list(out.iterdir())
    return error


class AtMoment(StopSignal):
    """A stop signal that calls `act` once `moment` is reached, and then stops if `stop`."""

    def __init__(self, moment: Any, act: Any, stop: bool = False):
        self.moment, self.act, self.stop, self.acted = moment, act, stop, False

    @property
    def requested(self) -> bool:  # type: ignore[override]
        if not self.acted and self.moment():
            self.acted = True
            self.act()
        return self.stop and self.acted


@pytest.mark.slow("test_lost_run_fails_unless_it_was_being_stopped")
def test_runs_on_ray_stopped_and_resumed_equal_local_runs(tmp_path: Path) -> None:
    here, there = calls(tmp_path / "here", SHORT, (1, 2)), calls(tmp_path / "there", SHORT, (1, 2))
    run_all(here, LocalBackend(), StopSignal())
    backend = RayBackend()

    def begun() -> bool:
        return any(read_progress(run.job.first.folder).env_steps for run in backend.running)

    try:
        outcomes = run_all(there, backend, AtMoment(begun, lambda: None, stop=True))
        assert EXIT_STOPPED in [outcome.exit_code for outcome in outcomes], outcomes
        outcomes = run_all(there, backend, StopSignal())
    finally:
        backend.close()
    assert [outcome.exit_code for outcome in outcomes] == [EXIT_DONE, EXIT_DONE], outcomes
    assert "resuming at" in "".join(path.read_text() for path in tmp_path.rglob(child.LOG))
    for ours, theirs in zip(here, there, strict=True):
        assert tables(ours.folder) == tables(theirs.folder)


@pytest.mark.slow("test_lost_run_fails_unless_it_was_being_stopped")
def test_runs_of_a_node_that_dies_resume_on_another_and_equal_local_runs(tmp_path: Path) -> None:
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    node: dict[str, Any] = {"num_cpus": 1, "object_store_memory": ray_backend.OBJECT_STORE_BYTES}
    machines = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    doomed = machines.add_node(**node)
    backend = RayBackend(machines.address)
    there = calls(tmp_path / "there", LONG, seeds=(1, 2, 3, 4))

    def two_are_training() -> bool:
        steps = [
            read_progress(run.job.first.folder).env_steps
            for run in backend.running
            if not run.ended
        ]
        return sum(each > 8_000 for each in steps) == 2

    killer = AtMoment(two_are_training, lambda: machines.remove_node(doomed, allow_graceful=False))
    try:
        outcomes = run_all(there, backend, killer)
    finally:
        backend.close()
        machines.shutdown()
    assert killer.acted, "no node was killed"
    assert [outcome.exit_code for outcome in outcomes] == [EXIT_DONE] * 4, outcomes
    logs = [(call.folder / child.LOG).read_text() for call in there]
    assert sum("resuming at" in log for log in logs) == 1, "the lost run resumed"
    here = calls(tmp_path / "here", LONG, seeds=(1, 2, 3, 4))
    run_all(here, LocalBackend(), StopSignal())
    for ours, theirs in zip(here, there, strict=True):
        assert tables(ours.folder) == tables(theirs.folder)


def test_wrong_address_is_refused_within_a_minute(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a check of the address, Ray tried both ports for 13 minutes."""
    assert ray_backend.CONNECT_SECONDS + ray_backend.ANSWER_SECONDS < 60
    assert "--backend ray" in refusal(capsys, tmp_path, "--address", "127.0.0.1:1")
    monkeypatch.setattr(ray_backend, "ANSWER_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        for address in ("nonsense", "127.0.0.1:1", f"127.0.0.1:{port}"):
            error = refusal(capsys, tmp_path, "--backend", "ray", "--address", address)
            assert f"cannot reach a Ray cluster at {address}: " in error


LISTENING = """
import os, sys
from cclf.sweep.ray_backend import RayBackend, train_job

def inodes(pid):
    try:
        return {os.readlink(f"/proc/{pid}/fd/{name}")[8:-1] for name in os.listdir(f"/proc/{pid}/fd")}
    except OSError:
        return set()  # it is gone, or not ours

def is_ours(pid):
    try:
        return b"CCLF_TEST_OF_LISTENERS=" in open(f"/proc/{pid}/environ", "rb").read()
    except OSError:
        return False

if __name__ == "__main__":
    os.environ["CCLF_TEST_OF_LISTENERS"] = "1"
    backend = RayBackend()
    backend.ray.get(backend.ray.remote(lambda: 1).remote())
    ours = inodes("self").union(*(inodes(pid) for pid in os.listdir("/proc") if pid.isdecimal() and is_ours(pid)))
    for table in ("tcp", "tcp6"):
        for line in list(open(f"/proc/net/{table}"))[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in ours:
                print(words[1].split(":")[0])
    backend.close()
"""


@pytest.mark.slow("test_wrong_address_is_refused_within_a_minute")
@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's tables of sockets")
def test_ray_on_this_machine_listens_on_loopback_alone(tmp_path: Path) -> None:
    (tmp_path / "listening.py").write_text(LISTENING)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, str(tmp_path / "listening.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    listeners = done.stdout.split()
    assert len(listeners) >= 3, done.stderr  # of Ray's servers at least
    # 127.0.0.1, as IPv4 and within IPv6
    assert set(listeners) <= {"0100007F", "0000000000000000FFFF00000100007F"}
    assert "not on loopback" not in done.stderr


# --- on a node


def test_node_refuses_another_version_a_missing_folder_and_a_locked_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_backend, "LOCK_SECONDS", 0.0)
    [call] = calls(tmp_path, SHORT)
    with pytest.raises(ConfigError, match="install the same on both"):
        train_job(Job((call,)), "0.0.0")
    with pytest.raises(ConfigError, match="storage that all of them share"):
        train_job(Job((replace(call, out=tmp_path / "nowhere"),)), __version__)
    call.folder.mkdir(parents=True)
    (call.folder / child.LOG).write_text("of the run that trains")
    with (
        atomic_files.folder_lock(call.folder),
        pytest.raises(ConfigError, match=f"process {os.getpid()} is training in"),
    ):
        train_job(Job((call,)), __version__)
    assert (call.folder / child.LOG).read_text() == "of the run that trains"


@pytest.mark.slow("test_lost_run_fails_unless_it_was_being_stopped")
def test_interrupted_task_lets_its_run_save(tmp_path: Path) -> None:
    """`ray.cancel` interrupts the main thread of the worker, as this does."""
    [call] = calls(tmp_path, ENDLESS)

    def interrupt() -> None:
        wait_until((call.folder / "train.csv").exists)
        _thread.interrupt_main()

    handler = signal.getsignal(signal.SIGINT)
    threading.Thread(target=interrupt).start()
    exit_code, message = train_job(Job((call,)), __version__)
    assert exit_code == EXIT_STOPPED
    assert message.startswith("stopped at")
    assert signal.getsignal(signal.SIGINT) is handler


def end_after(error: Exception, out: Path, is_stopping: bool = False) -> tuple[int, str]:
    """The exit code and the message of a run whose task ended with this error."""
    import ray

    def get(_: object) -> None:
        raise error

    fake = SimpleNamespace(
        wait=lambda tasks, **_: (tasks, []),
        get=get,
        cancel=lambda _: None,
        exceptions=ray.exceptions,
    )
    run = ray_backend.RayRun(fake, Job(tuple(calls(out, SHORT))), None)
    if is_stopping:
        run.ask_to_stop()
    end = run.poll()
    assert run.ended
    assert end is not None
    return end


def test_lost_run_fails_unless_it_was_being_stopped(tmp_path: Path) -> None:
    import ray

    lost = ray.exceptions.WorkerCrashedError()
    exit_code, message = end_after(lost, tmp_path)
    assert exit_code == EXIT_FAILED
    assert message.startswith("WorkerCrashedError: ")
    assert end_after(lost, tmp_path, is_stopping=True)[0] == EXIT_STOPPED
    waiting = ray.exceptions.TaskCancelledError()
    assert end_after(waiting, tmp_path, is_stopping=True) == (EXIT_STOPPED, NOT_STARTED)
    assert end_after(ConfigError("no"), tmp_path) == (EXIT_BAD_INPUT, "no")
    full = OSError(errno.ENOSPC, "No space left on device")
    reason = f"the disk is full ({tmp_path}): free space there, then run the same command"
    assert end_after(full, tmp_path) == (EXIT_FAILED, reason)


PARENT = """
import pathlib, sys, time
from cclf import presets
from cclf.sweep.child import Child
from cclf.sweep.plan import Job, make_run_spec
task, out, *options = sys.argv[1:]
run = make_run_spec(presets.resolve(task, "a2c"), pathlib.Path(out), options)
child = Child(Job((run,)), {})
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the signal on a parent's death is Linux's")
def test_run_stops_when_the_process_that_started_it_dies(tmp_path: Path) -> None:
    [call] = calls(tmp_path, ENDLESS)
    command = [sys.executable, "-c", PARENT, GRID, str(tmp_path), *ENDLESS.split()]
    parent = subprocess.Popen(command)
    wait_until((call.folder / "train.csv").exists)
    parent.kill()
    parent.wait()
    process = Path(f"/proc/{int((call.folder / 'lock').read_text())}/cmdline")
    wait_until(lambda: not process.exists() or not process.read_bytes())
    assert "stopped at" in (call.folder / child.LOG).read_text(), "it was asked to save"
