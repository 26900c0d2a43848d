"""Speed, measured. Each figure carries device, commit and command."""

import itertools
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cclf import presets
from cclf.config import Config, Precision
from cclf.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    import torch

    from cclf.data.types import Learner, Turn
    from cclf.runtime.learner import OffPolicyLearner

# fills RE3's window of 10,000 twice: its first updates are cheaper than the rest
WARMUP_FRAMES = 20_000


def minigrid(task: str, methods: Sequence[str], processes: int, seconds: float) -> dict[str, Any]:
    """Frames per second of the whole machine: `processes` independent runs at once, each with one
    thread."""
    import torch

    from cclf.runtime.provenance import origin

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


def update(configs: Sequence[Config], device_name: str, pairs: int) -> dict[str, Any]:
    """Milliseconds per update of off-policy methods, with replay sampling, crops, priorities,
    optimisers and targets.

    The unit is a pair of updates, since they alternate. A speed comes only with the parity of its
    configuration: what the fast update and the plain float32 update make of the same weights and
    batch.
    """

    from cclf import build
    from cclf.runtime import devices
    from cclf.runtime.provenance import finish, header

    device = devices.choose_device(device_name)
    report = header(configs[0].task, configs[0].algorithm.precision, device)
    if device.type == "cuda":
        report["ceilings"] = _ceilings(device)
    frames = None
    for config in configs:
        devices.set_up(config, device)
        learner = _off_policy(build.make_learner(config, device), config)
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
        print(f"{config.method_name}: {figures['median_ms']:.2f} ms", file=sys.stderr, flush=True)
        learner.close()
    return report


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
    from cclf.runtime import devices
    from cclf.runtime.provenance import finish, header

    device = devices.choose_device(device_name)
    report, method = header(asked.task, asked.algorithm.precision, device), asked.method_name
    algorithm = replace(asked.algorithm, warmup_agent_steps=300, replay_capacity_transitions=20_000)
    config = replace(asked, algorithm=algorithm, run=replace(asked.run, env_worker=env_worker))
    for count in seeds:
        devices.set_up(config, device)
        make = build.maker(config) if env_worker else _timed_env
        runs = [
            build.make_learner(replace(config, seed=seed), device, make)
            for seed in range(1, count + 1)
        ]
        learners = [_off_policy(learner, config) for learner in runs]
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
        print(f"{method}, {count} in turn: {rate:.1f} agent steps/s", file=sys.stderr, flush=True)
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

    return TimedEnv(build.maker(config)(config, seed))


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


USUAL_METHODS = ("cclf", "drq", "curl")
PARITY_BATCHES = 8  # on a GPU; elsewhere one, where a plain update takes seconds
COMPARED = {"critic_loss", "target_mean", "curiosity_mean", "contrastive_loss"}


def configs_of(
    task: str, base_name: str | None, methods: Sequence[str], precision: Precision
) -> list[Config]:
    """The runs to measure. Unless methods are named: the usual ones, or the base's first."""
    base = presets.base_of(task, base_name)
    usual = [name for name in USUAL_METHODS if name in base.methods] or [base.default_method.name]
    return [_config(task, base.name, method, precision) for method in methods or usual]


def _config(task: str, base_name: str, method: str, precision: Precision) -> Config:
    config = presets.resolve(task, method, base_name=base_name)
    if not hasattr(config.algorithm, "precision"):
        raise ConfigError(
            f"{task} is learned with {config.base}, which has no precision to choose: use another "
            "task"
        )
    # a budget that lets the replay have its whole capacity
    return replace(
        config,
        algorithm=replace(config.algorithm, precision=precision),
        run=replace(config.run, env_steps=10**7),
    )


def _off_policy(learner: Any, config: Config) -> "OffPolicyLearner":
    from cclf.runtime.learner import OffPolicyLearner

    if not isinstance(learner, OffPolicyLearner):
        raise ConfigError(
            f"{config.task} is learned with {config.base}, whose updates are not timed here: use a "
            "task of dmc, gym or toy"
        )
    return learner


def _plain(config: Config) -> Config:
    """The same run in float32 and not compiled."""
    return replace(
        config,
        algorithm=replace(config.algorithm, precision="fp32"),
        run=replace(config.run, compile=False),
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

    from cclf import build

    algorithm = build.make_algorithm(_plain(config), learner.env.spec, learner.device)
    with FlopCounterMode(display=False) as counter:
        for _ in range(2):
            batch, noise = learner.draw()
            algorithm.update(batch.to(learner.device), noise, _no_steps(learner.device))
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


def step_parity(config: Config, learner: "OffPolicyLearner") -> dict[str, float]:
    """The same batches from the same weights through the fast update and the plain float32 one: how
    far apart their steps are. Of several batches, since where two views are almost equally curious,
    rounding decides which one is learned from: the median cosine and the least, and the largest
    difference of each figure."""
    import torch

    from cclf import build
    from cclf.runtime import devices

    device = learner.device
    ways = []
    for candidate in (config, _plain(config)):
        devices.set_precision(candidate, device)
        ways.append((candidate, build.make_algorithm(candidate, learner.env.spec, device)))
    cosines: list[float] = []
    differences: dict[str, float] = {}
    for _ in range(PARITY_BATCHES if device.type == "cuda" else 1):
        drawn, noise = learner.draw()
        batch, results = drawn.to(device), []
        for candidate, algorithm in ways:
            devices.set_precision(candidate, device)
            algorithm.load_state_dict(learner.algorithm.state_dict())
            before = _parameters(algorithm)
            metrics = algorithm.update(batch, noise, _no_steps(device)).metrics
            results.append((_parameters(algorithm) - before, metrics))
        (fast_step, fast), (plain_step, plain) = results
        cosines.append(float(torch.cosine_similarity(fast_step, plain_step, dim=0)))
        for name in plain.keys() & COMPARED:
            found = float((fast[name] - plain[name]).abs() / plain[name].abs())
            differences[name] = max(found, differences.get(name, 0.0))
    devices.set_precision(config, device)
    return {"step_cosine": statistics.median(cosines), "least_step_cosine": min(cosines)} | {
        f"{name}_relative_difference": found for name, found in sorted(differences.items())
    }


def _parameters(algorithm: Any) -> "torch.Tensor":
    import torch

    # in float64: over millions of float32 numbers a cosine of equal steps came out as 0.9986
    return torch.cat([each.detach().double().flatten() for each in algorithm.networks.parameters()])


def _no_steps(device: "torch.device") -> "torch.Tensor":
    """The clock of Eq. (9) at the beginning."""
    import torch

    return torch.zeros((), dtype=torch.float64, device=device)


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
