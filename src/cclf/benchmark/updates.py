"""Speed of updates, measured. Each figure carries device, commit and command."""

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cclf import presets
from cclf.algorithms.registry import algorithm_of, make_learner
from cclf.benchmark.parity import no_steps, plainly, step_parity
from cclf.config import Config, Precision
from cclf.console import say
from cclf.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    import torch

    from cclf.algorithms.common.off_policy import OffPolicyLearner


def update(configs: Sequence[Config], device_name: str, pairs: int) -> dict[str, Any]:
    """Milliseconds per update of off-policy methods, with replay sampling, crops, priorities,
    optimisers and targets.

    The unit is a pair of updates, since they alternate. A speed comes only with the parity of its
    configuration: what the fast update and the plain float32 update make of the same weights and
    batches.
    """

    from cclf.storage.provenance import finish, header
    from cclf.training import devices

    device = devices.choose_device(device_name)
    report = header(configs[0].task, configs[0].algorithm.precision, device)
    if device.type == "cuda":
        report["ceilings"] = _ceilings(device)
    frames = None
    for config in configs:
        devices.configure_torch(config, device)
        learner = off_policy(make_learner(config, device), config)
        frames = _real_frames(learner) if frames is None else frames
        _fill_replay(learner, frames)
        started = time.perf_counter()
        while learner.updates < 20:
            learner.update(0)
        finish(device)
        figures: dict[str, Any] = {
            "seconds_to_20_updates": time.perf_counter() - started,
            "parity": step_parity(config, learner),
        }
        milliseconds = sorted(time_pairs(learner, pairs, device))
        deciles = statistics.quantiles(milliseconds, n=10)
        figures |= {
            "median_ms": statistics.median(milliseconds),
            "p10_ms": deciles[0],
            "p90_ms": deciles[-1],
        }
        figures |= {
            "parameters": sum(
                parameter.numel() for parameter in learner.algorithm.networks.parameters()
            )
        }  # type: ignore[attr-defined]
        figures["teraflop"] = _teraflop(config, learner)
        if "ceilings" in report:
            rate = figures["teraflop"] / figures["median_ms"] * 1e3
            figures["share_of_matrix_rate"] = (
                rate / report["ceilings"]["bf16_matrix_teraflop_per_second"]
            )
        report[config.method_name] = figures
        say(f"{config.method_name}: {figures['median_ms']:.2f} ms")
        learner.close()
    return report


USUAL_METHODS = ("cclf", "drq", "curl")


def configs_of(
    task: str, base_name: str | None, methods: Sequence[str], precision: Precision
) -> list[Config]:
    """The runs to measure. Unless methods are named: the usual ones, or the base's first."""
    base = presets.select_algorithm(task, base_name)
    usual = [name for name in USUAL_METHODS if name in base.methods] or [base.default_method.name]
    return [_config(task, base.name, method, precision) for method in methods or usual]


def _config(task: str, base_name: str, method: str, precision: Precision) -> Config:
    config = presets.resolve(task, method, base_name=base_name)
    if "precision" not in vars(config.algorithm):
        raise ConfigError(
            f"{task} is learned with {config.base}, which has no precision to choose: use another "
            "task"
        )
    # a budget that lets the replay have its whole capacity
    config = config.with_settings(precision=precision)
    return replace(config, run=replace(config.run, env_steps=10**7))


def off_policy(learner: Any, config: Config) -> "OffPolicyLearner":
    from cclf.algorithms.common.off_policy import OffPolicyLearner

    if not isinstance(learner, OffPolicyLearner):
        raise not_timed(config)
    return learner


def not_timed(config: Config) -> ConfigError:
    algorithm = algorithm_of(config)
    own = f", or cclf bench {algorithm.name}" if algorithm.benchmark() else ""
    return ConfigError(
        f"{config.task} is learned with {algorithm.name}, whose updates are not timed here: use a task "
        f"with continuous actions, e.g. toy/reach{own}"
    )


def _ceilings(device: "torch.device") -> dict[str, float]:
    """What this GPU can do at best: a large matrix product in bfloat16, and a large copy."""
    import torch

    a, b = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2))
    product = _seconds(lambda: a @ b)
    source, target = (torch.empty(2**30, dtype=torch.uint8, device=device) for _ in range(2))
    copy = _seconds(lambda: target.copy_(source))
    return {
        "bf16_matrix_teraflop_per_second": 2 * 8192**3 / product / 1e12,
        "copy_terabyte_per_second": 2 * 2**30 / copy / 1e12,  # read and written
    }


def _seconds(work: Callable[[], Any], repeats: int = 20) -> float:
    """GPU seconds of one call."""
    import torch

    for _ in range(5):
        work()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    for _ in range(repeats):
        work()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / repeats / 1e3


def _teraflop(config: Config, learner: "OffPolicyLearner") -> float:
    """Arithmetic of one update without anything computed twice, the mean of a pair, counted on its
    plain kernels."""
    from torch.utils.flop_counter import FlopCounterMode

    reference = plainly(config)
    algorithm = algorithm_of(reference).make_algorithm(reference, learner.env.spec, learner.device)
    with FlopCounterMode(display=False) as counter:
        for _ in range(2):
            batch, noise = learner.draw()
            algorithm.update(batch.to(learner.device), noise, no_steps(learner.device))
    return float(counter.get_total_flops()) / 2 / 1e12


def _real_frames(learner: "OffPolicyLearner", count: int = 500) -> "np.ndarray":
    """Frames of the task under random actions: noise would be selected among unlike anything
    real."""
    import numpy as np

    random = np.random.default_rng(0)
    frames = [learner.env.reset()]
    while len(frames) < count:
        step = learner.env.step(random.uniform(-1.0, 1.0, learner.env.spec.action_dim))
        frames.append(learner.env.reset() if step.truncated or step.terminated else step.frame)
    return np.stack(frames)


def _fill_replay(learner: "OffPolicyLearner", frames: "np.ndarray") -> None:
    """Fill every slot with real frames in random order, so that a batch reads all over the replay's
    memory."""
    import torch

    replay = learner.replay
    real = torch.from_numpy(frames).to(replay.device)
    for start in range(0, replay.slots, 1000):
        part = replay.frames[start : start + 1000]
        part.copy_(real[torch.randint(len(real), (len(part),), device=replay.device)])
    replay.actions.uniform_(-1.0, 1.0)
    replay.rewards.uniform_(0.0, 1.0)
    replay.continuations.fill_(1.0)
    replay.ages.fill_(replay.frame_stack)
    replay.priorities.uniform_(0.1, 1.0)
    learner.agent_steps = learner.warmup_agent_steps


def time_pairs(learner: "OffPolicyLearner", pairs: int, device: "torch.device") -> list[float]:
    """Milliseconds per update, one figure per pair of updates, since they alternate. Leaves no work
    behind on the device."""
    import torch

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
