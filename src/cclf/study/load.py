"""Run folders and results files to one tidy table: a row per evaluation, each with its three
clocks, commit and machine.

What cannot be compared is refused here, in one line: a task on two clocks, two runs of one name.
Evaluations of different length are compared, and a line says so. Failed runs stay in the table and
in the statistics: from its failure on a run scores the lowest return seen on its task.
"""

import csv
import functools
import io
import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from cclf import presets
from cclf.bases.base import Base
from cclf.bases.registry import find_base
from cclf.data.from_disk import MISFITS, read_text, refused_as
from cclf.errors import ConfigError
from cclf.runtime import run_end
from cclf.study.statistics import steps_to_threshold

FORMULA_SIGNS = ("=", "+", "-", "@")  # a spreadsheet that opens a CSV obeys cells that begin so

# what a sweep notes of a run, what a run leaves of itself
FAILURE_MARK, FAILURE_BUNDLE = "failed.json", "failure"
_UNKNOWN_ORIGIN = {"device": "unknown", "commit": "unknown"}  # of a run without a manifest

RunState = Literal["done", "failed", "unfinished"]
ClockUnit = Literal["env_steps", "agent_steps"]


class Row(NamedTuple):
    task: str
    method: str
    profile: str
    seed: int
    env_steps: int
    agent_steps: int
    updates: int
    # nan in the one row, at 0 steps, of a run that failed before its first evaluation
    return_mean: float
    return_std: float
    episodes: int
    wall_seconds: float
    device: str
    commit: str
    state: str = "done"  # of the run, as it stands: a RunState


class Clock(NamedTuple):
    """A moment: "100K" is environment steps on DeepMind Control and agent steps on Atari."""

    unit: ClockUnit
    steps: int

    def __str__(self) -> str:
        return f"{self.steps:,} {self.unit.replace('_', ' ')}"


class RunName(NamedTuple):
    task: str
    method: str
    profile: str
    seed: int


def read(path: Path) -> list[Row]:
    """All rows under `path`: a folder with run folders in it, a folder with results files, or one
    such file."""
    if not path.exists():
        raise ConfigError(f"{path} does not exist")
    rows = read_runs(path) if path.is_dir() and any(_traces_of_runs(path)) else read_results(path)
    if not rows:
        raise ConfigError(f"{path} holds neither runs with an evaluation nor results files")
    refuse_odd_names(rows)
    refuse_mixed_clocks(rows)
    return of_shared_length(rows)


def refuse_odd_names(rows: Iterable[Row]) -> None:
    """Names come from files that others may have written; they become labels, and a method becomes
    a file name."""
    for row in rows:
        for text in (row.task, row.method, row.profile, row.device, row.commit):
            if text.startswith(FORMULA_SIGNS):
                raise ConfigError(
                    "a name in these results begins as a spreadsheet's formula does: "
                    f"{ascii(text)[:80]}"
                )
            if not text.isprintable() or len(text) > 200:
                raise ConfigError(f"a name in these results cannot be printed: {ascii(text)[:80]}")
        if not row.method or "/" in row.method or row.method.startswith("."):
            raise ConfigError(f"{row.method!r} cannot be the name of a method")


def runs(rows: Iterable[Row]) -> dict[RunName, list[Row]]:
    """Rows by run, in the order of the clock; of two evaluations at one moment the longer one
    stays."""
    by_run: dict[RunName, dict[int, Row]] = {}
    for row in sorted(rows, key=lambda row: (row[:5], row.episodes)):
        by_run.setdefault(RunName(*row[:4]), {})[row.env_steps] = row
    return {name: list(readings.values()) for name, readings in by_run.items()}


