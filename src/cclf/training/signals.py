"""Signals. Apart from the rest and light, so that a run listens before it begins the slow work of
starting."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

# SIGHUP: the terminal was closed.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
SAME_SIGNAL_SECONDS = 0.5
STOP_MESSAGE = "stopping after this update, then saving; Ctrl-C again quits at once"
_STANDARD_ERROR = 2
_CLEAR_LINE = "\r\x1b[2K"  # of what is drawn live, and of the ^C that a terminal shows


class StopSignal:
    """Set by the first of `SIGNALS`, polled by the loop; a second one, a while later,
    quits at once.

    `timeout` and some schedulers send one signal to a process and then to its whole group: two that
    come together are one.
    """

    def __init__(self, says: str = "") -> None:
        """`says`: a line for a person, on standard error as soon as a signal asks to stop."""
        self.requested, self._says = False, says
        self.signal: int | None = None  # that asked for it; None where a program did
        self._asked_at = 0.0

    def install(self) -> None:
        for number in SIGNALS:
            # `nohup` starts a process that ignores it.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._handle)
        # who started this process may have held them back
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Installed until the end, for a run inside another program. A signal that came meanwhile
        is then sent once more, to whom it would have reached. Only the main thread of a process
        can hear signals: elsewhere nothing changes."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        # None: set by other than Python, which cannot set it back
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
        if self.requested and time.monotonic() - self._asked_at > SAME_SIGNAL_SECONDS:
            raise SystemExit(128 + number)
        if not self.requested:
            self.requested, self._asked_at = True, time.monotonic()
            self.signal = number
            self._say()

    def _say(self) -> None:
        """Past Python's buffers: the signal may have come in the middle of a print."""
        if self._says:
            begin = _CLEAR_LINE if os.isatty(_STANDARD_ERROR) else ""
            with contextlib.suppress(OSError):  # nobody is there to read it
                os.write(_STANDARD_ERROR, f"{begin}{self._says}\n".encode())


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """The signals wait, here until the end, and in a process that is started meanwhile until it
    installs its `StopSignal`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
