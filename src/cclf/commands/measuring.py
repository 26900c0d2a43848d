"""`cclf bench` and `doctor`: what this machine can do."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cclf import presets
from cclf.commands.options import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED, parse, print_table
from cclf.config import ConfigError, Precision


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
    precision: Precision = "fp32"
    device: str = "auto"
    pairs: int = 100
    """Pairs of updates to time."""
    json: bool = False
    """One JSON document on standard output."""


@dataclass(frozen=True)
class BenchLoop:
    """Agent steps per second of whole SAC training: acting, updates, environment and rendering; evaluation is left out."""

    task: str = "dmc/cartpole-swingup"
    method: str = "cclf"
    precision: Precision = "fp32"
    device: str = "auto"
    seeds: tuple[int, ...] = (1,)
    """How many runs take turns in the process; several numbers are measured one after another."""
    seconds: float = 10.0
    env_worker: bool = False
    """Each environment in a process of its own, so that they draw at the same time."""
    json: bool = False
    """One JSON document on standard output."""


@dataclass(frozen=True)
class BenchRainbow:
    """Updates per second of Rainbow methods, one run alone and many as a stack, after a check of their parity; and what 26 games
    with 4 seeds each would take."""

    methods: tuple[str, ...] = ("rainbow", "curl", "cclf")
    stacks: tuple[int, ...] = (26, 104)
    """Runs in a stack."""
    precision: Literal["fp32", "tf32"] = "fp32"
    device: str = "auto"
    rounds: int = 200
    """Updates of every run in each of five measurements."""
    replay_transitions: int = 100_000
    """Of each run; 0.71 GB per 100,000."""
    tiny: bool = False
    """Small networks and frames, to try the benchmark itself."""
    json: bool = False
    """One JSON document on standard output."""


def _parity_options() -> Any:
    import tyro

    @dataclass(frozen=True)
    class BenchParity:
        """A fast precision against plain float32 at the weights and on the replay of a trained SAC run."""

        run: tyro.conf.Positional[Path]
        precision: Precision = "bf16"
        device: str = "auto"
        batches: int = 8
        updates: int = 300
        """To make from there in both precisions, for a look at where losses go."""
        trust_imports: bool = False
        """Allow a task gym/MODULE:ID of the run folder to import that Python module."""
        json: bool = False
        """One JSON document on standard output."""

    return BenchParity


def bench(arguments: list[str]) -> int:
    kinds = {"minigrid": BenchMinigrid, "update": BenchUpdate, "loop": BenchLoop, "parity": None, "rainbow": BenchRainbow}
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: cclf bench {'|'.join(kinds)} [--help]")
        return EXIT_DONE if arguments else EXIT_BAD_INPUT
    kind = arguments[0]
    if kind not in kinds:
        raise ConfigError(f"unknown benchmark {kind!r}{presets.nearest(kind, kinds)}: use one of {', '.join(kinds)}")
    options = parse(kinds[kind] or _parity_options(), f"cclf bench {kind}", arguments[1:])
    for name, least in (
        ("pairs", 2),
        ("batches", 1),
        ("updates", 1),
        ("seconds", 0.01),
        ("processes", 0),
    ):  # each kind has some of them
        if getattr(options, name, least) < least:
            raise ConfigError(f"--{name} {getattr(options, name)} must be {least} or more: there would be nothing to measure")
    from cclf import bench as benchmarks
    from cclf import bench_rainbow

    if kind == "rainbow":
        if min(options.stacks, default=1) < 1 or options.rounds < 1 or options.replay_transitions < 100:
            raise ConfigError("--stacks and --rounds must be 1 or more, --replay-transitions 100 or more")
        report = bench_rainbow.rainbow(
            options.methods,
            options.stacks,
            options.precision,
            options.device,
            options.rounds,
            options.replay_transitions,
            options.tiny,
        )
        figure, unit = "median_ms", "ms per update of one run"
    elif kind == "update":
        report = benchmarks.update(options.methods, options.task, options.precision, options.device, options.pairs)
        figure, unit = "median_ms", "ms per update"
    elif kind == "parity":
        return _parity(options)
    elif kind == "loop":
        if not options.seeds or min(options.seeds) < 1:
            raise ConfigError(f"--seeds {' '.join(map(str, options.seeds))}: name how many runs take turns, 1 or more")
        report = benchmarks.loop(
            options.task, options.method, options.precision, options.device, options.seeds, options.seconds, options.env_worker
        )
        figure, unit = "agent_steps_per_second", "agent steps/s in all"
    else:
        processes = options.processes or os.cpu_count() or 1
        report = benchmarks.minigrid(options.task, options.methods, processes, options.seconds)
        figure, unit = "frames_per_second", f"frames/s of {processes} processes"
    if options.json:
        print(json.dumps(report, indent=2))
        return EXIT_DONE
    rows = [
        (name, f"{figures[figure]:,.5g}") for name, figures in report.items() if isinstance(figures, dict) and figure in figures
    ]
    where = f"{options.task}, {report['device']}" if kind != "rainbow" else report["device"]
    print_table((f"method on {where}", unit), rows)
    return EXIT_DONE


def _parity(options: Any) -> int:
    from cclf import bench_parity

    report = bench_parity.parity(
        options.run, options.precision, options.device, options.batches, options.updates, options.trust_imports
    )
    if options.json:
        print(json.dumps(report, indent=2))
        return EXIT_DONE
    least = sorted(report["gradient_cosine"].items(), key=lambda item: item[1])[:5]
    rows = [(f"gradient cosine, {name}", f"{value:.6f}") for name, value in least]
    for name in ("same_crop_share", "belief_mean_absolute_error", "target_mean_relative_error"):
        rows.append((name.replace("_", " "), f"{report[name]:.3g}"))
    for label, means in report["after_updates"].items():
        rows += [(f"{name} after {options.updates} updates, {label}", f"{value:.4g}") for name, value in means.items()]
    print_table((f"{options.precision} against float32 at {report['run']}", ""), rows)
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