def refuse_mixed_clocks(rows: Sequence[Row]) -> None:
    """One action repeat per task: curves over steps of different length would look alike and mean
    different things."""
    repeats: dict[str, dict[float, Row]] = {}
    seen = set()
    for row in rows:
        if (moment := (*row[:5], row.episodes)) in seen:
            raise ConfigError(
                f"two runs are called {_called(row)}: keep results of different settings apart"
            )
        seen.add(moment)
        if row.agent_steps:
            repeats.setdefault(row.task, {}).setdefault(row.env_steps / row.agent_steps, row)
    for task, found in repeats.items():
        if len(found) > 1:
            told = " but ".join(
                f"{repeat:g} in {_called(row)}" for repeat, row in sorted(found.items())
            )
            raise ConfigError(
                f"{task} is on two clocks: env steps per agent step are {told}; report them apart"
            )


def _called(row: Row) -> str:
    return f"{row.task} {row.method} {row.profile} seed {row.seed}"


def of_shared_length(rows: Sequence[Row]) -> list[Row]:
    """Without the longer last evaluations that some runs of a task do not have yet, though they are
    at the same moment."""
    by_moment: dict[tuple[str, str, int], dict[RunName, set[int]]] = {}
    for row in rows:
        by_moment.setdefault((row.task, row.profile, row.env_steps), {}).setdefault(
            RunName(*row[:4]), set()
        ).add(row.episodes)
    longest = {}
    for moment, lengths in by_moment.items():
        shared, known = set.intersection(*lengths.values()), set.union(*lengths.values())
        if shared and max(known) > max(shared):
            longest[moment] = max(shared)
            say_once(
                f"{moment[0]} at {moment[2]:,} env steps: not every run has its evaluation in "
                f"{max(known)} episodes, so all are compared in {max(shared)}"
            )
    return [
        row
        for row in rows
        if row.episodes <= longest.get((row.task, row.profile, row.env_steps), row.episodes)
    ]


@functools.cache
def say_once(line: str) -> None:
    """Many tables are made of the same rows."""
    print(f"cclf: {line}", file=sys.stderr, flush=True)


def scores(
    rows: Sequence[Row], methods: Sequence[str], clocks: Mapping[str, Clock]
) -> dict[str, np.ndarray]:
    """Returns at each task's clock as (runs, tasks) by method, for the seeds that a method has on
    every task.

    A failed run counts as `lowest_returns` says; one that is not yet there is left out.
    """
    lowest = lowest_returns(rows)
    found: dict[tuple[str, str], dict[int, float]] = {}
    episodes: dict[str, set[int]] = {}
    for name, readings in runs(
        row for row in rows if row.task in clocks and row.method in methods
    ).items():
        row = at(readings, clocks[name.task])
        if row is not None:
            episodes.setdefault(row.task, set()).add(row.episodes)
            found.setdefault((name.method, name.task), {})[name.seed] = row.return_mean
        elif readings[-1].state == "failed":
            found.setdefault((name.method, name.task), {})[name.seed] = lowest[name.task]
    for task, lengths in episodes.items():
        if len(lengths) > 1:
            counts = " and ".join(map(str, sorted(lengths)))
            say_once(
                f"{task} at {clocks[task]}: evaluations of {counts} episodes count alike: "
                "shorter ones are noisier"
            )
    return {
        method: _matrix([found.get((method, task), {}) for task in clocks]) for method in methods
    }


def steps_to(readings: Sequence[Row], threshold: float, unit: ClockUnit = "env_steps") -> float:
    """The first moment at which a run's return reaches `threshold`; infinity where it never
    does."""
    clock, returns = np.array([(getattr(row, unit), row.return_mean) for row in readings]).T
    return steps_to_threshold(clock, returns, threshold)


def best_scores(
    rows: Sequence[Row], methods: Sequence[str], tasks: Sequence[str]
) -> dict[str, np.ndarray]:
    """The best evaluation of each run during training as (runs, tasks), which flatters: some papers
    report it.

    A longer last evaluation is not among them, a run with a single one has no best, and a failed
    run scores as ever.
    """
    lowest = lowest_returns(rows)
    found: dict[tuple[str, str], dict[int, float]] = {}
    by_run: dict[RunName, list[Row]] = {}
    for row in rows:
        by_run.setdefault(RunName(*row[:4]), []).append(row)
    for name, evaluations in by_run.items():
        usual = min(row.episodes for row in evaluations)
        returns = [row.return_mean for row in evaluations if row.episodes == usual]
        failed = evaluations[-1].state == "failed"
        if failed or len(returns) > 1:
            found.setdefault((name.method, name.task), {})[name.seed] = (
                lowest[name.task] if failed else max(returns)
            )
    return {
        method: _matrix([found.get((method, task), {}) for task in tasks]) for method in methods
    }


