"""Messages for a person, on standard error.

A message never ends a run: where standard error is closed, full, or a pipe whose reader has left,
the message is dropped.
"""

import contextlib
import sys


def say(text: str) -> None:
    # With standard error closed, `print` would write to standard output instead.
    if sys.stderr is not None:
        # ValueError: the stream was closed in Python.
        with contextlib.suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=True)


def warn(text: str) -> None:
    say(f"cclf: warning: {text}")


class MessageStream:
    """Standard error as it is now, for libraries that write to a stream; a write that fails is
    dropped. It keeps the stream, because rich replaces `sys.stderr` while it draws."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self._stream = sys.stderr

    def write(self, text: str) -> int:
        if self._stream is not None:
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        if self._stream is not None:
            with contextlib.suppress(OSError, ValueError):
                self._stream.flush()

    def isatty(self) -> bool:
        if self._stream is None:
            return False
        with contextlib.suppress(OSError, ValueError):
            return self._stream.isatty()
        return False
