"""Speed of whole training, environments included: MiniGrid on all cores, and off-policy methods step
by step."""

import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cclf import presets
from cclf.benchmark.parity import step_parity
from cclf.benchmark.updates import not_timed, off_policy
from cclf.config import Config
from cclf.console import say

if TYPE_CHECKING:
    import numpy as np

    from cclf.algorithms.common.off_policy import OffPolicyLearner
    from cclf.types import Learner, Turn

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


def loop(
    asked: Config,
    device_name: str,
    seeds: Sequence[int],
    seconds: float,
    env_worker: bool = False,
) -> dict[str, Any]:
    """Agent steps per second of whole training but evaluation: act, update, step and draw the
    environment.

    For each number of seeds in `seeds`, that many runs take turns in this process, their
    environments here or each in a process of its own. The parity of their update comes with it.
    """

    from cclf import build
    from cclf.storage.provenance import finish, header
    from cclf.training import devices

    sizes = {"warmup_agent_steps": 300, "replay_capacity_transitions": 20_000}
    if not all(hasattr(asked.algorithm, name) for name in sizes):
        raise not_timed(asked)
    device = devices.choose_device(device_name)
    report, method = header(asked.task, asked.algorithm.precision, device), asked.method_name
    algorithm = replace(asked.algorithm, **sizes)
    config = replace(asked, algorithm=algorithm, run=replace(asked.run, env_worker=env_worker))
    for count in seeds:
        devices.configure_torch(config, device)
        make = build.env_factory(config) if env_worker else _timed_env
        runs = [
            build.make_learner(replace(config, seed=seed), device, make)
            for seed in range(1, count + 1)
        ]
        learners = [off_policy(learner, config) for learner in runs]
        while min(learner.updates for learner in learners) < 20:
            _take_turns(learners)
        agreement = step_parity(config, learners[0])
        finish(device)
        spent: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        stepped_before = _seconds_in_steps(learners)
        started, steps = time.perf_counter(), 0
        while time.perf_counter() - started < seconds:
            _take_turns(learners, spent)
            steps += count  # a turn is one agent step
        finish(device)
        rate = steps / (time.perf_counter() - started)
        spent["environment"] = _seconds_in_steps(learners) - stepped_before
        spent["wait_and_store"] -= spent["environment"]
        host_ms = {name: total / steps * 1e3 for name, total in spent.items()}
        report[f"{method} x {count}"] = {
            "agent_steps_per_second": rate,
            "parity": agreement,
            "runs": count,
            "env_worker": env_worker,
            "seconds": seconds,
            "host_ms_per_step": host_ms,
        }
        say(f"{method}, {count} in turn: {rate:.1f} agent steps/s")
        for learner in learners:
            learner.close()
    return report


# What an off-policy turn does between its yields. The last waits for the action, so for the GPU,
# steps and stores.
PHASES = ("act", "update", "wait_and_store")


def _take_turns(learners: Sequence["Learner"], spent: dict[str, float] | None = None) -> None:
    """A turn of each, part by part; the host's seconds in each phase are added to `spent`."""
    going_on = [learner.turn(0) for learner in learners]
    phase = 0
    while going_on:
        started = time.perf_counter()
        going_on = [turn for turn in going_on if _goes_on(turn)]
        if spent is not None:
            spent[PHASES[min(phase, len(PHASES) - 1)]] += time.perf_counter() - started
        phase += 1


def _goes_on(turn: "Turn") -> bool:
    try:
        next(turn)
    except StopIteration:
        return False
    return True


def _seconds_in_steps(learners: Sequence["OffPolicyLearner"]) -> float:
    """Of environments in this process; those in workers step while it goes on."""
    return sum(getattr(learner.env, "seconds_in_step", 0.0) for learner in learners)


def _timed_env(config: Config, seed: int) -> "TimedEnv":
    from cclf import build

    return TimedEnv(build.env_factory(config)(config, seed))


class TimedEnv:
    """An environment, and the seconds that the calling thread spent in its steps."""

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
