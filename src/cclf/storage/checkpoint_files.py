"""The files of checkpoints and their checksums. This module does not import torch, so that commands
which only read tables start quickly."""

import hashlib
import json
import os
import re
from pathlib import Path

from cclf.errors import DataError
from cclf.storage.safe_loading import (
    DATA_ERRORS,
    TENSOR_BYTES,
    check_data,
    data_error_context,
    read_file,
    read_text,
)
from cclf.types import StateDict

FILES = ("state.json", "tensors.safetensors")


def folder_of(folder: Path, serial: int) -> Path:
    return folder / f"{serial:08d}"


def serials(folder: Path) -> list[int]:
    """The numbers of the checkpoints in `folder`, the oldest first; none if there is no such folder.

    A broken link or a file in its place is a DataError: otherwise the run would restart from step 0
    and overwrite its results.
    """
    advice = "restore that folder, or delete what is there to train from the beginning"
    with data_error_context(f"cannot read the checkpoints in {folder}", advice):
        names = os.listdir(folder) if os.path.lexists(folder) else []
        return sorted(int(name) for name in names if re.fullmatch(r"[0-9]{8}", name))


def checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def index_bytes(checksums: dict[str, str]) -> bytes:
    """The exact content of index.json for these checksums, so that any changed byte is detected."""
    of_checksums = checksum(json.dumps(checksums, sort_keys=True).encode())
    index = {"sha256": checksums, "sha256_of_this": of_checksums}
    return json.dumps(index, sort_keys=True, indent=1).encode()


def read_index(checkpoint: Path) -> dict[str, str]:
    """The checksums of the files of one checkpoint, by name."""
    index = read_file(checkpoint / "index.json")
    checksums: dict[str, str] = json.loads(index)["sha256"]
    check_data(index == index_bytes(checksums), "index.json has changed")
    return checksums


def read_checked(checkpoint: Path, name: str, checksums: dict[str, str]) -> bytes:
    """The content of a file of one checkpoint: one of FILES, or `frames/NAME`, which it shares with
    other checkpoints."""
    folder = checkpoint if name in FILES else checkpoint.parent / "frames"
    path = folder / Path(name).name
    check_data(path.is_file(), f"{name} is missing")
    data = read_file(path, TENSOR_BYTES)
    check_data(checksum(data) == checksums.get(name), f"{name} has another checksum than its index")
    return data


def newest_tables(folder: Path, verify_tensors: bool = False) -> StateDict:
    """The records of the CSV files in the newest valid checkpoint in `folder`; empty if there is
    none, or if version 0.1 wrote it.

    Without `verify_tensors` only index.json and state.json are verified. The run may write and
    delete checkpoints meanwhile.
    """
    while True:
        known = serials(folder)
        for serial in reversed(known):
            checkpoint = folder_of(folder, serial)
            try:
                checksums = read_index(checkpoint)
                state = json.loads(read_checked(checkpoint, "state.json", checksums))
                for name in checksums if verify_tensors else ():
                    read_checked(checkpoint, name, checksums)
                return dict(state.get("tables", {}))
            except PermissionError:
                raise  # not damaged
            except (OSError, *DATA_ERRORS):
                continue
        if serials(folder) == known:  # otherwise they were deleted while they were read
            break
    if known:
        raise DataError(f"every checkpoint in {folder} is damaged")
    return {}


def is_complete(folder: Path, env_steps: int, action_repeat: int, final_eval_episodes: int) -> bool:
    """Whether the files of a run folder prove that the run trained for `env_steps` and made all of
    its evaluations."""
    checkpoints = folder / "checkpoint"
    try:
        newest = folder_of(checkpoints, serials(checkpoints)[-1])
        state = json.loads(read_text(newest / "state.json"))
        reached = state["agent_steps"] * action_repeat
        if reached < env_steps or state["evaluation_due"] or (folder / "failure").exists():
            return False
        rows = read_text(folder / "final.csv").splitlines() if final_eval_episodes else []
        return not final_eval_episodes or any(row.startswith(f"{reached},") for row in rows)
    except (OSError, *DATA_ERRORS):
        return False  # `cclf train` reports the reason
