"""The frames of a replay on disk.

Frames are nearly all of a replay's bytes and do not change until the ring buffer overwrites them.
So a checkpoint writes only the frames since the last one, in files (chunks) that the following
checkpoints share.
"""

from collections.abc import Callable
from typing import TypedDict

import torch
from torch import Tensor

from cclf.storage.safe_loading import check_data

DTYPES = {"uint8": torch.uint8, "float32": torch.float32}  # of pixels, of state
CHUNK_FRAMES = 4096  # bounds the memory of a write: 123 MB of 100x100 RGB

Write = Callable[[str, dict[str, Tensor]], str]  # (name, tensors) -> SHA-256 of the file
Read = Callable[[str], dict[str, Tensor]]


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


class ReplayChunks:
    """Writes the frames that no earlier checkpoint contains."""

    def __init__(self) -> None:
        self.saved: FrameTable | None = None  # of the last checkpoint that was written or read

    def write(self, serial: int, frames: Tensor, written: int, write_file: Write) -> FrameTable:
        """The table of a ring buffer into which `written` frames have been written. New frames go
        to files named after `serial`."""
        slots = len(frames)
        first = max(0, written - slots)
        chunks = [
            chunk
            for chunk in self._reusable(slots, written)
            if chunk["first"] + chunk["count"] > first
        ]
        if chunks:
            first = chunks[-1]["first"] + chunks[-1]["count"]
        while first < written:
            count = min(CHUNK_FRAMES, written - first)
            name = f"frames-{serial:08d}-{first:012d}.safetensors"
            slot = torch.arange(first, first + count, device=frames.device) % slots
            sha256 = write_file(name, {"frames": frames.index_select(0, slot).cpu()})
            chunks.append(Chunk(file=name, first=first, count=count, sha256=sha256))
            first += count
        return frame_table(frames, written, chunks)

    def _reusable(self, slots: int, written: int) -> list[Chunk]:
        """The chunks whose frames have the same numbers as before. Loading a full ring buffer into a
        larger one renumbers them."""
        saved = self.saved
        if saved is None or written < saved["written"]:
            return []
        is_full = saved["written"] > saved["slots"]
        return [] if is_full and slots != saved["slots"] else saved["chunks"] or []


def frame_table(frames: Tensor, written: int, chunks: list[Chunk] | None) -> FrameTable:
    dtype = str(frames.dtype).removeprefix("torch.")
    shape = list(frames.shape[1:])
    return FrameTable(slots=len(frames), written=written, shape=shape, dtype=dtype, chunks=chunks)


def read_frames(table: FrameTable, read_file: Read) -> Tensor:
    """The ring buffer as it was saved; zeros if its frames were not saved."""
    slots, written, chunks = table["slots"], table["written"], table["chunks"]
    numbers = [slots, written, *table["shape"]]
    numbers += [number for each in chunks or [] for number in (each["first"], each["count"])]
    is_valid = all(type(number) is int and number >= 0 for number in numbers) and slots <= written
    check_data(is_valid, "the numbers in the table of frames are invalid")
    name = table.get("dtype", "uint8")  # not in the tables of version 0.1
    check_data(name in DTYPES, f"the table of frames has the unknown dtype {name!r}")
    if chunks is None:
        return torch.zeros(slots, *table["shape"], dtype=DTYPES[name])
    frames = torch.empty(slots, *table["shape"], dtype=DTYPES[name])
    first = max(0, written - slots)  # older ones have been overwritten
    for chunk in chunks:
        end = chunk["first"] + chunk["count"]
        in_order = chunk["first"] <= first and end <= written
        check_data(in_order, f"{chunk['file']} does not continue at frame {first}")
        slot = torch.arange(first, end) % slots
        part = read_file(chunk["file"])["frames"]
        same_shape = list(part.shape) == [chunk["count"], *table["shape"]]
        check_data(
            same_shape and part.dtype == frames.dtype,
            f"{chunk['file']} has {part.dtype} of shape {tuple(part.shape)}",
        )
        frames[slot] = part[first - chunk["first"] :]
        first = end
    check_data(first == written, f"frames {first} to {written} are in no file")
    return frames
