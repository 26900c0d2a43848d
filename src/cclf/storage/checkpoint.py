"""Checkpoints as safetensors and JSON with checksums. Loading one executes no code. It returns
exactly what was saved, or fails.

    checkpoint/00000007/   state.json  tensors.safetensors  index.json (the SHA-256 of every file)
    checkpoint/00000008/
    checkpoint/frames/     the frames of a replay, in files that checkpoints share (replay_chunks.py)

A checkpoint is written under a temporary name, synced and renamed, so that it exists completely or
not at all. The last two are kept: if the newest is damaged, the one before is used.
"""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes

from cclf.console import say, warn
from cclf.errors import DataError, short_error
from cclf.storage.atomic_files import fsync_write, sync_folder
from cclf.storage.checkpoint_files import (
    FILES,
    checksum,
    folder_of,
    index_bytes,
    read_checked,
    read_index,
    serials,
)
from cclf.storage.migrations import format_field, migrate_state
from cclf.storage.replay_chunks import FrameTable, frame_table, read_frames, write_frames
from cclf.storage.safe_loading import DATA_ERRORS, check_data
from cclf.types import StateDict, StateValue

REPLAY_KEPT = "replay_kept"  # in the state of a run: whether its checkpoint has the replay's frames
_REPLAY_FRAMES = "/learner/replay/frames"  # the place of the ring buffer in the state of a run
# Keys of the objects that stand in state.json for a tensor, an array and the frames of a replay.
_TENSOR, _ARRAY, _FRAMES = "__tensor__", "__array__", "__frames__"
_READ_ERRORS = (OSError, SafetensorError, *DATA_ERRORS)


