"""Files that are whole or not there, whatever kills the process or the machine while they are
written."""

import contextlib
import errno
import fcntl
import fnmatch
import io
import json
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO

from cclf.errors import ConfigError
from cclf.storage.safe_loading import open_file

# A process that was killed while it started a worker leaves a child that has a copy of its open
# files until it runs its own program.
LOCK_GRACE_SECONDS = 1.0
# An environment variable: the descriptor of a lock that the process which started this one took.
INHERITED_LOCK = "CCLF_INHERITED_LOCK"
_WITHOUT_RUNS = {"checkpoint", "tensorboard", "failure"}  # folders in a run folder
_RUN_FILE = "config.json"  # what makes a folder one


def fsync_write(path: Path, data: bytes) -> None:
    # Not through a link: planted in a run folder, it would lead to a file elsewhere.
    try:
        with open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise _naming(path, error) from error


def atomic_write(path: Path, data: bytes) -> None:
    """Write a file of a run folder. A full disk or a kill leaves the old file as it was; a link in
    its place is replaced, not followed."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        fsync_write(temporary, data)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise _naming(path, error) from error
    sync_folder(path.parent)


def write_json(path: Path, value: object) -> None:
    atomic_write(path, (json.dumps(value, indent=2) + "\n").encode())


def write_output(path: Path, content: str | bytes) -> None:
    """Write what a command was asked for, as `output_file` does."""
    with output_file(path) as file:
        # A name of a run or of a folder may hold what UTF-8 cannot encode.
        encoded = content.encode(errors="replace") if isinstance(content, str) else content
        file.write_bytes(encoded)


@contextmanager
def output_file(path: Path) -> Iterator[Path]:
    """A new file, to be written by the caller, for an output at a path that the user chose: links
    are followed, and a device or a pipe is written to. A regular file is replaced whole; if that
    fails, the old one stays as it was."""
    try:
        if path.exists() and not path.is_file():
            with tempfile.TemporaryDirectory() as folder:
                yield Path(folder, path.name)
                path.write_bytes(Path(folder, path.name).read_bytes())
        else:
            with replacing(Path(os.path.realpath(path))) as temporary:
                yield temporary
    except OSError as error:
        raise _naming(path, error) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new file for the caller to write, in the folder of `path` and with its suffix, which takes
    the place of `path` at the end. If anything fails, `path` stays as it was and the new file is
    removed. A link in its place is replaced, not followed."""
    if path.is_file() and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    # Without the name of `path`, which may be as long as a name can be.
    temporary = path.with_name(f".cclf-{secrets.token_hex(8)}.tmp{path.suffix[:16]}")
    try:
        temporary.open("xb").close()
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        if path.is_file() and not path.is_symlink():
            os.chmod(temporary, stat.S_IMODE(path.stat().st_mode))
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    with contextlib.suppress(OSError):  # the new file is in place, whatever the folder allows
        sync_folder(path.parent)


def _naming(path: Path, error: OSError) -> OSError:
    """The same error with its file: a write that fails names none."""
    return OSError(error.errno, error.strerror or str(error), str(path))


def find_files(folder: Path, *patterns: str) -> Iterator[Path]:
    """What has such a name anywhere under `folder`, such as `config.json` or `*.csv`, in the order
    of the folders' paths.

    Other processes may change the folder meanwhile: what disappears or may not be entered is
    skipped. The parts of a run folder that hold no runs are not entered.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.scandir(folder).close()  # one that may not be entered is an error, unlike those in it
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
def folder_lock(folder: Path) -> Iterator[int]:
    """Hold `folder` for this process alone. The system drops the lock with the process; the file
    that stays says nothing.

    Yields the descriptor of the lock. A child process that inherits it, and that finds its number
    in `INHERITED_LOCK`, holds the folder as well and goes on holding it by itself.
    """
    with io.TextIOWrapper(_open_lock(folder / "lock"), errors="replace") as file:
        deadline = time.monotonic() + LOCK_GRACE_SECONDS
        while not _locked(file):
            if time.monotonic() > deadline:
                file.seek(0)
                holder = file.read(32).strip()
                who = f"process {holder}" if holder.isdecimal() else "another process"
                raise ConfigError(
                    f"{who} is training in {folder}: wait for it, or use another --out"
                )
            time.sleep(0.02)
        file.seek(0)
        file.truncate()
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield file.fileno()


def _open_lock(path: Path) -> BinaryIO:
    """The inherited lock if it is that of this file: the same lock opened anew would conflict."""
    inherited = os.environ.get(INHERITED_LOCK, "")
    if inherited.isdecimal():
        with contextlib.suppress(OSError):
            descriptor = int(inherited)
            if os.path.samestat(os.fstat(descriptor), os.lstat(path)):
                os.set_inheritable(descriptor, False)  # no further process may keep it
                return open(os.dup(descriptor), "r+b")
    return open_file(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)


def wait_until_unlocked(folder: Path, seconds: float) -> None:
    """Wait, not longer than `seconds`, until no process holds `folder`."""
    deadline = time.monotonic() + seconds
    while folder.exists():
        try:
            with folder_lock(folder):
                return
        except ConfigError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
