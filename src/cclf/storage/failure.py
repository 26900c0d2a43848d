"""A run whose numbers are no longer finite stops, and leaves a bundle that replays what
happened."""

import math
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cclf.errors import ConfigError
from cclf.storage.atomic_files import sync_folder, write_json
from cclf.types import StateDict, StateValue

FAILURE_FOLDER = "failure"
FACTS = "failure.json"


class NonFiniteError(ValueError):
    def __init__(self, bundle: Path, name: str, value: float, env_steps: int):
        super().__init__(
            f"{name} is {value} at {env_steps:,} env steps: stopped; {bundle} holds what replays "
            "it; "
            "delete it to train on from the last checkpoint"
        )


def first_non_finite(row: Mapping[str, Any]) -> str | None:
    """The name of a number that is none; of several, a loss, since the others follow from it."""
    bad = [
        name for name, value in row.items() if isinstance(value, float) and not math.isfinite(value)
    ]
    return min(bad, key=lambda name: not name.endswith("_loss"), default=None)


def first_non_finite_of(state: StateDict) -> tuple[str, float] | None:
    """Of a nested state about to be saved, the first number that is none: its name and what it is.

    Each device is asked once for all its tensors. What an environment keeps is its own affair: a
    physics model may hold numbers that are none and mean "not set".
    """
    numbers = dict(_floating(state, ""))
    bad = {
        name
        for name, value in numbers.items()
        if isinstance(value, float) and not math.isfinite(value)
    }
    tensors = {name: value for name, value in numbers.items() if isinstance(value, torch.Tensor)}
    for device in {tensor.device for tensor in tensors.values()}:
        there = {name: tensor for name, tensor in tensors.items() if tensor.device == device}
        finite = torch.stack([tensor.isfinite().all() for tensor in there.values()]).tolist()
        bad |= {name for name, whole in zip(there, finite, strict=True) if not whole}
    for name, value in numbers.items():
        if name in bad:
            return name, float(
                value[~value.isfinite()][0] if isinstance(value, torch.Tensor) else value
            )
    return None


def _floating(value: StateValue, name: str) -> Iterator[tuple[str, float | torch.Tensor]]:
    """The floating numbers of a nested state by name, in its order; not those of an environment."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key != "env":
                yield from _floating(inner, f"{name}/{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for place, inner in enumerate(value):
            yield from _floating(inner, f"{name}/{place}")
    elif isinstance(value, np.ndarray) and value.dtype.kind == "f":
        yield name, torch.from_numpy(value)
    elif isinstance(value, float) or (
        isinstance(value, torch.Tensor) and value.is_floating_point()
    ):
        yield name, value


def save_failure(folder: Path, name: str, row: Mapping[str, Any]) -> Path:
    """Config, row and the checkpoints before it. Training is exact, so from them the same command
    fails in the same update."""
    bundle, temporary = folder / FAILURE_FOLDER, folder / f"{FAILURE_FOLDER}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    for part in ("config.json", "manifest.json"):
        if (folder / part).exists():
            shutil.copyfile(folder / part, temporary / part)
    # otherwise it failed before the first one: the config and its seed replay it
    if (folder / "checkpoint").exists():
        shutil.copytree(folder / "checkpoint", temporary / "checkpoint", copy_function=_link)
    facts = {
        "metric": name,
        "value": str(row[name]),
        "row": {key: _json(value) for key, value in row.items()},
    }
    write_json(temporary / FACTS, facts)
    os.rename(temporary, bundle)
    sync_folder(folder)
    return bundle


def check_finite(folder: Path, row: Mapping[str, Any]) -> None:
    """End the run in `folder`, with its bundle, where a number of this row is none."""
    name = first_non_finite(row)
    if name is not None:
        raise NonFiniteError(save_failure(folder, name, row), name, row[name], row["env_steps"])


def check_not_failed(folder: Path) -> None:
    bundle = folder / FAILURE_FOLDER
    if bundle.exists():
        raise ConfigError(
            f"this run failed before, see {bundle}/failure.json: delete {bundle} to train on from "
            "the last checkpoint"
        )


def _link(source: str, target: str) -> None:
    """Files of checkpoints are never changed, only removed, so a second name is as good as a copy
    and costs nothing."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _json(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
