"""Signals. Apart from the rest and light, so that a run listens before it begins the slow work of starting."""

import signal
from types import FrameType


class Stop:
    """Set by the first SIGINT, SIGTERM or SIGUSR1, polled by the loop; a second signal quits at once."""

    def __init__(self) -> None:
        self.requested = False

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.requested:
            raise SystemExit(128 + number)
        self.requested = True
