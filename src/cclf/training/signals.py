"""Signals that ask a run to stop. This module imports nothing slow, so that handlers are installed
before anything else."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
# Signals within this time count as one: `timeout` and some schedulers send a signal to the process and
# then to its process group.
SAME_SIGNAL_SECONDS = 0.5
STOP_MESSAGE = "stopping after this update, then saving; Ctrl-C again quits immediately"
_STDERR = 2
_CLEAR_LINE = "\r\x1b[2K"  # removes the live line and the ^C that a terminal prints


class StopSignal:
    """A flag that the first of `SIGNALS` sets and that the training loop polls. A second signal
    exits immediately."""

    def __init__(self, message: str = "") -> None:
        """`message` is printed to standard error when a signal arrives."""
        self.requested, self._message = False, message
        self.signal: int | None = None  # None if the program itself requested the stop
        self._requested_at = 0.0

    def install(self) -> None:
        for number in SIGNALS:
            # processes started by `nohup` ignore SIGHUP
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._handle)
        # the parent process may have blocked them
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Install the handlers for the duration of the context, for a run inside another program.
        On exit a signal that arrived is raised again for the program's own handler. Only the main
        thread can handle signals; in other threads this does nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        # `getsignal` returns None for a handler that Python did not install and cannot restore
        handlers = [signal.getsignal(number) or signal.SIG_DFL for number in SIGNALS]
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self.install()
        try:
            yield
        finally:
            for number, handler in zip(SIGNALS, handlers, strict=True):
                signal.signal(number, handler)
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if self.signal is not None:
            signal.raise_signal(self.signal)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.requested:
            if time.monotonic() - self._requested_at > SAME_SIGNAL_SECONDS:
                raise SystemExit(128 + number)
            return
        self.requested, self._requested_at, self.signal = True, time.monotonic(), number
        if self._message:
            prefix = _CLEAR_LINE if os.isatty(_STDERR) else ""
            # To the file descriptor: the signal may have interrupted a print. The pipe may be closed.
            with contextlib.suppress(OSError):
                os.write(_STDERR, f"{prefix}{self._message}\n".encode())


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Block the signals in this context, and in a process started within it until that process
    installs its `StopSignal`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
