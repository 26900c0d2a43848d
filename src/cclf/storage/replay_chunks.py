"""The frames of a replay on disk.

Frames are nearly all of a replay's bytes and do not change until the ring buffer overwrites them.
So a checkpoint writes only the frames since the last one, in files (chunks) that the following
checkpoints share.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

import torch
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from cclf.storage.atomic_files import fsync_write, sync_folder
from cclf.storage.checkpoint_files import checksum
from cclf.storage.safe_loading import check_data, check_same_structure

DTYPES = {"uint8": torch.uint8, "float32": torch.float32}  # of pixels, of state
CHUNK_FRAMES = 4096  # bounds the memory of a write: 123 MB of 100x100 RGB


class Chunk(TypedDict):
    file: str
    first: int  # number of its first frame
    count: int
    sha256: str


class FrameTable(TypedDict):
    """Where the frames of a ring buffer are. Frame number n is in slot n % slots."""

    slots: int
    written: int  # number of frames ever written
    shape: list[int]  # of one frame
    dtype: str
    chunks: list[Chunk] | None  # None if the frames were not saved


def write_frames(
    folder: Path, serial: int, frames: Tensor, written: int, saved: FrameTable | None
) -> FrameTable:
    """Write the frames that are not on disk yet to files in `folder` that are named after `serial`.
    Returns the table of the ring buffer `frames`, into which `written` frames have been written.
    `saved` is the table of the last checkpoint that was written or read."""
    folder.mkdir(exist_ok=True)
    slots = len(frames)
    first = max(0, written - slots)
    chunks = [
        chunk
        for chunk in _reusable_chunks(saved, slots, written)
        if chunk["first"] + chunk["count"] > first
    ]
    if chunks:
        first = chunks[-1]["first"] + chunks[-1]["count"]
    while first < written:
        count = min(CHUNK_FRAMES, written - first)
        name = f"frames-{serial:08d}-{first:012d}.safetensors"
        slot = torch.arange(first, first + count, device=frames.device) % slots
        data = tensors_to_bytes({"frames": frames.index_select(0, slot).cpu()})
        fsync_write(folder / name, data)
        chunks.append(Chunk(file=name, first=first, count=count, sha256=checksum(data)))
        first += count
    sync_folder(folder)
    return frame_table(frames, written, chunks)


def _reusable_chunks(saved: FrameTable | None, slots: int, written: int) -> list[Chunk]:
    """The chunks whose frames have the same numbers as before. Loading a full ring buffer into a
    larger one renumbers them."""
    if saved is None or written < saved["written"]:
        return []
    is_full = saved["written"] > saved["slots"]
    return [] if is_full and slots != saved["slots"] else saved["chunks"] or []


def frame_table(frames: Tensor, written: int, chunks: list[Chunk] | None) -> FrameTable:
    dtype = str(frames.dtype).removeprefix("torch.")
    shape = list(frames.shape[1:])
    return FrameTable(slots=len(frames), written=written, shape=shape, dtype=dtype, chunks=chunks)


def read_frames(table: FrameTable, read_file: Callable[[str], dict[str, Tensor]]) -> Tensor:
    """The ring buffer as it was saved; zeros if its frames were not saved."""
    chunks = [Chunk(file="", first=0, count=0, sha256="")] if table["chunks"] is not None else None
    template = FrameTable(slots=0, written=0, shape=[0], dtype="", chunks=chunks)
    # Version 0.1 wrote no dtype.
    check_same_structure(template, {"dtype": "uint8", **table}, "the table of frames")
    slots, written, shape = table["slots"], table["written"], table["shape"]
    dtype = DTYPES[table.get("dtype", "uint8")]
    check_data(slots <= written, f"a replay of {slots} frames after {written}")
    frames = torch.zeros(slots, *shape, dtype=dtype)
    if table["chunks"] is None:
        return frames
    first = max(0, written - slots)  # older ones have been overwritten
    for chunk in table["chunks"]:
        end = chunk["first"] + chunk["count"]
        in_order = chunk["first"] <= first and end <= written
        check_data(in_order, f"{chunk['file']} does not continue at frame {first}")
        part = read_file(chunk["file"])["frames"]
        check_same_structure(frames[:0], part, chunk["file"])
        check_data(len(part) == chunk["count"], f"{chunk['file']} has {len(part)} frames")
        frames[torch.arange(first, end) % slots] = part[first - chunk["first"] :]
        first = end
    check_data(first == written, f"frames {first} to {written} are in no file")
    return frames
