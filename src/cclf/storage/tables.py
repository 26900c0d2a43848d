"""What a run writes down: CSV files are the truth, mirrors such as TensorBoard show them. Clocks
never mix: each row carries all three."""

import csv
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cclf.console import warn
from cclf.storage.loggers import Logger
from cclf.storage.safe_loading import check_data
from cclf.storage.table_records import (
    FINAL_RECORD,
    TableRecord,
    add_row,
    check_tables,
    rows_up_to,
    sha256_of,
    write_final_record,
)
from cclf.storage.trackers import short_tracker_error
from cclf.types import Metrics, StateDict

CLOCK_COLUMNS = ("env_steps", "agent_steps", "updates")
EVAL_COLUMNS = (*CLOCK_COLUMNS, "return_mean", "return_std", "episodes", "wall_seconds", "returns")


class CsvTable:
    """A CSV file with fixed columns, flushed row by row. Reopened at a checkpoint, it forgets the
    rows after it."""

    def __init__(
        self,
        path: Path,
        columns: Iterable[str],
        resume_env_steps: int,
        known: TableRecord | None = None,
        include_later: bool = False,
    ):
        """`rows_up_to` decides which rows are kept. A table that a checkpoint recorded, or that has
        rows, keeps its own columns: metrics that were declared later are left out of it, and
        metrics that no longer exist are empty."""
        kept = rows_up_to(path, resume_env_steps, known, include_later)
        self.columns = tuple(known.columns if known else kept[0] if kept else columns)
        self._rows, self._sha256 = 0, sha256_of(self.columns)
        temporary = path.with_suffix(".csv.tmp")
        # never through a link or into a pipe that someone put there
        temporary.unlink(missing_ok=True)
        try:
            with temporary.open("w", newline="") as file:
                writer = csv.DictWriter(file, self.columns, lineterminator="\n")
                writer.writeheader()
                for row in kept:
                    writer.writerow(
                        self._counted({column: row.get(column, "") for column in self.columns})
                    )
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        self.kept = kept
        self._file = path.open("a", newline="")
        self._writer = csv.DictWriter(self._file, self.columns, lineterminator="\n")

    def write(self, row: Mapping[str, Any]) -> None:
        self._writer.writerow(
            self._counted({column: _text(row.get(column, "")) for column in self.columns})
        )
        self._file.flush()

    def known(self) -> TableRecord:
        return TableRecord(self.columns, self._rows, self._sha256.hexdigest())

    def _counted(self, row: dict[str, str]) -> dict[str, str]:
        self._rows += 1
        add_row(self._sha256, self.columns, row)
        return row

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _text(value: Any) -> str:
    return f"{value:.8g}" if isinstance(value, float) else str(value)


class MetricAccumulator:
    """Means of metrics over many updates. Values stay on the device until asked for: no stall per
    update."""

    def __init__(self) -> None:
        self._values: dict[str, list[torch.Tensor]] = {}

    def add(self, metrics: Metrics) -> None:
        for name, value in metrics.items():
            values = self._values.setdefault(name, [])
            if values and values[0].device != value.device:  # those of a checkpoint
                values[:] = [old.to(value.device) for old in values]
            values.append(value)

    def take(self) -> dict[str, float]:
        means = {
            name: float(torch.stack(values).double().mean())
            for name, values in self._values.items()
        }
        self._values.clear()
        return means

    def state_dict(self) -> StateDict:
        return {name: torch.stack(values) for name, values in self._values.items()}

    def load_state_dict(self, state: StateDict) -> None:
        for name, values in state.items():
            fits = (
                isinstance(values, torch.Tensor)
                and values.ndim == 1
                and len(values)
                and values.is_floating_point()
            )
            check_data(fits, f"averages/{name} holds no numbers")
        self._values = {name: list(values) for name, values in state.items()}


def _reopened_final(
    folder: Path, resume_env_steps: int, known: TableRecord | None
) -> TableRecord | None:
    """Forget the rows of final.csv after this moment, and what final.json says of them; the rows
    that stay."""
    path, facts = folder / "final.csv", folder / FINAL_RECORD
    had_facts = os.path.lexists(facts)
    facts.unlink(missing_ok=True)  # never ahead of the rows, whatever ends this process
    if not path.exists():
        return None
    table = CsvTable(path, EVAL_COLUMNS, resume_env_steps, known, include_later=True)
    table.close()
    if had_facts:
        write_final_record(folder, table.known())
    return table.known()


