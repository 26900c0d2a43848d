"""Speed of updates and of whole training, and step parity: how much the parameter changes of an
update with the configured precision and compilation differ from those of an uncompiled float32 one."""

import itertools
import multiprocessing
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.synchronize import Barrier

import numpy as np
import torch
from torch import Tensor

from cclf import presets
from cclf.algorithms.common.off_policy import OffPolicyLearner
from cclf.algorithms.common.off_policy_base import OffPolicyBase
from cclf.algorithms.registry import algorithm_of, make_learner
from cclf.config import Config, Precision
from cclf.console import say
from cclf.errors import ConfigError
from cclf.storage.manifest import origin
from cclf.training import devices
from cclf.types import OffPolicyAlgorithm

DEFAULT_METHODS = ("cclf", "drq", "curl")
WARMUP_UPDATES = 20
# For step parity. An update in float32 takes seconds on a CPU.
PARITY_BATCHES_ON_GPU, PARITY_BATCHES_ON_CPU = 8, 1
COMPARED_METRICS = {"critic_loss", "target_mean", "curiosity_mean", "contrastive_loss"}
# Twice RE3's window of 10,000 observations. Updates are faster until the window is full.
WARMUP_FRAMES = 20_000
# Settings of `bench_loop`, with which updates begin early.
SHORT_WARMUP = {"warmup_agent_steps": 300, "replay_capacity_transitions": 20_000}

# Task, precision, device, torch, commit and command, and the figures of each method by its name.
BenchReport = dict[str, object]


def bench_updates(configs: Sequence[Config], device_name: str, pairs: int) -> BenchReport:
    """The time of an update with replay sampling, augmentation, priorities, optimizers and target
    networks, and its step parity."""
    device = devices.choose_device(device_name)
    report = bench_header(configs[0], device)
    frames = None
    for config in configs:
        devices.configure_torch(config, device)
        learner = make_off_policy_learner(config, device)
        frames = _random_frames(learner) if frames is None else frames
        _fill_replay(learner, frames)
        report[config.method_name] = figures = _time_updates(config, learner, pairs)
        say(f"{config.method_name}: {figures['median_ms']:.2f} ms")
        learner.close()
    return report


def _time_updates(config: Config, learner: OffPolicyLearner, pairs: int) -> dict[str, object]:
    started = time.perf_counter()
    while learner.updates < WARMUP_UPDATES:
        learner.update(0)
    devices.synchronize(learner.device)
    warmup_seconds = time.perf_counter() - started
    parity = step_parity(config, learner)
    milliseconds = time_update_pairs(learner, pairs, learner.device)
    deciles = statistics.quantiles(milliseconds, n=10)
    return {
        "seconds_to_20_updates": warmup_seconds,
        "parity": parity,
        "median_ms": statistics.median(milliseconds),
        "p10_ms": deciles[0],
        "p90_ms": deciles[-1],
        "parameters": sum(each.numel() for each in learner.algorithm.networks.parameters()),
    }


def bench_header(config: Config, device: torch.device) -> BenchReport:
    return {
        "task": config.task,
        "precision": config.algorithm.precision,
        **origin(device),
    }


def bench_configs(
    task: str, base_name: str | None, methods: Sequence[str], precision: Precision
) -> list[Config]:
    """One config for each of `methods`, or of the default methods if there are none. Raises
    ConfigError unless the algorithm is off-policy with continuous actions."""
    base = presets.select_algorithm(task, base_name)
    if not isinstance(base, OffPolicyBase):
        alternative = f", or cclf bench {base.name}" if base.benchmark() else ""
        raise ConfigError(
            f"{task} is learned with {base.name}, whose updates are not timed here: use a task with "
            f"continuous actions, e.g. toy/reach{alternative}"
        )
    defaults = [name for name in DEFAULT_METHODS if name in base.methods]
    configs = []
    for method in methods or defaults or [base.default_method.name]:
        config = presets.resolve(task, method, base_name=base.name)
        # With this budget the replay has its full capacity.
        config = replace(config, run=replace(config.run, env_steps=10**7))
        configs.append(config.with_settings(precision=precision))
    return configs


def make_off_policy_learner(config: Config, device: torch.device) -> OffPolicyLearner:
    learner = make_learner(config, device)
    assert isinstance(learner, OffPolicyLearner), "bench_configs refuses other algorithms"
    return learner


def _random_frames(learner: OffPolicyLearner, count: int = 500) -> np.ndarray:
    """Frames of the task under random actions, (count, C, H, W). Frames of noise would give
    beliefs, and so selected views, that no task has."""
    random = np.random.default_rng(0)
    frames = [learner.env.reset()]
    while len(frames) < count:
        step = learner.env.step(random.uniform(-1.0, 1.0, learner.env.spec.action_dim))
        frames.append(learner.env.reset() if step.truncated or step.terminated else step.frame)
    return np.stack(frames)


