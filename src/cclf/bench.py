"""Speed, measured. Each figure carries device, commit and command."""

import itertools
import multiprocessing
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from cclf import presets
from cclf.config import Config, SacConfig

if TYPE_CHECKING:
    import numpy as np
    import torch

    from cclf.runtime.learner import OffPolicyLearner

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


def update(
    methods: Sequence[str], task: str, precision: Literal["fp32", "tf32", "bf16"], device_name: str, pairs: int
) -> dict[str, Any]:
    """Milliseconds per update of SAC methods, with replay sampling, crops, priorities, optimisers and targets.

    The unit is a pair of updates, since they alternate. A speed comes only with the parity of its configuration: what the fast
    update and the plain float32 update make of the same weights and batch.
    """
    import torch

    from cclf import build
    from cclf.runtime.learner import OffPolicyLearner

    device = build.choose_device(device_name)
    report: dict[str, Any] = {
        "task": task,
        "precision": precision,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "commit": build.code_version(),
        "command": " ".join(["cclf", *sys.argv[1:]]),
    }
    frames = None
    for method in methods:
        config = presets.resolve(task, method)
        assert isinstance(config.algorithm, SacConfig), "updates are benchmarked for SAC"
        algorithm = replace(config.algorithm, precision=precision)
        config = replace(config, algorithm=algorithm, run=replace(config.run, env_steps=10**7))
        build.set_precision(config, device)
        learner = build.make_learner(config, device)
        assert isinstance(learner, OffPolicyLearner), "SAC learns from replay"
        frames = real_frames(learner) if frames is None else frames
        fill_replay(learner, frames)
        started = time.perf_counter()
        while learner.updates < 20:
            learner.update(0)
        _finish(device)
        figures: dict[str, Any] = {"seconds_to_20_updates": time.perf_counter() - started, "parity": _parity(config, learner)}
        milliseconds = sorted(time_pairs(learner, pairs, device))
        deciles = statistics.quantiles(milliseconds, n=10)
        figures |= {"median_ms": statistics.median(milliseconds), "p10_ms": deciles[0], "p90_ms": deciles[-1]}
        report[method] = figures
        print(f"{method}: {figures['median_ms']:.2f} ms", file=sys.stderr, flush=True)
        learner.close()
    return report


def real_frames(learner: "OffPolicyLearner", count: int = 500) -> "np.ndarray":
    """Frames of the task under random actions: noise would be selected among unlike anything real."""
    import numpy as np

    random = np.random.default_rng(0)
    frames = [learner.env.reset()]
    while len(frames) < count:
        step = learner.env.step(random.uniform(-1.0, 1.0, learner.env.spec.action_dim))
        frames.append(learner.env.reset() if step.truncated or step.terminated else step.frame)
    return np.stack(frames)


def fill_replay(learner: "OffPolicyLearner", frames: "np.ndarray") -> None:
    """Fill every slot with real frames in random order, so that a batch reads all over the replay's memory."""
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


def _parity(config: Config, learner: "OffPolicyLearner") -> dict[str, float]:
    """The same batch from the same weights through the fast update and the plain float32 one: how far apart their steps are."""
    import torch

    from cclf import build
    from cclf.algorithms.sac import Sac
    from cclf.algorithms.sac_lean import lean_update

    assert isinstance(config.algorithm, SacConfig), "parity is defined for SAC"
    plain_config = replace(config, algorithm=replace(config.algorithm, precision="fp32"))
    device, generators = learner._moment.device, learner.generators
    batch = learner.replay.sample(learner.batch_size, generators["replay"]).to(device)
    results = []
    noise = None
    for candidate, run in ((config, lean_update), (plain_config, Sac.update)):
        build.set_precision(candidate, device)
        sac = build.make_sac(candidate, learner.env.spec.action_dim, device)
        sac.load_state_dict(learner.algorithm.state_dict())
        noise = noise or sac.draw_noise(learner.batch_size, generators["augment"], generators["policy"])
        before = torch.cat([p.detach().flatten().clone() for p in sac.networks.parameters()])
        metrics = run(sac, batch, noise, learner._moment).metrics
        after = torch.cat([p.detach().flatten() for p in sac.networks.parameters()])
        results.append((after - before, metrics))
    build.set_precision(config, device)
    (fast_step, fast), (plain_step, plain) = results
    figures = {"step_cosine": float(torch.cosine_similarity(fast_step, plain_step, dim=0))}
    for name in ("critic_loss", "target_mean", "curiosity_mean", "contrastive_loss"):
        if name in plain:
            figures[f"{name}_relative_difference"] = float((fast[name] - plain[name]).abs() / plain[name].abs())
    return figures


def time_pairs(learner: "OffPolicyLearner", pairs: int, device: "torch.device") -> list[float]:
    """Milliseconds per update, one figure per pair of updates."""
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


def _finish(device: "torch.device") -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize()
