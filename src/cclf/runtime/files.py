"""Files that are whole or not there, whatever kills the process or the machine while they are
written."""

import fcntl
import io
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from cclf.data.from_disk import open_file
from cclf.errors import ConfigError

# A process that was killed while it started a worker leaves it half born, with a copy of its files
# until it runs its own program.
LOCK_GRACE_SECONDS = 1.0


def write_synced(path: Path, data: bytes) -> None:
    # Not through a link: planted in a run folder, it would lead to a file elsewhere.
    with open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """A full disk or a kill leaves the old file as it was."""
    temporary = path.with_name(path.name + ".tmp")
    write_synced(temporary, data)
    os.replace(temporary, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Names, too, reach the disk only when asked."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def only_process(folder: Path) -> Iterator[None]:
    """Hold `folder` for this process alone. The system drops the lock with the process; the file
    that stays says nothing."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    with io.TextIOWrapper(open_file(folder / "lock", flags), write_through=True) as file:
        deadline = time.monotonic() + LOCK_GRACE_SECONDS
        while not _locked(file):
            if time.monotonic() > deadline:
                file.seek(0)
                holder = file.read(32).strip() or "unknown"
                raise ConfigError(
                    f"process {holder} is at work in {folder}: wait for it, or use another --out"
                )
            time.sleep(0.02)
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def wait_for_folder(folder: Path, seconds: float) -> None:
    """Wait, not longer than `seconds`, until no process holds `folder`."""
    deadline = time.monotonic() + seconds
    while folder.exists():
        try:
            with only_process(folder):
                return
        except ConfigError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
