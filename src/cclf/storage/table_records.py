"""The CSV files of a run, verified against recorded row counts and checksums.

A checkpoint records train.csv, eval.csv and final.csv. The final evaluation follows the last
checkpoint, so final.json, which is written after its row, records final.csv.
"""

import csv
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from cclf.errors import ConfigError
from cclf.storage.atomic_files import atomic_write
from cclf.storage.checkpoint_files import newest_tables
from cclf.storage.safe_loading import (
    check_data,
    check_same_structure,
    data_error_context,
    read_json,
    read_text,
)

FINAL_RECORD = "final.json"


class TableRecord(NamedTuple):
    """Row count and checksum of a CSV file when it was recorded."""

    columns: tuple[str, ...]
    rows: int
    sha256: str  # of the columns and these rows


def rows_up_to(
    path: Path,
    resume_env_steps: int,
    known: TableRecord | None,
    include_later: bool = False,
    recorded_by: str = "the checkpoint",
    remedy: str = "",
) -> list[dict[str, str]]:
    """The rows of a CSV file to keep when a run resumes at `resume_env_steps`. Raises ConfigError if
    the recorded rows are missing or changed.

    Rows after the recorded ones, up to `resume_env_steps`, are kept with `include_later`, and where
    nothing was recorded (runs of earlier versions).
    """
    if resume_env_steps <= 0 or (known is None and not os.path.lexists(path)):
        return []
    if not os.path.lexists(path) and (path.parent / "failure.json").exists():
        return []  # a copied failure folder contains no CSV files
    remedy = remedy or f"delete {path.parent / 'checkpoint'} to train from the beginning"
    with data_error_context(f"cannot go on with {path}", f"restore it from a copy, or {remedy}"):
        check_data(os.path.lexists(path), "it is missing")
        rows = read_rows(path)
        first = [] if known is None else _recorded_part(rows, known, recorded_by)
        later = rows[len(first) :] if known is None or include_later else []
        return first + [row for row in later if int(row["env_steps"]) <= resume_env_steps]


def _recorded_part(
    rows: list[dict[str, str]], known: TableRecord, recorded_by: str
) -> list[dict[str, str]]:
    first = rows[: known.rows]
    check_data(
        len(first) == known.rows,
        f"it holds {len(rows)} of the {known.rows} rows that {recorded_by} recorded",
    )
    sha256 = sha256_of(known.columns)
    for row in first:
        add_row(sha256, known.columns, row)
    check_data(
        sha256.hexdigest() == known.sha256,
        f"its first {known.rows} rows are not those that {recorded_by} recorded",
    )
    return first


def final_rows(
    folder: Path, resume_env_steps: int, saved: TableRecord | None = None
) -> list[dict[str, str]]:
    """The rows of final.csv that final.json records (all rows for runs of earlier versions). Raises
    ConfigError if the file does not match the checkpoint or final.json."""
    path, facts = folder / "final.csv", read_final_record(folder)
    again = "" if saved else "delete it to make the final evaluation again"
    rows_up_to(path, resume_env_steps, saved, True, remedy=again)
    accept = f"delete {folder / FINAL_RECORD} to accept it as it is"
    rows = rows_up_to(path, resume_env_steps, facts, True, FINAL_RECORD, again or accept)
    return rows if facts is None else rows[: facts.rows]


def check_tables(
    folder: Path,
    resume_env_steps: int,
    evaluation_due: bool,
    known: Mapping[str, TableRecord] | None,
) -> None:
    """Raise ConfigError if a CSV file does not match the checkpoint or final.json."""
    known = known or {}
    rows_up_to(folder / "train.csv", resume_env_steps, known.get("train"))
    rows_up_to(folder / "eval.csv", resume_env_steps - evaluation_due, known.get("eval"))
    if resume_env_steps > 0:
        final_rows(folder, resume_env_steps, known.get("final"))


def table_damage(run: Path, *names: str) -> str:
    """Why `cclf train` would refuse these tables of a run, in one line; empty where it would not.

    For read-only commands; safe while the run is training. Tensors of the newest checkpoint are read
    only if it contradicts a table.
    """
    line = ""
    for whole in (False, True):
        try:
            _refuse_damage(run, names, whole)
            return ""
        # The run may just have gone back to an earlier checkpoint, because this one is not whole.
        except (ConfigError, PermissionError) as error:
            if PermissionError in (type(error), type(error.__cause__)):
                return ""  # A run of another user, which cannot be checked.
            line = str(error)
    return line


def _refuse_damage(run: Path, names: Iterable[str], whole: bool) -> None:
    saved = newest_tables(run / "checkpoint", whole)
    with data_error_context(f"the checkpoint in {run} is not that of a run"):
        known = {name: TableRecord(**saved[name]) for name in names if name in saved}
    for name in names:
        if name == "final":
            final_rows(run, sys.maxsize, known.get(name))
            if os.path.lexists(run / FINAL_RECORD) and not os.path.lexists(run / "final.csv"):
                raise ConfigError(f"{run / 'final.csv'} is missing; `cclf train` makes it again")
        elif name in known:
            rows_up_to(run / f"{name}.csv", sys.maxsize, known[name], include_later=True)


def read_final_record(folder: Path) -> TableRecord | None:
    """The record of final.csv in final.json; None where one of them is missing, as final.json is in
    runs of earlier versions."""
    path = folder / FINAL_RECORD
    if not os.path.lexists(path) or not os.path.lexists(folder / "final.csv"):
        return None
    advice = "restore it from a copy, or delete it to accept final.csv as it is"
    with data_error_context(f"cannot read {path}", advice):
        facts = read_json(path)
        check_same_structure({"columns": [""], "rows": 0, "sha256": ""}, facts, path.name)
        return TableRecord(**facts)


def write_final_record(folder: Path, known: TableRecord) -> None:
    atomic_write(folder / FINAL_RECORD, (json.dumps(known._asdict(), indent=2) + "\n").encode())


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows, without an incomplete last line that a full disk or a kill left."""
    lines = read_text(path).splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    if not lines:
        # which comes with the file: not even a kill leaves one without
        raise ValueError("no header")
    return list(csv.DictReader(lines))


def sha256_of(columns: Iterable[str]) -> "hashlib._Hash":
    return hashlib.sha256(json.dumps([*columns]).encode())


def add_row(sha256: "hashlib._Hash", columns: Iterable[str], row: Mapping[str, str]) -> None:
    sha256.update(json.dumps([row[column] for column in columns]).encode())
