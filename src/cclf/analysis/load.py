"""Run folders and results files to one tidy table. Two runs of one name are refused."""

import csv
import io
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from cclf import presets
from cclf.algorithms.base import BaseAlgorithm
from cclf.algorithms.registry import find_algorithm
from cclf.analysis.evaluations import (
    Row,
    RunName,
    RunState,
    called,
    of_shared_length,
    refuse_mixed_clocks,
    refuse_odd_names,
    say_once,
)
from cclf.errors import ConfigError
from cclf.storage import safe_loading
from cclf.storage.atomic_files import find_files, write_output
from cclf.storage.checkpoint_files import is_complete
from cclf.storage.safe_loading import DATA_ERRORS, check_data, data_error_context, read_text
from cclf.storage.tables import table_damage

# what a sweep notes of a run, what a run leaves of itself
FAILURE_MARK, FAILURE_BUNDLE = "failed.json", "failure"
RUN_STATES = get_args(RunState)
_UNKNOWN_ORIGIN = {"device": "unknown", "commit": "unknown"}  # of a run without a manifest


def read(path: Path) -> list[Row]:
    """Rows under `path` that can be compared: of last evaluations those of a length that all have."""
    return of_shared_length(read_all(path))


def read_all(path: Path) -> list[Row]:
    """All rows under `path`: a folder with run folders in it, a folder with results files, or one
    such file."""
    if not path.exists():
        raise ConfigError(f"{path} does not exist")
    rows = read_runs(path) if path.is_dir() and any(_traces_of_runs(path)) else read_results(path)
    if not rows:
        raise ConfigError(f"{path} holds neither runs with an evaluation nor results files")
    refuse_odd_names(rows)
    refuse_mixed_clocks(rows)
    return rows


def read_runs(folder: Path) -> list[Row]:
    """Every evaluation of every run under `folder`, failed and unfinished ones included."""
    rows: list[Row] = []
    settings: dict[tuple[str, str, str], tuple[Path, dict[str, Any]]] = {}
    names: dict[RunName, Path] = {}
    for run, config in run_configs(folder):
        facts = _UNKNOWN_ORIGIN | read_manifest(run)
        with data_error_context(f"cannot read the run in {run}"):
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


