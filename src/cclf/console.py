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
    """Standard error for libraries that write to a stream; a write that fails is dropped."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        if sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        if sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.flush()

    def isatty(self) -> bool:
        if sys.stderr is None:
            return False
        with contextlib.suppress(OSError, ValueError):
            return sys.stderr.isatty()
        return False
