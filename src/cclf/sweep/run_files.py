"""A run folder copied between machines that share no files: plain files alone, in pieces, only what
is new.

Checkpoints and frames are never changed once written, so a second copy of a run costs what it wrote
since the first. A copy comes into place only when all of it has arrived; the checkpoints' own
checksums tell the rest.
"""

import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Protocol

from cclf.errors import ConfigError

PIECE_BYTES = 8 * 2**20
ARRIVING = "arriving.tmp"
_OF_ONE_MACHINE = {"lock", ARRIVING}


class Stamp(NamedTuple):
    """What tells one version of a file from another."""

    size_bytes: int
    modified_ns: int


class Files(Protocol):
    """One side of a copy; the far one answers through Ray."""

    def listing(self) -> dict[str, Stamp]: ...
    def read(self, name: str, start: int) -> bytes: ...
    def write(self, name: str, start: int, data: bytes) -> None: ...
    def arrange(self, names: Mapping[str, Stamp]) -> None: ...


class RunFiles:
    """The files of one run folder. No name leads out of it, and nothing but plain files is read or
    written."""

    def __init__(self, folder: Path):
        self.folder = folder

    def listing(self) -> dict[str, Stamp]:
        """Every file by its name within the folder. Links, devices and pipes are refused, not
        followed."""
        found: dict[str, Stamp] = {}
        pending = [self.folder] if self.folder.is_dir() else []
        while pending:
            for entry in os.scandir(pending.pop()):
                name = Path(entry.path).relative_to(self.folder).as_posix()
                if name in _OF_ONE_MACHINE or name.endswith(".tmp"):
                    continue
                facts = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(facts.st_mode):
                    pending.append(Path(entry.path))
                elif stat.S_ISREG(facts.st_mode):
                    found[name] = Stamp(facts.st_size, facts.st_mtime_ns)
                else:
                    raise ConfigError(
                        f"cannot copy {entry.path}: it is neither a plain file nor a folder"
                    )
        return found

    def read(self, name: str, start: int) -> bytes:
        descriptor = os.open(self._inside(self.folder, name), os.O_RDONLY | os.O_NOFOLLOW)
        with open(descriptor, "rb") as file:
            file.seek(start)
            return file.read(PIECE_BYTES)

    def write(self, name: str, start: int, data: bytes) -> None:
        """Put a piece of a file where it waits for the rest."""
        path = self._inside(self.folder / ARRIVING, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (0 if start else os.O_TRUNC)
        with open(os.open(path, flags, 0o644), "wb") as file:
            file.seek(start)
            file.write(data)

    def arrange(self, names: Mapping[str, Stamp]) -> None:
        """Move what has arrived into place, index files of checkpoints last, and remove what is not
        among `names`."""
        arriving = RunFiles(self.folder / ARRIVING)
        for name in sorted(
            arriving.listing(), key=lambda name: (name.endswith("/index.json"), name)
        ):
            target = self._inside(self.folder, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(self._inside(arriving.folder, name), target)
        shutil.rmtree(arriving.folder, ignore_errors=True)
        for name in set(self.listing()) - set(names):
            path = self._inside(self.folder, name)
            path.unlink()
            if not any(path.parent.iterdir()):
                path.parent.rmdir()

    @staticmethod
    def _inside(folder: Path, name: str) -> Path:
        parts = PurePosixPath(name).parts
        if not parts or ".." in parts or PurePosixPath(name).is_absolute() or "\0" in name:
            raise ConfigError(f"refused the file name {name!r}: it leads out of the run folder")
        path = folder.joinpath(*parts)
        for parent in [path, *path.parents]:
            if parent.is_symlink():
                raise ConfigError(f"refused the file name {name!r}: {parent} is a link")
            if parent == folder:
                break
        return path


def copy(source: Files, target: Files, known: Mapping[str, Stamp]) -> dict[str, Stamp]:
    """Make `target` hold what `source` holds; `known` is what was copied before. Returns what to
    pass the next time."""
    names = source.listing()
    for name, stamp in names.items():
        if known.get(name) == stamp:
            continue
        start = 0
        while True:
            piece = source.read(name, start)
            target.write(name, start, piece)
            start += len(piece)
            if len(piece) < PIECE_BYTES:
                break
    target.arrange(names)
    return names
