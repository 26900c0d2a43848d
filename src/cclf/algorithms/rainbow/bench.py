"""`cclf bench rainbow`: milliseconds per update of one run and of batches of runs. Parity, the agreement
of results, is measured first: a batch against its runs one by one, and the compiled update in CUDA
graphs against the uncompiled one.
"""

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cclf import presets
from cclf.algorithms.rainbow.config import RainbowConfig
from cclf.config import Config
from cclf.console import say
from cclf.validation import Range

if TYPE_CHECKING:
    import torch

    from cclf.algorithms.rainbow.learner import BatchedLearner
    from cclf.types import Env, EnvFactory

NUM_ACTIONS = 18  # the most that an Atari game has
PARITY_RUNS, PARITY_UPDATES = 3, 8
NUM_MEASUREMENTS = 5
REPORT_KEY, UNIT = "median_ms", "ms per update of one run"


@dataclass(frozen=True)
class Options:
    """Updates per second of Rainbow methods, for one run and for batches of runs, after a check of
    their parity."""

    methods: tuple[str, ...] = ("rainbow", "curl", "cclf")
    """Methods to measure, one after another."""
    stacks: tuple[Annotated[int, Range(1, 10_000)], ...] = (26, 104)
    """Numbers of runs in a batch."""
    precision: Literal["fp32", "tf32"] = "fp32"
    """Precision of matrix products."""
    device: str = "auto"
    """cpu, cuda, cuda:N, or auto: the GPU when there is one."""
    rounds: Annotated[int, Range(1, 1_000_000)] = 200
    """Number of updates of every run in each of five measurements."""
    replay_transitions: Annotated[int, Range(100, 10**12)] = 100_000
    """Capacity of each run's replay in transitions; 0.71 GB per 100,000."""
    deterministic: bool = False
    """On a GPU, use the kernels of `cclf train --deterministic`."""
    tiny: bool = False
    """Use small networks and frames, to test the benchmark itself."""
    json: bool = False
    """Write one JSON document to standard output."""


def bench(options: Options, make_env: "EnvFactory") -> dict[str, Any]:
    """A report with the measurements of each method under its name."""
    from cclf.storage.manifest import origin
    from cclf.training import devices

    device = devices.choose_device(options.device)
    configs = {method: _config(method, options) for method in options.methods}
    for config in configs.values():  # raises ConfigError before anything is measured
        devices.configure_torch(config, device)
    report: dict[str, Any] = {
        **origin(device),
        "precision": options.precision,
        "processors": os.cpu_count(),
        "replay_transitions": options.replay_transitions,
    }
    for method, config in configs.items():
        figures: dict[str, Any] = {"parity": parity(config, device, make_env)}
        say(f"{method}: parity {figures['parity']}")
        for runs in (1, *options.stacks):
            figures[f"stack_{runs}"] = times = _time_updates(
                config, runs, device, options.rounds, make_env
            )
            say(f"{method}: {runs} runs, {times['run_updates_per_second']:,.0f} run-updates/s")
        report[method] = figures | {"median_ms": figures["stack_1"]["median_ms"]}
    return report


def _config(method: str, options: Options) -> Config[RainbowConfig]:
    config = presets.resolve("atari/Pong", method).with_settings(
        replay_capacity_transitions=options.replay_transitions, precision=options.precision
    )
    if options.tiny:
        env = replace(config.env, frame_pixels=36, crop_pixels=36)
        dims = {"hidden_dim": 8, "contrastive_hidden_dim": 8, "contrastive_dim": 8}
        config = replace(config, env=env).with_settings(batch_size=4, atoms=5, **dims)
    return replace(config, run=replace(config.run, deterministic=options.deterministic))


def make_game(make_env: "EnvFactory", config: Config[RainbowConfig]) -> "Env":
    """A toy game with the shapes of Atari, which the benchmark does not step."""
    game = make_env(replace(config, task="toy/catch"), 0)
    game.spec = game.spec._replace(num_actions=NUM_ACTIONS)
    return game


def make_learner(
    configs: Sequence[Config[RainbowConfig]], device: "torch.device", make_env: "EnvFactory"
) -> "BatchedLearner":
    """A learner with the same random replay for each run."""
    import torch

    from cclf.algorithms.rainbow.learner import make_batched_learner

    games = [partial(make_game, make_env, config) for config in configs]
    learner = make_batched_learner(configs, device, games)
    replay = learner.replay
    device, random = replay.device, torch.Generator(replay.device).manual_seed(0)
    for tensor, low, high in (
        (replay.frames, 0, 256),
        (replay.actions, 0, NUM_ACTIONS),
        (replay.rewards, -1, 2),
    ):
        tensor[:] = torch.randint(
            low, high, tensor[0].shape, generator=random, device=device, dtype=tensor.dtype
        )
    replay.ages[:] = torch.arange(replay.slots, device=device)
    priorities = torch.rand(replay.slots, generator=random, device=device)
    replay.priorities[:, : replay.slots] = priorities.double() + 0.1
    replay.set_written(replay.slots)
    return learner


def parity(
    config: Config[RainbowConfig], device: "torch.device", make_env: "EnvFactory"
) -> dict[str, float]:
    """Differences between parameters after some updates from the same replay, relative to the norm of
    their change: between a batch of three runs and the same runs one by one, both uncompiled and in
    float32; and between the compiled update in CUDA graphs, in the configured precision, and the
    uncompiled one."""
    import torch

    from cclf.training import devices

    uncompiled = replace(
        config.with_settings(precision="fp32"),
        run=replace(config.run, cuda_graphs=False, compile=False),
    )

    def change(config: Config[RainbowConfig], seeds: Sequence[int]) -> torch.Tensor:
        devices.set_precision(config, device)
        learner = make_learner([replace(config, seed=seed) for seed in seeds], device, make_env)
        rows = learner.algorithm.rows["online"]
        before = rows.detach().clone()
        for update in range(PARITY_UPDATES):
            learner.agent_steps = config.algorithm.learn_start_agent_steps + update
            learner.learn(env_steps=4 * update)
        return rows.detach() - before

    seeds = range(PARITY_RUNS)
    together = change(uncompiled, seeds)
    one_by_one = torch.cat([change(uncompiled, [seed]) for seed in seeds])
    compiled = change(config, seeds)
    norm = together.norm()
    return {
        "stack_relative_difference": float((together - one_by_one).norm() / norm),
        "fast_relative_difference": float((together - compiled).norm() / norm),
    }


def _time_updates(
    config: Config[RainbowConfig],
    runs: int,
    device: "torch.device",
    rounds: int,
    make_env: "EnvFactory",
) -> dict[str, float]:
    """Times of one update of every run, including replay, random numbers and priorities."""
    from cclf.training.devices import synchronize

    learner = make_learner([replace(config, seed=seed) for seed in range(runs)], device, make_env)
    learner.agent_steps = config.algorithm.learn_start_agent_steps

    def seconds_of(updates: int) -> float:
        started = time.perf_counter()
        for _ in range(updates):
            learner.learn(env_steps=0)
        synchronize(device)
        return time.perf_counter() - started

    warmup_seconds = seconds_of(max(8, rounds // 10))
    times_ms = [seconds_of(rounds) * 1e3 / rounds for _ in range(NUM_MEASUREMENTS)]
    median_ms = statistics.median(times_ms)
    return {
        "median_ms": median_ms,
        "least_ms": min(times_ms),
        "most_ms": max(times_ms),
        "run_updates_per_second": 1e3 * runs / median_ms,
        "warmup_seconds": warmup_seconds,
    }
