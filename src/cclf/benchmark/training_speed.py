"""Speed of whole training with environments: MiniGrid on all cores, and off-policy algorithms."""

import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.synchronize import Barrier

import torch

from cclf import presets
from cclf.algorithms.registry import make_learner
from cclf.benchmark.updates import (
    WARMUP_UPDATES,
    BenchReport,
    bench_header,
    make_off_policy_learner,
    step_parity,
)
from cclf.config import Config
from cclf.console import say
from cclf.storage.manifest import origin
from cclf.training import devices

# Fills RE3's window of 10,000 observations twice, because its first updates take less time.
WARMUP_FRAMES = 20_000
# Settings of an off-policy benchmark, with which updates soon begin.
SHORT_WARMUP = {"warmup_agent_steps": 300, "replay_capacity_transitions": 20_000}


def bench_minigrid(
    task: str, methods: Sequence[str], processes: int, seconds: float
) -> BenchReport:
    """Frames per second of this machine with `processes` independent runs, one thread each."""
    for method in methods:
        presets.resolve(task, method)  # raises ConfigError for an unknown name
    cpu = torch.device("cpu")
    report: BenchReport = {"task": task, "processes": processes, **origin(cpu)}
    context = multiprocessing.get_context("spawn")
    for method in methods:
        barrier = context.Barrier(processes)
        with context.Pool(processes, _set_barrier, (barrier,)) as pool:
            jobs = [
                pool.apply_async(_frames_per_second, (task, method, seed, seconds))
                for seed in range(processes)
            ]
            report[method] = {"frames_per_second": sum(job.get() for job in jobs)}
    return report


_barrier: Barrier


def _set_barrier(barrier: Barrier) -> None:
    global _barrier
    _barrier = barrier


def _frames_per_second(task: str, method: str, seed: int, seconds: float) -> float:
    torch.set_num_threads(1)
    learner = make_learner(presets.resolve(task, method, seed=seed), torch.device("cpu"))
    frames = 0
    while frames < WARMUP_FRAMES:
        frames += learner.step(frames).agent_steps
    _barrier.wait()  # all processes are timed over the same period
    started, counted = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        counted += learner.step(frames + counted).agent_steps
    return counted / (time.perf_counter() - started)


def bench_loop(config: Config, device_name: str, seconds: float) -> BenchReport:
    """Agent steps per second of training without evaluation (act, update, step and render the
    environment), and the parity of its update."""
    device = devices.choose_device(device_name)
    report = bench_header(config, device)
    config = replace(config, algorithm=replace(config.algorithm, **SHORT_WARMUP))
    devices.configure_torch(config, device)
    learner = make_off_policy_learner(config, device)
    while learner.updates < WARMUP_UPDATES:
        learner.step(0)
    parity = step_parity(config, learner)
    devices.synchronize(device)
    started, steps = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        learner.step(0)
        steps += 1
    devices.synchronize(device)
    rate = steps / (time.perf_counter() - started)
    report[config.method_name] = {
        "agent_steps_per_second": rate,
        "parity": parity,
        "seconds": seconds,
    }
    say(f"{config.method_name}: {rate:.1f} agent steps/s")
    learner.close()
    return report
