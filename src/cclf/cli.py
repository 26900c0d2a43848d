"""The command line. Nothing here imports torch until a command needs it, so `cclf --help` answers at once.

Exit codes: 0 done; 1 a run that cannot go on (numbers no longer finite, disk full), a sweep with failed runs, or a problem found by
`doctor --strict`; 2 bad input, one line on standard error; 75 stopped by a signal after saving,
run it again to go on.
"""

import argparse
import contextlib
import errno
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cclf import __version__, presets
from cclf.config import Config, ConfigError, EnvConfig, MethodConfig, RunConfig

if TYPE_CHECKING:
    from cclf.runtime.loop import Training
    from cclf.runtime.stop import Stop
    from cclf.sweep import Call

EXIT_DONE, EXIT_FAILED, EXIT_BAD_INPUT, EXIT_STOPPED = 0, 1, 2, 75

USAGE = """usage: cclf COMMAND ...

Contrastive-curiosity-driven reinforcement learning from pixels.

  cclf demo            train a first agent and look at it, in minutes
  cclf train TASK      train an agent; the same command again resumes it
  cclf evaluate RUN    evaluate the agent of a run folder
  cclf play RUN        watch it: episodes as an mp4
  cclf export RUN      its policy as TorchScript or ONNX, checked
  cclf sweep           train methods x tasks x seeds on this machine
  cclf results RUNS    collect run folders into one CSV per method
  cclf plot RESULTS    draw learning curves from those files
  cclf bench KIND      speed on this machine: minigrid (frames/s) or update (ms of SAC)
  cclf doctor          what this machine can do, and what to repair
  cclf methods         the methods, each as its difference from CCLF
  cclf tasks           the tasks

A first run:   cclf train toy/reach --method cclf
More options:  cclf COMMAND --help
"""


def parse(options: Any, prog: str, arguments: list[str]) -> Any:
    """`options`, a dataclass or an instance holding the defaults, filled by tyro, whose boxed error report becomes one line."""
    import tyro

    kind = options if isinstance(options, type) else type(options)
    default = tyro.MISSING_NONPROP if isinstance(options, type) else options
    report = io.StringIO()
    try:
        with contextlib.redirect_stderr(report):
            return tyro.cli(kind, prog=prog, args=arguments, default=default)
    except SystemExit as exit_:
        if exit_.code in (0, None):
            raise
        body = [line.strip("│ ") for line in report.getvalue().splitlines()[1:]]  # the first holds the title; not all have boxes
        words = [line for line in body if line.strip("╰─-╯") and not line.startswith("For full helptext")]
        raise ConfigError(f"{' '.join(words) or 'bad options'} (see: {prog} --help)") from None


def _train_options(algorithm_config: type) -> Any:
    import tyro

    @dataclass(frozen=True)
    class Train:
        """Train an agent. Every number below shows its value for this task, method and profile."""

        task: tyro.conf.Positional[str]
        method: str
        profile: str
        """released or paper: which reading of the points where the two disagree."""
        seed: int
        out: Path
        """Folder for run folders; this run's is OUT/TASK/METHOD/seed-SEED-HASH."""
        dry_run: bool
        """Print the resolved config and stop."""
        env: Annotated[EnvConfig, tyro.conf.arg(name="")]
        method_config: Annotated[MethodConfig, tyro.conf.arg(name="")]
        algorithm: Annotated[algorithm_config, tyro.conf.arg(name="")]  # type: ignore[valid-type]
        run: Annotated[RunConfig, tyro.conf.arg(name="")]

    return Train


