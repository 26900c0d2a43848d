"""Runs on a Ray cluster. Each is an actor that holds one `cclf train` process; this side asks how it stands.

A node that dies takes its runs with it: each is started anew elsewhere and goes on from its last checkpoint, the one in the
shared folder or, where machines share no files, the one copied here last. Every node needs this package installed; nothing is
sent but the call, and run folders.
"""

import contextlib
import logging
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from cclf import __version__, machine
from cclf.config import ConfigError
from cclf.runtime.files import wait_for_folder
from cclf.sweep import child, run_files
from cclf.sweep.plan import STOPPED, Call, Report, progress
from cclf.sweep.run_files import RunFiles, Stamp

SharedFiles = Literal["detect", "yes", "no"]
OBJECT_STORE_BYTES = 80 * 2**20  # reports and pieces of files are all that passes through it
COPY_EVERY_SECONDS = 30.0
MAX_RESTARTS = 5
LOCK_SECONDS = 60.0  # a run whose node was lost may still be saving
EXIT_LOST = 1


class RayBackend:
    """Asks Ray for a place for each run: cores, memory, a share of a GPU where the cluster has any."""

    def __init__(
        self,
        address: str | None = None,
        jobs: int = 0,
        runs_per_gpu: int = 1,
        shared_files: SharedFiles = "detect",
        copy_every_seconds: float = COPY_EVERY_SECONDS,
    ):
        """`jobs` runs at a time, 0 for as many as the cluster has room for. Without an address Ray is started on this machine."""
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing is reported to anyone
        try:
            import ray
        except ImportError as error:
            raise ConfigError("--backend ray needs the package ray: pip install 'cclf[ray]'") from error
        self.ray, self.jobs, self.runs_per_gpu = ray, jobs, runs_per_gpu
        self.shared_files, self.copy_every_seconds = shared_files, copy_every_seconds
        address = address or os.environ.get("RAY_ADDRESS")
        started_here: dict[str, Any] = {
            "address": "local",
            "num_cpus": machine.usable_processors(),
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE_BYTES,
            "_node_ip_address": "127.0.0.1",
        }
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **({"address": address} if address else started_here))
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ConfigError(f"cannot reach a Ray cluster at {address}: {error}") from error
        self.resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        self.running: list[RayRun] = []

    def start(self, call: Call) -> "RayRun | None":
        self.running = [run for run in self.running if not run.ended]
        if self.jobs and len(self.running) >= self.jobs:
            return None
        run = RayRun(self, call)
        self.running.append(run)
        return run

    def new_actor(self, call: Call) -> Any:
        has_gpus = self.resources.get("GPU", 0.0) > 0.0
        remote = self.ray.remote(RemoteRun).options(
            num_cpus=call.cpus,
            num_gpus=1.0 / self.runs_per_gpu if call.may_use_gpu and has_gpus else 0,
            memory=call.memory_bytes,
            max_restarts=0,
        )
        return remote.remote(call, __version__)

    def places(self, call: Call) -> int:
        """How many such runs the cluster as it is holds side by side."""
        places = [self.resources.get("CPU", 1.0) / call.cpus, self.resources.get("memory", 1.0) / call.memory_bytes]
        if call.may_use_gpu and self.resources.get("GPU"):
            places.append(self.resources["GPU"] * self.runs_per_gpu)
        if self.jobs:
            places.append(self.jobs)
        return max(1, int(min(places)))

    def close(self) -> None:
        self.ray.shutdown()