def run_configs(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The run folders under `folder`, with their configs.

    Where a sweep's mark is all that is left of a run and cannot be read, that is a warning: it must
    not prevent the statistics of the other runs.
    """
    for run in _possible_runs(folder):
        _warn_of_damage(run, "eval", "final")
        if not _has_results(run):
            continue
        try:
            config = read_run_config(run)
        except ConfigError as error:
            if os.path.lexists(run / "config.json"):
                raise
            say_once(f"warning: a failed run is not counted: {error}")
            continue
        yield run, config


def run_folders(folder: Path) -> list[Path]:
    """Folders of runs that have something to tell: an evaluation, or that they failed, however
    early. Not the bundle inside a failed one, which has neither."""
    return [run for run in _possible_runs(folder) if _has_results(run)]


def _possible_runs(folder: Path) -> list[Path]:
    return sorted({path.parent for path in _traces_of_runs(folder)})


def _traces_of_runs(folder: Path) -> Iterator[Path]:
    return find_files(folder, "config.json", FAILURE_MARK)


def _has_results(run: Path) -> bool:
    return any((run / name).exists() for name in ("eval.csv", FAILURE_MARK, FAILURE_BUNDLE))


def read_run_config(run: Path) -> dict[str, Any]:
    """A run's config as it wrote it; of one that failed before that, as its sweep noted it."""
    if os.path.lexists(run / "config.json"):
        return read_json(run / "config.json")
    note = read_json(run / FAILURE_MARK)
    try:
        if "config" in note:
            return dict(note["config"])
        config = presets.resolve(
            note["task"], note["method"], seed=note["seed"], profile=note["profile"], look=False
        )
        return config.to_dict()
    except DATA_ERRORS as error:
        raise ConfigError(
            f"cannot tell from {run / FAILURE_MARK} which run failed: {error!r}"
        ) from error


def read_manifest(run: Path) -> dict[str, Any]:
    """Empty where it is lost, or where the run ended before it was written."""
    return read_json(run / "manifest.json") if (run / "manifest.json").exists() else {}


def read_train(run: Path, columns: Sequence[str]) -> dict[str, np.ndarray]:
    """Columns of a run's train.csv beside env_steps, where all are filled; empty where the run
    never logged them."""
    _warn_of_damage(run, "train")
    try:
        file = _lines(run / "train.csv")
        lines = [line for line in file if all(line.get(name) for name in columns)]
        return {
            name: np.array([float(line[name]) for line in lines])
            for name in ("env_steps", *columns)
        }
    except OSError:
        return {name: np.array([]) for name in ("env_steps", *columns)}
    except DATA_ERRORS as error:
        raise ConfigError(f"cannot read {run / 'train.csv'}: {error!r}") from error


def _warn_of_damage(run: Path, *tables: str) -> None:
    if reason := table_damage(run, *tables):
        say_once(f"warning: the tables of {run} may be wrong: {reason}")


def _rows_of_run(
    run: Path, name: RunName, config: Mapping[str, Any], facts: Mapping[str, Any]
) -> list[Row]:
    lines = _lines(run / "eval.csv") if (run / "eval.csv").exists() else []
    seconds = {line["env_steps"]: line["wall_seconds"] for line in lines}
    # the last agent in more episodes, timed by itself: the run's own clock stays
    if (run / "final.csv").exists():
        evaluated = {(line["env_steps"], line["episodes"]) for line in lines}
        lines += [
            line | {"wall_seconds": seconds.get(line["env_steps"], "0")}
            for line in _lines(run / "final.csv")
            # As many episodes of the same agent tell no more.
            if (line["env_steps"], line["episodes"]) not in evaluated
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
    `manifest.append_history`."""
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
    return is_complete(
        run, plan["env_steps"], config["env"]["action_repeat"], plan.get("final_eval_episodes", 0)
    )


def _lines(path: Path) -> list[dict[str, str]]:
    """Without a last line that a full disk or a kill tore, as a run reads its own."""
    text = read_text(path)
    whole = text[: text.rfind("\n") + 1]
    return list(csv.DictReader(io.StringIO(whole, newline="")))


def read_json(path: Path) -> dict[str, Any]:
    with data_error_context(f"cannot read {path}"):
        content = safe_loading.read_json(path)
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


def _base(config: Mapping[str, Any]) -> BaseAlgorithm | None:
    """The base algorithm of a run; None where neither it nor the task is known here. Runs of
    version 0.1 did not name it."""
    try:
        return (
            find_algorithm(str(config["base"]))
            if "base" in config
            else presets.select_algorithm(str(config["task"]), look=False)
        )
    except ConfigError:
        return None


def run_name(config: Mapping[str, Any]) -> RunName:
    """As a run is called in tables. Its base algorithm says what its profile is called; a run in
    less than float32 says so, one that observes state, and one with an encoder of its own."""
    base, profile = _base(config), str(config["profile"])
    profile = profile if base is None else base.profile_label(profile, config["algorithm"])
    precision = config["algorithm"].get("precision", "fp32")
    if precision not in ("fp32", "auto"):  # left open by one that failed before it began
        profile = f"{profile}-{precision}"
    observe = config.get("env", {}).get("observe", "pixels")  # older runs know nothing else
    if observe != "pixels":
        profile = f"{profile}-{observe}"
    encoder = config["algorithm"].get("encoder", "")
    if encoder:
        profile = f"{profile}-{encoder}"
    return RunName(str(config["task"]), str(config["method_name"]), profile, int(config["seed"]))


def beside_known(rows: Sequence[Row], folder: Path) -> list[Row]:
    """With the rows that results files in `folder` have of other runs of these methods. Rows of the
    same run are exchanged, for it may have gone on since; another run of its name is refused."""
    merged, names = list(rows), {RunName(*row[:4]) for row in rows}
    measured = {(*row[:5], row.episodes): row.return_mean for row in rows}
    for path in (folder / f"{method}.csv" for method in sorted({row.method for row in rows})):
        for row in read_results(path) if path.exists() else []:
            if RunName(*row[:4]) not in names:
                merged.append(row)
            # what was measured once stays; a row without a return holds nothing
            elif not math.isnan(row.return_mean) and row.return_mean != measured.get(
                (*row[:5], row.episodes)
            ):
                raise ConfigError(
                    f"{path} has another run that is called {called(row)}, of commit {row.commit}: "
                    "use another --out"
                )
    return merged


def write_results(rows: Iterable[Row], folder: Path) -> list[Path]:
    """One CSV per method, `folder/<method>.csv`, in the place of what is there."""
    by_method: dict[str, list[Row]] = {}
    for row in rows:
        by_method.setdefault(row.method, []).append(row)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for method, group in sorted(by_method.items()):
        paths.append(folder / f"{method}.csv")
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows(sorted(group))
        write_output(paths[-1], text.getvalue())
    return paths


def read_results(path: Path) -> list[Row]:
    """What `write_results` wrote: one file, or all under a folder."""
    rows = []
    for file_path in [path] if path.is_file() else sorted(find_files(path, "*.csv")):
        with data_error_context(f"cannot read {file_path}"):
            reader = csv.DictReader(io.StringIO(read_text(file_path), newline=""))
            missing = set(Row._fields) - set(reader.fieldnames or ())
            if missing:
                raise ConfigError(
                    f"{file_path} is no results file: column {min(missing)} is missing; `cclf "
                    "results` writes them"
                )
            try:
                for line in reader:
                    fields = Row.__annotations__.items()
                    rows.append(Row(**{name: kind(line[name]) for name, kind in fields}))
                    check_data(
                        rows[-1].state in RUN_STATES,
                        f"the state of a run is one of {', '.join(RUN_STATES)}, not "
                        f"{ascii(rows[-1].state)[:80]}",
                    )
            except (TypeError, ValueError) as error:
                raise ConfigError(f"{file_path}, line {reader.line_num}: {error}") from error
    return rows
