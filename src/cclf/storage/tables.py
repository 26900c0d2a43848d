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
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
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

STEP_COLUMNS = ("env_steps", "agent_steps", "updates")
EVAL_COLUMNS = (*STEP_COLUMNS, "return_mean", "return_std", "episodes", "wall_seconds", "returns")
TABLES = ("train", "eval", "final")
FINAL_RECORD = "final.json"

CsvRow = dict[str, str]  # the text of each cell, by column


class TableRecord(NamedTuple):
    """The number of rows of a CSV file and their checksum when it was recorded."""

    columns: list[str]
    rows: int
    sha256: str  # of the columns and these rows


def record_of(columns: Iterable[str], rows: Sequence[CsvRow]) -> TableRecord:
    columns = [*columns]
    sha256 = hashlib.sha256(json.dumps(columns).encode())
    for row in rows:
        sha256.update(json.dumps([row[column] for column in columns]).encode())
    return TableRecord(columns, len(rows), sha256.hexdigest())


class CsvTable:
    """A CSV file with fixed columns; each row is flushed to the operating system when written."""

    def __init__(self, path: Path, columns: Iterable[str], rows: Sequence[CsvRow] = ()):
        """Replace the file by one with `rows`. If there are rows, the file keeps their columns:
        metrics that were declared later are not written, and metrics that no longer exist are
        empty."""
        self.columns, self._rows = tuple(rows[0] if rows else columns), [*rows]
        with replacing(path) as temporary, temporary.open("w", newline="") as file:
            writer = self._writer_to(file)
            writer.writeheader()
            writer.writerows(rows)
        self._file = path.open("a", newline="")
        self._writer = self._writer_to(self._file)

    def _writer_to(self, file: TextIO) -> "csv.DictWriter[str]":
        return csv.DictWriter(file, self.columns, lineterminator="\n")

    def write(self, row: Mapping[str, object]) -> None:
        """Append a row. Values of other columns are ignored; missing values are empty."""
        text = {column: _text(row.get(column, "")) for column in self.columns}
        self._writer.writerow(text)
        self._file.flush()
        self._rows.append(text)

    def record(self) -> TableRecord:
        return record_of(self.columns, self._rows)

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _text(value: object) -> str:
    return f"{value:.8g}" if isinstance(value, float) else str(value)


def read_rows(path: Path) -> list[CsvRow]:
    """The rows of a CSV file. An incomplete last line, which a full disk or a kill leaves, is
    dropped."""
    lines = read_text(path).splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    if not lines:  # the file is created with its header
        raise ValueError("no header")
    return list(csv.DictReader(lines))


def rows_until(
    folder: Path, name: str, last_env_steps: int, record: TableRecord | None = None
) -> list[CsvRow]:
    """The recorded rows of a table up to `last_env_steps`; all rows up to there if there is no record
    (runs of earlier versions). Raises DataError if recorded rows are missing or changed.

    `record` is that of the checkpoint. final.csv is verified against final.json too.
    """
    if last_env_steps <= 0:
        return []
    path = folder / f"{name}.csv"
    final_record = read_final_record(folder) if name == "final" else None
    exists, is_failure_copy = os.path.lexists(path), (folder / "failure.json").exists()
    if not exists and (record is None or is_failure_copy):  # a failure folder has no tables
        return []
    remedy = f"delete {folder / 'checkpoint'} to train from the beginning"
    if name == "final" and record is None:
        remedy = "delete it to make the final evaluation again"
    with data_error_context(f"cannot go on with {path}", f"restore it from a copy, or {remedy}"):
        check_data(exists, "it is missing")
        rows = read_rows(path)
        for recorded_by, known in (("the checkpoint", record), (FINAL_RECORD, final_record)):
            if known is not None and record_of(known.columns, rows[: known.rows]) != known:
                raise ValueError(
                    f"it has {len(rows)} rows, of which the first {known.rows} are not those that "
                    f"{recorded_by} recorded"
                )
        last = final_record if name == "final" else record
        recorded = rows if last is None else rows[: last.rows]
        return [row for row in recorded if int(row["env_steps"]) <= last_env_steps]


def rows_to_keep(
    folder: Path, env_steps: int, evaluation_due: bool, records: Mapping[str, TableRecord]
) -> dict[str, list[CsvRow]]:
    """The rows of each table that a run keeps when it resumes at `env_steps`, verified against the
    records of its checkpoint. An evaluation that is due is repeated, so its row is dropped."""
    last = {"train": env_steps, "eval": env_steps - evaluation_due, "final": env_steps}
    return {name: rows_until(folder, name, last[name], records.get(name)) for name in TABLES}


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


def write_final_table(
    folder: Path, rows: Sequence[CsvRow], new_row: Mapping[str, object] | None = None
) -> TableRecord:
    """Write final.csv with `rows` and perhaps a new one, and its record in final.json."""
    # First, so that after a kill no record counts rows that have been removed.
    (folder / FINAL_RECORD).unlink(missing_ok=True)
    with closing(CsvTable(folder / "final.csv", EVAL_COLUMNS, rows)) as table:
        if new_row is not None:
            table.write(new_row)
        table.sync()
    write_json(folder / FINAL_RECORD, table.record()._asdict())
    return table.record()


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
        records = {name: TableRecord(**saved[name]) for name in names if name in saved}
    for name in names:
        if name in records or name == "final":
            rows_until(run, name, sys.maxsize, records.get(name))
    lost = os.path.lexists(run / FINAL_RECORD) and not os.path.lexists(run / "final.csv")
    if "final" in names and lost:
        raise ConfigError(f"{run / 'final.csv'} is missing; `cclf train` makes it again")
