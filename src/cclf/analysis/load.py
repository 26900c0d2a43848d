"""Run folders to tidy rows, and rows to CSV and back: one per evaluation, each with its three clocks, commit and machine."""

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from cclf.config import A2cConfig, Config


class Row(NamedTuple):
    task: str
    method: str
    profile: str
    seed: int
    env_steps: int
    agent_steps: int
    updates: int
    return_mean: float
    return_std: float
    episodes: int
    wall_seconds: float
    device: str
    commit: str


def read_runs(folder: Path) -> list[Row]:
    """Every evaluation of every run under `folder`."""
    rows = []
    for eval_file in sorted(folder.rglob("eval.csv")):
        run = eval_file.parent
        if not (run / "config.json").exists() or not (run / "manifest.json").exists():
            continue
        config = Config.from_dict(json.loads((run / "config.json").read_text()))
        facts = json.loads((run / "manifest.json").read_text())
        device = f"{facts['device']} x{facts['threads']}" if facts["device"] == "cpu" else facts["device"]
        with eval_file.open(newline="") as file:
            for line in csv.DictReader(file):
                rows.append(
                    Row(
                        config.task,
                        config.method_name,
                        _profile_name(config),
                        config.seed,
                        int(line["env_steps"]),
                        int(line["agent_steps"]),
                        int(line["updates"]),
                        float(line["return_mean"]),
                        float(line["return_std"]),
                        int(line["episodes"]),
                        float(line["wall_seconds"]),
                        device,
                        str(facts["commit"]),
                    )
                )
    return sorted(rows)


def _profile_name(config: Config) -> str:
    """The profile; on MiniGrid the entropy coefficient, which is what its profiles differ in."""
    if isinstance(config.algorithm, A2cConfig):
        return f"entropy-{config.algorithm.entropy_coefficient:g}"
    return config.profile


def write_results(rows: Iterable[Row], folder: Path) -> list[Path]:
    """One CSV per method, `folder/<method>.csv`."""
    by_method: dict[str, list[Row]] = {}
    for row in rows:
        by_method.setdefault(row.method, []).append(row)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for method, group in sorted(by_method.items()):
        paths.append(folder / f"{method}.csv")
        with paths[-1].open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(Row._fields)
            writer.writerows(sorted(group))
    return paths


def read_results(folder: Path) -> list[Row]:
    """What `write_results` wrote."""
    rows = []
    for path in sorted(folder.glob("*.csv")):
        with path.open(newline="") as file:
            for line in csv.DictReader(file):
                rows.append(Row(**{name: kind(line[name]) for name, kind in Row.__annotations__.items()}))
    return rows
