"""Speed of whole training, environments included: MiniGrid on all cores, and off-policy methods step
by step."""

import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from cclf import presets
from cclf.benchmark.parity import step_parity
from cclf.benchmark.updates import not_timed, off_policy
from cclf.config import Config
from cclf.console import say

if TYPE_CHECKING:
    import numpy as np

    from cclf.types import Env

# fills RE3's window of 10,000 twice: its first updates are cheaper than the rest
WARMUP_FRAMES = 20_000


def minigrid(task: str, methods: Sequence[str], processes: int, seconds: float) -> dict[str, Any]:
    """Frames per second of the whole machine: `processes` independent runs at once, each with one
    thread."""
    import torch

    from cclf.storage.provenance import origin

    for method in methods:
        presets.resolve(task, method)
    report: dict[str, Any] = {"task": task, "processes": processes, **origin(torch.device("cpu"))}
    context = multiprocessing.get_context("spawn")
    for method in methods:
        barrier = context.Barrier(processes)
        with context.Pool(processes, _share, (barrier,)) as pool:
            jobs = [
                pool.apply_async(_frames_per_second, (task, method, seed, seconds))
                for seed in range(processes)
            ]
            report[method] = {"frames_per_second": sum(job.get() for job in jobs)}
    return report


_barrier: Any = None


def _share(barrier: Any) -> None:
    global _barrier
    _barrier = barrier


def _frames_per_second(task: str, method: str, seed: int, seconds: float) -> float:
    import torch

    from cclf.algorithms.registry import make_learner

    torch.set_num_threads(1)
    learner = make_learner(presets.resolve(task, method, seed=seed), torch.device("cpu"))
    frames = 0
    while frames < WARMUP_FRAMES:
        frames += learner.step(frames).agent_steps
    _barrier.wait()  # all processes are timed over the same stretch
    started, counted = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        counted += learner.step(frames + counted).agent_steps
    return counted / (time.perf_counter() - started)


def loop(config: Config, device_name: str, seconds: float) -> dict[str, Any]:
    """Agent steps per second of whole training without evaluation: act, update, step and render the
    environment. The report includes the parity of the update."""
    from cclf.algorithms.registry import make_learner
    from cclf.storage.provenance import finish, header
    from cclf.training import devices

    sizes = {"warmup_agent_steps": 300, "replay_capacity_transitions": 20_000}
    if not all(hasattr(config.algorithm, name) for name in sizes):
        raise not_timed(config)
    device = devices.choose_device(device_name)
    report = header(config.task, config.algorithm.precision, device)
    config = replace(config, algorithm=replace(config.algorithm, **sizes))
    devices.configure_torch(config, device)
    learner = off_policy(make_learner(config, device), config)
    env = TimedEnv(learner.env)
    learner.env = cast("Env", env)
    while learner.updates < 20:
        learner.step(0)
    agreement = step_parity(config, learner)
    finish(device)
    env.seconds_in_step = 0.0
    started, steps = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        learner.step(0)
        steps += 1
    finish(device)
    rate = steps / (time.perf_counter() - started)
    report[config.method_name] = {
        "agent_steps_per_second": rate,
        "parity": agreement,
        "seconds": seconds,
        "host_ms_per_step": {"environment": env.seconds_in_step / steps * 1e3},
    }
    say(f"{config.method_name}: {rate:.1f} agent steps/s")
    learner.close()
    return report


class TimedEnv:
    """An environment, with the seconds that its steps took."""

    def __init__(self, env: Any):
        self._env, self.seconds_in_step = env, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def step(self, action: "np.ndarray") -> Any:
        started = time.perf_counter()
        try:
            return self._env.step(action)
        finally:
            self.seconds_in_step += time.perf_counter() - started