def mean_returns(
    rows: Sequence[Row], methods: Sequence[str], clock: Clock
) -> dict[str, np.ndarray]:
    """The mean of all evaluations of each run until `clock` as (runs, 1), of one task; a failed run
    scores as ever, and one that has not got there is left out."""
    lowest = lowest_returns(rows)
    found: dict[str, list[float]] = {method: [] for method in methods}
    for name, readings in runs(rows).items():
        last = at(readings, clock)
        if last is not None:
            seen = [row.return_mean for row in readings if row.env_steps <= last.env_steps]
            found[name.method].append(float(np.mean(seen)))
        elif readings[-1].state == "failed":
            found[name.method].append(lowest[name.task])
    return {method: np.array(means).reshape(-1, 1) for method, means in found.items()}


def _matrix(columns: Sequence[Mapping[int, float]]) -> np.ndarray:
    """(runs, tasks) from a value by seed for each task: the seeds that every task has."""
    seeds = sorted(set.intersection(*(set(column) for column in columns)))
    return np.array([[column[seed] for column in columns] for seed in seeds]).reshape(
        len(seeds), len(columns)
    )


def at(readings: Sequence[Row], clock: Clock) -> Row | None:
    """The evaluation of one run at `clock`: a whole turn may end a little later, up to one part in
    a hundred."""
    for row in readings:
        if clock.steps <= getattr(row, clock.unit) <= clock.steps * 1.01:
            return row
    return None


def refuse_other_spacing(rows: Iterable[Row]) -> None:
    """The moment a threshold is reached can only be compared where evaluations fall on the same
    moments."""
    first: dict[str, tuple[int, RunName]] = {}
    for name, readings in runs(rows).items():
        if readings[0].env_steps == 0:
            continue  # it failed before its first evaluation
        start, other = first.setdefault(name.task, (readings[0].env_steps, name))
        if start != readings[0].env_steps:
            raise ConfigError(
                f"{name.task} is evaluated every {start:,} env steps in {other.method} and every "
                f"{readings[0].env_steps:,} "
                f"in {name.method}: steps to a return cannot be compared"
            )


def lowest_returns(rows: Iterable[Row]) -> dict[str, float]:
    """By task the lowest return of any evaluation in the table: what a failed run scores."""
    lowest: dict[str, float] = {}
    for row in rows:
        value = row.return_mean if np.isfinite(row.return_mean) else np.inf
        lowest[row.task] = min(value, lowest.get(row.task, np.inf))
    return {task: value if np.isfinite(value) else 0.0 for task, value in lowest.items()}


def read_runs(folder: Path) -> list[Row]:
    """Every evaluation of every run under `folder`, failed and unfinished ones included."""
    rows: list[Row] = []
    settings: dict[tuple[str, str, str], tuple[Path, dict[str, Any]]] = {}
    names: dict[RunName, Path] = {}
    for run in run_folders(folder):
        config = read_run_config(run)
        facts = _UNKNOWN_ORIGIN | read_manifest(run)
        with refused_as(f"{run} is not a run folder of this version"):
            name = run_name(config)
            if name in names:
                raise ConfigError(
                    f"{names[name]} and {run} are the same run with different settings: report "
                    "them apart"
                )
            names[name] = run
            # a run that ended before has learned nothing, with whatever settings
            if (run / "config.json").exists():
                _refuse_other_settings(settings.setdefault(name[:3], (run, config)), run, config)
            rows += _rows_of_run(run, name, config, facts)
    return sorted(rows)


