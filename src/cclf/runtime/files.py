"""Files that are whole or not there, whatever kills the process or the machine while they are
written."""

import contextlib
import errno
import fcntl
import fnmatch
import io
import os
import secrets
import stat
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
_WITHOUT_RUNS = {"checkpoint", "tensorboard", "failure"}  # folders in a run folder
_RUN_FILE = "config.json"  # what makes a folder one


def write_synced(path: Path, data: bytes) -> None:
    # Not through a link: planted in a run folder, it would lead to a file elsewhere.
    with open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """Write a file of a run folder. A full disk or a kill leaves the old file as it was; a link in
    its place is replaced, not followed."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        write_synced(temporary, data)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise _naming(path, error) from error
    sync_folder(path.parent)


def write_output(path: Path, content: str | bytes) -> None:
    """Write what a command was asked for, to a path that its user chose: links are followed, and a
    device or a pipe is written to. A regular file is replaced whole; if that fails, the old one
    stays as it was."""
    data = content.encode() if isinstance(content, str) else content
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(data)
        else:
            _replace_target(target, data)
    except OSError as error:
        raise _naming(path, error) from error


def _replace_target(target: Path, data: bytes) -> None:
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            os.chmod(temporary, stat.S_IMODE(target.stat().st_mode))
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(target.parent)


def _naming(path: Path, error: OSError) -> OSError:
    """The same error with its file: a write that fails names none."""
    return OSError(error.errno, error.strerror or str(error), str(path))


def find_files(folder: Path, *patterns: str) -> Iterator[Path]:
    """What has such a name anywhere under `folder`, such as `config.json` or `*.csv`, in the order
    of the folders' paths.

    Other processes may change the folder meanwhile: what disappears or may not be entered is
    skipped. The parts of a run folder that hold no runs are not entered.
    """
    for current, folders, files in os.walk(folder):
        names = sorted([*folders, *files])  # also a folder in a file's place, which is refused
        yield from (
            Path(current, name)
            for name in names
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
        )
        without_runs = _WITHOUT_RUNS if _RUN_FILE in files else set()
        folders[:] = sorted(set(folders) - without_runs)


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
