"""Read run folders and results files into rows. Every run folder is read once."""

import csv
import io
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np

from cclf import presets
from cclf.analysis import runs
from cclf.analysis.runs import ResultRow, RunKey, RunState
from cclf.analysis.variants import Json, run_keys
from cclf.errors import ConfigError
from cclf.storage import safe_loading
from cclf.storage.atomic_files import find_files, write_output
from cclf.storage.checkpoint_files import is_complete
from cclf.storage.safe_loading import check_data, data_error_context, read_text
from cclf.storage.tables import table_damage

# what a sweep records about a failed run, and what the run itself leaves
FAILURE_MARK, FAILURE_BUNDLE = "failed.json", "failure"
RUN_STATES = get_args(RunState)
_UNKNOWN_ORIGIN = {"device": "unknown", "commit": "unknown"}  # of a run without a manifest


class RunData(NamedTuple):
    """What a run folder holds."""

    folder: Path
    key: RunKey
    rows: list[ResultRow]
    manifest: Json
    failure: str  # why it failed, if known


class Source(NamedTuple):
    """All rows of a source, and its runs if the source is a folder with run folders."""

    rows: list[ResultRow]
    runs: list[RunData]


def read(path: Path) -> list[ResultRow]:
    """Rows under `path` that can be compared: without evaluations of more episodes that only some
    runs have."""
    return runs.with_common_episode_count(read_source(path).rows)


def read_source(path: Path) -> Source:
    """All rows and runs of `path`: a folder with run folders, a folder with results files, or one
    such file."""
    if not path.exists():
        raise ConfigError(f"{path} does not exist")
    is_run_source = path.is_dir() and any(_run_files(path))
    run_data = read_run_folders(path) if is_run_source else []
    rows = _rows_of(run_data) if is_run_source else read_results(path)
    if not rows:
        raise ConfigError(f"{path} holds neither runs with an evaluation nor results files")
    runs.check_names(rows)
    runs.check_comparable(rows)
    return Source(rows, run_data)


def read_runs(folder: Path) -> list[ResultRow]:
    """Every evaluation of every run under `folder`, including failed and unfinished runs."""
    return _rows_of(read_run_folders(folder))


def _rows_of(run_data: Sequence[RunData]) -> list[ResultRow]:
    return sorted(row for run in run_data for row in run.rows)


def read_run_folders(folder: Path) -> list[RunData]:
    """The runs under `folder`. Runs of one method with different settings are named by the
    settings that differ, see `variants.run_keys`."""
    configs = dict(_configs(folder))
    started = {run for run in configs if (run / "config.json").exists()}
    keys = run_keys(configs, started)
    folders: dict[RunKey, Path] = {}
    for run, key in keys.items():
        if folders.setdefault(key, run) != run:
            raise ConfigError(
                f"{folders[key]} and {run} are the same run: report them apart, or remove one"
            )
    return [_read_run(run, key, configs[run]) for run, key in keys.items()]


def has_runs(folder: Path) -> bool:
    return any(map(_has_results, {path.parent for path in _run_files(folder)}))


def _configs(folder: Path) -> Iterator[tuple[Path, Json]]:
    """Folders of runs that were evaluated or that failed, with their configs.

    If the record of a sweep is the only file of a failed run and cannot be read, that is a
    warning: it must not prevent the statistics of the other runs.
    """
    for run in sorted({path.parent for path in _run_files(folder)}):
        _warn_of_damage(run, "eval", "final")
        if not _has_results(run):
            continue
        try:
            yield run, read_run_config(run)
        except ConfigError as error:
            if os.path.lexists(run / "config.json"):
                raise
            runs.warn_once(f"warning: a failed run is not counted: {error}")


def _run_files(folder: Path) -> Iterator[Path]:
    return find_files(folder, "config.json", FAILURE_MARK)


def _has_results(run: Path) -> bool:
    return any((run / name).exists() for name in ("eval.csv", FAILURE_MARK, FAILURE_BUNDLE))


def read_run_config(run: Path) -> Json:
    """The config that a run wrote; if it failed before that, the one that its sweep recorded."""
    if os.path.lexists(run / "config.json"):
        return read_json(run / "config.json")
    with data_error_context(f"cannot tell from {run / FAILURE_MARK} which run failed"):
        record = read_json(run / FAILURE_MARK)
        if "config" in record:
            return dict(record["config"])
        # written by an earlier version
        config = presets.resolve(
            record["task"],
            record["method"],
            seed=record["seed"],
            profile=record["profile"],
            make_env=False,
        )
        return config.to_dict()


def read_manifest(run: Path) -> Json:
    """The manifest of a run; empty if the file is missing or the run ended before it was
    written."""
    return read_json(run / "manifest.json") if (run / "manifest.json").exists() else {}


def read_json(path: Path) -> Json:
    with data_error_context(f"cannot read {path}"):
        content = safe_loading.read_json(path)
    if not isinstance(content, dict):
        raise ConfigError(f"cannot read {path}: it is not a JSON object")
    return content


