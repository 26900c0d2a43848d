"""Checkpoints as safetensors and JSON with checksums: loading one can never run code, and what is
loaded is what was saved.

    checkpoint/00000007/   state.json  tensors.safetensors  index.json (written last: the sha256 of every file)
    checkpoint/00000008/
    checkpoint/frames/     replay's frames, each in one file, shared by the checkpoints (see frame_chunks.py)

A checkpoint is written under a temporary name, synced and renamed, so that it is whole or not
there. The last two are kept: when the newest is damaged, the one before it is used.
"""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes

from cclf.console import say, warn
from cclf.errors import ConfigError
from cclf.storage.atomic_files import fsync_write, sync_folder
from cclf.storage.checkpoint_files import (
    OWN_FILES,
    checksum,
    index_bytes,
    read_checked,
    read_index,
    serials,
)
from cclf.storage.migrations import format_field, migrate_state
from cclf.storage.replay_chunks import ReplayChunks, manifest_of, read_frames
from cclf.storage.safe_loading import DATA_ERRORS, check_data, read_file
from cclf.types import StateDict, StateValue

_TENSOR, _ARRAY, _FRAMES = "__tensor__", "__array__", "__frames__"
REPLAY_KEPT = "replay_kept"  # of a run's state: whether its frames are in its checkpoint
# where a run's state keeps the ring that is written in chunks
_REPLAY_FRAMES = "/learner/replay/frames"
_READ_ERRORS = (OSError, SafetensorError, *DATA_ERRORS)


