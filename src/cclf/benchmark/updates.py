"""Milliseconds per update of off-policy algorithms."""

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NotRequired, TypedDict

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from cclf import presets
from cclf.algorithms.common.off_policy import OffPolicyLearner
from cclf.algorithms.registry import algorithm_of, make_learner
from cclf.benchmark.parity import float32_config, step_parity, zero_clock
from cclf.config import Config, Precision
from cclf.console import say
from cclf.errors import ConfigError
from cclf.storage.manifest import origin
from cclf.training import devices
from cclf.types import Learner

DEFAULT_METHODS = ("cclf", "drq", "curl")
WARMUP_UPDATES = 20

# Task, precision, device, torch, commit and command, and an entry for each method.
BenchReport = dict[str, object]


class HardwareLimits(TypedDict):
    """The best that a GPU reaches: a large matrix product and a large copy."""

    bf16_matrix_teraflop_per_second: float
    copy_terabyte_per_second: float


class UpdateFigures(TypedDict):
    seconds_to_20_updates: float
    parity: dict[str, float]
    median_ms: float
    p10_ms: float
    p90_ms: float
    parameters: int
    teraflop: float  # of one update without anything computed twice
    share_of_matrix_rate: NotRequired[float]


def bench_updates(configs: Sequence[Config], device_name: str, pairs: int) -> BenchReport:
    """The time of an update with replay sampling, augmentation, priorities, optimizers and target
    networks, and its parity with the plain float32 update."""
    device = devices.choose_device(device_name)
    report: BenchReport = {**bench_header(configs[0], device)}
    limits = hardware_limits(device) if device.type == "cuda" else None
    if limits is not None:
        report["ceilings"] = limits
    frames = None
    for config in configs:
        devices.configure_torch(config, device)
        learner = as_off_policy(make_learner(config, device), config)
        frames = _random_frames(learner) if frames is None else frames
        _fill_replay(learner, frames)
        figures = _time_updates(config, learner, pairs)
        if limits is not None:
            rate = figures["teraflop"] / figures["median_ms"] * 1e3
            figures["share_of_matrix_rate"] = rate / limits["bf16_matrix_teraflop_per_second"]
        report[config.method_name] = figures
        say(f"{config.method_name}: {figures['median_ms']:.2f} ms")
        learner.close()
    return report


def _time_updates(config: Config, learner: OffPolicyLearner, pairs: int) -> UpdateFigures:
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
        "teraflop": _teraflop(config, learner),
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
    """The runs to measure: of these methods, of the default ones, or of the base's default."""
    base = presets.select_algorithm(task, base_name)
    defaults = [name for name in DEFAULT_METHODS if name in base.methods]
    names = methods or defaults or [base.default_method.name]
    return [_bench_config(task, base.name, method, precision) for method in names]


def _bench_config(task: str, base_name: str, method: str, precision: Precision) -> Config:
    config = presets.resolve(task, method, base_name=base_name)
    if "precision" not in vars(config.algorithm):
        raise ConfigError(
            f"{task} is learned with {config.base}, which has no precision to choose: use another "
            "task"
        )
    # a budget that lets the replay have its whole capacity
    config = config.with_settings(precision=precision)
    return replace(config, run=replace(config.run, env_steps=10**7))


def as_off_policy(learner: Learner, config: Config) -> OffPolicyLearner:
    if not isinstance(learner, OffPolicyLearner):
        raise not_off_policy(config)
    return learner


def not_off_policy(config: Config) -> ConfigError:
    algorithm = algorithm_of(config)
    own = f", or cclf bench {algorithm.name}" if algorithm.benchmark() else ""
    return ConfigError(
        f"{config.task} is learned with {algorithm.name}, whose updates are not timed here: use a task "
        f"with continuous actions, e.g. toy/reach{own}"
    )


def hardware_limits(device: torch.device) -> HardwareLimits:
    a, b = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2))
    product = _gpu_seconds(lambda: a @ b)
    source, target = (torch.empty(2**30, dtype=torch.uint8, device=device) for _ in range(2))
    copy = _gpu_seconds(lambda: target.copy_(source))
    return {
        "bf16_matrix_teraflop_per_second": 2 * 8192**3 / product / 1e12,
        "copy_terabyte_per_second": 2 * 2**30 / copy / 1e12,  # read and written
    }


def _gpu_seconds(work: Callable[[], object], repeats: int = 20) -> float:
    """GPU seconds of one call."""
    for _ in range(5):
        work()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    for _ in range(repeats):
        work()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / repeats / 1e3


def _teraflop(config: Config, learner: OffPolicyLearner) -> float:
    """The mean of a pair of updates with the plain kernels."""
    reference = float32_config(config)
    algorithm = algorithm_of(reference).make_algorithm(reference, learner.env.spec, learner.device)
    with FlopCounterMode(display=False) as counter:
        for _ in range(2):
            batch, noise = learner.draw()
            algorithm.update(batch.to(learner.device), noise, zero_clock(learner.device))
    return float(counter.get_total_flops()) / 2 / 1e12


def _random_frames(learner: OffPolicyLearner, count: int = 500) -> np.ndarray:
    """Frames of the task under random actions, (count, C, H, W). On noise, selection among views
    would differ from that on any real frame."""
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
        part = replay.frames[start : start + 1000]
        part.copy_(source[torch.randint(len(source), (len(part),), device=replay.device)])
    replay.actions.uniform_(-1.0, 1.0)
    replay.rewards.uniform_(0.0, 1.0)
    replay.continuations.fill_(1.0)
    replay.ages.fill_(replay.frame_stack)
    replay.priorities.uniform_(0.1, 1.0)
    learner.agent_steps = learner.settings.warmup_agent_steps


def time_update_pairs(learner: OffPolicyLearner, pairs: int, device: torch.device) -> list[float]:
    """Milliseconds per update, the mean of each pair of updates, because two kinds of updates
    alternate. The device is idle afterwards."""
    times = []
    if device.type != "cuda":
        for _ in range(pairs):
            started = time.perf_counter()
            learner.update(0)
            learner.update(0)
            times.append((time.perf_counter() - started) * 500.0)
        return times
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(pairs + 1)]  # type: ignore[no-untyped-call]
    marks[0].record()
    for mark in marks[1:]:
        learner.update(0)
        learner.update(0)
        mark.record()
    torch.cuda.synchronize()
    return [first.elapsed_time(second) / 2.0 for first, second in itertools.pairwise(marks)]
