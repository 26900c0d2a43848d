"""The rows of a run's tables, and which of them are known to the letter.

A checkpoint knows the rows of all tables. The final evaluation comes after the last checkpoint, so
final.json, which is written after its row, knows the rows of final.csv.
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

FINAL_FACTS = "final.json"


class TablePrefix(NamedTuple):
    """What is known of a table: the rows that were there, to the letter."""

    columns: tuple[str, ...]
    rows: int
    sha256: str  # of the columns and these rows


def rows_up_to(
    path: Path,
    resume_env_steps: int,
    known: TablePrefix | None,
    with_later: bool = False,
    known_by: str = "the checkpoint",
    way_out: str = "",
) -> list[dict[str, str]]:
    """The rows of a table that a checkpoint at `resume_env_steps` keeps: those it knows; refuses a
    file that is not so, with what to do if there is no copy.

    Further ones up to that moment stay `with_later`, and of a checkpoint that knows nothing, one of
    an earlier version.
    """
    if resume_env_steps <= 0 or (known is None and not os.path.lexists(path)):
        return []
    if not os.path.lexists(path) and (path.parent / "failure.json").exists():
        return []  # the bundle of a failure is replayed: it brings no tables
    way_out = way_out or f"delete {path.parent / 'checkpoint'} to train from the beginning"
    with data_error_context(f"cannot go on with {path}", f"restore it from a copy, or {way_out}"):
        check_data(os.path.lexists(path), "it is missing")
        rows = read_rows(path)
        first = [] if known is None else _known_part(rows, known, known_by)
        later = rows[len(first) :] if known is None or with_later else []
        return first + [row for row in later if int(row["env_steps"]) <= resume_env_steps]


def _known_part(
    rows: list[dict[str, str]], known: TablePrefix, known_by: str
) -> list[dict[str, str]]:
    first = rows[: known.rows]
    check_data(
        len(first) == known.rows,
        f"it holds {len(rows)} of the {known.rows} rows that {known_by} knows",
    )
    sha256 = sha256_of(known.columns)
    for row in first:
        add_row(sha256, known.columns, row)
    check_data(
        sha256.hexdigest() == known.sha256,
        f"its first {known.rows} rows are not those that {known_by} knows",
    )
    return first


def final_rows(
    folder: Path, resume_env_steps: int, saved: TablePrefix | None = None
) -> list[dict[str, str]]:
    """The rows of final.csv up to this moment that its final.json knows, and all of an earlier
    version; refuses a file that neither final.json nor the checkpoint knows so."""
    path, facts = folder / "final.csv", read_final_facts(folder)
    again = "" if saved else "delete it to make the final evaluation again"
    rows_up_to(path, resume_env_steps, saved, True, way_out=again)
    accept = f"delete {folder / FINAL_FACTS} to accept it as it is"
    rows = rows_up_to(path, resume_env_steps, facts, True, FINAL_FACTS, again or accept)
    return rows if facts is None else rows[: facts.rows]


def check_tables(
    folder: Path,
    resume_env_steps: int,
    evaluation_due: bool,
    known: Mapping[str, TablePrefix] | None,
) -> None:
    """Refuse tables that are not what the checkpoint and final.json know; nothing is changed."""
    known = known or {}
    rows_up_to(folder / "train.csv", resume_env_steps, known.get("train"))
    rows_up_to(folder / "eval.csv", resume_env_steps - evaluation_due, known.get("eval"))
    if resume_env_steps > 0:
        final_rows(folder, resume_env_steps, known.get("final"))


def table_damage(run: Path, *names: str) -> str:
    """Why `cclf train` would refuse these tables of a run, in one line; empty where it would not.

    For those who only read, also while the run goes on. Of its newest checkpoint no tensors are
    read, unless it contradicts a table.
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
        known = {name: TablePrefix(**saved[name]) for name in names if name in saved}
    for name in names:
        if name == "final":
            final_rows(run, sys.maxsize, known.get(name))
            if os.path.lexists(run / FINAL_FACTS) and not os.path.lexists(run / "final.csv"):
                raise ConfigError(f"{run / 'final.csv'} is missing; `cclf train` makes it again")
        elif name in known:
            rows_up_to(run / f"{name}.csv", sys.maxsize, known[name], with_later=True)


def read_final_facts(folder: Path) -> TablePrefix | None:
    """What final.json knows of final.csv; None where one of them is missing, as final.json is in
    runs of earlier versions."""
    path = folder / FINAL_FACTS
    if not os.path.lexists(path) or not os.path.lexists(folder / "final.csv"):
        return None
    advice = "restore it from a copy, or delete it to accept final.csv as it is"
    with data_error_context(f"cannot read {path}", advice):
        facts = read_json(path)
        check_same_structure({"columns": [""], "rows": 0, "sha256": ""}, facts, path.name)
        return TablePrefix(**facts)


def write_final_facts(folder: Path, known: TablePrefix) -> None:
    atomic_write(folder / FINAL_FACTS, (json.dumps(known._asdict(), indent=2) + "\n").encode())


def read_rows(path: Path) -> list[dict[str, str]]:
    """Without a last line that a full disk or a kill tore: the number it ends with may be half of
    one."""
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