class Checkpoints:
    """The checkpoints in one folder. Use one object for the life of a run: it knows which frames
    are on disk already."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._chunks = ReplayChunks()
        self._damaged: set[int] = set()

    def load(self, frames: bool = True, agent_steps: int | None = None) -> StateDict | None:
        """The newest state that is whole; None where nothing was saved. One line says when a newer
        one had to be left out.

        Without `frames` those of a replay, nearly all of its bytes, are neither read nor checked.
        With `agent_steps`, one of `steps`, it is as if `rewind` had forgotten what came later.
        """
        reasons = []
        last = None if agent_steps is None else self.steps().get(agent_steps)
        for serial in reversed(
            [serial for serial in serials(self.folder) if last is None or serial <= last]
        ):
            try:
                state, table = _read(self.folder, serial, frames)
            except _READ_ERRORS as error:
                self._damaged.add(serial)
                reasons.append(
                    f"checkpoint {serial:08d} is damaged "
                    f"({' '.join(str(error).split()) or type(error).__name__})"
                )
                continue
            if reasons:
                after = f"going on from checkpoint {serial:08d}, the one before"
                warn(f"{'; '.join(reasons)}; {after}")
            if table is not None:
                self._chunks.remember(table)
            return migrate_state(state)
        if reasons:
            raise ConfigError(
                f"no checkpoint in {self.folder} is good: {'; '.join(reasons)}; restore it from a "
                "copy, "
                "or delete that folder to train from the beginning"
            )
        return None

    def steps(self) -> dict[int, int]:
        """The agent steps that can be gone back to, each with the serial of its newest checkpoint;
        replay's frames are not read.

        Step 0, the beginning, is among them as long as there is no more than a first checkpoint,
        and has serial 0.
        """
        known = serials(self.folder)
        found = {0: 0} if known in ([], [1]) else {}
        for serial in known:
            with contextlib.suppress(*_READ_ERRORS):
                step = _read(self.folder, serial, frames=False)[0]["agent_steps"]
                check_data(type(step) is int, f"agent_steps is {step!r}")
                found[step] = serial
        return found

    def is_valid(self, serial: int) -> bool:
        with contextlib.suppress(*_READ_ERRORS):
            return serial == 0 or bool(_read(self.folder, serial, frames=True))
        return False

    def rewind(self, agent_steps: int) -> None:
        """Forget the checkpoints after this step, where it is one of `steps`."""
        last = self.steps().get(agent_steps)
        newer = [] if last is None else [serial for serial in serials(self.folder) if serial > last]
        # at a stroke: half of a checkpoint would pass for a damaged one
        for serial in reversed(newer):
            os.rename(self.folder / f"{serial:08d}", self.folder / f"{serial:08d}.tmp")
        if newer:
            sync_folder(self.folder)
            self._prune({*serials(self.folder)})
            where = f"{agent_steps:,} agent steps, the newest that all runs of this command have"
            say(f"cclf: {self.folder.parent} goes back to {where}")

    def save(self, state: StateDict, frames: bool = True) -> None:
        """Add `state`, nested dicts of tensors, arrays and JSON values, and forget all but the
        checkpoint before it. Without `frames` those of a replay are left out, and earlier
        checkpoints that have some are forgotten too."""
        state = format_field() | state
        known = serials(self.folder)
        serial = known[-1] + 1 if known else 1
        temporary = self.folder / f"{serial:08d}.tmp"
        try:
            table = self._write(temporary, serial, state, frames)
            os.rename(temporary, self.folder / f"{serial:08d}")
        except Exception:  # on a full disk the space of what was begun is needed
            shutil.rmtree(temporary, ignore_errors=True)
            for path in self.folder.glob(f"frames/frames-{serial:08d}-*"):
                path.unlink()
            raise
        sync_folder(self.folder)
        if table is not None:
            self._chunks.remember(table)
        good_before = [number for number in known if number not in self._damaged]
        self._prune({serial, *(n for n in good_before[-1:] if frames or not self._has_frames(n))})

    def _write(
        self, temporary: Path, serial: int, state: StateDict, frames: bool
    ) -> dict[str, Any] | None:
        shutil.rmtree(temporary, ignore_errors=True)
        self.folder.mkdir(exist_ok=True)  # without the run folder: it was removed during the run
        temporary.mkdir()
        tensors: dict[str, torch.Tensor] = {}
        tree = _flatten(state, "", tensors)
        checksums: dict[str, str] = {}
        table = None
        if _REPLAY_FRAMES in tensors:
            ring, written = tensors.pop(_REPLAY_FRAMES), tree["learner"]["replay"]["written"]
            table = (
                self._write_frames(serial, ring, written, checksums)
                if frames
                else manifest_of(ring, written, None)
            )
            tree["learner"]["replay"]["frames"] = {_FRAMES: table}
        contents = (
            json.dumps(tree).encode(),
            tensors_to_bytes({key: _contiguous_copy(value) for key, value in tensors.items()}),
        )
        for name, data in zip(OWN_FILES, contents, strict=True):
            fsync_write(temporary / name, data)
            checksums[name] = checksum(data)
        fsync_write(temporary / "index.json", index_bytes(checksums))
        sync_folder(temporary)
        return table

    def _write_frames(
        self, serial: int, frames: torch.Tensor, written: int, checksums: dict[str, str]
    ) -> dict[str, Any]:
        folder = self.folder / "frames"
        folder.mkdir(exist_ok=True)

        def write_file(name: str, tensors: dict[str, torch.Tensor]) -> None:
            data = tensors_to_bytes(tensors)
            fsync_write(folder / name, data)
            fresh[name] = checksum(data)

        fresh: dict[str, str] = {}
        table = self._chunks.write(serial, frames, written, write_file)
        # the table carries the checksums of older files from one index to the next
        for chunk in table["chunks"]:
            chunk["sha256"] = fresh.get(chunk["file"]) or chunk["sha256"]
            checksums[f"frames/{chunk['file']}"] = chunk["sha256"]
        sync_folder(folder)
        return table

    def _has_frames(self, serial: int) -> bool:
        listed = _listed(self.folder / f"{serial:08d}")
        return any(name.startswith("frames/") for name in listed)

    def _prune(self, kept: set[int]) -> None:
        """Remove what no kept checkpoint needs; what a kill leaves here goes the next time."""
        names = {f"{serial:08d}" for serial in kept}
        used = {name for serial in kept for name in _listed(self.folder / f"{serial:08d}")}
        # the oldest first: a reader who misses one would miss the one before it too
        for path in sorted(self.folder.iterdir()):
            if path.name not in names and re.fullmatch(r"\d{8}(\.tmp)?", path.name):
                _remove(path)
        for path in self.folder.glob("frames/frames-*"):
            if f"frames/{path.name}" not in used:
                _remove(path)


def _remove(path: Path) -> None:
    """A folder or a file, whatever was put in the other's place."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def load(folder: Path, frames: bool = True) -> StateDict | None:
    """The newest good state in `folder`, for those who only read, also while a run goes on there;
    None where there is none."""
    while True:
        checkpoints = Checkpoints(folder)
        known = serials(folder)
        try:
            return checkpoints.load(frames)
        except ConfigError:
            if serials(folder) == known:
                raise  # otherwise the run pruned them while they were read: there are newer ones


