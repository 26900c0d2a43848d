"""Replay's frames on disk: each is written once, in the checkpoint after it was seen, and shared by
those that follow.

Frames are nearly all of a replay's bytes and never change until the ring comes round, so a
checkpoint adds a file of the new ones and lists the older files. Everything else of replay is small
and is written whole each time.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cclf.storage.safe_loading import check_data

DTYPES = {"uint8": torch.uint8, "float32": torch.float32}  # of pixels, of state
CHUNK_FRAMES = 4096  # bounds the memory that writing one takes: 123 MB of 100x100 RGB

Write = Callable[[str, dict[str, Tensor]], None]  # (name, tensors)
Read = Callable[[str], dict[str, Tensor]]


class ReplayChunks:
    """Remembers which files hold the ring, so that the next checkpoint adds only what came since.

    A table is JSON: `slots` rows of the ring, `written` frames ever, and the chunks, each with the
    number of its first frame; null in their place where the frames were not kept. Frame number n
    lies in slot n % slots.
    """

    def __init__(self) -> None:
        self._table: dict[str, Any] | None = None  # of the last checkpoint written or read

    def write(self, serial: int, frames: Tensor, written: int, write_file: Write) -> dict[str, Any]:
        """The table of a ring whose `written` frames so far ended up in `frames`; new ones go to
        files named after `serial`."""
        slots = len(frames)
        oldest = max(0, written - slots)
        known = [
            chunk
            for chunk in self._known(slots, written)
            if chunk["first"] + chunk["count"] > oldest
        ]
        chunks, first = known, known[-1]["first"] + known[-1]["count"] if known else oldest
        while first < written:
            count = min(CHUNK_FRAMES, written - first)
            name = f"frames-{serial:08d}-{first:012d}.safetensors"
            slot = torch.arange(first, first + count, device=frames.device) % slots
            write_file(name, {"frames": frames.index_select(0, slot).cpu()})
            chunks = [*chunks, {"file": name, "first": first, "count": count}]
            first += count
        return manifest_of(frames, written, chunks)

    def _known(self, slots: int, written: int) -> list[dict[str, Any]]:
        """Chunks whose frames still have the same numbers: not when a larger ring has taken over a
        full one, which renumbers."""
        if self._table is None or written < self._table["written"]:
            return []
        wrapped = self._table["written"] > self._table["slots"]
        chunks: list[dict[str, Any]] = self._table["chunks"] or []
        return chunks if not wrapped or slots == self._table["slots"] else []

    def remember(self, table: dict[str, Any]) -> None:
        """The checkpoint with this table is on disk."""
        self._table = table


def manifest_of(
    frames: Tensor, written: int, chunks: list[dict[str, Any]] | None
) -> dict[str, Any]:
    return {
        "slots": len(frames),
        "written": written,
        "shape": list(frames.shape[1:]),
        "dtype": str(frames.dtype).removeprefix("torch."),
        "chunks": chunks,
    }


def read_frames(table: dict[str, Any], read_file: Read) -> Tensor:
    """The ring as it was; zeros where its frames were not kept."""
    slots, written, chunks = table["slots"], table["written"], table["chunks"]
    numbers = [
        slots,
        written,
        *table["shape"],
        *(chunk[name] for chunk in chunks or [] for name in ("first", "count")),
    ]
    check_data(
        all(type(number) is int and number >= 0 for number in numbers),
        "the table of frames holds no counts",
    )
    check_data(slots <= written, f"the table of frames has {slots} slots for {written} frames")
    named = table.get("dtype", "uint8")  # older tables hold no other
    check_data(named in DTYPES, f"the table of frames names the type {named!r}")
    if chunks is None:
        return torch.zeros(slots, *table["shape"], dtype=DTYPES[named])
    frames = torch.empty(slots, *table["shape"], dtype=DTYPES[named])
    first = max(0, written - slots)  # older ones have been overwritten
    for chunk in chunks:
        end = chunk["first"] + chunk["count"]
        if chunk["first"] > first or end > written:
            raise ValueError(f"{chunk['file']} does not follow frame {first}")
        slot = torch.arange(first, end) % slots
        found = read_file(chunk["file"])["frames"]
        fits = found.dtype == frames.dtype and list(found.shape) == [
            chunk["count"],
            *table["shape"],
        ]
        check_data(fits, f"{chunk['file']} holds {found.dtype} of shape {tuple(found.shape)}")
        frames[slot] = found[first - chunk["first"] :]
        first = end
    if first != written:
        raise ValueError(f"frames {first} to {written} are in no file")
    return frames