class RunLog:
    """The tables of one run folder, and the mirrors that show them."""

    def __init__(
        self,
        folder: Path,
        metric_names: Iterable[str],
        mirrors: Sequence[Logger],
        resume_env_steps: int,
        evaluation_due: bool = False,
        known: Mapping[str, TableRecord] | None = None,
    ):
        """Rows after `resume_env_steps` are forgotten; with `evaluation_due` the evaluation of that
        very step, too. `known` are those of the checkpoint, by table."""
        check_tables(folder, resume_env_steps, evaluation_due, known)
        known = known or {}
        self._final = _reopened_final(folder, resume_env_steps, known.get("final"))
        train_columns = (*CLOCK_COLUMNS, "episodes", "episode_return", *metric_names)
        self.train = CsvTable(
            folder / "train.csv", train_columns, resume_env_steps, known.get("train")
        )
        self.eval = CsvTable(
            folder / "eval.csv", EVAL_COLUMNS, resume_env_steps - evaluation_due, known.get("eval")
        )
        self._mirrors = [*mirrors]
        self._pace: tuple[float, Mapping[str, Any]] | None = None  # of the last row: when, and it
        self._tell(self._catch_up)

    def _catch_up(self, mirror: Logger) -> None:
        """The rows of earlier processes, in the order of their steps."""
        rows = [
            (table, {key: float(row[key]) for key in row if row[key] and key != "returns"})
            for table in ("train", "eval")
            for row in getattr(self, table).kept
        ]
        for table, row in sorted(rows, key=lambda each: each[1]["env_steps"]):
            _log_row(mirror, table, row)

    def write(self, table: str, row: Mapping[str, Any]) -> None:
        getattr(self, table).write(row)
        speed = self._speed(row) if table == "train" else {}
        self._tell(lambda mirror: _log_row(mirror, table, row, speed))

    def show_video(self, path: Path, pictures: Sequence[np.ndarray], env_steps: int) -> None:
        self._tell(lambda mirror: mirror.show_video(path, pictures, env_steps))

    def _speed(self, row: Mapping[str, Any]) -> dict[str, float]:
        """Since the row before, evaluations included. For mirrors alone: a table that holds the
        time of day is never the same twice."""
        before, now = self._pace, time.monotonic()
        self._pace = now, row
        if before is None:
            return {}
        seconds = max(now - before[0], 1e-9)
        return {
            f"speed/{clock}_per_second": (row[clock] - before[1][clock]) / seconds
            for clock in ("env_steps", "updates")
        }

    def _tell(self, what: Callable[[Logger], None]) -> None:
        """To each mirror. One that fails, whatever it raises, leaves: the run must not."""
        for mirror in [*self._mirrors]:
            try:
                what(mirror)
            except Exception as error:
                self._mirrors.remove(mirror)
                line = f"{mirror.name} failed, the run goes on without it: {short_tracker_error(error)}"
                warn(line)

    def known(self) -> dict[str, TableRecord]:
        """The rows that are there now, by table, for a checkpoint."""
        final = {} if self._final is None else {"final": self._final}
        return {"train": self.train.known(), "eval": self.eval.known()} | final

    def sync(self) -> None:
        self.train.sync()
        self.eval.sync()

    def close(self) -> None:
        self.train.close()
        self.eval.close()
        self._tell(lambda mirror: mirror.close())


def _log_row(
    mirror: Logger, table: str, row: Mapping[str, Any], speed: Mapping[str, float] | None = None
) -> None:
    """A row that the mirror does not have: after a kill some are written again."""
    if row["env_steps"] <= mirror.shown[table]:
        return
    drawn = {
        f"{table}/{name}": value
        for name, value in row.items()
        if isinstance(value, (int, float)) and name not in CLOCK_COLUMNS and math.isfinite(value)
    }
    clocks = {clock: int(row[clock]) for clock in CLOCK_COLUMNS}
    mirror.show(table, clocks, drawn | dict(speed or {}))
