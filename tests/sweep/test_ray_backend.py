"""Sweeps on Ray: the same numbers as here, also when a node dies."""

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from cclf import cli, presets
from cclf.commands.sweep import plan
from cclf.errors import ConfigError
from cclf.storage import atomic_files
from cclf.sweep import child, ray_backend
from cclf.sweep.local import LocalBackend
from cclf.sweep.plan import BAD_INPUT, DONE, FAILED, STOPPED, Call, Job
from cclf.sweep.ray_backend import RayBackend
from cclf.sweep.scheduler import run_all
from cclf.training.signals import StopSignal
from tiny_runs import tables

ray = pytest.importorskip("ray")

TASK = "minigrid/DoorKey-5x5"
_QUIET = ("--eval-episodes", "4", "--no-tensorboard", "--no-video")
SHORT = (
    "--env-steps",
    "40000",
    "--eval-every-env-steps",
    "20000",
    "--log-every-agent-steps",
    "800",
    *_QUIET,
)
LONG = ("--env-steps", "120000", "--eval-every-env-steps", "4000", *_QUIET)
ENDLESS = ("--env-steps", "3000000", "--eval-every-env-steps", "3000000", *_QUIET)


def calls(out: Path, options: tuple[str, ...], seeds: tuple[int, ...]) -> list[Call]:
    return plan([TASK], ["a2c"], [presets.DEFAULT_PROFILE], seeds, out, list(options))


def sweep_words(out: Path, *where: str) -> list[str]:
    return [
        "sweep",
        "--tasks",
        TASK,
        "--methods",
        "a2c",
        "--seeds",
        "1",
        "2",
        "--out",
        str(out),
        *where,
        "--",
        *SHORT,
    ]


class AtMoment:
    """A stop that acts once a sweep has reached some moment, and asks for nothing unless told."""

    def __init__(self, moment: Any, act: Any, stop: bool = False):
        self.moment, self.act, self.stop, self.acted = moment, act, stop, False

    @property
    def requested(self) -> bool:
        if not self.acted and self.moment():
            self.acted = True
            self.act()
        return self.stop and self.acted


@pytest.mark.slow
def test_runs_on_ray_stopped_and_resumed_equal_runs_here(tmp_path: Path) -> None:
    """There two seeds share a process, here each has its own."""
    here, there = calls(tmp_path / "here", SHORT, (1, 2)), calls(tmp_path / "there", SHORT, (1, 2))
    assert [outcome.exit_code for outcome in run_all(here, LocalBackend(), StopSignal())] == [
        DONE,
        DONE,
    ]
    backend = RayBackend(shared_files="no", copy_every_seconds=0.0)
    try:
        stop = AtMoment(
            lambda: any(run._reports[0].env_steps for run in backend.running),
            lambda: None,
            stop=True,
        )
        outcomes = run_all(there, backend, stop, seeds_per_process=2)  # type: ignore[arg-type]
        assert STOPPED in [outcome.exit_code for outcome in outcomes], outcomes
        assert list((tmp_path / "there").rglob("index.json")), "what was saved came back"
        outcomes = run_all(there, backend, StopSignal(), seeds_per_process=2)
    finally:
        backend.close()
    assert [outcome.exit_code for outcome in outcomes] == [DONE, DONE], outcomes
    assert "resuming at" in "".join(path.read_text() for path in tmp_path.rglob(child.LOG)), (
        "from what was brought back"
    )
    for ours, theirs in zip(here, there, strict=True):
        assert tables(ours.folder) == tables(theirs.folder)


