"""The paper's numbers, and published re-runs beside them, as typed rows of the CSV files in
`cclf/published`.

No number without its clock and source: "100K" is environment steps in the paper's DeepMind Control
tables and agent steps (400K frames) on Atari. `seeds` is None where the source does not say.
"""

import csv
import functools
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

from cclf.analysis.evaluations import Clock


class Published(NamedTuple):
    table: str
    task: str
    method: str  # "a / b" where the paper gives only how a compares with b
    quantity: str
    clock: Clock | None
    mean: float
    std: float | None  # over seeds
    seeds: int | None
    source: str


def rows_of(file_name: str) -> list[dict[str, str]]:
    """A file of `cclf/published` as it stands."""
    text = files("cclf").joinpath("published", f"{file_name}.csv").read_text()
    return list(csv.DictReader(text.splitlines()))


def clock_of(line: dict[str, str]) -> Clock | None:
    unit: Any = line["clock"]
    return Clock(unit, int(line["steps"])) if unit and line["steps"] else None


@functools.cache
def published(file_name: str) -> tuple[Published, ...]:
    """One of: dmc, drqv2, ablation, atari, atari_reruns, atari_aggregates, minigrid, cost."""
    return tuple(
        Published(
            line["table"],
            line["task"],
            line["method"],
            line["quantity"],
            clock_of(line),
            float(line["mean"]),
            float(line["std"]) if line["std"] else None,
            int(line["seeds"]) if line["seeds"] else None,
            line["source"],
        )
        for line in rows_of(file_name)
    )


def seeds_of(task: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Learning curves whose every seed was published, by method: environment steps (P,), returns
    (seeds, P)."""
    found: dict[str, dict[int, list[float]]] = {}
    for line in rows_of("drqv2"):
        if line["task"] == task:
            returns = [float(value) for value in line["returns"].split()]
            found.setdefault(line["method"], {})[int(line["steps"])] = returns
    return {
        method: (np.array(sorted(points)), np.array([points[at] for at in sorted(points)]).T)
        for method, points in found.items()
    }


def score_range(task: str) -> tuple[float, float] | None:
    """The returns that become 0 and 1 before tasks are averaged: random and human on Atari, the
    bounds of the return on DeepMind Control; elsewhere returns stay as they are (MiniGrid's lie
    in [0, 1]). None for a game without a human score."""
    if task.startswith("atari/"):
        table = {row.method: row.mean for row in published("atari") if row.task == task}
        return (table["random"], table["human"]) if table else None
    return 0.0, 1000.0 if task.startswith("dmc/") else 1.0
