"""The paper's numbers, and published re-runs, as typed rows of the CSV files in
`cclf/published`.

A number is stored with its step budget and source: "100K" is environment steps in the paper's
DeepMind Control tables and agent steps (400K frames) on Atari. `seeds` is None where
the source does not say.
"""

import csv
import functools
from collections.abc import Sequence
from importlib.resources import files
from typing import NamedTuple, cast

import numpy as np

from cclf.analysis.runs import StepBudget, StepUnit


class Published(NamedTuple):
    table: str
    task: str
    method: str  # "a / b" where the paper gives only how a compares with b
    quantity: str
    budget: StepBudget | None
    mean: float
    std: float | None  # over seeds
    seeds: int | None
    source: str


def rows_of(file_name: str) -> list[dict[str, str]]:
    """The lines of a file of `cclf/published`."""
    text = files("cclf").joinpath("published", f"{file_name}.csv").read_text()
    return list(csv.DictReader(text.splitlines()))


def budget_of(line: dict[str, str]) -> StepBudget | None:
    if not (line["clock"] and line["steps"]):
        return None
    return StepBudget(cast(StepUnit, line["clock"]), int(line["steps"]))


@functools.cache
def published(file_name: str) -> tuple[Published, ...]:
    """The rows of dmc, drqv2, ablation, atari, atari_reruns, atari_aggregates, minigrid or cost."""
    return tuple(
        Published(
            line["table"],
            line["task"],
            line["method"],
            line["quantity"],
            budget_of(line),
            float(line["mean"]),
            float(line["std"]) if line["std"] else None,
            int(line["seeds"]) if line["seeds"] else None,
            line["source"],
        )
        for line in rows_of(file_name)
    )


def published_curves(task: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Learning curves of which every seed was published, by method: environment steps (P,), returns
    (seeds, P)."""
    by_method: dict[str, dict[int, list[float]]] = {}
    for line in rows_of("drqv2"):
        if line["task"] == task:
            returns = [float(value) for value in line["returns"].split()]
            by_method.setdefault(line["method"], {})[int(line["steps"])] = returns
    return {
        method: (np.array(sorted(points)), np.array([points[at] for at in sorted(points)]).T)
        for method, points in by_method.items()
    }


def score_range(task: str) -> tuple[float, float] | None:
    """The returns that are mapped to 0 and 1 before tasks are averaged: random and human on Atari,
    the bounds of the return on DeepMind Control; elsewhere returns stay as they are (MiniGrid's lie
    in [0, 1]). None for a game without a human score."""
    if task.startswith("atari/"):
        table = {row.method: row.mean for row in published("atari") if row.task == task}
        return (table["random"], table["human"]) if table else None
    return 0.0, 1000.0 if task.startswith("dmc/") else 1.0


def normalized(scores: np.ndarray, tasks: Sequence[str]) -> np.ndarray:
    """Returns (..., tasks) on the scales of their tasks, all of which have one."""
    low, high = np.transpose([score_range(task) for task in tasks])
    return np.asarray((scores - low) / (high - low))