def _named_task(arguments: list[str]) -> str:
    """The task on a command line whose other options are not known yet: they get their defaults from it."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0]
    named = [word for word in arguments if word.partition("/")[0] in presets.SUITES and "/" in word]
    if named:
        return named[0]
    if {"-h", "--help"} & set(arguments):
        return "dmc/cartpole-swingup"
    raise ConfigError("train needs a task, e.g. cclf train toy/reach --method cclf (see: cclf tasks)")


def _train_config(arguments: list[str]) -> tuple[Config, Path, bool]:
    """What a `cclf train` command line asks for: the config, the folder for run folders, and whether to stop before training."""
    names = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    names.add_argument("--method", default="cclf")
    names.add_argument("--profile", default=presets.DEFAULT_PROFILE)
    try:
        known, _ = names.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise ConfigError(f"{error} (see: cclf train --help)") from error
    defaults = presets.resolve(_named_task(arguments), known.method, profile=known.profile)
    options = _train_options(type(defaults.algorithm))(
        task=defaults.task,
        method=defaults.method_name,
        profile=defaults.profile,
        seed=defaults.seed,
        out=Path("runs"),
        dry_run=False,
        env=defaults.env,
        method_config=defaults.method,
        algorithm=defaults.algorithm,
        run=defaults.run,
    )
    chosen = parse(options, "cclf train", arguments)
    if chosen.task != defaults.task:
        raise ConfigError(f"is the task {defaults.task} or {chosen.task}? Write it first: cclf train {chosen.task} ...")
    config = replace(
        defaults, seed=chosen.seed, env=chosen.env, method=chosen.method_config, algorithm=chosen.algorithm, run=chosen.run
    )
    presets.refuse_idle_options(config, defaults)
    return config, chosen.out, chosen.dry_run


def train(arguments: list[str]) -> int:
    config, out, dry_run = _train_config(arguments)
    if dry_run:
        print(json.dumps(config.to_dict(), indent=2))
        return EXIT_DONE
    return run_training(config, out)


def run_training(config: Config, out: Path) -> int:
    from cclf.runtime.stop import Stop

    stop = Stop()
    stop.install()
    import torch

    from cclf import build
    from cclf.runtime.failure import NonFiniteError, refuse_after_failure

    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    device = build.choose_device(config.run.device)
    build.set_precision(config, device)
    training, learner, agent = build.make_training(config, out / config.run_name(), device)
    with contextlib.closing(learner), contextlib.closing(agent), build.claimed_folder(config, out) as folder:
        refuse_after_failure(folder)
        try:
            return _train_in(folder, config, training, learner, device, stop)
        except NonFiniteError as error:
            print(f"cclf: {error}", file=sys.stderr)
            return EXIT_FAILED
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            print(
                f"cclf: the disk is full ({folder}); the last checkpoint is good: make room, run the same command",
                file=sys.stderr,
            )
            return EXIT_FAILED


def _train_in(folder: Path, config: Config, training: "Training", learner: Any, device: Any, stop: "Stop") -> int:
    from cclf import build
    from cclf.runtime.metrics import RunLog
    from cclf.runtime.progress import Progress

    resumed = training.resume()
    if training.finished:
        print(f"finished before, at {training.env_steps:,} env steps; a larger --env-steps goes on from there", file=sys.stderr)
        print(folder)
        return EXIT_DONE
    build.record(config, learner, device, folder)
    start = f"resuming at {training.env_steps:,} env steps in" if resumed else "run folder"
    print("\n".join([*build.announcement(config, learner, device), f"{start} {folder}"]), file=sys.stderr, flush=True)
    log = RunLog(folder, learner.metric_names, config.run.tensorboard, training.env_steps, training.evaluation_due)
    progress = Progress(config.run.env_steps, training.env_steps, learner.updates)
    with contextlib.closing(log), contextlib.closing(progress):
        finished = training.run(log, progress, stop)
    if not finished:
        print(f"stopped at {training.env_steps:,} env steps and saved; run the same command to go on", file=sys.stderr)
        return EXIT_STOPPED
    print(folder)
    return EXIT_DONE


def _evaluate_options() -> Any:
    import tyro

    @dataclass(frozen=True)
    class Evaluate:
        """Evaluate the agent of a run folder in fresh episodes: SAC with its mean action, A2C with sampled ones."""

        run: tyro.conf.Positional[Path]
        episodes: int = 10
        seed: int = 0
        """Chooses the episodes; it has nothing to do with the seed of the run."""
        device: str = "auto"
        json: bool = False
        """One JSON document on standard output."""

    return Evaluate


def evaluate(arguments: list[str]) -> int:
    options = parse(_evaluate_options(), "cclf evaluate", arguments)
    if options.episodes < 1 or options.seed < 0:
        raise ConfigError(f"--episodes {options.episodes} must be 1 or more and --seed {options.seed} 0 or more")
    from cclf import build
    from cclf.runtime.seeding import derive

    agent, _, env_steps = build.load_agent(options.run, build.choose_device(options.device), options.episodes)
    seeds = [derive(options.seed, "evaluate", episode) for episode in range(options.episodes)]
    result = agent.evaluate(seeds, False)
    agent.close()
    facts = {"run": str(options.run), "env_steps": env_steps, "episodes": len(result.returns)}
    facts |= {"return_mean": result.mean, "return_std": result.std, "returns": result.returns}
    if options.json:
        print(json.dumps(facts))
    else:
        print(f"return {result.mean:.4g} ± {result.std:.2g} over {len(result.returns)} episodes at {env_steps:,} env steps")
    return EXIT_DONE


def _play_options() -> Any:
    import tyro

    @dataclass(frozen=True)
    class Play:
        """Show the agent of a run folder: episodes as one mp4, and their returns. The episodes are those of `cclf evaluate`."""

        run: tyro.conf.Positional[Path]
        out: Path = Path("episode.mp4")
        episodes: int = 1
        seed: int = 0
        """Chooses the episodes; it has nothing to do with the seed of the run."""
        device: str = "auto"

    return Play


def play(arguments: list[str]) -> int:
    options = parse(_play_options(), "cclf play", arguments)
    if options.episodes < 1 or options.seed < 0:
        raise ConfigError(f"--episodes {options.episodes} must be 1 or more and --seed {options.seed} 0 or more")
    if options.out.suffix != ".mp4" or not options.out.parent.is_dir():
        raise ConfigError(f"cannot write the video {options.out}: name an .mp4 in a folder that is there")
    from cclf import build
    from cclf.runtime.evaluate import write_video
    from cclf.runtime.seeding import derive

    agent, _, _ = build.load_agent(options.run, build.choose_device(options.device), 1)

    def pictures() -> Iterator[Any]:
        for episode in range(options.episodes):  # one at a time: an episode's pictures take 100 MB and more
            result = agent.evaluate([derive(options.seed, "evaluate", episode)], True)
            print(f"episode {episode + 1}: return {result.mean:.4g} in {len(result.pictures)} steps", flush=True)
            yield from result.pictures

    try:
        write_video(str(options.out), pictures())
    except ImportError as error:
        raise ConfigError(f"videos need imageio and its ffmpeg: pip install 'cclf[video]' ({error})") from error
    except OSError as error:
        raise ConfigError(f"cannot write the video {options.out}: {error}") from error
    finally:
        agent.close()
    print(options.out)
    return EXIT_DONE


def _export_options() -> Any:
    import tyro

    @dataclass(frozen=True)
    class Export:
        """Write the policy of a run folder for other programs: uint8 frames in, action out, crop and scaling inside.

        The file is read back and held against the policy on a short rollout of its task before it gets its name.
        """

        run: tyro.conf.Positional[Path]
        out: Path = Path("policy.pt")
        """Ends in .pt for TorchScript, in .onnx for ONNX."""

    return Export


def export(arguments: list[str]) -> int:
    options = parse(_export_options(), "cclf export", arguments)
    from cclf import export as exports

    done = exports.export(options.run, options.out)
    given, answer = (done.metadata[side] for side in ("input", "output"))
    shapes = " -> ".join(f"{side['name']} {side['dtype']} {tuple(side['shape'])}" for side in (given, answer)).replace("'", "")
    print(f"{shapes}; largest difference {done.largest_difference:.2g} on {done.frames} observations")
    print(done.path)
    return EXIT_DONE


@dataclass(frozen=True)
class Sweep:
    """Train every method on every task with every seed, several at a time. Run it again to finish what was stopped.

    What follows a bare -- goes to each `cclf train`: cclf sweep ... -- --no-video --env-steps 100000
    """

    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    profiles: tuple[str, ...] = (presets.DEFAULT_PROFILE,)
    out: Path = Path("runs")
    jobs: int = 0
    """Runs at a time; 0 is one per processor."""
    stop_after_seconds: float | None = None
    """Ask all runs to save and stop after this long."""


def sweep(arguments: list[str]) -> int:
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options, extra = parse(Sweep, "cclf sweep", arguments[:end]), arguments[end + 1 :]
    from cclf.runtime.stop import Stop
    from cclf.sweep import LocalSweep

    stop = Stop()
    stop.install()
    calls = [
        train_call(task, method, profile, seed, options.out, extra)
        for task in options.tasks
        for method in options.methods
        for profile in options.profiles
        for seed in options.seeds
    ]
    calls.sort(key=lambda call: -call.env_steps)  # the longest first: no core idles at the end
    outcomes = LocalSweep(options.jobs or os.cpu_count() or 1, stop, options.stop_after_seconds).run(calls)
    stopped = [outcome for outcome in outcomes if outcome.exit_code == EXIT_STOPPED]
    failed = [outcome for outcome in outcomes if outcome.exit_code not in (EXIT_DONE, EXIT_STOPPED)]
    for outcome in failed:
        command = f"cclf train {' '.join(outcome.call.arguments)}"
        print(f"failed with {outcome.exit_code}: {command}: {outcome.last_line}", file=sys.stderr)
    done = len(outcomes) - len(stopped) - len(failed)
    print(f"{done} of {len(outcomes)} runs done, {len(stopped)} stopped, {len(failed)} failed", file=sys.stderr)
    return EXIT_FAILED if failed else EXIT_STOPPED if stopped else EXIT_DONE


def train_call(task: str, method: str, profile: str, seed: int, out: Path, extra: list[str]) -> "Call":
    """A run as a sweep starts it. Bad names and options end the sweep here, before anything runs."""
    from cclf.sweep import Call

    arguments = [task, "--method", method, "--profile", profile, "--seed", str(seed), "--out", str(out), *extra]
    config, _, _ = _train_config(arguments)
    return Call(task, method, seed, config.run.env_steps, out / config.run_name(), tuple(arguments))


@dataclass(frozen=True)
class Demo:
    """Train A2C with and without CCLF on MiniGrid, a few minutes, and write a page that shows what curiosity did."""

    out: Path = Path("runs/demo")


def demo(arguments: list[str]) -> int:
    options = parse(Demo, "cclf demo", arguments)
    from cclf import demo as demonstration
    from cclf.runtime.stop import Stop

    stop = Stop()
    stop.install()
    page = demonstration.run(options.out, stop)
    if page is None:
        print("stopped and saved; run the same command to go on", file=sys.stderr)
        return EXIT_STOPPED
    print(page.resolve())
    return EXIT_DONE


def _results_options() -> Any:
    import tyro

    @dataclass(frozen=True)
    class Results:
        """Collect the evaluations of all runs under a folder into tidy CSV files, one per method."""

        runs: tyro.conf.Positional[Path]
        out: Path = Path("results")

    return Results


def results(arguments: list[str]) -> int:
    options = parse(_results_options(), "cclf results", arguments)
    from cclf.analysis import load

    rows = load.read_runs(options.runs)
    if not rows:
        raise ConfigError(f"{options.runs} holds no run with an evaluation")
    for path in load.write_results(rows, options.out):
        print(path)
    return EXIT_DONE


def _plot_options() -> Any:
    import tyro

    @dataclass(frozen=True)
    class Plot:
        """Draw learning curves from results files: one panel per task and profile, means with 95 % intervals."""

        results: tyro.conf.Positional[Path]
        out: Path = Path("curves.svg")
        """.svg, .png or .pdf."""
        methods: tuple[str, ...] = ()
        """Only these, in this order; all when empty."""

    return Plot


def plot(arguments: list[str]) -> int:
    options = parse(_plot_options(), "cclf plot", arguments)
    from cclf.analysis import figures, load

    rows = load.read_results(options.results)
    unknown = [method for method in options.methods if method not in {row.method for row in rows}]
    if not rows or unknown:
        raise ConfigError(f"{options.results} holds no results{' of ' + ', '.join(unknown) if unknown else ''}")
    if options.out.suffix not in (".svg", ".png", ".pdf"):
        raise ConfigError(f"cannot draw {options.out}: the name must end in .svg, .png or .pdf")
    figures.learning_curves(figures.panels(rows, options.methods)).savefig(options.out, dpi=150)
    print(options.out)
    return EXIT_DONE


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
    _table((f"method on {options.task}, {report['device']}", unit), rows)
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


@dataclass(frozen=True)
class Listing:
    """List what there is."""

    json: bool = False
    """One JSON document on standard output."""


def methods(arguments: list[str]) -> int:
    options = parse(Listing, "cclf methods", arguments)
    if options.json:
        documents = [
            {
                "name": method.name,
                "base": base,
                "summary": method.summary,
                "difference_from_cclf": presets.differences_from_cclf(method, base),
                "pieces": presets.pieces_of(method, base),
            }
            for base, known in presets.METHODS.items()
            for method in known.values()
        ]
        print(json.dumps(documents, indent=2))
        return EXIT_DONE
    for base, known in presets.METHODS.items():
        suites = ", ".join(name for name, suite in presets.SUITES.items() if suite.base == base)
        differences = {method.name: presets.differences_from_cclf(method, base) for method in known.values()}
        rows = [(name, ", ".join(f"{k}={v}" for k, v in changed.items()) or "-") for name, changed in differences.items()]
        _table((f"method ({base}: {suites})", "difference from cclf"), rows)
    return EXIT_DONE


def tasks(arguments: list[str]) -> int:
    options = parse(Listing, "cclf tasks", arguments)
    if options.json:
        documents = [
            {"name": task.name, "summary": task.summary, "action_repeat": presets.resolve(task.name).env.action_repeat}
            for task in presets.TASKS.values()
        ]
        print(json.dumps(documents, indent=2))
        return EXIT_DONE
    rows = [(task.name, str(presets.resolve(task.name).env.action_repeat), task.summary) for task in presets.TASKS.values()]
    _table(("task", "action repeat", "what to do"), rows)
    print("\n" + "\n".join(presets.OPEN_SUITES.values()))
    return EXIT_DONE


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for name in header:
        table.add_column(name)
    for row in rows:
        table.add_row(*row)
    Console().print(table)


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "demo": demo,
    "train": train,
    "evaluate": evaluate,
    "play": play,
    "export": export,
    "sweep": sweep,
    "results": results,
    "plot": plot,
    "bench": bench,
    "doctor": doctor,
    "methods": methods,
    "tasks": tasks,
}


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="")
        return EXIT_DONE if arguments else EXIT_BAD_INPUT
    if arguments[0] == "--version":
        print(__version__)
        return EXIT_DONE
    try:
        if arguments[0] not in COMMANDS:
            raise ConfigError(f"unknown command {arguments[0]!r}{presets.nearest(arguments[0], COMMANDS)} (see: cclf --help)")
        return COMMANDS[arguments[0]](arguments[1:])
    except ConfigError as error:
        print(f"cclf: {' '.join(str(error).split())}", file=sys.stderr)  # one line, whatever a library said
        return EXIT_BAD_INPUT
    except BrokenPipeError:  # the reader of our output left, as `| head` does
        sys.stdout = None
        return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
