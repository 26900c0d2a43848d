"""The folder of a run: its lock, its config, and the state and weights that are read from it."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes

from cclf import presets
from cclf.config import Config
from cclf.errors import ConfigError, DataError
from cclf.storage import checkpoint
from cclf.storage.atomic_files import folder_lock
from cclf.storage.migrations import migrate_config
from cclf.storage.safe_loading import (
    TENSOR_BYTES,
    check_same_structure,
    data_error_context,
    read_file,
    read_json,
)
from cclf.types import StateDict

WEIGHTS = "model.safetensors"  # of an exported agent, next to its config


@contextmanager
def lock_run_folder(config: Config, out: Path) -> Iterator[Path]:
    """The folder of the run, which is created if there is none, locked for this process; only its
    lock is written. Raises ConfigError if it has another config, is locked by another process or
    cannot be written."""
    folder = out / config.run_name()
    with ExitStack() as stack:
        with data_error_context(f"cannot use the run folder {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(folder_lock(folder))
        if os.path.lexists(folder / "config.json"):
            before, now = read_config(folder).hashed_fields(), config.hashed_fields()
            differing = [
                f"{key} ({before.get(key)} there, {now[key]} now)"
                for key in now
                if before.get(key) != now[key]
            ]
            if differing:
                raise ConfigError(
                    f"{folder} holds a run of another config: {', '.join(differing)}; use another "
                    "--out"
                )
        yield folder


def read_config(folder: Path) -> Config:
    path = folder / "config.json"
    if not os.path.lexists(path):
        reason = "it has no config.json" if os.path.lexists(folder) else "it does not exist"
        raise ConfigError(f"{folder} is not a run folder: {reason}")
    return read_config_file(path)


def read_config_file(path: Path) -> Config:
    try:
        with data_error_context(f"cannot read {path}"):
            return presets.from_dict(migrate_config(read_json(path)))
    except ConfigError as error:  # errors about the values do not name the file
        text = str(error)
        raise DataError(text if str(path) in text else f"cannot read {path}: {text}") from error


def reject_imports(
    config: Config, where: Path, trust_imports: bool, makes_env: bool = True
) -> None:
    """Raise ConfigError if the run imports modules, unless the user trusts them.

    A task gym/MODULE:ID and an encoder MODULE:FUNCTION import MODULE, which runs its code, and the
    folder may be from someone else. The task's module is imported only if an environment is made.
    """
    for option, module in config.imported_modules.items():
        if not trust_imports and (makes_env or option != "task"):
            raise ConfigError(
                f"{where} asks for the {option} {config.imported_names[option]!r}, which imports "
                f"the Python module {module!r} and runs its code: "
                "add --trust-imports (in Python: trust_imports=True) if you trust it"
            )


def load_config_for_training(path: Path, trust_imports: bool) -> Config:
    """The config to train again, of a run folder or of a file such as its config.json. Raises
    ConfigError for imports that are not trusted and for names that are unknown here."""
    config = read_config(path) if path.is_dir() else read_config_file(path)
    reject_imports(config, path, trust_imports)
    try:
        presets.validate_names(config)
    except ConfigError as error:
        raise ConfigError(f"cannot train {path}: {error}") from error
    return config


def read_checkpoint(folder: Path, frames: bool = True) -> StateDict:
    """The newest valid state of a run. If `frames` is False, the frames of its replay, which are
    nearly all of its bytes, are not read."""
    saved = checkpoint.load(folder / "checkpoint", frames)
    if saved is None:
        if (folder / WEIGHTS).exists():
            raise ConfigError(
                f"{folder} is an exported agent, which has no checkpoint: use the folder of its run"
            )
        raise ConfigError(f"{folder} has no checkpoint yet: train it first")
    with data_error_context(f"the checkpoint in {folder} is not that of a run"):
        check_same_structure(0, saved["agent_steps"], "agent_steps")
        check_same_structure(0, saved["learner"]["updates"], "updates")
    if frames and not saved.get(checkpoint.REPLAY_KEPT, True):
        raise ConfigError(
            f"{folder} kept no replay (--no-keep-replay): train it again without that option"
        )
    return saved


def read_weights(folder: Path) -> tuple[dict[str, torch.Tensor], int]:
    """The networks of an exported agent, and the env steps of its training."""
    with data_error_context(f"cannot read {folder / WEIGHTS}"):
        data = read_file(folder / WEIGHTS, TENSOR_BYTES)
        try:
            weights = tensors_from_bytes(data)
        except SafetensorError as error:
            raise ValueError(str(error)) from error
        # The file starts with the length of its header, which is JSON.
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return weights, int(header["__metadata__"]["env_steps"])
