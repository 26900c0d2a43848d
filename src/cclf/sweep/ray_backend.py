"""Run jobs as tasks on a Ray cluster whose nodes share the folder of the sweep.

If a node or its Ray worker dies, Ray runs the task again on another node, and the run resumes from
its last checkpoint in the shared folder. Every node needs the same version of this package.
"""

import contextlib
import logging
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from cclf import __version__
from cclf.console import say
from cclf.errors import (
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    EXIT_STOPPED,
    FULL_DISK,
    ConfigError,
    short_error,
)
from cclf.storage import machine
from cclf.storage.atomic_files import folder_lock
from cclf.sweep.child import Child
from cclf.sweep.plan import NOT_STARTED, Job, JobEnd, RunSpec, full_disk_message
from cclf.training import subprocesses

OBJECT_STORE_BYTES = 80 * 2**20  # only exit codes and messages pass through it
MAX_RETRIES = 5
LOCK_SECONDS = 60.0  # a run whose worker died may still be saving
POLL_SECONDS = 0.2
LOOPBACK = "127.0.0.1"
CONNECT_SECONDS, ANSWER_SECONDS = 10.0, 40.0  # waiting times after which an address is rejected


class RayBackend:
    """Each job is a Ray task that asks for cores, memory and a share of a GPU if the cluster has
    one."""

    def __init__(self, address: str | None = None, jobs: int = 0, runs_per_gpu: int = 1):
        """`jobs` tasks at a time, 0 for as many as the cluster has resources for. Without an address
        Ray is started on this machine."""
        self.ray = _connect(address or os.environ.get("RAY_ADDRESS"))
        self.jobs, self.runs_per_gpu = jobs, runs_per_gpu
        self.resources: dict[str, float] = self.ray.cluster_resources()
        self.running: list[RayRun] = []
        self._warned = False

    def start(self, job: Job) -> "RayRun | None":
        self.running = [run for run in self.running if not run.ended]
        if self.jobs and len(self.running) >= self.jobs:
            return None
        job.first.out.mkdir(parents=True, exist_ok=True)
        on_nodes = Job(tuple(replace(spec, out=spec.out.resolve()) for spec in job.specs))
        needs = self.resource_request(job)
        self._warn_if_no_node_fits(job, needs)
        task = self.ray.remote(train_job).options(
            num_cpus=needs["CPU"],
            num_gpus=needs["GPU"],
            memory=needs["memory"],
            max_retries=MAX_RETRIES,
        )
        run = RayRun(self.ray, job, task.remote(on_nodes, __version__))
        self.running.append(run)
        return run

    def resource_request(self, job: Job) -> dict[str, float]:
        gpus = (
            1.0 / self.runs_per_gpu if job.first.may_use_gpu and self.resources.get("GPU") else 0.0
        )
        return {"CPU": job.first.cpus, "GPU": gpus, "memory": job.memory_bytes}

    def _warn_if_no_node_fits(self, job: Job, needs: dict[str, float]) -> None:
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        fits = any(all(node.get(name, 0.0) >= needs[name] for name in needs) for node in nodes)
        if fits or self._warned:
            return
        self._warned = True
        what = f"{needs['CPU']:g} cores, {needs['memory'] / 1e9:.1f} GB and {needs['GPU']:g} GPUs"
        say(f"cclf: no node has {what}, which {job.first.label} needs: it waits for one")

    @property
    def computes_on_gpus(self) -> bool:
        return bool(self.resources.get("GPU"))

    def check_trainable(self, specs: Iterable[RunSpec]) -> None:
        """Nothing is checked: the nodes may have other devices and packages than this machine."""

    def close(self) -> None:
        self.ray.shutdown()


def _connect(address: str | None) -> Any:
    """The package ray, connected to the cluster at `address`, or to one that is started here for
    this machine alone."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing is reported to anyone
    if not address:
        # With this variable, which is read when ray is imported, Ray serves one machine only and
        # listens on the loopback interface. Without it Ray replaces 127.0.0.1 by an address that
        # other machines reach, and listens on all interfaces.
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
        _check_reachable(address)
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


def _check_reachable(address: str) -> None:
    """Raise ConfigError unless a Ray cluster answers at this address. Ray itself tries for a quarter of
    an hour."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return  # `auto`, or a word that Ray refuses
    health_check = ("-m", "ray.scripts.scripts", "health-check", "--address", address)
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
        if not address.startswith("ray://"):
            subprocess.run(
                subprocesses.python_command(*health_check),
                env=subprocesses.child_environment(),
                capture_output=True,
                timeout=ANSWER_SECONDS,
                check=True,
            )
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot reach a Ray cluster at {address}: {error}") from error
    except subprocess.SubprocessError as error:
        raise ConfigError(
            f"cannot reach a Ray cluster at {address}: the server there does not answer as a Ray of "
            "this version; check the port and the token"
        ) from error


class RayRun:
    """The task of one job."""

    def __init__(self, ray: Any, job: Job, task: Any):
        self.ray, self.job, self.task = ray, job, task
        self.ended, self._stopping = False, False

    def poll(self) -> JobEnd | None:
        if not self.ray.wait([self.task], timeout=0)[0]:
            return None
        self.ended = True
        return self._end()

    def ask_to_stop(self) -> None:
        self._stopping = True
        self.ray.cancel(self.task)  # a running task gets an interrupt and lets its run save

    def _end(self) -> JobEnd:
        try:
            return JobEnd(*self.ray.get(self.task))
        except self.ray.exceptions.TaskCancelledError:
            return JobEnd(EXIT_STOPPED, NOT_STARTED)
        except (ConfigError, OSError, self.ray.exceptions.RayError) as error:
            # Ray wraps what a task raises.
            cause = error.cause if isinstance(error, self.ray.exceptions.RayTaskError) else error
            if isinstance(cause, ConfigError):
                return JobEnd(EXIT_BAD_INPUT, str(cause))
            if isinstance(cause, OSError) and cause.errno in FULL_DISK:
                return JobEnd(EXIT_FAILED, full_disk_message(self.job.first.out))
            if self._stopping:
                return JobEnd(EXIT_STOPPED, "its node was lost before it had saved")
            return JobEnd(EXIT_FAILED, short_error(error)[-300:])


def train_job(job: Job, version: str) -> JobEnd:
    """The Ray task: one `cclf train` process on a node."""
    out = job.first.out
    host = socket.gethostname()
    if version != __version__:
        raise ConfigError(
            f"{host} has cclf {__version__}, the sweep {version}: install the same on both"
        )
    if not out.is_dir():
        raise ConfigError(
            f"{host} has no folder {out}: a sweep on several nodes needs --out on storage that all "
            "of them share"
        )
    # ray.cancel interrupts the main thread: the run is then asked to save, and its end awaited.
    stop = threading.Event()
    previous = signal.signal(signal.SIGINT, lambda *_: stop.set())
    try:
        for folder in (spec.folder for spec in job.specs):
            if folder.exists():
                with folder_lock(folder, LOCK_SECONDS):
                    pass
        child = Child(job, {})
        is_asked = False
        while child.process.poll() is None:
            if stop.wait(POLL_SECONDS) and not is_asked:
                is_asked = True
                child.ask_to_stop()
            elif is_asked:
                time.sleep(POLL_SECONDS)
        end = child.poll()
        assert end is not None, "the process has ended"
        return end
    finally:
        signal.signal(signal.SIGINT, previous)
