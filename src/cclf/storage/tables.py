"""The CSV files of a run: train.csv, eval.csv and final.csv, verified against their records.

A checkpoint records the number of rows of each file and a checksum of them. The final evaluation
follows the last checkpoint, so final.json, which is written after its row, records final.csv.
Commands that only read tables use this module, so it does not import torch.
"""

import csv
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, TextIO

from cclf.errors import ConfigError
from cclf.storage.atomic_files import replacing, write_json
from cclf.storage.checkpoint_files import newest_tables
from cclf.storage.safe_loading import (
    check_data,
    check_same_structure,
    data_error_context,
    read_json,
    read_text,
)

CLOCK_COLUMNS = ("env_steps", "agent_steps", "updates")
EVAL_COLUMNS = (*CLOCK_COLUMNS, "return_mean", "return_std", "episodes", "wall_seconds", "returns")
FINAL_RECORD = "final.json"


class TableRecord(NamedTuple):
    """Row count and checksum of a CSV file when it was recorded."""

    columns: tuple[str, ...]
    rows: int
    sha256: str  # of the columns and these rows


class CsvTable:
    """A CSV file with fixed columns; each row is flushed to the operating system when written."""

    def __init__(
        self,
        path: Path,
        columns: Iterable[str],
        resume_env_steps: int,
        known: TableRecord | None = None,
        include_later: bool = False,
    ):
        """Open the file with the rows that `rows_up_to` keeps. A file that a checkpoint recorded, or
        that has rows, keeps its own columns: metrics that were declared later are not written, and
        metrics that no longer exist are empty."""
        kept = rows_up_to(path, resume_env_steps, known, include_later)
        self.columns = tuple(known.columns if known else kept[0] if kept else columns)
        self._rows, self._sha256 = 0, _hash_of_columns(self.columns)
        with replacing(path) as temporary, temporary.open("w", newline="") as file:
            writer = self._writer_to(file)
            writer.writeheader()
            for row in kept:
                self._write(writer, row)
        self._file = path.open("a", newline="")
        self._writer = self._writer_to(self._file)

    def _writer_to(self, file: TextIO) -> "csv.DictWriter[str]":
        return csv.DictWriter(file, self.columns, lineterminator="\n")

    def _write(self, writer: "csv.DictWriter[str]", row: Mapping[str, object]) -> None:
        text = {column: _text(row.get(column, "")) for column in self.columns}
        writer.writerow(text)
        self._rows += 1
        _add_to_hash(self._sha256, self.columns, text)

    def write(self, row: Mapping[str, object]) -> None:
        """Append a row. Values of other columns are ignored; missing values are empty."""
        self._write(self._writer, row)
        self._file.flush()

    def known(self) -> TableRecord:
        return TableRecord(self.columns, self._rows, self._sha256.hexdigest())

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _text(value: object) -> str:
    return f"{value:.8g}" if isinstance(value, float) else str(value)


def _hash_of_columns(columns: Iterable[str]) -> "hashlib._Hash":
    return hashlib.sha256(json.dumps([*columns]).encode())


