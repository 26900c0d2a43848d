"""Speed, measured. Each figure carries device, commit and command."""

import multiprocessing
import sys
import time
from collections.abc import Sequence
from typing import Any

from cclf import presets

WARMUP_FRAMES = 20_000  # fills RE3's window of 10,000 twice: its first updates are cheaper than the rest


def minigrid(task: str, methods: Sequence[str], processes: int, seconds: float) -> dict[str, Any]:
    """Frames per second of the whole machine: `processes` independent runs at once, each with one thread."""
    from cclf.build import code_version

    for method in methods:
        presets.resolve(task, method)
    report: dict[str, Any] = {
        "task": task,
        "processes": processes,
        "device": "cpu",
        "commit": code_version(),
        "command": " ".join(["cclf", *sys.argv[1:]]),
    }
    context = multiprocessing.get_context("spawn")
    for method in methods:
        barrier = context.Barrier(processes)
        with context.Pool(processes, _share, (barrier,)) as pool:
            jobs = [pool.apply_async(_frames_per_second, (task, method, seed, seconds)) for seed in range(processes)]
            report[method] = {"frames_per_second": sum(job.get() for job in jobs)}
    return report


_barrier: Any = None


def _share(barrier: Any) -> None:
    global _barrier
    _barrier = barrier


def _frames_per_second(task: str, method: str, seed: int, seconds: float) -> float:
    import torch

    from cclf.build import make_learner

    torch.set_num_threads(1)
    learner = make_learner(presets.resolve(task, method, seed=seed), torch.device("cpu"))
    frames = 0
    while frames < WARMUP_FRAMES:
        frames += learner.advance(frames).agent_steps
    _barrier.wait()  # all processes are timed over the same stretch
    started, counted = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        counted += learner.advance(frames + counted).agent_steps
    return counted / (time.perf_counter() - started)
