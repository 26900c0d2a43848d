"""Checkpoints as safetensors and JSON: loading one can never run code. Written beside the old one, then renamed over it."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

_TENSOR, _ARRAY = "__tensor__", "__array__"


def save(folder: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint in `folder` by `state`: nested dicts of tensors, arrays and JSON values."""
    tensors: dict[str, torch.Tensor] = {}
    tree = _split(state, "", tensors)
    temporary, previous = folder.with_name(folder.name + ".tmp"), folder.with_name(folder.name + ".old")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    save_file(tensors, temporary / "tensors.safetensors")
    (temporary / "state.json").write_text(json.dumps(tree))
    for path in (*temporary.iterdir(), temporary):
        _sync(path)
    if folder.exists():  # otherwise a kill between the renames has left `previous` as the only good one
        shutil.rmtree(previous, ignore_errors=True)
        os.rename(folder, previous)
    os.rename(temporary, folder)
    shutil.rmtree(previous, ignore_errors=True)


def load(folder: Path) -> dict[str, Any] | None:
    """The state saved in `folder`, or None where there is none."""
    source = folder if folder.exists() else folder.with_name(folder.name + ".old")  # a kill between the two renames
    if not (source / "state.json").exists():
        return None
    tree = json.loads((source / "state.json").read_text())
    state: dict[str, Any] = _join(tree, load_file(source / "tensors.safetensors"))
    return state


def _split(value: Any, key: str, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, dict):
        return {str(name): _split(item, f"{key}/{name}", tensors) for name, item in value.items()}
    if isinstance(value, (torch.Tensor, np.ndarray)):
        # A copy: tied weights share memory, which the file format refuses.
        tensors[key] = torch.as_tensor(value).detach().cpu().clone().contiguous()
        return {_TENSOR if isinstance(value, torch.Tensor) else _ARRAY: key}
    if isinstance(value, np.generic):
        return value.item()
    return value


def _join(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        return tensors[value[_TENSOR]]
    if _ARRAY in value:
        return tensors[value[_ARRAY]].numpy()
    return {name: _join(item, tensors) for name, item in value.items()}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
