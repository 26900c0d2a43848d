"""A run whose numbers are no longer finite stops and leaves a folder that reproduces the failure."""

import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from cclf.errors import ConfigError
from cclf.storage.atomic_files import sync_folder, write_json
from cclf.types import StateDict, StateValue

FAILURE_FOLDER = "failure"


class NonFiniteError(ValueError):
    """A number of the run is not finite. The message names it and the folder that reproduces it."""


def check_finite(folder: Path, row: StateDict, state: StateDict | None = None) -> None:
    """Raise NonFiniteError if a number in `state`, or in `row` if there is no `state`, is not
    finite. `row` contains the step counters.

    The config, the row and the checkpoints are saved first. Training is deterministic, so the same
    command fails again from them.
    """
    found = first_non_finite(row if state is None else state)
    if found is None:
        return
    name, value = found
    failure, temporary = folder / FAILURE_FOLDER, folder / f"{FAILURE_FOLDER}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    for file in ("config.json", "manifest.json"):
        if (folder / file).exists():
            shutil.copyfile(folder / file, temporary / file)
    # Before the first checkpoint, the config and its seed reproduce the failure.
    if (folder / "checkpoint").exists():
        shutil.copytree(folder / "checkpoint", temporary / "checkpoint", copy_function=_link)
    # JSON has no numbers for nan and inf.
    values = {
        key: str(each) if isinstance(each, float) and not math.isfinite(each) else each
        for key, each in (row | {name: value}).items()
    }
    write_json(temporary / "failure.json", {"metric": name, "value": str(value), "row": values})
    os.rename(temporary, failure)
    sync_folder(folder)
    raise NonFiniteError(
        f"{name} is {value} at {row['env_steps']:,} env steps: stopped; {failure} reproduces it; "
        "delete it to resume from the last checkpoint"
    )


def first_non_finite(state: StateDict) -> tuple[str, float] | None:
    """The path and the value of a non-finite number in a nested state: that of a loss if there is one,
    since other values follow from it, otherwise the first.

    The state of an environment is not checked: a physics model may use NaN for "not set".
    """
    non_finite = [
        (name, float(value[~value.isfinite()][0]))
        for name, value in _floating_point(state, "")
        if not value.isfinite().all()
    ]
    return min(non_finite, key=lambda item: not item[0].endswith("_loss"), default=None)


def _floating_point(value: StateValue, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The floating-point values of a nested state by path, without those of environments."""
    if isinstance(value, (dict, list)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            if key != "env":
                yield from _floating_point(inner, f"{name}/{key}" if name else str(key))
    elif isinstance(value, float):
        yield name, torch.tensor(value, dtype=torch.float64)
    elif isinstance(value, (torch.Tensor, np.ndarray)):
        tensor = torch.as_tensor(value)
        if tensor.is_floating_point():
            yield name, tensor


def _link(source: str, target: str) -> None:
    """Files of checkpoints are never modified, so a hard link serves as a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def check_not_failed(folder: Path) -> None:
    failure = folder / FAILURE_FOLDER
    if failure.exists():
        raise ConfigError(
            f"this run failed before, see {failure}/failure.json: delete {failure} to resume from "
            "the last checkpoint"
        )
