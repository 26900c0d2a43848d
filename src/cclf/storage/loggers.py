"""The log of a run: rows of train.csv and eval.csv, which loggers (TensorBoard, W&B and trackio)
receive while they are written. The packages of loggers are imported only if they are used."""

import contextlib
import contextvars
import importlib
import io
import math
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

from cclf.config import Config
from cclf.console import say, warn
from cclf.errors import ConfigError, short_error
from cclf.storage.atomic_files import write_json
from cclf.storage.safe_loading import DATA_ERRORS, read_json
from cclf.storage.tables import (
    EVAL_COLUMNS,
    FINAL_RECORD,
    STEP_COLUMNS,
    CsvRow,
    CsvTable,
    TableRecord,
    write_final_table,
)

TRACKER_FILE = "tracker.json"
PROJECT = "cclf"

Hyperparameters = Mapping[str, bool | int | float | str]
RowValues = Mapping[str, float | str]  # of one row, by column


def hyperparameters(config: Config) -> Hyperparameters:
    """The active options of a run in one flat mapping, with names such as `algorithm.discount`."""
    values = config.to_dict()
    groups = ("env", "method", "algorithm", "run")
    flat = {name: value for name, value in values.items() if name not in groups}
    flat |= {
        f"{group}.{name}": value
        for group in groups
        for name, value in values[group].items()
        if not config.why_inactive(name)
    }
    return {
        name: value if isinstance(value, (bool, int, float, str)) else str(value)
        for name, value in flat.items()
    }


def logger_error(error: Exception) -> str:
    """An error of a library as part of a line; some services answer with long pages."""
    return short_error(error)[:300].rstrip(".")


class TensorBoard:
    """Curves and hyperparameters in `RUN/tensorboard`."""

    name = "TensorBoard"

    def __init__(self, folder: Path, options: Hyperparameters, resume_env_steps: int):
        from torch.utils.tensorboard import SummaryWriter

        where = str(folder / "tensorboard")
        self._writer: SummaryWriter = SummaryWriter(where, purge_step=resume_env_steps + 1)
        rows = (f"| {name} | {value} |" for name, value in options.items())
        table = "\n".join(["| option | value |", "| --- | --- |", *rows])
        self._writer.add_text("config", table, resume_env_steps)

    def log(self, counters: Mapping[str, int], values: Mapping[str, float]) -> None:
        """One row: its step counters, and its values by names such as train/critic_loss."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, counters["env_steps"])

    def log_video(self, path: Path, env_steps: int) -> None:
        """Do nothing: TensorBoard cannot play mp4 files."""

    def close(self) -> None:
        self._writer.close()


class Tracker:
    """A run of W&B (at its service, or with WANDB_MODE=offline in a folder for `wandb sync`) or of
    trackio (in its own folder on this machine, TRACKIO_DIR). Their Python interfaces agree but for a
    few options.

    A resumed run is logged to the same run of the tracker. If the run was killed, the tracker has
    the rows after the last checkpoint twice.
    """

    def __init__(self, config: Config, folder: Path, resumes: bool):
        self.name: str = config.run.tracker
        self._module: ModuleType = importlib.import_module(self.name)
        run_id = _tracker_run_id(folder / TRACKER_FILE, self.name, resumes)
        options: dict[str, object] = {
            "project": PROJECT,
            "group": f"{config.task} {config.method_name}",  # shared by the seeds of a method
            "config": dict(hyperparameters(config)),
            "resume": "allow",
        }
        if self.name == "wandb":
            options |= {
                "project": os.environ.get("WANDB_PROJECT") or PROJECT,
                "id": run_id,
                "name": config.run_name(),
                "reinit": "create_new",  # other runs of this process go on
                "settings": self._module.Settings(console="off", quiet=True),
            }
        else:
            options |= {"name": f"{config.run_name()}-{run_id}", "embed": False}
        # trackio ends the run in the current `contextvars` context when another one begins, so each
        # has its own context. Standard output, to which trackio prints, is only for the run folder.
        with contextlib.redirect_stdout(io.StringIO()):
            self._run = contextvars.copy_context().run(self._module.init, **options)
        where = f"trackio show --project {PROJECT}"
        if self.name == "wandb":
            # W&B's own step must never decrease, but an evaluation may end after a later row.
            self._run.define_metric("env_steps")
            self._run.define_metric("*", step_metric="env_steps")
            offline = f"offline, for wandb sync {Path(self._run.dir).parent}"
            where = offline if self._run.offline else self._run.url
        say(f"tracked by {self.name}: {where}")

    def log(self, counters: Mapping[str, int], values: Mapping[str, float]) -> None:
        if self.name == "wandb":
            self._run.log({**counters, **values})
        else:
            self._run.log(dict(values), step=counters["env_steps"])

    def log_video(self, path: Path, env_steps: int) -> None:
        video = self._module.Video(str(path), format="mp4")
        self.log({"env_steps": env_steps}, {"eval/episode": video})

    def close(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self._run.finish()


def _tracker_run_id(path: Path, tracker: str, resumes: bool) -> str:
    """The ID of the tracker's run, which tracker.json stores. It is a new one if the run begins, or
    if the file does not name a run of this tracker."""
    run_id = secrets.token_hex(4)
    with contextlib.suppress(OSError, *DATA_ERRORS):
        saved = read_json(path)
        is_valid = saved["tracker"] == tracker and re.fullmatch("[0-9a-f]{8}", saved["id"])
        if is_valid and resumes:
            run_id = saved["id"]
    write_json(path, {"tracker": tracker, "id": run_id})
    return run_id


Logger = TensorBoard | Tracker


def make_loggers(config: Config, folder: Path, resume_env_steps: int) -> list[Logger]:
    """The loggers that a config asks for, ready to continue from a checkpoint at `resume_env_steps`."""
    loggers: list[Logger] = []
    if config.run.tensorboard:
        try:
            loggers.append(TensorBoard(folder, hyperparameters(config), resume_env_steps))
        except (ImportError, OSError) as error:
            warn(f"no TensorBoard: {error}")
    if config.run.tracker != "none":
        try:
            loggers.append(Tracker(config, folder, resumes=resume_env_steps > 0))
        except Exception as error:  # any error of a library that connects to a service
            line = f"{config.run.tracker} did not start: {logger_error(error)}"
            if not resume_env_steps:
                remedy = f"correct this, or remove --tracker {config.run.tracker}"
                raise ConfigError(f"{line}; {remedy}") from error
            warn(f"{line}; the run goes on without it")
    return loggers


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
        columns = (*STEP_COLUMNS, "episodes", "episode_return", *metric_names)
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
        self._last_train_row: tuple[float, RowValues] | None = None  # (time of writing, row)

    def write(self, table: str, row: RowValues) -> None:
        """Append a row to "train" or "eval"."""
        self._tables[table].write(row)
        counters = {name: int(row[name]) for name in STEP_COLUMNS}
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
        """Steps per second since the row before, evaluations included. Only loggers receive them:
        train.csv is reproducible, so it contains no times."""
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
