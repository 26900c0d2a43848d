"""The log of a run: rows of train.csv and eval.csv, which loggers such as TensorBoard receive too.
Every row has all three step counters."""

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from cclf.console import warn
from cclf.storage.loggers import Logger, logger_error
from cclf.storage.safe_loading import DATA_ERRORS
from cclf.storage.tables import (
    CLOCK_COLUMNS,
    EVAL_COLUMNS,
    CsvTable,
    TableRecord,
    check_tables,
    read_rows,
    reopen_final_table,
)
from cclf.types import StateValue

Row = Mapping[str, StateValue]


class RunLog:
    """The tables of one run folder, and the loggers that receive their rows."""

    def __init__(
        self,
        folder: Path,
        metric_names: Iterable[str],
        loggers: Sequence[Logger],
        resume_env_steps: int,
        evaluation_due: bool = False,
        known: Mapping[str, TableRecord] | None = None,
    ):
        """Rows after `resume_env_steps` are removed; with `evaluation_due` also the evaluation at
        that step. `known` are the records of the checkpoint, by table."""
        check_tables(folder, resume_env_steps, evaluation_due, known)
        known = known or {}
        self._resume_env_steps = resume_env_steps
        self._logged = {name: _last_env_steps(folder / f"{name}.csv") for name in ("train", "eval")}
        self._final = reopen_final_table(folder, resume_env_steps, known.get("final"))
        columns = (*CLOCK_COLUMNS, "episodes", "episode_return", *metric_names)
        self._tables = {
            "train": CsvTable(folder / "train.csv", columns, resume_env_steps, known.get("train")),
            "eval": CsvTable(
                folder / "eval.csv",
                EVAL_COLUMNS,
                resume_env_steps - evaluation_due,
                known.get("eval"),
            ),
        }
        self._loggers = [*loggers]
        self._last_train_row: tuple[float, Row] | None = None  # when it was written, and the row

    def write(self, table: str, row: Row) -> None:
        """Append a row to "train" or "eval"."""
        self._tables[table].write(row)
        counters = {name: int(row[name]) for name in CLOCK_COLUMNS}
        values = {
            f"{table}/{name}": value
            for name, value in row.items()
            if isinstance(value, (int, float)) and name not in counters and math.isfinite(value)
        }
        if table == "train":
            values |= self._speed(row)

        def log(logger: Logger) -> None:
            if not self._was_logged(logger, table, counters["env_steps"]):
                logger.log(counters, values)

        self._for_each_logger(log)

    def log_video(self, path: Path, env_steps: int) -> None:
        self._for_each_logger(lambda logger: logger.log_video(path, env_steps))

    def _was_logged(self, logger: Logger, table: str, env_steps: int) -> bool:
        """Whether an earlier process, which was killed after its checkpoint, has logged this row."""
        last = self._logged[table]
        return env_steps <= (last if logger.keeps_later_rows else min(last, self._resume_env_steps))

    def _speed(self, row: Row) -> dict[str, float]:
        """Steps per second since the row before, evaluations included. Only for loggers: tables are
        reproducible, so they hold no times."""
        before, now = self._last_train_row, time.monotonic()
        self._last_train_row = now, row
        if before is None:
            return {}
        seconds = max(now - before[0], 1e-9)
        return {
            f"speed/{name}_per_second": (row[name] - before[1][name]) / seconds
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

    def known(self) -> dict[str, TableRecord]:
        """The records of the tables as they are now, for a checkpoint."""
        final = {} if self._final is None else {"final": self._final}
        return {name: table.known() for name, table in self._tables.items()} | final

    def sync(self) -> None:
        for table in self._tables.values():
            table.sync()

    def close(self) -> None:
        for table in self._tables.values():
            table.close()
        self._for_each_logger(lambda logger: logger.close())


def _last_env_steps(path: Path) -> int:
    """The env steps of the last row of a table, -1 if it has none."""
    with contextlib.suppress(OSError, *DATA_ERRORS):
        return int(read_rows(path)[-1]["env_steps"])
    return -1