def read_train(run: Path, columns: Sequence[str]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Env steps and values of those columns of a run's train.csv that are logged and not 0
    throughout."""
    _warn_of_damage(run, "train")
    series = {}
    with data_error_context(f"cannot read {run / 'train.csv'}"):
        lines = _lines(run / "train.csv")
        for column in columns:
            logged = [line for line in lines if line.get(column)]
            values = np.array([float(line[column]) for line in logged])
            if np.any(values):
                series[column] = (np.array([float(line["env_steps"]) for line in logged]), values)
    return series


def _warn_of_damage(run: Path, *tables: str) -> None:
    if reason := table_damage(run, *tables):
        runs.warn_once(f"warning: the tables of {run} may be wrong: {reason}")


def _read_run(run: Path, key: RunKey, config: Json) -> RunData:
    manifest = read_manifest(run)
    with data_error_context(f"cannot read the run in {run}"):
        rows = _rows_of_run(run, key, config, {**_UNKNOWN_ORIGIN, **manifest})
    reason, file = "", run / FAILURE_BUNDLE / "failure.json"
    if file.exists():
        failure = read_json(file)
        reason = f"{failure.get('metric')} was {failure.get('value')}"
    return RunData(run, key, rows, manifest, reason)


def _rows_of_run(run: Path, key: RunKey, config: Json, manifest: Json) -> list[ResultRow]:
    lines = _lines(run / "eval.csv")
    # The final evaluation measures its own time; the wall time of the run is in eval.csv.
    seconds = {line["env_steps"]: line["wall_seconds"] for line in lines}
    evaluated = {(line["env_steps"], line["episodes"]) for line in lines}
    lines += [
        line | {"wall_seconds": seconds.get(line["env_steps"], "0")}
        for line in _lines(run / "final.csv")
        # skip a final evaluation with the same env steps and episodes as a row of eval.csv
        if (line["env_steps"], line["episodes"]) not in evaluated
    ]
    state = _state(run, config, max((int(line["env_steps"]) for line in lines), default=0))
    if not lines and state == "failed":
        empty = ("env_steps", "agent_steps", "updates", "return_std", "episodes", "wall_seconds")
        lines = [dict.fromkeys(empty, "0") | {"return_mean": "nan"}]
    return [
        ResultRow(
            *key,
            int(line["env_steps"]),
            int(line["agent_steps"]),
            int(line["updates"]),
            float(line["return_mean"]),
            float(line["return_std"]),
            int(line["episodes"]),
            float(line["wall_seconds"]),
            *_origin(manifest, int(line["env_steps"])),
            state,
        )
        for line in lines
    ]


def _state(run: Path, config: Json, reached: int) -> RunState:
    """The state of a run. One that its sweep recorded as failed may have been completed since."""
    settings, repeat = config["run"], config["env"]["action_repeat"]
    marked = (run / FAILURE_MARK).exists() and not is_complete(
        run, settings["env_steps"], repeat, settings.get("final_eval_episodes", 0)
    )
    if marked or (run / FAILURE_BUNDLE).exists():
        return "failed"
    return "done" if reached >= settings["env_steps"] else "unfinished"


def _origin(manifest: Json, env_steps: int) -> tuple[str, str]:
    """Device and commit of an evaluation: the manifest has an entry per resume."""
    history = [
        entry for entry in manifest.get("history", []) if entry["from_env_steps"] < env_steps
    ]
    entry = history[-1] if history else manifest
    threads = f" x{entry['threads']}" if entry["device"] == "cpu" else ""
    return f"{entry['device']}{threads}", str(entry["commit"])


def _lines(path: Path) -> list[dict[str, str]]:
    """The lines of a table; none if it does not exist. An incomplete last line, as after a full
    disk or a kill, is not read."""
    if not path.exists():
        return []
    complete = read_text(path).rpartition("\n")[0]
    return list(csv.DictReader(io.StringIO(complete, newline="")))


def merge_results(rows: Sequence[ResultRow], folder: Path) -> list[ResultRow]:
    """`rows`, and the rows of other runs of the same methods in the results files of `folder`. Rows
    of the same run are replaced, since it may have continued; a different run of the same name is
    an error."""
    merged, new_keys = list(rows), {row[:4] for row in rows}  # row[:4] is the RunKey
    new_returns = {(*row[:5], row.episodes): row.return_mean for row in rows}
    for path in (folder / name for name in sorted({_file_name(row) for row in rows})):
        for row in read_results(path) if path.exists() else []:
            if row[:4] not in new_keys:
                merged.append(row)
            elif not math.isnan(row.return_mean) and row.return_mean != new_returns.get(
                (*row[:5], row.episodes)
            ):
                raise ConfigError(
                    f"{path} has another run that is called {runs.describe(row)}, of commit "
                    f"{row.commit}: use another --out"
                )
    return merged


def _file_name(row: ResultRow) -> str:
    """The results file of a method and its variants."""
    return f"{row.method.partition(', ')[0]}.csv"


def write_results(rows: Iterable[ResultRow], folder: Path) -> list[Path]:
    """One CSV file per method, `folder/<method>.csv`; existing files are replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, group in sorted(runs.group_by(rows, _file_name).items()):
        paths.append(folder / name)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(ResultRow._fields)
        writer.writerows(sorted(group))
        write_output(paths[-1], text.getvalue())
    return paths


def read_results(path: Path) -> list[ResultRow]:
    """The rows that `write_results` wrote: of one file, or of all files under a folder."""
    rows = []
    for file in [path] if path.is_file() else sorted(find_files(path, "*.csv")):
        with data_error_context(f"cannot read {file}"):
            reader = csv.DictReader(io.StringIO(read_text(file), newline=""))
            missing = set(ResultRow._fields) - set(reader.fieldnames or ())
            if missing:
                raise ConfigError(
                    f"{file} is no results file: column {min(missing)} is missing; `cclf results` "
                    "writes them"
                )
            try:
                for line in reader:
                    fields = ResultRow.__annotations__.items()
                    rows.append(ResultRow(**{name: kind(line[name]) for name, kind in fields}))
                    check_data(
                        rows[-1].state in RUN_STATES,
                        f"the state of a run is one of {', '.join(RUN_STATES)}, not "
                        f"{ascii(rows[-1].state)[:80]}",
                    )
            except (TypeError, ValueError) as error:
                raise ConfigError(f"{file}, line {reader.line_num}: {error}") from error
    return rows
