"""`cclf train`: from a command line to a config to a run."""

import argparse
import contextlib
import errno
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cclf import presets
from cclf.commands.options import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, parse
from cclf.config import Config, ConfigError, EnvConfig, MethodConfig, RunConfig

if TYPE_CHECKING:
    from cclf.runtime.loop import Training
    from cclf.runtime.stop import Stop


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


def train_config(arguments: list[str]) -> tuple[Config, Path, bool]:
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
    if presets.find_task(chosen.task).name != defaults.task:
        raise ConfigError(f"is the task {defaults.task} or {chosen.task}? Write it first: cclf train {chosen.task} ...")
    config = replace(
        defaults, seed=chosen.seed, env=chosen.env, method=chosen.method_config, algorithm=chosen.algorithm, run=chosen.run
    )
    presets.refuse_idle_options(config, defaults)
    return config, chosen.out, chosen.dry_run


def train(arguments: list[str]) -> int:
    config, out, dry_run = train_config(arguments)
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
        return _conclude(folder, device, stop)
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
    return _conclude(folder, device, stop)


def _conclude(folder: Path, device: Any, stop: "Stop") -> int:
    """The final evaluation of a finished run, where one is asked for and was not made yet."""
    from cclf import build

    if not build.final_evaluation(folder, device, lambda: stop.requested):
        print("stopped in the final evaluation; run the same command to make it again", file=sys.stderr)
        return EXIT_STOPPED
    print(folder)
    return EXIT_DONE