@pytest.mark.slow
@pytest.mark.parametrize("shared_files", ["detect", "no"])
def test_a_node_that_dies_in_mid_sweep_changes_nothing(
    tmp_path: Path, shared_files: ray_backend.SharedFiles
) -> None:
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    node: dict[str, Any] = {"num_cpus": 1, "object_store_memory": ray_backend.OBJECT_STORE_BYTES}
    machines = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    doomed = machines.add_node(**node)
    backend = RayBackend(machines.address, shared_files=shared_files, copy_every_seconds=0.0)
    there = calls(tmp_path / "there", LONG, seeds=(1, 2, 3, 4))
    begun: list[ray_backend.RayRun] = []

    def two_are_at_work() -> bool:
        begun[:] = [
            run for run in backend.running if run._reports[0].env_steps > 8_000 and not run.ended
        ]
        return len(begun) == 2 and all(run._shared or any(run._copied_checkpoints) for run in begun)

    killer = AtMoment(two_are_at_work, lambda: machines.remove_node(doomed, allow_graceful=False))
    try:
        outcomes = run_all(there, backend, killer)  # type: ignore[arg-type]
    finally:
        backend.close()
        machines.shutdown()
    assert killer.acted, "no node was killed"
    assert [outcome.exit_code for outcome in outcomes] == [DONE] * 4, outcomes
    [lost] = [run for run in begun if run.restarts]
    assert "resuming at" in (lost.job.first.folder / child.LOG).read_text(), (
        "it went on from its last checkpoint"
    )
    here = calls(tmp_path / "here", LONG, seeds=(1, 2, 3, 4))
    run_all(here, LocalBackend(), StopSignal())
    for ours, theirs in zip(here, there, strict=True):
        assert tables(ours.folder) == tables(theirs.folder)


def test_an_address_where_nothing_answers_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(sweep_words(tmp_path, "--backend", "ray", "--address", "nonsense")) == 2
    assert "cannot reach a Ray cluster at nonsense" in capsys.readouterr().err
    assert cli.main(sweep_words(tmp_path, "--address", "127.0.0.1:1")) == 2
    assert "--backend ray" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_wrong_address_is_refused_within_a_minute(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray alone tried both for 13 minutes."""
    assert ray_backend.CONNECT_SECONDS + ray_backend.ANSWER_SECONDS < 60
    monkeypatch.setattr(ray_backend, "ANSWER_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for port in (1, silent.getsockname()[1]):
            assert (
                cli.main(
                    sweep_words(tmp_path, "--backend", "ray", "--address", f"127.0.0.1:{port}")
                )
                == 2
            )
            error = capsys.readouterr().err
            assert f"cannot reach a Ray cluster at 127.0.0.1:{port}: " in error
            assert error.count("\n") == 1


LISTENING = """
import os, sys
from cclf.sweep.ray_backend import RayBackend

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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's tables of sockets")
def test_ray_on_this_machine_listens_on_loopback_alone(tmp_path: Path) -> None:
    (tmp_path / "listening.py").write_text(LISTENING)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, str(tmp_path / "listening.py")]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    listeners = done.stdout.split()
    assert len(listeners) >= 3, done.stderr  # of Ray's servers at least
    assert set(listeners) <= {"0100007F", "0000000000000000FFFF00000100007F"}, (
        "127.0.0.1, as IPv4 and within IPv6"
    )
    assert "not on loopback" not in done.stderr


def test_another_version_on_a_node_is_refused(tmp_path: Path) -> None:
    [call] = calls(tmp_path, SHORT, seeds=(1,))
    with pytest.raises(ConfigError, match="install the same on both"):
        ray_backend.RemoteRun(Job((call,))).sees(tmp_path, "0.0.0")


class NoNode:
    """A backend whose every answer is an error."""

    shared_files, copy_every_seconds = "yes", 0.0

    def __init__(self, error: Exception):
        self.error, self.actors = error, 0
        self.ray = SimpleNamespace(
            wait=lambda refs, **_: (refs, []),
            get=self.get,
            kill=lambda _: None,
            exceptions=ray.exceptions,
        )

    def get(self, _: Any) -> None:
        raise self.error

    def new_actor(self, _: Job) -> MagicMock:
        self.actors += 1
        return MagicMock()


def test_a_run_that_is_lost_again_and_again_fails(tmp_path: Path) -> None:
    nowhere = NoNode(ray.exceptions.ActorDiedError())
    run = ray_backend.RayRun(nowhere, Job(tuple(calls(tmp_path, SHORT, seeds=(1,)))))  # type: ignore[arg-type]
    for _ in range(ray_backend.MAX_RESTARTS):
        assert run.poll()[0].exit_code is None
    [report] = run.poll()
    assert (report.exit_code, nowhere.actors) == (
        ray_backend.EXIT_LOST,
        ray_backend.MAX_RESTARTS + 1,
    )
    assert "lost 6 times" in report.last_line