class Checkpoints:
    """The checkpoints in one folder. Use one object for the whole run: it knows which frames are on
    disk already."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._loaded_serial = 0  # 0 if none was loaded
        self._saved_frames: FrameTable | None = None  # of the last checkpoint written or read
        self._damaged: set[int] = set()

    def load(self, frames: bool = True, agent_steps: int | None = None) -> StateDict | None:
        """The newest valid state, None if nothing was saved. A warning names newer checkpoints that are
        damaged.

        Without `frames`, the frames of the replay, which are nearly all of the bytes, are neither read
        nor verified. With `agent_steps`, a key of `steps()`, later checkpoints are ignored. Another
        process may add and delete checkpoints meanwhile.
        """
        reasons = []
        last_serial = None if agent_steps is None else self.steps().get(agent_steps)
        known = serials(self.folder)
        for serial in reversed(known):
            if last_serial is not None and serial > last_serial:
                continue
            try:
                state, table = _read(self.folder, serial, frames)
            except _READ_ERRORS as error:
                self._damaged.add(serial)
                reason = " ".join(str(error).split()) or short_error(error)
                reasons.append(f"checkpoint {serial:08d} is damaged ({reason})")
                continue
            if reasons:
                warn(f"{'; '.join(reasons)}; resuming from checkpoint {serial:08d} before it")
            self._loaded_serial, self._saved_frames = serial, table
            return migrate_state(state)
        if serials(self.folder) != known:  # they were deleted while they were read
            return self.load(frames, agent_steps)
        if reasons:
            raise DataError(
                f"no checkpoint in {self.folder} is valid: {'; '.join(reasons)}; restore it from a "
                "copy, or delete that folder to train from the beginning"
            )
        return None

    def steps(self) -> dict[int, int]:
        """The agent steps at which a run can resume, each with the serial of its newest checkpoint.
        Frames are not read.

        Step 0, the beginning of the run, has serial 0. It is included if no checkpoint or only the
        first one was written.
        """
        known = serials(self.folder)
        steps = {0: 0} if known in ([], [1]) else {}
        for serial in known:
            with contextlib.suppress(*_READ_ERRORS):
                step = _read(self.folder, serial, frames=False)[0]["agent_steps"]
                check_data(type(step) is int, f"agent_steps is {step!r}")
                steps[step] = serial
        return steps

    def is_valid(self, serial: int) -> bool:
        with contextlib.suppress(*_READ_ERRORS):
            return serial == 0 or bool(_read(self.folder, serial, frames=True))
        return False

    def discard_later(self, agent_steps: int) -> None:
        """Delete the checkpoints after the one that was loaded, which is at `agent_steps`."""
        later = [serial for serial in serials(self.folder) if serial > self._loaded_serial]
        # Rename first, atomically: a partially deleted checkpoint would look damaged.
        for serial in reversed(later):
            folder = folder_of(self.folder, serial)
            os.rename(folder, folder.with_suffix(".tmp"))
        if later:
            sync_folder(self.folder)
            self._prune({*serials(self.folder)})
            where = f"{agent_steps:,} agent steps, the newest that all runs of this command have"
            say(f"cclf: {self.folder.parent} goes back to {where}")

    def save(self, state: StateDict, frames: bool = True) -> None:
        """Add `state`, nested dicts of tensors, arrays and JSON values, and delete all but the
        checkpoint before it. Without `frames`, the frames of the replay are not saved, and the
        checkpoint before it is deleted too, so that no frames remain on the disk."""
        known = serials(self.folder)
        serial = known[-1] + 1 if known else 1
        folder = folder_of(self.folder, serial)
        temporary = folder.with_suffix(".tmp")
        try:
            table = self._write(temporary, serial, format_field() | state, frames)
            os.rename(temporary, folder)
        except Exception:  # free the space, because the disk may be full
            shutil.rmtree(temporary, ignore_errors=True)
            for path in self.folder.glob(f"frames/frames-{serial:08d}-*"):
                path.unlink()
            raise
        sync_folder(self.folder)
        self._saved_frames = table
        valid_before = [number for number in known if number not in self._damaged]
        self._prune({serial, *valid_before[-1:]} if frames else {serial})

    def _write(
        self, temporary: Path, serial: int, state: StateDict, frames: bool
    ) -> FrameTable | None:
        shutil.rmtree(temporary, ignore_errors=True)
        self.folder.mkdir(exist_ok=True)  # not its parents: the run folder may have been deleted
        temporary.mkdir()
        tensors: dict[str, torch.Tensor] = {}
        tree = _flatten(state, "", tensors)
        table, checksums = None, {}
        if _REPLAY_FRAMES in tensors:
            replay, replay_frames = tree["learner"]["replay"], tensors.pop(_REPLAY_FRAMES)
            table = frame_table(replay_frames, replay["written"], chunks=None)
            if frames:
                chunks, written = self.folder / "frames", replay["written"]
                table = write_frames(chunks, serial, replay_frames, written, self._saved_frames)
            replay["frames"] = {_FRAMES: table}
            checksums = {f"frames/{each['file']}": each["sha256"] for each in table["chunks"] or ()}
        # Copies: tied weights share memory, which safetensors refuses.
        tensors = {key: value.detach().cpu().clone().contiguous() for key, value in tensors.items()}
        contents = (json.dumps(tree).encode(), tensors_to_bytes(tensors))
        for name, data in zip(FILES, contents, strict=True):
            fsync_write(temporary / name, data)
            checksums[name] = checksum(data)
        fsync_write(temporary / "index.json", index_bytes(checksums))
        sync_folder(temporary)
        return table

    def _prune(self, kept: set[int]) -> None:
        """Delete the files that no kept checkpoint needs, and those that a killed process left."""
        names = {f"{serial:08d}" for serial in kept}
        used = set[str]()
        for serial in kept:
            with contextlib.suppress(*_READ_ERRORS):  # a damaged checkpoint needs nothing
                used |= read_index(folder_of(self.folder, serial)).keys()
        # The oldest first: a reader that finds one deleted then finds a newer one.
        for path in sorted(self.folder.iterdir()):
            if path.name not in names and re.fullmatch(r"\d{8}(\.tmp)?", path.name):
                _remove(path)
        for path in self.folder.glob("frames/frames-*"):
            if f"frames/{path.name}" not in used:
                _remove(path)


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def load(folder: Path, frames: bool = True) -> StateDict | None:
    """The newest valid state in `folder`, None if there is none."""
    return Checkpoints(folder).load(frames)


def common_checkpoint_steps(folders: Sequence[Path]) -> list[int]:
    """The agent steps at which runs that train together resume: the newest step at which all have a
    valid checkpoint.

    A kill while they save one after the other leaves them one checkpoint apart. If they have no
    step in common (a seed was added later, or one had failed), each resumes at its own newest.
    """
    runs = [Checkpoints(folder) for folder in folders]
    known = [run.steps() for run in runs]
    for step in sorted(set.intersection(*map(set, known)), reverse=True):
        if all(run.is_valid(steps[step]) for run, steps in zip(runs, known, strict=True)):
            return [step] * len(runs)
    return [max(steps, default=0) for steps in known]


def _read(folder: Path, serial: int, frames: bool) -> tuple[StateDict, FrameTable | None]:
    """The state and its table of frames. Raises one of _READ_ERRORS if any byte has changed."""
    checkpoint = folder_of(folder, serial)
    checksums = read_index(checkpoint)
    tree = json.loads(read_checked(checkpoint, "state.json", checksums))
    tensors = tensors_from_bytes(read_checked(checkpoint, "tensors.safetensors", checksums))
    replay = tree.get("learner", {}).get("replay", {})
    table: FrameTable | None = replay.get("frames", {}).get(_FRAMES)
    if table is not None and frames:

        def read_chunk(name: str) -> dict[str, torch.Tensor]:
            return tensors_from_bytes(read_checked(checkpoint, f"frames/{name}", checksums))

        tensors[_REPLAY_FRAMES] = read_frames(table, read_chunk)
        replay["frames"] = {_TENSOR: _REPLAY_FRAMES}
    state = _unflatten(tree, tensors)
    check_data(not tensors, f"state.json does not name the tensors {sorted(tensors)[:3]}")
    return state, table


def _flatten(value: StateValue, key: str, tensors: dict[str, torch.Tensor]) -> StateValue:
    """The value as JSON, with the names of its tensors, which are added to `tensors`."""
    if isinstance(value, dict):
        return {str(name): _flatten(item, f"{key}/{name}", tensors) for name, item in value.items()}
    if isinstance(value, (torch.Tensor, np.ndarray)):
        tensors[key] = torch.as_tensor(value)
        return {_TENSOR if isinstance(value, torch.Tensor) else _ARRAY: key}
    return value.item() if isinstance(value, np.generic) else value


def _unflatten(value: StateValue, tensors: dict[str, torch.Tensor]) -> StateValue:
    """The inverse of `_flatten`. Removes the tensors that it uses."""
    if not isinstance(value, dict):
        return value
    if _TENSOR in value or _ARRAY in value:
        ((kind, name),) = value.items()  # raises ValueError if there are other keys
        tensor = tensors.pop(name)  # raises KeyError if a tensor is named twice
        return tensor if kind == _TENSOR else tensor.numpy()
    return {name: _unflatten(item, tensors) for name, item in value.items()}
