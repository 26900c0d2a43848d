"""Runs as processes on this machine, as many at a time as cores, memory and GPUs allow."""

import os
import signal
import subprocess

from cclf import machine
from cclf.sweep import child
from cclf.sweep.plan import Call, Report, progress

MEMORY_SHARE = 0.9  # of what is free at the start


class LocalBackend:
    """A place for each run: its cores, its forecast of memory, and its share of a GPU where there is one.

    One process is one call. To train several seeds of a GPU method in one process, let `start` take what else is waiting.
    """

    def __init__(
        self, jobs: int = 0, runs_per_gpu: int = 1, memory_bytes: int | None = None, gpus: tuple[str, ...] | None = None
    ):
        """`jobs` runs at a time, 0 for as many as there are cores; memory and GPUs are those of this machine unless given."""
        self.cores = machine.usable_processors()
        self.jobs = jobs
        self.memory_bytes = int(MEMORY_SHARE * machine.available_memory_bytes()) if memory_bytes is None else memory_bytes
        self.free_gpu_places = [name for name in (visible_gpus() if gpus is None else gpus) for _ in range(runs_per_gpu)]
        self._has_gpus = bool(self.free_gpu_places)
        self.running: list[LocalRun] = []

    def start(self, call: Call) -> "LocalRun | None":
        self.running = [run for run in self.running if run.process.poll() is None]
        if not self.has_room(call):
            return None
        gpu = self.free_gpu_places.pop(0) if call.may_use_gpu and self._has_gpus else None
        run = LocalRun(call, gpu, self.free_gpu_places)
        self.running.append(run)
        return run

    def has_room(self, call: Call) -> bool:
        if not self.running:
            return True  # what is too large for this machine is refused by the run itself, with its reasons
        if self.jobs and len(self.running) >= self.jobs:
            return False
        if not self.jobs and sum(run.call.cpus for run in self.running) + call.cpus > self.cores:
            return False
        if sum(run.call.memory_bytes for run in self.running) + call.memory_bytes > self.memory_bytes:
            return False
        return bool(self.free_gpu_places) or not (call.may_use_gpu and self._has_gpus)

    def places(self, call: Call) -> int:
        """How many such runs fit side by side."""
        places = [self.jobs or self.cores // call.cpus, self.memory_bytes // call.memory_bytes]
        if call.may_use_gpu and self._has_gpus:
            places.append(len(self.free_gpu_places))
        return max(1, min(places))

    def close(self) -> None: ...


class LocalRun:
    def __init__(self, call: Call, gpu: str | None, free_gpu_places: list[str]):
        self.call, self.gpu, self._free_gpu_places = call, gpu, free_gpu_places
        self.process: subprocess.Popen[bytes] = child.start(call, call.out, {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu})

    def poll(self) -> Report:
        report = progress(self.call.folder)
        exit_code = self.process.poll()
        if exit_code is None:
            return report
        if self.gpu is not None:
            self._free_gpu_places.append(self.gpu)
            self.gpu = None
        return report._replace(exit_code=exit_code, last_line=child.last_words(self.call.folder))

    def ask_to_stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)  # to one that has ended it does nothing


def visible_gpus() -> tuple[str, ...]:
    """GPUs by the names that CUDA_VISIBLE_DEVICES takes."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return tuple(name.strip() for name in chosen.split(",") if name.strip() not in ("", "-1"))
    return tuple(str(index) for index in range(len(machine.gpus())))
