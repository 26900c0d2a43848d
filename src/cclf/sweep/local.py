"""Runs as processes on this machine, as many at a time as cores, memory and GPUs allow."""

import os
import signal
import subprocess
from collections.abc import Iterable

from cclf.errors import require_extras
from cclf.plugins import import_function
from cclf.storage import machine
from cclf.sweep.child import Child
from cclf.sweep.plan import Call, Job, RunStatus

MEMORY_SHARE = 0.9  # of what is free at the start


class LocalBackend:
    """A place for each process: its cores, its forecast of memory, and its share of a GPU where
    there is one."""

    def __init__(
        self,
        jobs: int = 0,
        runs_per_gpu: int = 1,
        memory_bytes: int | None = None,
        gpus: tuple[str, ...] | None = None,
    ):
        """`jobs` processes at a time, 0 for as many as cores allow; memory and GPUs are those of
        this machine unless given."""
        self.cores = machine.usable_processors()
        self.jobs = jobs
        self.memory_bytes = (
            int(MEMORY_SHARE * machine.available_memory_bytes())
            if memory_bytes is None
            else memory_bytes
        )
        self.free_gpu_places = [
            name for name in (visible_gpus() if gpus is None else gpus) for _ in range(runs_per_gpu)
        ]
        self._has_gpus = bool(self.free_gpu_places)
        self.running: list[LocalRun] = []

    def start(self, job: Job) -> "LocalRun | None":
        self.running = [run for run in self.running if run.process.poll() is None]
        if not self.has_room(job):
            return None
        gpu = self.free_gpu_places[0] if job.first.may_use_gpu and self._has_gpus else None
        run = LocalRun(job, gpu, self.free_gpu_places)
        if gpu is not None:  # only now: a run that cannot be started takes no place
            self.free_gpu_places.pop(0)
        self.running.append(run)
        return run

    def has_room(self, job: Job) -> bool:
        if not self.running:
            # what is too large for this machine is refused by the run itself, with its reasons
            return True
        if self.jobs and len(self.running) >= self.jobs:
            return False
        if (
            not self.jobs
            and sum(run.job.first.cpus for run in self.running) + job.first.cpus > self.cores
        ):
            return False
        if sum(run.job.memory_bytes for run in self.running) + job.memory_bytes > self.memory_bytes:
            return False
        return bool(self.free_gpu_places) or not (job.first.may_use_gpu and self._has_gpus)

    @property
    def computes_on_gpus(self) -> bool:
        """PyTorch may be one without CUDA."""
        from cclf.training.devices import choose_device

        return self._has_gpus and choose_device("auto").type == "cuda"

    def refuse_unfit(self, calls: Iterable[Call]) -> None:
        """Refuse, as `cclf train` would, what no machine like this one can run, before the first
        process is started."""
        from cclf.training import devices
        from cclf.training.torch_settings import restored_settings

        with restored_settings():
            for config in (call.config for call in calls):
                device = devices.choose_device(config.run.device)
                devices.configure_torch(config, device)
                if device.type == "cpu":  # with a GPU it would be asked for its memory
                    wanted = config.algorithm.replay_device
                    devices.choose_replay_device(wanted, device, needed_bytes=0)
                if config.run.tracker != "none":
                    require_extras(f"--tracker {config.run.tracker}", [config.run.tracker])
                if "encoder" in config.imported_modules:
                    import_function("encoder", config.algorithm.encoder)

    def close(self) -> None: ...


class LocalRun:
    def __init__(self, job: Job, gpu: str | None, free_gpu_places: list[str]):
        self.job, self.gpu, self._free_gpu_places = job, gpu, free_gpu_places
        environment = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
        self._child = Child(job, job.first.out, environment)

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        return self._child.process

    def poll(self) -> list[RunStatus]:
        reports = self._child.statuses()
        if reports[0].exit_code is not None and self.gpu is not None:
            self._free_gpu_places.append(self.gpu)
            self.gpu = None
        return reports

    def ask_to_stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)  # to one that has ended it does nothing


def visible_gpus() -> tuple[str, ...]:
    """GPUs by the names that CUDA_VISIBLE_DEVICES takes."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return tuple(name.strip() for name in chosen.split(",") if name.strip() not in ("", "-1"))
    return tuple(str(index) for index in range(len(machine.gpus())))
