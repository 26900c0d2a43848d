"""Files that are written completely or not at all, and the lock of a run folder."""

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
from typing import BinaryIO

from cclf.errors import ConfigError
from cclf.storage.safe_loading import open_file

# A lock may outlive its process: if that is killed while it starts a worker, the forked child keeps
# its open files, and so the lock, until it executes its own program.
LOCK_GRACE_SECONDS = 1.0
# Environment variable: the descriptor of a lock that the parent process holds.
INHERITED_LOCK = "CCLF_INHERITED_LOCK"
_WITHOUT_RUNS = {"checkpoint", "tensorboard", "failure", "agent"}  # subfolders of a run folder
_RUN_FILE = "config.json"  # a folder with this file is a run folder


def fsync_write(path: Path, data: bytes) -> None:
    # Links are not followed: one in a run folder could lead to a file elsewhere.
    with (
        error_with_path(path),
        open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW) as file,
    ):
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, value: object) -> None:
    """Write a file of a run folder, as `replacing` does."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2) + "\n")


def write_output(path: Path, content: str | bytes) -> None:
    """Write an output of a command, as `output_file` does."""
    with output_file(path) as file:
        # The name of a folder may have characters that UTF-8 cannot encode.
        encoded = content.encode(errors="replace") if isinstance(content, str) else content
        file.write_bytes(encoded)


@contextmanager
def output_file(path: Path) -> Iterator[Path]:
    """A temporary file for the caller to write, for an output at a path that the user chose: links
    are followed, devices and pipes are written to, and a regular file is replaced at the end."""
    with error_with_path(path):
        if path.exists() and not path.is_file():
            with tempfile.TemporaryDirectory() as folder:
                yield Path(folder, path.name)
                path.write_bytes(Path(folder, path.name).read_bytes())
        else:
            with replacing(Path(os.path.realpath(path))) as temporary:
                yield temporary


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file for the caller to write, with the suffix of `path`, which replaces `path` at
    the end. If anything fails, `path` stays as it was. A link is replaced, not followed."""
    if path.is_file() and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    # The temporary name does not contain that of `path`, which may have the maximum length.
    temporary = path.with_name(f".cclf-{secrets.token_hex(8)}.tmp{path.suffix[:16]}")
    with error_with_path(path):
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
    with contextlib.suppress(OSError):  # the file is in place, even if the folder cannot be synced
        sync_folder(path.parent)


@contextmanager
def error_with_path(path: Path) -> Iterator[None]:
    """Give an OSError the path of the file, which a failed write does not name."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def find_files(folder: Path, *patterns: str) -> Iterator[Path]:
    """The paths under `folder` whose names match a pattern, such as `config.json` or `*.csv`, in the
    order of their folders.

    Other processes may change the folder meanwhile: subfolders that disappear or cannot be read are
    skipped. The subfolders of a run folder that cannot contain runs are skipped too.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.scandir(folder).close()  # an OSError if `folder` itself cannot be read
    for current, folders, files in os.walk(folder):
        names = sorted([*folders, *files])  # folders too, which readers report as errors
        yield from (
            Path(current, name)
            for name in names
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
        )
        without_runs = _WITHOUT_RUNS if _RUN_FILE in files else set()
        folders[:] = sorted(set(folders) - without_runs)


def sync_folder(folder: Path) -> None:
    """Sync a folder to the disk, so that new and renamed files in it survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def folder_lock(folder: Path, wait_seconds: float | None = None) -> Iterator[int]:
    """Lock `folder` for this process, after `wait_seconds` at most (by default LOCK_GRACE_SECONDS).
    Raises ConfigError if another process holds it. The system releases the lock when the process
    ends; the file remains.

    Yields the descriptor of the lock. A child process that inherits it, with its number in
    `INHERITED_LOCK`, holds the lock too.
    """
    with io.TextIOWrapper(_open_lock(folder / "lock"), errors="replace") as file:
        deadline = time.monotonic() + (LOCK_GRACE_SECONDS if wait_seconds is None else wait_seconds)
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    file.seek(0)
                    holder = file.read(32).strip()
                    who = f"process {holder}" if holder.isdecimal() else "another process"
                    raise ConfigError(
                        f"{who} is training in {folder}: wait for it, or use another --out"
                    ) from error
                time.sleep(0.02)
        file.seek(0)
        file.truncate()
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield file.fileno()


def _open_lock(path: Path) -> BinaryIO:
    """Open a lock file. If the parent process holds the lock, its descriptor is used: a new one
    would conflict with it."""
    inherited = os.environ.get(INHERITED_LOCK, "")
    if inherited.isdecimal():
        with contextlib.suppress(OSError):
            descriptor = int(inherited)
            if os.path.samestat(os.fstat(descriptor), os.lstat(path)):
                os.set_inheritable(descriptor, False)  # children of this process do not inherit it
                return open(os.dup(descriptor), "r+b")
    return open_file(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