class RayRun:
    """This side of one run. It asks one question at a time and never waits for the answer, but for the copying of files."""

    def __init__(self, backend: RayBackend, call: Call):
        self.backend, self.call = backend, call
        self.restarts, self.ended, self.stopping = 0, False, False
        self._report = Report()
        self._begin()

    def _begin(self) -> None:
        self._actor = self.backend.new_actor(self.call)
        self._shared: bool | None = None  # known once the actor runs
        self._known: dict[str, Stamp] = {}
        self._copied_at = time.monotonic()
        self._copied_checkpoint = 0
        self._probe = self.call.out / f".probe-{secrets.token_hex(8)}"
        if self.backend.shared_files == "detect":
            self._probe.parent.mkdir(parents=True, exist_ok=True)
            self._probe.touch()
        self._answer = self._actor.sees.remote(self._probe.resolve())

    def poll(self) -> Report:
        errors = self.backend.ray.exceptions
        ready, _ = self.backend.ray.wait([self._answer], timeout=0)
        if not ready:
            return self._report
        try:
            answer = self.backend.ray.get(self._answer)
            if self._shared is None:
                self._go(sees_our_files=answer)
            else:
                self._take(*answer)
        except errors.RayActorError as error:
            self._lost(error)
        except (errors.RayError, OSError, ConfigError) as error:
            self._end(EXIT_LOST, f"{type(error).__name__}: {' '.join(str(error).split())[-300:]}")
        return self._report

    def ask_to_stop(self) -> None:
        self.stopping = True
        if self._shared is None:
            self._end(STOPPED, "not started")
        else:
            self._actor.stop.remote()

    def _go(self, sees_our_files: bool) -> None:
        """The actor has its place: give it what was saved, and let it train."""
        self._probe.unlink(missing_ok=True)
        wanted = self.backend.shared_files
        self._shared = sees_our_files if wanted == "detect" else wanted == "yes"
        if not self._shared:
            run_files.copy(RunFiles(self.call.folder), _FarFiles(self), {})
        self._answer = self._actor.train.remote(self.call.out.resolve() if self._shared else None)

    def _take(self, report: Report, newest_checkpoint: int) -> None:
        self._report = report._replace(exit_code=None)
        if not self._shared:
            is_new = newest_checkpoint != self._copied_checkpoint
            is_time = time.monotonic() - self._copied_at > self.backend.copy_every_seconds
            if report.exit_code is not None or (is_new and is_time):
                try:
                    self._known = run_files.copy(_FarFiles(self), RunFiles(self.call.folder), self._known)
                    self._copied_checkpoint = newest_checkpoint
                except FileNotFoundError:
                    if report.exit_code is not None:
                        raise
                    # a checkpoint gave way to a newer one while it was read: the next copy gets that
                self._copied_at = time.monotonic()
        if report.exit_code is None:
            self._answer = self._actor.report.remote()
        else:
            self.ask("discard")
            self._end(report.exit_code, report.last_line if report.exit_code else str(self.call.folder))

    def _lost(self, error: Exception) -> None:
        """The node, or Ray's process on it, is gone."""
        self.backend.ray.kill(self._actor)
        if self.stopping:
            self._end(STOPPED, "its node was lost while it was asked to save; the checkpoint before is kept")
        elif self.restarts == MAX_RESTARTS:
            self._end(EXIT_LOST, f"lost {MAX_RESTARTS + 1} times with its node: {' '.join(str(error).split())[:200]}")
        else:
            self.restarts += 1
            self._begin()

    def _end(self, exit_code: int, last_line: str) -> None:
        self.ended = True
        self._probe.unlink(missing_ok=True)
        self._report = self._report._replace(exit_code=exit_code, last_line=last_line)
        self.backend.ray.kill(self._actor)

    def ask(self, method: str, *arguments: Any) -> Any:
        return self.backend.ray.get(getattr(self._actor, method).remote(*arguments))


class _FarFiles:
    """The run folder on the other machine."""

    def __init__(self, run: RayRun):
        self._run = run

    def listing(self) -> dict[str, Stamp]:
        found: dict[str, Stamp] = self._run.ask("files", "listing")
        return found

    def read(self, name: str, start: int) -> bytes:
        piece: bytes = self._run.ask("files", "read", name, start)
        return piece

    def write(self, name: str, start: int, data: bytes) -> None:
        self._run.ask("files", "write", name, start, data)

    def arrange(self, names: Mapping[str, Stamp]) -> None:
        self._run.ask("files", "arrange", names)


class RemoteRun:
    """The actor: one `cclf train` process on a node. Where files are not shared it works in a temporary folder."""

    def __init__(self, call: Call, version: str):
        if version != __version__:
            raise ConfigError(f"this node has cclf {__version__}, the sweep {version}: install the same on both")
        self.call = call
        self.process: subprocess.Popen[bytes] | None = None
        self._temporary = tempfile.mkdtemp(prefix="cclf-")
        self.out = Path(self._temporary)

    def sees(self, probe: Path) -> bool:
        return probe.exists()

    def files(self, method: Literal["listing", "read", "write", "arrange"], *arguments: Any) -> Any:
        return getattr(RunFiles(self._folder), method)(*arguments)

    def train(self, out: Path | None) -> tuple[Report, int]:
        self.out = out or self.out
        with contextlib.suppress(ConfigError):  # the run itself says it better
            wait_for_folder(self._folder, LOCK_SECONDS)
        self.process = child.start(self.call, self.out, {})
        return self.report()

    def report(self) -> tuple[Report, int]:
        """How the run stands, and the number of its newest checkpoint."""
        assert self.process is not None, "train comes before report"
        exit_code = self.process.poll()
        serials = [int(path.parent.name) for path in (self._folder / "checkpoint").glob("[0-9]*[0-9]/index.json")]
        words = "" if exit_code is None else child.last_words(self._folder)
        return progress(self._folder)._replace(exit_code=exit_code, last_line=words), max(serials, default=0)

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)

    def discard(self) -> None:
        """Leave nothing on this machine but what is in a shared folder."""
        shutil.rmtree(self._temporary, ignore_errors=True)

    @property
    def _folder(self) -> Path:
        return self.out / self.call.config.run_name()
