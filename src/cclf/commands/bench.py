"""`cclf bench`: speed on this machine."""

import os
import textwrap
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from cclf.algorithms.base import Benchmark
from cclf.algorithms.registry import algorithms
from cclf.commands.options import (
    HELP_COLUMNS,
    BaseName,
    Device,
    Json,
    parse,
    print_json,
    print_table,
)
from cclf.config import Precision
from cclf.envs.make import make_env
from cclf.errors import EXIT_BAD_INPUT, EXIT_DONE, ConfigError, did_you_mean
from cclf.validation import Range

if TYPE_CHECKING:
    from cclf.types import EnvFactory

Seconds = Annotated[float, Range(0.01, 86_400)]


@dataclass(frozen=True)
class BenchMinigrid:
    """Frames per second of training on MiniGrid (environments, acting, updates), without
    evaluation."""

    task: str = "minigrid/DoorKey-6x6"
    """A MiniGrid task."""
    methods: tuple[str, ...] = ("a2c", "re3", "cclf", "re3+cclf")
    """Methods to measure."""
    processes: Annotated[int, Range(0, 1_024)] = 0
    """Independent runs at the same time, one thread each; 0 is one per processor."""
    seconds: Seconds = 10.0
    """Duration of each measurement."""
    json: Json = False


@dataclass(frozen=True)
class ContinuousOptions:
    """The options of benchmarks of algorithms with continuous actions."""

    task: str = "dmc/cartpole-swingup"
    """The task, which defines the observation and action shapes."""
    base: BaseName = None
    precision: Precision = "fp32"
    """Precision of the update; its parity with float32 is measured too."""
    device: Device = "auto"
    json: Json = False


@dataclass(frozen=True)
class BenchUpdate(ContinuousOptions):
    """Milliseconds per update of methods with continuous actions, without the environment, and the
    parity of the update with float32."""

    methods: tuple[str, ...] = ()
    """By default cclf, drq and curl, or the default method of a base algorithm without them."""
    pairs: Annotated[int, Range(2, 1_000_000)] = 100
    """Number of pairs of updates to time."""
    deterministic: bool = False
    """On a GPU, use the kernels of `cclf train --deterministic`."""


@dataclass(frozen=True)
class BenchLoop(ContinuousOptions):
    """Agent steps per second of training with continuous actions: acting, updates, environment and
    rendering, without evaluation."""

    method: str | None = None
    """By default cclf, or the default method of a base algorithm without it."""
    seconds: Seconds = 10.0
    """Duration of the measurement."""


def _minigrid(options: BenchMinigrid, _: "EnvFactory") -> dict[str, Any]:
    from cclf.benchmark import bench_minigrid

    processes = options.processes or os.cpu_count() or 1
    return bench_minigrid(options.task, options.methods, processes, options.seconds)


def _update(options: BenchUpdate, _: "EnvFactory") -> dict[str, Any]:
    from cclf.benchmark import bench_configs, bench_updates

    configs = bench_configs(options.task, options.base, options.methods, options.precision)
    configs = [
        replace(config, run=replace(config.run, deterministic=options.deterministic))
        for config in configs
    ]
    return bench_updates(configs, options.device, options.pairs)


def _loop(options: BenchLoop, _: "EnvFactory") -> dict[str, Any]:
    from cclf.benchmark import bench_configs, bench_loop

    methods = (options.method,) if options.method else ()
    config = bench_configs(options.task, options.base, methods, options.precision)[0]
    return bench_loop(config, options.device, options.seconds)


BENCHMARKS = {
    "minigrid": Benchmark(
        BenchMinigrid, _minigrid, "frames_per_second", "frames/s of all processes"
    ),
    "update": Benchmark(BenchUpdate, _update, "median_ms", "ms per update"),
    "loop": Benchmark(BenchLoop, _loop, "agent_steps_per_second", "agent steps/s"),
}


def benchmarks() -> dict[str, Benchmark]:
    """All benchmarks by name, including those that single algorithms define."""
    own = {name: algorithm.benchmark() for name, algorithm in algorithms().items()}
    return BENCHMARKS | {name: benchmark for name, benchmark in own.items() if benchmark}


def main(arguments: list[str]) -> int:
    known = benchmarks()
    name = arguments[0] if arguments else ""
    if name in ("", "-h", "--help"):
        print(f"usage: cclf bench {{{','.join(known)}}} [OPTIONS]\n")
        for name, benchmark in known.items():
            text = f"  {name:<10}{' '.join(str(benchmark.options.__doc__).split())}"
            print(textwrap.fill(text, HELP_COLUMNS, subsequent_indent=" " * 12))
        print("\nOptions:  cclf bench NAME --help")
        return EXIT_DONE if arguments else EXIT_BAD_INPUT
    if name not in known:
        hint = did_you_mean(name, known)
        raise ConfigError(f"unknown benchmark {name!r}{hint} (see: cclf bench --help)")
    options = parse(known[name].options, f"cclf bench {name}", arguments[1:])
    report = known[name].run(options, make_env)
    if vars(options)["json"]:
        print_json(report)
        return EXIT_DONE
    quantity = known[name].report_key
    rows = [
        (method, f"{measured[quantity]:,.5g}")
        for method, measured in report.items()
        if isinstance(measured, dict) and quantity in measured
    ]
    setting = f"{report['task']}, {report['device']}" if "task" in report else report["device"]
    print_table((f"method on {setting}", known[name].unit), rows)
    return EXIT_DONE
