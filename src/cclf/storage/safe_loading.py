"""What is read from a run folder, which a stranger may have written: never waited for, and it fits
or one line says why not.

Checksums find damage; they do not find a file that was changed on purpose and signed again. So
every state that comes from a disk is held against the state of the object it is for, before it is
loaded.
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
from typing import Any, BinaryIO

import numpy as np

from cclf.errors import ConfigError, WorkerError
from cclf.storage.migrations import with_added_fields
from cclf.types import HasState, StateDict, StateValue

TEXT_BYTES = 2**30  # more than any table or config of ours
TENSOR_BYTES = 2**36

# All that Python, numpy and torch say of values they cannot use; RecursionError is a RuntimeError.
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

# Parts of a state whose arrays grow and shrink during a run; their own `load_state_dict` checks them.
_CHECKED_BY_OWNER = ("env", "free")


@contextmanager
def data_error_context(line: str, advice: str = "") -> Iterator[None]:
    """Whatever goes wrong inside with values from a disk is bad input, told in one line that begins
    with `line`."""
    try:
        yield
    except (ConfigError, WorkerError):
        raise
    except (OSError, *DATA_ERRORS) as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise  # a full disk is no bad file
        said = " ".join(str(error).split())[:300]
        reason = (
            said
            if isinstance(error, (OSError, ValueError)) and said
            else f"{type(error).__name__}: {said}"
        )
        raise ConfigError(f"{line}: {reason}{advice and f'; {advice}'}") from error


def read_file(path: Path, at_most_bytes: int = TEXT_BYTES) -> bytes:
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > at_most_bytes:
            raise OSError(
                f"{path} has {size:,} bytes, more than the {at_most_bytes:,} that make sense"
            )
        return file.read()


def open_file(path: Path, flags: int = os.O_RDONLY) -> BinaryIO:
    """A plain file. A folder, a pipe or a device in its place, which might never end, is an OSError
    at once."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a plain file", str(path))
    return open(descriptor, "r+b" if flags & os.O_RDWR else "wb" if flags & os.O_WRONLY else "rb")


def read_text(path: Path) -> str:
    return read_file(path).decode()


def read_json(path: Path) -> Any:
    """A JSON document. One that gives a name twice in one place is refused: programs differ in
    which of the two they take."""
    return json.loads(read_text(path), object_pairs_hook=_without_repeats)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice!r} is there twice")
    return found


def check_same_structure(own: StateValue, saved: StateValue, name: str = "the state") -> None:
    """A ValueError where `saved` cannot be what an object whose state is `own` now saved: other
    names, kinds or shapes, or numbers that are none. Free is what a run fills as it goes on: an
    empty dict, None, the length of an empty array or list."""
    if (
        own is None
        or (isinstance(own, dict) and not own)
        or name.rpartition("/")[2] in _CHECKED_BY_OWNER
    ):
        return
    if isinstance(own, dict):
        if not isinstance(saved, dict):
            raise ValueError(f"{name} holds no names but {_describe(saved)}")
        if saved.keys() != own.keys():
            odd = sorted(map(str, saved.keys() ^ own.keys()))[0]
            raise ValueError(f"{name} {'lacks' if odd in own else 'has the unknown part'} {odd!r}")
        for key, value in own.items():
            check_same_structure(value, saved[key], f"{name}/{key}")
    elif isinstance(own, list):
        if not isinstance(saved, list):
            raise ValueError(f"{name} is {_describe(saved)}, not a list")
        for value in saved if own else ():
            check_same_structure(own[0], value, name)
    elif hasattr(own, "shape"):
        _refuse_other_array(own, saved, name)
    else:
        _refuse_other_scalar(own, saved, name)


def load_state(target: HasState, saved: StateValue, path: str) -> None:
    """Load a saved state into an object; a ValueError where it is not the state of such an object.
    `path` is its place in the state of the run."""
    own = target.state_dict()
    state = with_added_fields(own, saved, path)
    check_same_structure(own, state, path)
    target.load_state_dict(state)


def _refuse_other_array(own: StateValue, saved: StateValue, name: str) -> None:
    same_kind = hasattr(saved, "shape") and isinstance(saved, np.ndarray) == isinstance(
        own, np.ndarray
    )
    if not same_kind or saved.dtype != own.dtype:
        raise ValueError(f"{name} is {_describe(saved)}, not {_describe(own)}")
    growing = own.ndim > 0 and len(own) == 0
    fixed = 1 if growing else 0
    if saved.ndim != own.ndim or saved.shape[fixed:] != own.shape[fixed:]:
        raise ValueError(f"{name} is {_describe(saved)}, not {_describe(own)}")


def _refuse_other_scalar(own: StateValue, saved: StateValue, name: str) -> None:
    if isinstance(own, (bool, str)):
        fits = type(saved) is type(own)
    elif isinstance(own, int):
        # the words of a random generator are the long ones
        most = 2**128 if own >= 2**63 else 2**63
        fits = type(saved) is int and min(own, 0) <= saved < most
    else:
        fits = type(saved) in (int, float) and math.isfinite(saved)
    if not fits:
        raise ValueError(f"{name} is {_describe(saved)}, where {_describe(own)} may stand")


def check_data(fits: object, what: str) -> None:
    if not bool(fits):
        raise ValueError(what)


def check_lengths(state: StateDict, names: Iterable[str], length: int, what: str) -> None:
    for name in names:
        check_data(
            len(state[name]) == length,
            f"{what}: {name} has {len(state[name]):,} rows, not {length:,}",
        )


def _describe(value: StateValue) -> str:
    if hasattr(value, "shape"):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    text = (
        repr(value)
        if not isinstance(value, (dict, list))
        else f"a {type(value).__name__} of {len(value)}"
    )
    return text if len(text) < 60 else f"{text[:57]}..."