def run_folders(folder: Path) -> list[Path]:
    """Folders of runs that have something to tell: an evaluation, or that they failed, however
    early. Not the bundle inside a failed one, which has neither."""
    found = sorted({path.parent for path in _traces_of_runs(folder)})
    return [
        run
        for run in found
        if any((run / name).exists() for name in ("eval.csv", FAILURE_MARK, FAILURE_BUNDLE))
    ]


def _traces_of_runs(folder: Path) -> Iterator[Path]:
    return itertools.chain(folder.rglob("config.json"), folder.rglob(FAILURE_MARK))


def read_run_config(run: Path) -> dict[str, Any]:
    """A run's config as it wrote it; of one that failed before that, as its sweep noted it."""
    if (run / "config.json").exists():
        return read_json(run / "config.json")
    note = read_json(run / FAILURE_MARK)
    try:
        if "config" in note:
            return dict(note["config"])
        config = presets.resolve(
            note["task"], note["method"], seed=note["seed"], profile=note["profile"], look=False
        )
        return config.to_dict()
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"cannot tell from {run / FAILURE_MARK} which run failed: {error!r}"
        ) from error


def read_manifest(run: Path) -> dict[str, Any]:
    """Empty where it is lost, or where the run ended before it was written."""
    return read_json(run / "manifest.json") if (run / "manifest.json").exists() else {}


def read_train(run: Path, columns: Sequence[str]) -> dict[str, np.ndarray]:
    """Columns of a run's train.csv beside env_steps, where all are filled; empty where the run
    never logged them."""
    try:
        file = _lines(run / "train.csv")
        lines = [line for line in file if all(line.get(name) for name in columns)]
        return {
            name: np.array([float(line[name]) for line in lines])
            for name in ("env_steps", *columns)
        }
    except OSError:
        return {name: np.array([]) for name in ("env_steps", *columns)}
    except MISFITS as error:
        raise ConfigError(f"cannot read {run / 'train.csv'}: {error!r}") from error


def _rows_of_run(
    run: Path, name: RunName, config: Mapping[str, Any], facts: Mapping[str, Any]
) -> list[Row]:
    lines = _lines(run / "eval.csv") if (run / "eval.csv").exists() else []
    seconds = {line["env_steps"]: line["wall_seconds"] for line in lines}
    # the last agent in more episodes, timed by itself: the run's own clock stays
    if (run / "final.csv").exists():
        lines += [
            line | {"wall_seconds": seconds.get(line["env_steps"], "0")}
            for line in _lines(run / "final.csv")
        ]
    reached = max((int(line["env_steps"]) for line in lines), default=0)
    # By its own account, or by its sweep's, unless it came to its end after all.
    marked = (run / FAILURE_MARK).exists() and not _is_at_end(run, config)
    failed = marked or (run / FAILURE_BUNDLE).exists()
    state: RunState = (
        "failed" if failed else "done" if reached >= config["run"]["env_steps"] else "unfinished"
    )
    if not lines and state == "failed":
        nothing = ("env_steps", "agent_steps", "updates", "return_std", "episodes", "wall_seconds")
        lines = [dict.fromkeys(nothing, "0") | {"return_mean": "nan"}]
    return [
        Row(
            *name,
            int(line["env_steps"]),
            int(line["agent_steps"]),
            int(line["updates"]),
            float(line["return_mean"]),
            float(line["return_std"]),
            int(line["episodes"]),
            float(line["wall_seconds"]),
            *_made_by(facts, int(line["env_steps"])),
            state,
        )
        for line in lines
    ]


def _made_by(facts: Mapping[str, Any], env_steps: int) -> tuple[str, str]:
    """Device and commit of the rows at this moment, by a run's manifest: see
    `run_folder.with_history`."""
    entries = [
        facts,
        *(entry for entry in facts.get("history", []) if entry["from_env_steps"] < env_steps),
    ]
    made = entries[-1]
    device = (
        f"{made['device']} x{made['threads']}" if made["device"] == "cpu" else str(made["device"])
    )
    return device, str(made["commit"])


