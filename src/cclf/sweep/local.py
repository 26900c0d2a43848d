"""Runs as processes on this machine, as many at a time as cores, memory and GPUs allow."""

import os
from collections import Counter
from collections.abc import Iterable

from cclf.errors import require_extras
from cclf.plugins import import_function
from cclf.storage import machine
from cclf.sweep.child import Child
from cclf.sweep.plan import Job, RunSpec

MEMORY_FRACTION = 0.9  # of the memory that is free at the start


class LocalBackend:
    """Gives each process its cores, its memory and, if there are GPUs, its share of one."""

    def __init__(
        self,
        jobs: int = 0,
        runs_per_gpu: int = 1,
        memory_bytes: int | None = None,
        gpus: tuple[str, ...] | None = None,
    ):
        """`jobs` processes at a time, 0 for as many as cores allow. The memory and the GPUs are by
        default those of this machine."""
        self.cores = machine.usable_processors()
        self.jobs, self.runs_per_gpu = jobs, runs_per_gpu
        if memory_bytes is None:
            memory_bytes = int(MEMORY_FRACTION * machine.available_memory_bytes())
        self.memory_bytes = memory_bytes
        self.gpus = visible_gpus() if gpus is None else gpus
        self.running: dict[Child, str | None] = {}  # the GPU of each process

    def start(self, job: Job) -> Child | None:
        self.running = {
            child: gpu for child, gpu in self.running.items() if child.process.poll() is None
        }
        needs_gpu = bool(self.gpus) and job.first.may_use_gpu
        gpu = self._free_gpu() if needs_gpu else None
        # A run that is too large for this machine is started alone, and reports that itself.
        if self.running and not (self._fits(job) and (gpu is not None or not needs_gpu)):
            return None
        child = Child(job, {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu})
        self.running[child] = gpu
        return child

    def _free_gpu(self) -> str | None:
        used = Counter(self.running.values())
        return next((gpu for gpu in self.gpus if used[gpu] < self.runs_per_gpu), None)

    def _fits(self, job: Job) -> bool:
        jobs = [job, *(child.job for child in self.running)]
        if self.jobs and len(jobs) > self.jobs:
            return False
        if not self.jobs and sum(each.first.cpus for each in jobs) > self.cores:
            return False
        return sum(each.memory_bytes for each in jobs) <= self.memory_bytes

    @property
    def computes_on_gpus(self) -> bool:
        """False also if PyTorch was built without CUDA."""
        from cclf.training.devices import choose_device

        return bool(self.gpus) and choose_device("auto").type == "cuda"

    def check_trainable(self, specs: Iterable[RunSpec]) -> None:
        """Raise the ConfigError of `cclf train` for runs that this machine cannot train."""
        from cclf.training import devices
        from cclf.training.devices import restored_settings

        with restored_settings():
            for config in (spec.config for spec in specs):
                device = devices.choose_device(config.run.device)
                devices.configure_torch(config, device)
                if device.type == "cpu":  # on a GPU this call would query its free memory
                    wanted = config.algorithm.replay_device
                    devices.choose_replay_device(wanted, device, needed_bytes=0)
                if config.run.tracker != "none":
                    require_extras(f"--tracker {config.run.tracker}", [config.run.tracker])
                if "encoder" in config.imported_modules:
                    import_function("encoder", config.algorithm.encoder)

    def close(self) -> None: ...


def visible_gpus() -> tuple[str, ...]:
    """The names of the GPUs that this process may use, as in CUDA_VISIBLE_DEVICES."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return tuple(name.strip() for name in chosen.split(",") if name.strip() not in ("", "-1"))
    return tuple(str(index) for index in range(len(machine.gpus())))
