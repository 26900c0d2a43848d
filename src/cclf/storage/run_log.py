"""The log of a run: rows of train.csv and eval.csv, which loggers such as TensorBoard receive too.
Every row has all three step counters."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from cclf.console import warn
from cclf.storage.loggers import Logger, logger_error
from cclf.storage.tables import (
    CLOCK_COLUMNS,
    EVAL_COLUMNS,
    FINAL_RECORD,
    CsvRow,
    CsvTable,
    TableRecord,
    write_final_table,
)

RowValues = Mapping[str, float | str]  # of one row, by column


class RunLog:
    """The tables of one run folder, and the loggers that receive their rows."""

    def __init__(
        self,
        folder: Path,
        metric_names: Iterable[str],
        loggers: Sequence[Logger] = (),
        rows: Mapping[str, Sequence[CsvRow]] | None = None,
    ):
        """`rows` are those that a resumed run keeps (`tables.rows_to_keep`); others are removed."""
        rows = rows or {}
        columns = (*CLOCK_COLUMNS, "episodes", "episode_return", *metric_names)
        self._final: TableRecord | None = None
        if (folder / "final.csv").exists():
            self._final = write_final_table(folder, rows.get("final", ()))
        else:
            (folder / FINAL_RECORD).unlink(missing_ok=True)
        self._tables = {
            "train": CsvTable(folder / "train.csv", columns, rows.get("train", ())),
            "eval": CsvTable(folder / "eval.csv", EVAL_COLUMNS, rows.get("eval", ())),
        }
        self._loggers = [*loggers]
        self._last_train_row: tuple[float, RowValues] | None = None  # and when it was written

    def write(self, table: str, row: RowValues) -> None:
        """Append a row to "train" or "eval"."""
        self._tables[table].write(row)
        counters = {name: int(row[name]) for name in CLOCK_COLUMNS}
        values = {
            f"{table}/{name}": value
            for name, value in row.items()
            if not isinstance(value, str) and name not in counters and math.isfinite(value)
        }
        if table == "train":
            values |= self._speed(row)
        self._for_each_logger(lambda logger: logger.log(counters, values))

    def log_video(self, path: Path, env_steps: int) -> None:
        self._for_each_logger(lambda logger: logger.log_video(path, env_steps))

    def _speed(self, row: RowValues) -> dict[str, float]:
        """Steps per second since the row before, evaluations included. Only for loggers: tables are
        reproducible, so they hold no times."""
        before, self._last_train_row = self._last_train_row, (time.monotonic(), row)
        if before is None:
            return {}
        seconds = max(time.monotonic() - before[0], 1e-9)
        return {
            f"speed/{name}_per_second": (float(row[name]) - float(before[1][name])) / seconds
            for name in ("env_steps", "updates")
        }

    def _for_each_logger(self, call: Callable[[Logger], None]) -> None:
        """A logger that raises is dropped; the run goes on."""
        for logger in [*self._loggers]:
            try:
                call(logger)
            except Exception as error:
                self._loggers.remove(logger)
                warn(f"{logger.name} failed, the run goes on without it: {logger_error(error)}")

    def records(self) -> dict[str, TableRecord]:
        """The records of the tables as they are now, for a checkpoint."""
        final = {} if self._final is None else {"final": self._final}
        return {name: table.record() for name, table in self._tables.items()} | final

    def sync(self) -> None:
        for table in self._tables.values():
            table.sync()

    def close(self) -> None:
        for table in self._tables.values():
            table.close()
        self._for_each_logger(lambda logger: logger.close())
