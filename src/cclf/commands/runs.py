"""`cclf runs`: the runs in a folder. Commands that need one run choose it here."""

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import tyro

from cclf.commands.options import Json, parse, print_json
from cclf.errors import ConfigError


@dataclass(frozen=True)
class RunsOptions:
    """List the runs in a folder with their task, method, differing settings, seed and last return. The
    run that trained last is at the end."""

    folder: tyro.conf.Positional[Path] = Path("runs")
    """A folder with runs, at any depth."""
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of commands that use one run."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """A run folder, a folder that contains runs, pretrained/NAME or hf:USER/NAME."""
    last: bool = False
    """Take the run that trained last if the folder contains several."""
    trust_imports: bool = False
    """Allow the run to import the Python modules that it names: of a task gym/MODULE:ID, an encoder, a
    curiosity or an augmentation MODULE:NAME."""


class RunInfo(NamedTuple):
    run: str  # its folder
    task: str = "?"
    method: str = "?"
    profile: str = "?"
    seed: int | None = None
    settings: str = ""  # that differ between the runs of one method
    env_steps: int | None = None  # of the last evaluation
    return_mean: float | None = None


def main(arguments: list[str]) -> None:
    options = parse(RunsOptions, "cclf runs", arguments)
    runs = find_runs(options.folder)
    if not runs:
        raise ConfigError(f"{options.folder} contains no runs")
    infos = describe_runs(runs)
    if options.json:
        print_json([info._asdict() for info in infos])
    else:
        print_runs(infos)


def select_run(folder: Path, last: bool, is_json: bool = False) -> Path:
    """A run folder: `folder` itself, the agent that it names, or the only or last run under it. If there
    are several, they are printed and ConfigError is raised."""
    from cclf.agents import find_agent

    folder = find_agent(folder)
    if (folder / "config.json").exists():
        return folder
    runs = find_runs(folder)
    if len(runs) > 1 and not last:
        if not is_json:
            print_runs(describe_runs(runs))
        raise ConfigError(
            f"{folder} contains {len(runs)} runs: name one of them, or add --last for the one that "
            "trained last"
        )
    if not runs:
        reason = "it has no config.json" if os.path.lexists(folder) else "it does not exist"
        raise ConfigError(f"{folder} is not a run folder: {reason}")
    return runs[-1]


def find_runs(folder: Path) -> list[Path]:
    """The run folders under `folder`; the one that was trained last is the last one."""
    from cclf.storage.atomic_files import find_files

    runs = [path.parent for path in find_files(folder, "config.json")]
    # A run folder may contain an exported agent, which has a config too.
    runs = [run for run in runs if not any(other in run.parents for other in runs)]
    return sorted(runs, key=lambda run: (_trained_at(run), run))


def _trained_at(run: Path) -> int:
    files = [path for path in (run / "train.csv", run / "config.json") if path.exists()]
    return max((path.stat().st_mtime_ns for path in files), default=0)


def describe_runs(runs: Sequence[Path]) -> list[RunInfo]:
    """A RunInfo for each run. If the config of a run cannot be read, it contains only the
    folder."""
    from cclf.analysis.load import read_run_config
    from cclf.analysis.variants import run_key, run_keys
    from cclf.storage.safe_loading import DATA_ERRORS

    configs = {}
    for run in runs:
        try:
            config = read_run_config(run)
            run_key(config)
            configs[run] = config
        except (OSError, *DATA_ERRORS):
            continue
    infos = {run: RunInfo(str(run)) for run in runs}
    for run, (task, method, profile, seed) in run_keys(configs, configs).items():
        name, _, settings = method.partition(", ")
        infos[run] = RunInfo(str(run), task, name, profile, seed, settings, *_last_evaluation(run))
    return list(infos.values())


def _last_evaluation(run: Path) -> tuple[int | None, float | None]:
    """The env steps and the mean return of the last evaluation; None where there is none."""
    from cclf.storage.safe_loading import DATA_ERRORS, read_text

    try:
        *_, row = csv.DictReader(read_text(run / "eval.csv").splitlines())
        return int(row["env_steps"]), float(row["return_mean"])
    except (OSError, *DATA_ERRORS):
        return None, None


def print_runs(infos: Sequence[RunInfo]) -> None:
    """Two lines for each run: what it is, and its folder, which can be copied."""
    several_profiles = len({info.profile for info in infos}) > 1
    for info in infos:
        parts = [info.task, info.method, info.profile if several_profiles else "", info.settings]
        parts.append("" if info.seed is None else f"seed {info.seed}")
        if info.return_mean is None:
            parts.append("not evaluated yet")
        else:
            parts.append(f"return {info.return_mean:.4g} at {info.env_steps:,} env steps")
        print("  ".join(filter(None, parts)) + f"\n    {info.run}")