def _is_at_end(run: Path, config: Mapping[str, Any]) -> bool:
    plan = config["run"]
    return run_end.is_at_end(
        run, plan["env_steps"], config["env"]["action_repeat"], plan.get("final_eval_episodes", 0)
    )


def _lines(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(read_text(path), newline="")))


def read_json(path: Path) -> dict[str, Any]:
    with refused_as(f"cannot read {path}"):
        content = json.loads(read_text(path))
    if not isinstance(content, dict):
        raise ConfigError(f"cannot read {path}: it holds no facts")
    return content


def _refuse_other_settings(
    first: tuple[Path, dict[str, Any]], run: Path, config: dict[str, Any]
) -> None:
    """Seeds of one name must differ in the seed alone; fields that only one version of the program
    knows are not compared."""
    bases_named = [each["base"] for each in (first[1], config) if "base" in each]
    if len(set(bases_named)) > 1:
        one, other = bases_named
        raise ConfigError(f"{first[0]} has base={one} and {run} base={other}: report them apart")
    for group in ("env", "method", "algorithm"):
        ours, theirs = config[group], first[1][group]
        for key in sorted(set(ours) & set(theirs) - {"replay_device"}):
            if ours[key] != theirs[key]:
                raise ConfigError(
                    f"{first[0]} has {key}={theirs[key]} and {run} {key}={ours[key]}: seeds of one "
                    "method must share all settings"
                )


def _base(config: Mapping[str, Any]) -> Base | None:
    """The base algorithm of a run; None where neither it nor the task is known here. Runs of
    version 0.1 did not name it."""
    try:
        return (
            find_base(str(config["base"]))
            if "base" in config
            else presets.base_of(str(config["task"]), look=False)
        )
    except ConfigError:
        return None


def run_name(config: Mapping[str, Any]) -> RunName:
    """As a run is called in tables. Its base algorithm says what its profile is called; a run in
    less than float32 says so, one that observes state, and one with an encoder of its own."""
    base, profile = _base(config), str(config["profile"])
    profile = profile if base is None else base.profile_label(profile, config["algorithm"])
    precision = config["algorithm"].get("precision", "fp32")
    if precision != "fp32":
        profile = f"{profile}-{precision}"
    observe = config.get("env", {}).get("observe", "pixels")  # older runs know nothing else
    if observe != "pixels":
        profile = f"{profile}-{observe}"
    encoder = config["algorithm"].get("encoder", "")
    if encoder:
        profile = f"{profile}-{encoder}"
    return RunName(str(config["task"]), str(config["method_name"]), profile, int(config["seed"]))


def write_results(rows: Iterable[Row], folder: Path) -> list[Path]:
    """One CSV per method, `folder/<method>.csv`."""
    by_method: dict[str, list[Row]] = {}
    for row in rows:
        by_method.setdefault(row.method, []).append(row)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for method, group in sorted(by_method.items()):
        paths.append(folder / f"{method}.csv")
        with paths[-1].open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(Row._fields)
            writer.writerows(sorted(group))
    return paths


def read_results(path: Path) -> list[Row]:
    """What `write_results` wrote: one file, or all under a folder."""
    rows = []
    for file_path in [path] if path.is_file() else sorted(path.rglob("*.csv")):
        with refused_as(f"cannot read {file_path}"):
            reader = csv.DictReader(io.StringIO(read_text(file_path), newline=""))
            missing = set(Row._fields) - set(reader.fieldnames or ())
            if missing:
                raise ConfigError(
                    f"{file_path} is no results file: column {min(missing)} is missing; `cclf "
                    "results` writes them"
                )
            try:
                rows += [
                    Row(**{name: kind(line[name]) for name, kind in Row.__annotations__.items()})
                    for line in reader
                ]
            except (TypeError, ValueError) as error:
                raise ConfigError(f"{file_path}, line {reader.line_num}: {error}") from error
    return rows
