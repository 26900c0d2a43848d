"""`cclf bench` and `doctor`: what this machine can do."""

import json
import os
from dataclasses import dataclass
from typing import Literal

from cclf import presets
from cclf.commands.options import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED, parse, print_table
from cclf.config import ConfigError


@dataclass(frozen=True)
class BenchMinigrid:
    """Frames per second of whole training (environments, acting, updates) on MiniGrid; evaluation is left out."""

    task: str = "minigrid/DoorKey-6x6"
    methods: tuple[str, ...] = ("a2c", "re3", "cclf", "re3+cclf")
    processes: int = 0
    """Independent runs side by side, one thread each; 0 is one per processor."""
    seconds: float = 10.0
    json: bool = False
    """One JSON document on standard output."""


@dataclass(frozen=True)
class BenchUpdate:
    """Milliseconds per update of SAC methods, everything but the environment included, after a check of its parity."""

    task: str = "dmc/cartpole-swingup"
    methods: tuple[str, ...] = ("cclf", "drq", "curl")
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    device: str = "auto"
    pairs: int = 100
    """Pairs of updates to time."""
    json: bool = False
    """One JSON document on standard output."""


def bench(arguments: list[str]) -> int:
    kinds = {"minigrid": BenchMinigrid, "update": BenchUpdate}
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: cclf bench {'|'.join(kinds)} [--help]")
        return EXIT_DONE if arguments else EXIT_BAD_INPUT
    kind = arguments[0]
    if kind not in kinds:
        raise ConfigError(f"unknown benchmark {kind!r}{presets.nearest(kind, kinds)}: use one of {', '.join(kinds)}")
    options = parse(kinds[kind], f"cclf bench {kind}", arguments[1:])
    from cclf import bench as benchmarks

    if kind == "update":
        report = benchmarks.update(options.methods, options.task, options.precision, options.device, options.pairs)
        figure, unit = "median_ms", "ms per update"
    else:
        processes = options.processes or os.cpu_count() or 1
        report = benchmarks.minigrid(options.task, options.methods, processes, options.seconds)
        figure, unit = "frames_per_second", f"frames/s of {processes} processes"
    if options.json:
        print(json.dumps(report, indent=2))
        return EXIT_DONE
    rows = [(name, f"{figures[figure]:,.5g}") for name, figures in report.items() if isinstance(figures, dict)]
    print_table((f"method on {options.task}, {report['device']}", unit), rows)
    return EXIT_DONE


@dataclass(frozen=True)
class Doctor:
    """Measure this machine: packages, GPU, what draws the frames and how fast, memory and disk; and say what to repair."""

    task: str | None = None
    """Forecast memory and disk of a run of this task."""
    stress: int = 0
    """Render in this many processes at once, a few seconds, each watched: some drivers hang."""
    strict: bool = False
    """Exit with 1 when there is a problem."""
    json: bool = False
    """One JSON document on standard output."""


def doctor(arguments: list[str]) -> int:
    options = parse(Doctor, "cclf doctor", arguments)
    if not 0 <= options.stress <= 256:
        raise ConfigError(f"--stress {options.stress} must be 0 to 256 processes")
    from cclf import doctor as surgery

    facts = surgery.examine(options.task, options.stress)
    if options.json:
        print(json.dumps(facts, indent=2))
    else:
        surgery.show(facts)
    return EXIT_FAILED if options.strict and facts["problems"] else EXIT_DONE
