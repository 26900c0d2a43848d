"""Messages on standard error and results on standard output. A failed write never ends a run; the
command line reports lost results."""

import contextlib
import errno
import html
import io
import os
import sys
from collections.abc import Iterator, Mapping
from typing import IO, cast


def say(text: str) -> None:
    print(text, file=message_stream(), flush=True)


def facts_line(facts: Mapping[str, str]) -> str:
    """
    >>> facts_line({"task": "toy/reach", "seed": "1"})
    'task toy/reach, seed 1'
    """
    return ", ".join(f"{name} {fact}" for name, fact in facts.items())


def facts_table(facts: Mapping[str, str]) -> str:
    """A table for notebooks.

    >>> facts_table({"task": "toy/<reach>"})
    '<table><tr><th>task</th><td>toy/&lt;reach&gt;</td></tr></table>'
    """
    rows = (
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(fact)}</td></tr>"
        for name, fact in facts.items()
    )
    return f"<table>{''.join(rows)}</table>"


def warn(text: str) -> None:
    say(f"cclf: warning: {text}")


def message_stream() -> IO[str]:
    """The current `sys.stderr`, looked up on each call because rich replaces it while drawing."""
    return cast(IO[str], TolerantStream(sys.stderr))


class TolerantStream:
    """A stream whose write errors are not raised: the output is lost, and the first error is in `error`. A
    broken pipe (as with `head`) is not recorded as an error."""

    error: OSError | None

    def __init__(self, stream: IO[str] | None):
        self._stream = io.StringIO() if stream is None else stream
        self.usable, self.error = stream is not None, None
        if stream is None:
            self.error = OSError(errno.EBADF, os.strerror(errno.EBADF))

    def write(self, text: str) -> int:
        with self._tolerant():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._tolerant():
            self._stream.flush()

    def isatty(self) -> bool:
        with contextlib.suppress(OSError, ValueError):
            return self._stream.isatty()
        return False

    @contextlib.contextmanager
    def _tolerant(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:  # ValueError: the stream was closed in Python
            self.usable = False
            if isinstance(error, OSError) and error.errno != errno.EPIPE:
                self.error = self.error or error

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def open_standard_streams() -> None:
    """Open the null device for each standard stream that is closed. Otherwise the next opened file
    would get its file descriptor, and libraries would print into that file."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
