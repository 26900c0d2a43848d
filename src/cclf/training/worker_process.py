"""The program of a worker process: it owns one object and calls its methods on request. The other
end of its pipe is `cclf.training.workers`."""

import contextlib
import faulthandler
import signal
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol

from cclf.errors import ConfigError, WorkerError, short_error
from cclf.training.signals import SIGNALS

GRACE_SECONDS = 2.0  # for a worker to exit, or to print where it hangs
START_SECONDS = 60.0  # to import packages and make the object, in addition to the first call
# An empty message requests a call of the method `notify`; the empty reply says that it returned.
NOTIFY: tuple[str, tuple[object, ...], dict[str, object]] = ("notify", (), {})


class Closeable(Protocol):
    def close(self) -> None: ...


def call_method(
    target: object, name: str, args: Sequence[object], kwargs: Mapping[str, object]
) -> Any:
    return getattr(target, name)(*args, **kwargs)


def error_message(error: Exception) -> str:
    """The error as one line, with its class name unless it is an error of this package."""
    own = isinstance(error, (ConfigError, WorkerError))
    return " ".join(str(error).split()) if own else short_error(error)


def picklable_error(error: Exception) -> ConfigError | WorkerError:
    """The error of a call in a form that can be sent; not every exception can be pickled."""
    if isinstance(error, ConfigError):
        return ConfigError(error_message(error))
    if isinstance(error, WorkerError):
        return WorkerError(error_message(error), error.details)
    return WorkerError(f"the environment raised {error_message(error)}", traceback.format_exc())


def main(descriptor: int, timeout_seconds: float) -> None:
    # Some schedulers send signals to all processes of a job.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    # If a call hangs, the alarm prints its traceback and ends this process, even if the parent is
    # gone or a driver holds the GIL. (`dump_traceback_later` starts a thread for each call, which on
    # busy cores takes as long as a step of Atari.)
    faulthandler.register(signal.SIGALRM, chain=True)
    pipe, target = Connection(descriptor), None
    with contextlib.suppress(EOFError, OSError):  # the parent closed the pipe or died
        factory = pipe.recv()
        while True:
            request = pipe.recv_bytes()
            name, args, kwargs = ForkingPickler.loads(request) if request else NOTIFY
            signal.setitimer(
                signal.ITIMER_REAL, START_SECONDS if target is None else timeout_seconds
            )
            try:
                if target is None:
                    target = factory()
                    signal.setitimer(signal.ITIMER_REAL, timeout_seconds)
                reply = call_method(target, name, args, kwargs)
            except Exception as error:
                reply = picklable_error(error)
            if request or isinstance(reply, Exception):
                pipe.send(reply)
            else:
                pipe.send_bytes(b"")
            signal.setitimer(signal.ITIMER_REAL, 0.0)
    signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)
    if target is not None:
        target.close()
