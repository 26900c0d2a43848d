"""A run whose numbers are no longer finite stops and leaves a folder that reproduces the failure."""

import math
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch

from cclf.errors import ConfigError
from cclf.storage.atomic_files import sync_folder, write_json
from cclf.types import StateDict, StateValue

FAILURE_FOLDER = "failure"
FACTS = "failure.json"

Row = Mapping[str, StateValue]


class NonFiniteError(ValueError):
    def __init__(self, folder: Path, name: str, value: float, env_steps: int):
        super().__init__(
            f"{name} is {value} at {env_steps:,} env steps: stopped; {folder} reproduces it; delete "
            "it to resume from the last checkpoint"
        )


def first_non_finite(row: Row) -> str | None:
    """The name of a non-finite value; a loss if there is one, since the others follow from it."""
    names = [
        name for name, value in row.items() if isinstance(value, float) and not math.isfinite(value)
    ]
    return min(names, key=lambda name: not name.endswith("_loss"), default=None)


def first_non_finite_of(state: StateDict) -> tuple[str, float] | None:
    """The path and the value of the first non-finite number in a nested state.

    The state of an environment is not checked: a physics model may use NaN for "not set". Each
    device is synchronized once for all of its tensors.
    """
    numbers = dict(_floats(state, ""))
    tensors = {name: value for name, value in numbers.items() if isinstance(value, torch.Tensor)}
    finite = {
        name: math.isfinite(value) for name, value in numbers.items() if isinstance(value, float)
    }
    for device in {tensor.device for tensor in tensors.values()}:
        there = {name: tensor for name, tensor in tensors.items() if tensor.device == device}
        flags = torch.stack([tensor.isfinite().all() for tensor in there.values()]).tolist()
        finite |= zip(there, flags, strict=True)
    for name, value in numbers.items():
        if not finite[name]:
            number = value[~value.isfinite()][0] if isinstance(value, torch.Tensor) else value
            return name, float(number)
    return None


def _floats(value: StateValue, name: str) -> Iterator[tuple[str, float | torch.Tensor]]:
    """The floating-point values of a nested state by path, without those of environments."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key != "env":
                yield from _floats(inner, f"{name}/{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield from _floats(inner, f"{name}/{index}")
    elif isinstance(value, np.ndarray) and value.dtype.kind == "f":
        yield name, torch.from_numpy(value)
    elif isinstance(value, float) or (
        isinstance(value, torch.Tensor) and value.is_floating_point()
    ):
        yield name, value


def save_failure(folder: Path, name: str, row: Row) -> Path:
    """Save the config, the row and the checkpoints. Training is deterministic, so the same command
    fails again from them."""
    failure, temporary = folder / FAILURE_FOLDER, folder / f"{FAILURE_FOLDER}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    for file in ("config.json", "manifest.json"):
        if (folder / file).exists():
            shutil.copyfile(folder / file, temporary / file)
    # Before the first checkpoint, the config and its seed reproduce the failure.
    if (folder / "checkpoint").exists():
        shutil.copytree(folder / "checkpoint", temporary / "checkpoint", copy_function=_link)
    values = {key: _to_json(value) for key, value in row.items()}
    write_json(temporary / FACTS, {"metric": name, "value": str(row[name]), "row": values})
    os.rename(temporary, failure)
    sync_folder(folder)
    return failure


def check_finite(folder: Path, row: Row) -> None:
    """Raise NonFiniteError, after the failure was saved, if a value of the row is not finite."""
    name = first_non_finite(row)
    if name is not None:
        raise NonFiniteError(save_failure(folder, name, row), name, row[name], row["env_steps"])


def check_not_failed(folder: Path) -> None:
    failure = folder / FAILURE_FOLDER
    if failure.exists():
        raise ConfigError(
            f"this run failed before, see {failure}/failure.json: delete {failure} to resume from "
            "the last checkpoint"
        )


def _link(source: str, target: str) -> None:
    """Files of checkpoints are never modified, so a hard link serves as a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _to_json(value: StateValue) -> StateValue:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
