"""What a run writes down: CSV files are the truth, TensorBoard mirrors them. Clocks never mix: each row carries all three."""

import csv
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from cclf.from_disk import read_text, refuse_unless
from cclf.types import Metrics

CLOCK_COLUMNS = ("env_steps", "agent_steps", "updates")
EVAL_COLUMNS = (*CLOCK_COLUMNS, "return_mean", "return_std", "episodes", "wall_seconds", "returns")


class Table:
    """A CSV file with fixed columns, flushed row by row. Reopened at a checkpoint, it forgets the rows after it."""

    def __init__(self, path: Path, columns: Iterable[str], resume_env_steps: int):
        self.columns = tuple(columns)
        kept: list[dict[str, str]] = []
        if path.exists():
            lines = read_text(path).splitlines(keepends=True)
            if lines and not lines[-1].endswith("\n"):
                lines.pop()  # a full disk or a kill tore it: the number it begins with may be half of one
            kept = [row for row in csv.DictReader(lines) if int(row["env_steps"]) <= resume_env_steps]
        temporary = path.with_suffix(".csv.tmp")
        temporary.unlink(missing_ok=True)  # never through a link or into a pipe that someone put there
        with temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, self.columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows({column: row.get(column, "") for column in self.columns} for row in kept)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        self.last_kept = kept[-1] if kept else {}
        self._file = path.open("a", newline="")
        self._writer = csv.DictWriter(self._file, self.columns, lineterminator="\n")

    def write(self, row: Mapping[str, Any]) -> None:
        self._writer.writerow({column: _text(row.get(column, "")) for column in self.columns})
        self._file.flush()

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _text(value: Any) -> str:
    return f"{value:.8g}" if isinstance(value, float) else str(value)


class Averages:
    """Means of metrics over many updates. Values stay on the device until asked for: no stall per update."""

    def __init__(self) -> None:
        self._values: dict[str, list[torch.Tensor]] = {}

    def add(self, metrics: Metrics) -> None:
        for name, value in metrics.items():
            values = self._values.setdefault(name, [])
            if values and values[0].device != value.device:  # those of a checkpoint
                values[:] = [old.to(value.device) for old in values]
            values.append(value)

    def take(self) -> dict[str, float]:
        means = {name: float(torch.stack(values).double().mean()) for name, values in self._values.items()}
        self._values.clear()
        return means

    def state_dict(self) -> dict[str, Any]:
        return {name: torch.stack(values) for name, values in self._values.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, values in state.items():
            fits = isinstance(values, torch.Tensor) and values.ndim == 1 and len(values) and values.is_floating_point()
            refuse_unless(fits, f"averages/{name} holds no numbers")
        self._values = {name: list(values) for name, values in state.items()}


class RunLog:
    """The tables of one run folder, and their mirror in TensorBoard."""

    def __init__(
        self,
        folder: Path,
        metric_names: Iterable[str],
        tensorboard: bool,
        resume_env_steps: int,
        evaluation_due: bool = False,
    ):
        """Rows after `resume_env_steps` are forgotten; with `evaluation_due` the evaluation of that very step, too."""
        train_columns = (*CLOCK_COLUMNS, "episodes", "episode_return", *metric_names)
        self.train = Table(folder / "train.csv", train_columns, resume_env_steps)
        self.eval = Table(folder / "eval.csv", EVAL_COLUMNS, resume_env_steps - evaluation_due)
        if (folder / "final.csv").exists():
            Table(folder / "final.csv", EVAL_COLUMNS, resume_env_steps).close()
        self._mirror: Any = None
        if tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                return
            # What was shown of the steps from here on is to be forgotten; what the table keeps of this very step is shown again.
            self._mirror = SummaryWriter(str(folder / "tensorboard"), purge_step=resume_env_steps + 1 - evaluation_due)
            if evaluation_due and self.train.last_kept.get("env_steps") == str(resume_env_steps):
                self._show("train", {name: float(value) for name, value in self.train.last_kept.items() if value})

    def write(self, table: str, row: Mapping[str, Any]) -> None:
        getattr(self, table).write(row)
        self._show(table, row)

    def _show(self, table: str, row: Mapping[str, Any]) -> None:
        if self._mirror is not None:
            for name, value in row.items():
                if isinstance(value, (int, float)) and name not in CLOCK_COLUMNS and math.isfinite(value):
                    self._mirror.add_scalar(f"{table}/{name}", value, int(row["env_steps"]))

    def sync(self) -> None:
        self.train.sync()
        self.eval.sync()

    def close(self) -> None:
        self.train.close()
        self.eval.close()
        if self._mirror is not None:
            self._mirror.close()
