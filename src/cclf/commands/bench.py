"""`cclf bench`: speed on this machine."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

from cclf.algorithms.base import Benchmark
from cclf.algorithms.registry import algorithms
from cclf.commands.options import Device, Json, parse, print_table
from cclf.config import Precision
from cclf.envs.make import make_env
from cclf.errors import EXIT_BAD_INPUT, EXIT_DONE, ConfigError, did_you_mean
from cclf.validation import Range

Seconds = Annotated[float, Range(0.01, 86_400)]


@dataclass(frozen=True)
class BenchMinigrid:
    """Frames per second of training on MiniGrid (environments, acting, updates), without
    evaluation."""

    task: str = "minigrid/DoorKey-6x6"
    """A task of MiniGrid."""
    methods: tuple[str, ...] = ("a2c", "re3", "cclf", "re3+cclf")
    """Methods to measure, one after another."""
    processes: Annotated[int, Range(0, 1_024)] = 0
    """Independent runs at the same time, one thread each; 0 is one per processor."""
    seconds: Seconds = 10.0
    """How long to measure each."""
    json: Json = False


@dataclass(frozen=True)
class BenchUpdate:
    """Milliseconds per update of methods with continuous actions, without the environment, and the
    parity of the update with float32."""

    task: str = "dmc/cartpole-swingup"
    """Task that defines the observation and action shapes."""
    base: str | None = None
    """The base algorithm; by default that of the task (see: cclf methods)."""
    methods: tuple[str, ...] = ()
    """By default cclf, drq and curl, or the default method of a base without them."""
    precision: Precision = "fp32"
    """Of the fast update; its parity with float32 is checked first."""
    device: Device = "auto"
    pairs: Annotated[int, Range(2, 1_000_000)] = 100
    """Pairs of updates to time."""
    deterministic: bool = False
    """On a GPU, with the kernels of `cclf train --deterministic`."""
    json: Json = False


@dataclass(frozen=True)
class BenchLoop:
    """Agent steps per second of training with continuous actions: acting, updates, environment and
    rendering, without evaluation."""

    task: str = "dmc/cartpole-swingup"
    """The task that is trained."""
    base: str | None = None
    """The base algorithm; by default that of the task (see: cclf methods)."""
    method: str | None = None
    """By default cclf, or the default method of a base without it."""
    precision: Precision = "fp32"
    """Of the update."""
    device: Device = "auto"
    seconds: Seconds = 10.0
    """How long to measure."""
    json: Json = False


OPTIONS = {"minigrid": BenchMinigrid, "update": BenchUpdate, "loop": BenchLoop}


def main(arguments: list[str]) -> int:
    kinds = {"minigrid": _minigrid, "update": _update, "loop": _loop}
    own = {name: algorithm.benchmark() for name, algorithm in algorithms().items()}
    kinds |= {name: partial(_of_algorithm, name, each) for name, each in own.items() if each}
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: cclf bench {'|'.join(kinds)} [--help]")
        return EXIT_DONE if arguments else EXIT_BAD_INPUT
    kind = arguments[0]
    if kind not in kinds:
        raise ConfigError(
            f"unknown benchmark {kind!r}{did_you_mean(kind, kinds)}: use one of {', '.join(kinds)}"
        )
    return kinds[kind](arguments[1:])


def _show(report: Mapping[str, object], as_json: bool, where: str, figure: str, unit: str) -> int:
    if as_json:
        print(json.dumps(report, indent=2))
        return EXIT_DONE
    rows = [
        (name, f"{figures[figure]:,.5g}")
        for name, figures in report.items()
        if isinstance(figures, dict) and figure in figures
    ]
    print_table((f"method on {where}{report['device']}", unit), rows)
    return EXIT_DONE


def _minigrid(arguments: list[str]) -> int:
    options = parse(BenchMinigrid, "cclf bench minigrid", arguments)
    from cclf.benchmark import training_speed

    processes = options.processes or os.cpu_count() or 1
    report = training_speed.bench_minigrid(
        options.task, options.methods, processes, options.seconds
    )
    unit = f"frames/s of {processes} processes"
    return _show(report, options.json, f"{options.task}, ", "frames_per_second", unit)


def _update(arguments: list[str]) -> int:
    options = parse(BenchUpdate, "cclf bench update", arguments)
    from cclf.benchmark import updates

    configs = updates.bench_configs(options.task, options.base, options.methods, options.precision)
    if options.deterministic:
        configs = [
            replace(config, run=replace(config.run, deterministic=True)) for config in configs
        ]
    report = updates.bench_updates(configs, options.device, options.pairs)
    return _show(report, options.json, f"{options.task}, ", "median_ms", "ms per update")


def _loop(arguments: list[str]) -> int:
    options = parse(BenchLoop, "cclf bench loop", arguments)
    from cclf.benchmark import training_speed, updates

    methods = (options.method,) if options.method else ()
    configs = updates.bench_configs(options.task, options.base, methods, options.precision)
    report = training_speed.bench_loop(configs[0], options.device, options.seconds)
    return _show(
        report, options.json, f"{options.task}, ", "agent_steps_per_second", "agent steps/s"
    )


def _of_algorithm(name: str, benchmark: Benchmark, arguments: list[str]) -> int:
    """A benchmark of one base algorithm."""
    options = parse(benchmark.options, f"cclf bench {name}", arguments)

    return _show(
        benchmark.run(options, make_env), options.json, "", benchmark.figure, benchmark.unit
    )
