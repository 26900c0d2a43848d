"""Runs on a Ray cluster. Each is an actor that holds one `cclf train` process; this side asks how
it stands.

A node that dies takes its runs with it: each is started anew elsewhere and goes on from its last
checkpoint, the one in the shared folder or, where machines share no files, the one copied here
last. Every node needs this package installed; nothing is sent but the call, and run folders.
"""

import contextlib
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from cclf import __version__
from cclf.console import say
from cclf.errors import ConfigError
from cclf.storage import machine
from cclf.storage.atomic_files import folder_lock, wait_until_unlocked
from cclf.sweep import run_files
from cclf.sweep.child import Child
from cclf.sweep.plan import (
    BAD_INPUT,
    FAILED,
    FULL_DISK,
    NOT_STARTED,
    STOPPED,
    Call,
    Job,
    RunStatus,
    full_disk,
)
from cclf.sweep.run_files import RunFiles, Stamp
from cclf.training import subprocesses

SharedFiles = Literal["detect", "yes", "no"]
OBJECT_STORE_BYTES = 80 * 2**20  # reports and pieces of files are all that passes through it
COPY_EVERY_SECONDS = 30.0
REPORT_EVERY_SECONDS = 0.5
MAX_RESTARTS = 5
LOCK_SECONDS = 60.0  # a run whose node was lost may still be saving
EXIT_LOST = 1
LOOPBACK = "127.0.0.1"
CONNECT_SECONDS, ANSWER_SECONDS = 10.0, 40.0  # for a cluster that was named, before it is refused


class RayBackend:
    """Asks Ray for a place for each run: cores, memory, a share of a GPU where the cluster has
    any."""

    def __init__(
        self,
        address: str | None = None,
        jobs: int = 0,
        runs_per_gpu: int = 1,
        shared_files: SharedFiles = "detect",
        copy_every_seconds: float = COPY_EVERY_SECONDS,
    ):
        """`jobs` processes at a time, 0 for as many as the cluster holds. Without an address Ray is
        started on this machine."""
        self.ray, self.jobs, self.runs_per_gpu = (
            _connected(address or os.environ.get("RAY_ADDRESS")),
            jobs,
            runs_per_gpu,
        )
        self.shared_files, self.copy_every_seconds = shared_files, copy_every_seconds
        self.resources: dict[str, float] = self.ray.cluster_resources()
        self.running: list[RayRun] = []
        self._told = False

    def start(self, job: Job) -> "RayRun | None":
        self.running = [run for run in self.running if not run.ended]
        if self.jobs and len(self.running) >= self.jobs:
            return None
        run = RayRun(self, job)
        self.running.append(run)
        return run

    def needs(self, job: Job) -> dict[str, float]:
        gpus = (
            1.0 / self.runs_per_gpu if job.first.may_use_gpu and self.resources.get("GPU") else 0.0
        )
        return {"CPU": job.first.cpus, "GPU": gpus, "memory": job.memory_bytes}

    @property
    def computes_on_gpus(self) -> bool:
        return bool(self.resources.get("GPU"))

    def new_actor(self, job: Job) -> Any:
        needs = self.needs(job)
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        if not self._told and not any(
            all(node.get(name, 0.0) >= needs[name] for name in needs) for node in nodes
        ):
            self._told = True
            what = (
                f"{needs['CPU']:g} cores, {needs['memory'] / 1e9:.1f} GB and {needs['GPU']:g} GPUs"
            )
            say(f"cclf: no node has {what}, as {job.first.label} needs: it waits for one")
        remote = self.ray.remote(RemoteRun).options(
            num_cpus=needs["CPU"], num_gpus=needs["GPU"], memory=needs["memory"]
        )
        return remote.remote(job)

    def refuse_unfit(self, calls: Iterable[Call]) -> None:
        """Nothing: devices and packages are those of the nodes, and may differ."""

    def close(self) -> None:
        self.ray.shutdown()