def common_checkpoint_steps(folders: Sequence[Path]) -> list[int]:
    """The agent steps from which runs that must move in step go on: the newest that all have a
    whole checkpoint of.

    A kill while they save one after the other leaves them a checkpoint apart. Where they have none
    in common (a seed was added later, one failed and the others went on), each goes on from its own
    newest.
    """
    runs = [Checkpoints(folder) for folder in folders]
    known = [run.steps() for run in runs]
    for step in sorted(set.intersection(*map(set, known)), reverse=True):
        if all(run.is_valid(steps[step]) for run, steps in zip(runs, known, strict=True)):
            return [step] * len(runs)
    return [max(steps, default=0) for steps in known]


def _read(folder: Path, serial: int, frames: bool) -> tuple[StateDict, dict[str, Any] | None]:
    """The state and its table of frames; one of _DAMAGE when a single byte is not what was
    written."""
    own = folder / f"{serial:08d}"
    checksums = read_index(own)

    def checked(name: str) -> bytes:
        return read_checked(own, name, checksums)

    tree = json.loads(checked("state.json"))
    tensors = tensors_from_bytes(checked("tensors.safetensors"))
    table = tree.get("learner", {}).get("replay", {}).get("frames", {}).get(_FRAMES)
    if table is not None and frames:
        tensors[_REPLAY_FRAMES] = read_frames(
            table, lambda name: tensors_from_bytes(checked(f"frames/{name}"))
        )
        tree["learner"]["replay"]["frames"] = {_TENSOR: _REPLAY_FRAMES}
    joined = _unflatten(tree, tensors)
    check_data(not tensors, f"no place in state.json names the tensors {sorted(tensors)[:3]}")
    return joined, table


def _listed(folder: Path) -> list[str]:
    try:
        return list(json.loads(read_file(folder / "index.json"))["sha256"])
    except _READ_ERRORS:
        return []  # damaged since it was written: nothing of it can be used


def _contiguous_copy(value: torch.Tensor) -> torch.Tensor:
    """A copy: tied weights share memory, which the file format refuses."""
    return value.detach().cpu().clone().contiguous()


def _flatten(value: StateValue, key: str, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, dict):
        return {str(name): _flatten(item, f"{key}/{name}", tensors) for name, item in value.items()}
    if isinstance(value, (torch.Tensor, np.ndarray)):
        tensors[key] = torch.as_tensor(value)
        return {_TENSOR if isinstance(value, torch.Tensor) else _ARRAY: key}
    if isinstance(value, np.generic):
        return value.item()
    return value


def _unflatten(value: Any, tensors: dict[str, torch.Tensor]) -> StateValue:
    if not isinstance(value, dict):
        return value
    if _TENSOR in value or _ARRAY in value:
        ((kind, name),) = value.items()  # nothing else beside it
        tensor = tensors.pop(name)  # and each has one place
        return tensor if kind == _TENSOR else tensor.numpy()
    return {name: _unflatten(item, tensors) for name, item in value.items()}
