"""`cclf train`: trains what a command line asks for, and says how it ended."""

import contextlib
import errno
import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from cclf.algorithms.registry import find_algorithm
from cclf.commands.options import DEBUG, EXIT_DONE, EXIT_FAILED, EXIT_STOPPED
from cclf.commands.train_options import all_configs, train_config
from cclf.config import Config
from cclf.console import say
from cclf.errors import ConfigError, WorkerError

if TYPE_CHECKING:
    from cclf.training.signals import StopSignal
    from cclf.training.trainer import RunResult

_EXIT_CODES = {"done": EXIT_DONE, "stopped": EXIT_STOPPED, "failed": EXIT_FAILED}


def main(arguments: list[str]) -> int:
    from cclf.training.signals import STOP_MESSAGE, StopSignal

    stop = StopSignal(STOP_MESSAGE)
    stop.install()  # before all else: a signal that comes now is answered like any later one
    # Some tasks are known only once their environment is made, which may change the directory.
    with contextlib.chdir(_working_directory()):
        asked = train_config(arguments)
        configs = all_configs(asked, arguments)
    if asked.dry_run:
        from cclf.envs.make import refuse_unknown

        for config in configs:
            refuse_unknown(config)
        print(json.dumps(asked.config.to_dict(), indent=2))
        return EXIT_DONE
    return run_training(configs, asked.out, stop)


def _working_directory() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise ConfigError("the working directory was removed: change to another one") from error


def run_training(configs: list[Config], out: Path, stop: "StopSignal") -> int:
    """Train these, which differ in task and seed alone, in one process, and say how each ended."""
    from cclf.training.trainer import train_runs

    outcomes, absolute_out = [], out.absolute()
    try:
        with contextlib.closing(train_runs(configs, out, stop)) as coming:
            for outcome in coming:
                folder = outcome.folder
                if folder.is_relative_to(absolute_out):  # as the command line names it
                    folder = out / folder.relative_to(absolute_out)
                _tell(outcome, folder)
                outcomes.append(outcome._replace(folder=folder))
    except OSError as error:
        if DEBUG in os.environ:
            raise
        path = error.filename if isinstance(error.filename, str) else out
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            what_to_do = f"the disk is full ({path}): free some space and run the same command"
        else:
            reason = error.strerror or error
            what_to_do = f"cannot use {path}: {reason}; repair this and run the same command"
        say(f"cclf: {what_to_do}; it goes on from the last checkpoint, if there is one")
        return EXIT_FAILED
    if len(outcomes) < len(configs):
        return EXIT_FAILED  # one was left out
    ends = {outcome.end for outcome in outcomes}
    worst = next(end for end in ("failed", "stopped", "done") if end in ends)
    if worst == "done":
        several = [f"next: cclf report {shlex.quote(str(out))}"]
        lines = several if len(configs) > 1 else hints(configs[0], outcomes[0].folder)
        say("\n".join(lines))
    return _EXIT_CODES[worst]


def hints(config: Config, folder: Path) -> list[str]:
    """What can be done with a finished run, as commands to copy."""
    run = shlex.quote(str(folder))
    # whoever trained named the modules
    trust = " --trust-imports" if config.imported_modules else ""
    commands = [f"cclf evaluate {run}{trust}", f"cclf play {run}{trust}"]
    shown = config.env.observe == "pixels" and find_algorithm(config.base).supports_inspection
    if config.method.needs_curiosity and shown:
        makes_env_alone = set(config.imported_modules) <= {"task"}  # inspect makes no environment
        commands.append(f"cclf inspect {run}{'' if makes_env_alone else trust}")
    return [
        f"{'next:' if place == 0 else '':5} {command}" for place, command in enumerate(commands)
    ]


def _tell(outcome: "RunResult", shown: Path) -> None:
    if outcome.end == "done":
        print(shown, flush=True)
    elif outcome.error is None:
        say(outcome.message)
    else:
        say(f"cclf: {outcome.error}")
        if isinstance(outcome.error, WorkerError):
            say(f"{outcome.error.details}{_way_on(outcome.folder)}")


def _way_on(folder: Path) -> str:
    """What the same command would do with a run that failed."""
    from cclf.storage.checkpoint import Checkpoints

    if any(Checkpoints(folder / "checkpoint").steps().values()):
        return "the last checkpoint is good: run the same command to go on"
    return "nothing was saved yet: the same command begins again"