def _fill_replay(learner: OffPolicyLearner, frames: np.ndarray) -> None:
    """Fill every slot with frames in random order, so that a batch reads from all of the replay's
    memory."""
    replay = learner.replay
    source = torch.from_numpy(frames).to(replay.device)
    for start in range(0, replay.slots, 1000):
        block = replay.frames[start : start + 1000]
        block.copy_(source[torch.randint(len(source), (len(block),), device=replay.device)])
    replay.actions.uniform_(-1.0, 1.0)
    replay.rewards.uniform_(0.0, 1.0)
    replay.continuations.fill_(1.0)
    replay.ages.fill_(replay.frame_stack)
    replay.priorities.uniform_(0.1, 1.0)
    learner.agent_steps = learner.settings.warmup_agent_steps


def time_update_pairs(learner: OffPolicyLearner, pairs: int, device: torch.device) -> list[float]:
    """Milliseconds per update, as the mean of each pair of updates, because some algorithms update the
    actor only in every second one. The device is idle afterwards."""
    times = []
    if device.type != "cuda":
        for _ in range(pairs):
            started = time.perf_counter()
            learner.update(0)
            learner.update(0)
            times.append((time.perf_counter() - started) * 1000.0 / 2.0)
        return times
    events = [torch.cuda.Event(enable_timing=True) for _ in range(pairs + 1)]  # type: ignore[no-untyped-call]
    events[0].record()
    for event in events[1:]:
        learner.update(0)
        learner.update(0)
        event.record()
    torch.cuda.synchronize()
    return [first.elapsed_time(second) / 2.0 for first, second in itertools.pairwise(events)]


def step_parity(config: Config, learner: OffPolicyLearner) -> dict[str, float]:
    """Cosines between the parameter changes of an update with `config` and of one with
    `float32_config(config)`, and the largest relative differences of their metrics.

    Both updates start from the same weights and use the same batches. Several batches are needed:
    where two views have almost equal curiosity, rounding decides which of them is selected.
    """
    device = learner.device
    candidates = []
    for candidate in (config, float32_config(config)):
        devices.set_precision(candidate, device)
        make_algorithm = algorithm_of(candidate).make_algorithm
        candidates.append((candidate, make_algorithm(candidate, learner.env.spec, device)))
    env_steps = torch.zeros((), dtype=torch.float64, device=device)  # for the bonus, Eq. (9)
    cosines: list[float] = []
    differences: dict[str, float] = {}
    for _ in range(PARITY_BATCHES_ON_GPU if device.type == "cuda" else PARITY_BATCHES_ON_CPU):
        sample, noise = learner.draw()
        batch, results = sample.to(device), []
        for candidate, algorithm in candidates:
            devices.set_precision(candidate, device)
            algorithm.load_state_dict(learner.algorithm.state_dict())
            before = _parameters(algorithm)
            metrics = algorithm.update(batch, noise, env_steps).metrics
            results.append((_parameters(algorithm) - before, metrics))
        (fast_step, fast), (plain_step, plain) = results
        cosines.append(float(torch.cosine_similarity(fast_step, plain_step, dim=0)))
        for name in plain.keys() & COMPARED_METRICS:
            difference = float((fast[name] - plain[name]).abs() / plain[name].abs())
            differences[name] = max(difference, differences.get(name, 0.0))
    devices.set_precision(config, device)
    return {"step_cosine": statistics.median(cosines), "least_step_cosine": min(cosines)} | {
        f"{name}_relative_difference": value for name, value in sorted(differences.items())
    }


def _parameters(algorithm: OffPolicyAlgorithm) -> Tensor:
    # float64, because the cosine of two equal steps of millions of parameters is 0.9986 in float32
    return torch.cat([each.detach().double().flatten() for each in algorithm.networks.parameters()])


def float32_config(config: Config) -> Config:
    """The same config in float32 and without compilation."""
    config = config.with_settings(precision="fp32")
    return replace(config, run=replace(config.run, compile=False))


# --- whole training


def bench_minigrid(
    task: str, methods: Sequence[str], processes: int, seconds: float
) -> BenchReport:
    """Frames per second of this machine: the sum of `processes` runs with one thread each."""
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
    warmup_frames = 0
    while warmup_frames < WARMUP_FRAMES:
        warmup_frames += learner.step(warmup_frames).agent_steps
    _barrier.wait()  # all processes are timed over the same period
    started, timed_frames = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        timed_frames += learner.step(warmup_frames + timed_frames).agent_steps
    return timed_frames / (time.perf_counter() - started)


def bench_loop(config: Config, device_name: str, seconds: float) -> BenchReport:
    """Agent steps per second of training without evaluation (act, update, step and render the
    environment), and the step parity of its updates."""
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