def test_what_is_lost_while_stopping_is_not_begun_again(tmp_path: Path) -> None:
    nowhere = NoNode(ray.exceptions.ActorDiedError())
    run = ray_backend.RayRun(nowhere, Job(tuple(calls(tmp_path, SHORT, seeds=(1,)))))  # type: ignore[arg-type]
    run._shared = True  # at work
    run.ask_to_stop()
    assert (run.poll()[0].exit_code, nowhere.actors) == (STOPPED, 1)


def test_a_refusal_is_bad_input_and_no_failure_of_the_run(tmp_path: Path) -> None:
    run = ray_backend.RayRun(
        NoNode(ConfigError("no")), Job(tuple(calls(tmp_path, SHORT, seeds=(1,))))
    )  # type: ignore[arg-type]
    assert run.poll()[0][2:4] == (BAD_INPUT, "no")


def test_full_disk_when_a_lost_run_is_begun_anew_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = NoNode(ray.exceptions.ActorDiedError())
    nowhere.shared_files = "detect"
    run = ray_backend.RayRun(nowhere, Job(tuple(calls(tmp_path, SHORT, seeds=(1,)))))  # type: ignore[arg-type]
    error = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(Path, "touch", MagicMock(side_effect=error))
    why = f"the disk is full ({tmp_path}): free space there, then run the same command"
    assert run.poll()[0][2:4] == (FAILED, why)
    assert nowhere.actors == 1


def test_run_of_another_machine_holds_the_folder_that_its_files_are_copied_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic_files, "LOCK_GRACE_SECONDS", 0.0)
    job = Job(tuple(calls(tmp_path, SHORT, seeds=(1, 2))))
    nowhere = NoNode(ConfigError())
    nowhere.shared_files = "no"
    nowhere.get = lambda _: {}  # type: ignore[method-assign]  # no file there
    nowhere.ray.get = nowhere.get
    first, second = (ray_backend.RayRun(nowhere, job) for _ in range(2))  # type: ignore[arg-type]
    assert first.poll()[0].exit_code is None
    exit_code, why = second.poll()[0][2:4]
    assert exit_code == BAD_INPUT
    assert f"process {os.getpid()} is training in {job.first.folder}" in why
    first._end(STOPPED, "")
    for folder in job.folders(tmp_path):
        with atomic_files.folder_lock(folder):
            pass


def test_node_refuses_a_folder_in_which_another_process_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic_files, "LOCK_GRACE_SECONDS", 0.0)
    monkeypatch.setattr(ray_backend, "LOCK_SECONDS", 0.0)
    [call] = calls(tmp_path, SHORT, seeds=(1,))
    call.folder.mkdir(parents=True)
    (call.folder / child.LOG).write_text("of the run that trains")
    actor = ray_backend.RemoteRun(Job((call,)))
    with (
        atomic_files.folder_lock(call.folder),
        pytest.raises(ConfigError, match=f"process {os.getpid()} is training in"),
    ):
        actor.train(tmp_path)
    assert (call.folder / child.LOG).read_text() == "of the run that trains"


@pytest.mark.skipif(sys.platform != "linux", reason="the signal on a parent's death is Linux's")
def test_a_run_does_not_outlive_the_process_that_started_it(tmp_path: Path) -> None:
    [call] = calls(tmp_path, ENDLESS, seeds=(1,))
    words = [
        "sweep",
        "--tasks",
        TASK,
        "--methods",
        "a2c",
        "--seeds",
        "1",
        "--out",
        str(tmp_path),
        "--",
        *ENDLESS,
    ]
    sweep = subprocess.Popen([sys.executable, "-m", "cclf.cli", *words], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (call.folder / "train.csv").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    sweep.send_signal(signal.SIGKILL)
    sweep.wait()
    pid = int((call.folder / "lock").read_text())
    while (
        Path(f"/proc/{pid}/cmdline").exists()
        and Path(f"/proc/{pid}/cmdline").read_bytes()
        and time.monotonic() < deadline
    ):
        time.sleep(0.1)
    assert "stopped at" in (call.folder / child.LOG).read_text(), "it was asked to save"
