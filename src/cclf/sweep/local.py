"""Runs as processes on this machine, as many at a time as cores, memory and GPUs allow."""

import os
import signal
import subprocess
from collections.abc import Iterable

from cclf.errors import require_extras
from cclf.plugins import import_function
from cclf.storage import machine
from cclf.sweep.child import Child
from cclf.sweep.plan import Job, RunSpec, RunStatus

MEMORY_SHARE = 0.9  # of the memory that is free at the start


class LocalBackend:
    """Gives each process its cores, its memory and, if there are GPUs, its share of one."""

    def __init__(
        self,
        jobs: int = 0,
        runs_per_gpu: int = 1,
        memory_bytes: int | None = None,
        gpus: tuple[str, ...] | None = None,
    ):
        """`jobs` processes at a time, 0 for as many as cores allow; by default with the memory and
        the GPUs of this machine."""
        self.cores = machine.usable_processors()
        self.jobs = jobs
        if memory_bytes is None:
            memory_bytes = int(MEMORY_SHARE * machine.available_memory_bytes())
        self.memory_bytes = memory_bytes
        names = visible_gpus() if gpus is None else gpus
        self.free_gpus = [name for name in names for _ in range(runs_per_gpu)]
        self._has_gpus = bool(self.free_gpus)
        self.running: list[LocalRun] = []

    def start(self, job: Job) -> "LocalRun | None":
        self.running = [run for run in self.running if run.process.poll() is None]
        if not self.fits(job):
            return None
        gpu = self.free_gpus[0] if self._uses_gpu(job) else None
        run = LocalRun(job, gpu, self.free_gpus)
        if gpu is not None:  # not before: a run that cannot be started uses no GPU
            self.free_gpus.pop(0)
        self.running.append(run)
        return run

    def _uses_gpu(self, job: Job) -> bool:
        return self._has_gpus and job.first.may_use_gpu

    def fits(self, job: Job) -> bool:
        if not self.running:
            return True  # a run that is too large for this machine reports that itself
        jobs = [job, *(run.job for run in self.running)]
        if self.jobs and len(jobs) > self.jobs:
            return False
        if not self.jobs and sum(each.first.cpus for each in jobs) > self.cores:
            return False
        if sum(each.memory_bytes for each in jobs) > self.memory_bytes:
            return False
        return bool(self.free_gpus) or not self._uses_gpu(job)

    @property
    def computes_on_gpus(self) -> bool:
        """False also if PyTorch was built without CUDA."""
        from cclf.training.devices import choose_device

        return self._has_gpus and choose_device("auto").type == "cuda"

    def refuse_unfit(self, specs: Iterable[RunSpec]) -> None:
        """Raise the ConfigError of `cclf train` for runs that this machine cannot train."""
        from cclf.training import devices
        from cclf.training.torch_settings import restored_settings

        with restored_settings():
            for config in (spec.config for spec in specs):
                device = devices.choose_device(config.run.device)
                devices.configure_torch(config, device)
                if device.type == "cpu":  # on a GPU this would ask for its free memory
                    wanted = config.algorithm.replay_device
                    devices.choose_replay_device(wanted, device, needed_bytes=0)
                if config.run.tracker != "none":
                    require_extras(f"--tracker {config.run.tracker}", [config.run.tracker])
                if "encoder" in config.imported_modules:
                    import_function("encoder", config.algorithm.encoder)

    def close(self) -> None: ...


class LocalRun:
    def __init__(self, job: Job, gpu: str | None, free_gpus: list[str]):
        self.job, self.gpu, self._free_gpus = job, gpu, free_gpus
        environment = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
        self._child = Child(job, job.first.out, environment)

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        return self._child.process

    def poll(self) -> list[RunStatus]:
        statuses = self._child.statuses()
        if statuses[0].exit_code is not None and self.gpu is not None:
            self._free_gpus.append(self.gpu)
            self.gpu = None
        return statuses

    def ask_to_stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)  # without effect if it has ended


def visible_gpus() -> tuple[str, ...]:
    """GPUs by the names that CUDA_VISIBLE_DEVICES takes."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return tuple(name.strip() for name in chosen.split(",") if name.strip() not in ("", "-1"))
    return tuple(str(index) for index in range(len(machine.gpus())))
