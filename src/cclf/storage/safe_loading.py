"""Reading files of run folders, which may be damaged or written by someone else.

Only regular files of bounded size are read, nothing in them is executed, and whatever is wrong with
one is a `DataError`. Checksums detect damage but not deliberate changes, so every state from a disk
is also compared with the state of the object that is to load it (`load_state`).
"""

import csv
import errno
import json
import math
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from cclf.errors import ConfigError, DataError, WorkerError
from cclf.storage.migrations import with_added_fields
from cclf.types import HasState, StateDict, StateValue

TEXT_BYTES = 2**30  # more than any table or config
TENSOR_BYTES = 2**36

# Exceptions that invalid data can raise in Python, numpy and torch; RecursionError is a RuntimeError.
DATA_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    BufferError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
    csv.Error,
)

# Parts of a state whose arrays grow and shrink during a run, such as the free slots of RE3.
# Their own `load_state_dict` checks them.
_CHECKED_BY_OWNER = ("env", "free")


@contextmanager
def data_error_context(line: str, advice: str = "") -> Iterator[None]:
    """Turn the errors that invalid data raises into a DataError, one line that begins with `line`."""
    try:
        yield
    except (ConfigError, WorkerError):
        raise
    except (OSError, *DATA_ERRORS) as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise  # the disk is full
        reason = " ".join(str(error).split())[:300]
        if not reason or not isinstance(error, (OSError, ValueError)):
            reason = f"{type(error).__name__}: {reason}"
        raise DataError(f"{line}: {reason}{advice and f'; {advice}'}") from error


def read_file(path: Path, at_most_bytes: int = TEXT_BYTES) -> bytes:
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > at_most_bytes:
            raise OSError(f"{path} has {size:,} bytes, more than {at_most_bytes:,}")
        return file.read()


def open_file(path: Path, flags: int = os.O_RDONLY) -> BinaryIO:
    """Open a regular file. Anything else, such as a pipe, which might block, is an OSError."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return open(descriptor, "r+b" if flags & os.O_RDWR else "wb" if flags & os.O_WRONLY else "rb")


def read_text(path: Path) -> str:
    return read_file(path).decode()


def read_json(path: Path) -> StateValue:
    """A JSON document. A name that occurs twice in an object is a ValueError: parsers differ in
    which of the values they use."""
    return json.loads(read_text(path), object_pairs_hook=_without_duplicates)


def _without_duplicates(pairs: list[tuple[str, StateValue]]) -> StateDict:
    names = [name for name, _ in pairs]
    for name in names if len(set(names)) < len(names) else ():
        if names.count(name) > 1:
            raise ValueError(f"the name {name!r} is there twice")
    return dict(pairs)


def load_state(target: HasState, saved: StateValue, path: str) -> None:
    """Load a saved state into `target`. Raises ValueError if it is not the state of such an object.
    `path` is its place in the state of the run."""
    target.load_state_dict(matching_state(target.state_dict(), saved, path))


def matching_state(expected: StateDict, saved: StateValue, path: str = "") -> StateDict:
    """`saved`, with added fields at their values in `expected`, the state of the object that will
    load it. Raises ValueError if `saved` is not the state of such an object."""
    state: StateDict = with_added_fields(expected, saved, path)
    check_same_structure(expected, state, path or "the run")
    return state


def check_same_structure(expected: StateValue, saved: StateValue, name: str = "the state") -> None:
    """Raise ValueError unless `saved` has the names, types and shapes of `expected` and is finite.

    Not compared are the parts that a run fills: an empty dict, None, and the length of an empty
    array or list.
    """
    if expected is None or name.rpartition("/")[2] in _CHECKED_BY_OWNER:
        return
    if isinstance(expected, dict):
        fits = isinstance(saved, dict) or not expected
    elif isinstance(expected, list):
        fits = isinstance(saved, list)
    else:
        fits = (
            _same_array(expected, saved) if _is_array(expected) else _same_scalar(expected, saved)
        )
    if not fits:
        raise ValueError(f"{name} is {_describe(saved)}, not {_describe(expected)}")
    if isinstance(expected, dict) and expected:
        for key in sorted(expected.keys() ^ saved.keys(), key=str):
            raise ValueError(f"{name} {'lacks' if key in expected else 'has an unknown'} {key!r}")
        for key, value in expected.items():
            check_same_structure(value, saved[key], f"{name}/{key}")
    elif isinstance(expected, list) and expected:
        for value in saved:
            check_same_structure(expected[0], value, name)


def _is_array(value: StateValue) -> bool:
    return hasattr(value, "shape")  # a numpy array or a tensor; torch is not imported here


def _same_array(expected: StateValue, saved: StateValue) -> bool:
    if not _is_array(saved) or isinstance(saved, np.ndarray) != isinstance(expected, np.ndarray):
        return False
    fixed = 1 if expected.ndim > 0 and len(expected) == 0 else 0
    same_shape = saved.ndim == expected.ndim and saved.shape[fixed:] == expected.shape[fixed:]
    return bool(same_shape and saved.dtype == expected.dtype)


def _same_scalar(expected: StateValue, saved: StateValue) -> bool:
    if isinstance(expected, (bool, str)):
        return type(saved) is type(expected)
    if isinstance(expected, int):
        # Only the state of a random generator has larger integers.
        limit = 2**128 if expected >= 2**63 else 2**63
        return type(saved) is int and min(expected, 0) <= saved < limit
    return type(saved) in (int, float) and math.isfinite(saved)


def check_data(condition: object, message: str) -> None:
    if not bool(condition):
        raise ValueError(message)


def check_lengths(state: StateDict, names: Iterable[str], length: int, what: str) -> None:
    for name in names:
        rows = len(state[name])
        check_data(rows == length, f"{what}: {name} has {rows:,} rows, not {length:,}")


def _describe(value: StateValue) -> str:
    if _is_array(value):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    if isinstance(value, (dict, list)):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value)
    return text if len(text) < 60 else f"{text[:57]}..."