def _connected(address: str | None) -> Any:
    """The package ray, connected to the cluster at `address`, or to one that is started here for
    this machine alone."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing is reported to anyone
    if not address:
        # By this name Ray keeps to the loopback interface where it runs on one machine; read when
        # it is imported. Without it Ray replaces 127.0.0.1 by an address that others reach, and
        # listens on all interfaces.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    try:
        import ray
    except ImportError as error:
        raise ConfigError("--backend ray needs the package ray: pip install 'cclf[ray]'") from error
    started_here: dict[str, Any] = {
        "address": "local",
        "num_cpus": machine.usable_processors(),
        "include_dashboard": False,
        "object_store_memory": OBJECT_STORE_BYTES,
        "_node_ip_address": LOOPBACK,
    }
    if address:
        _refuse_silence(address)
    try:
        # Ray's workers look for modules in the folder that it is started in, which may be a run
        # folder from a stranger.
        with contextlib.chdir(os.path.abspath(os.sep)):
            ray.init(
                log_to_driver=False,
                logging_level=logging.ERROR,
                **({"address": address} if address else started_here),
            )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(f"cannot reach a Ray cluster at {address}: {error}") from error
    if not address and (reached_at := ray.util.get_node_ip_address()) != LOOPBACK:  # type: ignore[no-untyped-call]
        say(f"cclf: Ray was imported before and listens at {reached_at}, not on loopback alone")
    return ray


def _refuse_silence(address: str) -> None:
    """Ray itself waits for a quarter of an hour where nothing answers: ask first, for less than a
    minute in all."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return  # `auto`, or a word that Ray refuses at once
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot reach a Ray cluster at {address}: {error}") from error
    if address.startswith("ray://"):
        return
    words = subprocesses.python_command(
        "-m", "ray.scripts.scripts", "health-check", "--address", address
    )
    try:
        subprocess.run(
            words,
            env=subprocesses.child_environment(),
            capture_output=True,
            timeout=ANSWER_SECONDS,
            check=True,
        )
    except subprocess.SubprocessError as error:
        what = "something listens there, but it does not answer as a Ray of this version would; is the port right, and the token?"
        raise ConfigError(f"cannot reach a Ray cluster at {address}: {what}") from error


class RayRun:
    """This side of one process. It asks one question at a time and never waits for the answer, but
    for the copying of files."""

    def __init__(self, backend: RayBackend, job: Job):
        self.backend, self.job, self.out = backend, job, job.first.out
        self.restarts, self.ended, self.stopping = 0, False, False
        self._reports = [RunStatus() for _ in job.calls]
        self._held = contextlib.ExitStack()
        self._holds_folders = False
        self._begin()

    def _begin(self) -> None:
        self._probe = self.out / f".probe-{secrets.token_hex(8)}"
        if self.backend.shared_files == "detect":
            self._probe.parent.mkdir(parents=True, exist_ok=True)
            self._probe.touch()
        self._actor = self.backend.new_actor(self.job)
        self._shared: bool | None = None  # known once the actor runs
        self._known: list[dict[str, Stamp]] = [{} for _ in self.job.calls]
        self._copied_at = time.monotonic()
        self._copied_checkpoints: list[int] = []
        self._answer = self._actor.sees.remote(self._probe.resolve(), __version__)

    def poll(self) -> list[RunStatus]:
        errors = self.backend.ray.exceptions
        if self._answer is None and time.monotonic() > self._ask_at:
            self._answer = self._actor.report.remote()
        if self._answer is None or not self.backend.ray.wait([self._answer], timeout=0)[0]:
            return self._reports
        try:
            answer = self.backend.ray.get(self._answer)
            if self._shared is None:
                self._go(sees_our_files=answer)
            else:
                self._take(*answer)
        except (ConfigError, errors.RayError, OSError) as error:
            self._give_up(error)
        return self._reports

    def _give_up(self, error: Exception) -> None:
        """On a run that was refused or lost; one whose node was lost is started anew."""
        cause = getattr(error, "cause", None) or error  # what Ray wraps
        if isinstance(error, self.backend.ray.exceptions.RayActorError):
            try:
                self._lost(error)
            except OSError as unable:
                self._give_up(unable)
        elif isinstance(error, ConfigError):
            self._end(BAD_INPUT, str(cause))
        elif getattr(cause, "errno", None) in FULL_DISK:
            self._end(FAILED, full_disk(self.out))
        else:
            self._end(EXIT_LOST, f"{type(error).__name__}: {' '.join(str(error).split())[-300:]}")

    def ask_to_stop(self) -> None:
        self.stopping = True
        if self._shared is None:
            self._end(STOPPED, NOT_STARTED)
        else:
            self._actor.stop.remote()

    def _go(self, sees_our_files: bool) -> None:
        """The actor has its place: give it what was saved, and let it train."""
        self._probe.unlink(missing_ok=True)
        wanted = self.backend.shared_files
        self._shared = sees_our_files if wanted == "detect" else wanted == "yes"
        if not self._shared:
            self._hold_folders()
            for number, folder in enumerate(self.job.folders(self.out)):
                run_files.copy(RunFiles(folder), _FarFiles(self, number), {})
        self._answer = self._actor.train.remote(self.out.resolve() if self._shared else None)

    def _hold_folders(self) -> None:
        """The process on the other machine cannot hold those here, to which its files are copied."""
        if not self._holds_folders:
            for folder in self.job.folders(self.out):
                folder.mkdir(parents=True, exist_ok=True)
                self._held.enter_context(folder_lock(folder))
            self._holds_folders = True

    def _take(self, reports: list[RunStatus], newest_checkpoints: list[int]) -> None:
        exit_code, last_line = reports[0].exit_code, reports[0].last_line
        self._reports = [report._replace(exit_code=None) for report in reports]
        if not self._shared:
            is_new = newest_checkpoints != self._copied_checkpoints
            is_time = time.monotonic() - self._copied_at > self.backend.copy_every_seconds
            if exit_code is not None:
                self._copy()
            elif is_new and is_time:
                # Where a checkpoint gave way to a newer one while it was read, the next copy gets
                # that.
                with contextlib.suppress(FileNotFoundError):
                    self._copy()
                    self._copied_checkpoints = newest_checkpoints
                self._copied_at = time.monotonic()
        if exit_code is None:
            self._answer, self._ask_at = None, time.monotonic() + REPORT_EVERY_SECONDS
        else:
            self.ask("discard")
            self._end(exit_code, last_line)

    def _copy(self) -> None:
        for number, folder in enumerate(self.job.folders(self.out)):
            self._known[number] = run_files.copy(
                _FarFiles(self, number), RunFiles(folder), self._known[number]
            )

    def _lost(self, error: Exception) -> None:
        """The node, or Ray's process on it, is gone."""
        self.backend.ray.kill(self._actor)
        if self.stopping:
            self._end(
                STOPPED,
                "its node was lost while it was asked to save; the checkpoint before is kept",
            )
        elif self.restarts == MAX_RESTARTS:
            self._end(
                EXIT_LOST,
                f"lost {MAX_RESTARTS + 1} times with its node: "
                f"{' '.join(str(error).split())[-300:]}",
            )
        else:
            self.restarts += 1
            self._begin()

    def _end(self, exit_code: int, last_line: str) -> None:
        self.ended = True
        self._held.close()
        self._probe.unlink(missing_ok=True)
        self._reports = [
            report._replace(exit_code=exit_code, last_line=last_line) for report in self._reports
        ]
        self.backend.ray.kill(self._actor)

    def ask(self, method: str, *arguments: Any) -> Any:
        return self.backend.ray.get(getattr(self._actor, method).remote(*arguments))