def _add_to_hash(sha256: "hashlib._Hash", columns: Iterable[str], row: Mapping[str, str]) -> None:
    sha256.update(json.dumps([row[column] for column in columns]).encode())


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file. An incomplete last line, which a full disk or a kill leaves, is
    dropped."""
    lines = read_text(path).splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    if not lines:  # the file is created with its header
        raise ValueError("no header")
    return list(csv.DictReader(lines))


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
        recorded = 0
        if known is not None:
            _check_recorded_rows(rows, known, recorded_by)
            recorded = known.rows
        later = rows[recorded:] if known is None or include_later else []
        return rows[:recorded] + [row for row in later if int(row["env_steps"]) <= resume_env_steps]


def _check_recorded_rows(rows: list[dict[str, str]], known: TableRecord, recorded_by: str) -> None:
    first = rows[: known.rows]
    check_data(
        len(first) == known.rows,
        f"it holds {len(rows)} of the {known.rows} rows that {recorded_by} recorded",
    )
    sha256 = _hash_of_columns(known.columns)
    for row in first:
        _add_to_hash(sha256, known.columns, row)
    check_data(
        sha256.hexdigest() == known.sha256,
        f"its first {known.rows} rows are not those that {recorded_by} recorded",
    )


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


def final_rows(
    folder: Path, resume_env_steps: int, known: TableRecord | None = None
) -> list[dict[str, str]]:
    """The rows of final.csv that final.json records (all rows for runs of earlier versions). Raises
    ConfigError if the file does not match the checkpoint, whose record is `known`, or final.json."""
    path, record = folder / "final.csv", read_final_record(folder)
    again = "" if known else "delete it to make the final evaluation again"
    rows_up_to(path, resume_env_steps, known, True, remedy=again)
    accept = f"delete {folder / FINAL_RECORD} to accept it as it is"
    rows = rows_up_to(path, resume_env_steps, record, True, FINAL_RECORD, again or accept)
    return rows if record is None else rows[: record.rows]


def read_final_record(folder: Path) -> TableRecord | None:
    """The record of final.csv in final.json; None where one of them is missing, as final.json is in
    runs of earlier versions."""
    path = folder / FINAL_RECORD
    if not os.path.lexists(path) or not os.path.lexists(folder / "final.csv"):
        return None
    advice = "restore it from a copy, or delete it to accept final.csv as it is"
    with data_error_context(f"cannot read {path}", advice):
        record = read_json(path)
        check_same_structure({"columns": [""], "rows": 0, "sha256": ""}, record, path.name)
        return TableRecord(**record)


def write_final_record(folder: Path, record: TableRecord) -> None:
    write_json(folder / FINAL_RECORD, record._asdict())


def reopen_final_table(
    folder: Path, resume_env_steps: int, known: TableRecord | None
) -> TableRecord | None:
    """Remove the rows of final.csv after `resume_env_steps`, also from final.json. Returns the
    record of the remaining rows, None if there is no final.csv."""
    path, record = folder / "final.csv", folder / FINAL_RECORD
    had_record = os.path.lexists(record)
    record.unlink(missing_ok=True)  # so that final.json never records rows that were removed
    if not path.exists():
        return None
    table = CsvTable(path, EVAL_COLUMNS, resume_env_steps, known, include_later=True)
    table.close()
    if had_record:
        write_final_record(folder, table.known())
    return table.known()


def table_damage(run: Path, *names: str) -> str:
    """Why `cclf train` would refuse these tables of a run, in one line; empty where it would not.

    For commands that only read; the run may be training. The tensors of the newest checkpoint are
    read only if it contradicts a table.
    """
    line = ""
    for verify_tensors in (False, True):
        try:
            _check_against_newest(run, names, verify_tensors)
            return ""
        # The run may just have resumed from an earlier checkpoint, because this one is damaged.
        except (ConfigError, PermissionError) as error:
            if PermissionError in (type(error), type(error.__cause__)):
                return ""  # A run of another user, which cannot be checked.
            line = str(error)
    return line


def _check_against_newest(run: Path, names: Iterable[str], verify_tensors: bool) -> None:
    saved = newest_tables(run / "checkpoint", verify_tensors)
    with data_error_context(f"the checkpoint in {run} is not that of a run"):
        known = {name: TableRecord(**saved[name]) for name in names if name in saved}
    for name in names:
        if name == "final":
            final_rows(run, sys.maxsize, known.get(name))
            if os.path.lexists(run / FINAL_RECORD) and not os.path.lexists(run / "final.csv"):
                raise ConfigError(f"{run / 'final.csv'} is missing; `cclf train` makes it again")
        elif name in known:
            rows_up_to(run / f"{name}.csv", sys.maxsize, known[name], include_later=True)