class _FarFiles:
    """A run folder on the other machine."""

    def __init__(self, run: RayRun, number: int):
        self._run, self._number = run, number

    def listing(self) -> dict[str, Stamp]:
        found: dict[str, Stamp] = self._run.ask("files", self._number, "listing")
        return found

    def read(self, name: str, start: int) -> bytes:
        piece: bytes = self._run.ask("files", self._number, "read", name, start)
        return piece

    def write(self, name: str, start: int, data: bytes) -> None:
        self._run.ask("files", self._number, "write", name, start, data)

    def arrange(self, names: Mapping[str, Stamp]) -> None:
        self._run.ask("files", self._number, "arrange", names)


class RemoteRun:
    """The actor: one `cclf train` process on a node. Where files are not shared it works in a
    temporary folder."""

    def __init__(self, job: Job):
        self.job = job
        self._child: Child | None = None
        self._shared_out: Path | None = None

    def sees(self, probe: Path, version: str) -> bool:
        """Whether the sweep's files are here too; refuses to work for a sweep of another
        version."""
        if version != __version__:
            raise ConfigError(
                f"{socket.gethostname()} has cclf {__version__}, the sweep {version}: install the "
                "same on both"
            )
        return probe.exists()

    def files(
        self, number: int, method: Literal["listing", "read", "write", "arrange"], *arguments: Any
    ) -> Any:
        return getattr(RunFiles(self.job.folders(self.out)[number]), method)(*arguments)

    def train(self, out: Path | None) -> tuple[list[RunStatus], list[int]]:
        self._shared_out = out
        for folder in self.job.folders(self.out):
            wait_until_unlocked(folder, LOCK_SECONDS)
        self._child = Child(self.job, self.out, {})
        return self.report()

    def report(self) -> tuple[list[RunStatus], list[int]]:
        """How the runs stand, and the numbers of their newest checkpoints."""
        assert self._child is not None, "train comes before report"
        reports = self._child.statuses()
        return reports, [_newest_checkpoint(folder) for folder in self.job.folders(self.out)]

    def stop(self) -> None:
        if self._child is not None:
            self._child.process.send_signal(signal.SIGTERM)

    def discard(self) -> None:
        """Leave nothing on this machine but what is in a shared folder."""
        if self._shared_out is None:
            shutil.rmtree(self.out, ignore_errors=True)

    @property
    def out(self) -> Path:
        return self._shared_out or self._own_out

    @cached_property
    def _own_out(self) -> Path:
        return Path(tempfile.mkdtemp(prefix="cclf-"))


def _newest_checkpoint(folder: Path) -> int:
    return max(
        (int(path.parent.name) for path in (folder / "checkpoint").glob("[0-9]*[0-9]/index.json")),
        default=0,
    )
