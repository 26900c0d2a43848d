"""What runs in a worker: it owns environments, and does what it is asked for in turn. The other end
of its pipe is `cclf.training.workers`."""

import contextlib
import faulthandler
import signal
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np

from cclf.errors import ConfigError, WorkerError, short_error
from cclf.training.signals import SIGNALS
from cclf.types import Env

GRACE_SECONDS = 2.0  # for a worker to end by itself, or to write down where it hangs
# what an empty message asks of the only environment of a worker; the answer is empty too
NOTIFY = "ring"
# instead of what was asked: it raised, and would do so again
RAISED = "raised"


class Reply(NamedTuple):
    env: int
    command: str  # what was asked for, RAISED or LOST
    value: Any  # what came of it; for RAISED an error, for LOST one line that says why


def receive(pipe: Connection) -> tuple[Any, ...] | None:
    """The next message; None is a ring."""
    message = pipe.recv_bytes()
    words: tuple[Any, ...] | None = ForkingPickler.loads(message) if message else None
    return words


def line_of(error: Exception) -> str:
    """Our own errors say all themselves."""
    own = isinstance(error, (ConfigError, WorkerError))
    return " ".join(str(error).split()) if own else short_error(error)


def try_render(draw: Callable[[], np.ndarray]) -> np.ndarray | str:
    """A picture, or why there is none. Pictures are for people: no reason to end a run, whatever a
    renderer raises."""
    try:
        return draw()
    except Exception as error:
        return line_of(error)


def call(env: Any, command: str, arguments: Sequence[Any]) -> Any:
    """Call a method of an environment, or read one of its attributes."""
    found = getattr(env, command)
    if command == "render":
        return try_render(found)
    return found(*arguments) if callable(found) else found


def main(descriptor: int, timeout_seconds: float) -> None:
    """The worker."""
    # some schedulers send them to all processes of a job
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    # An alarm says where this process hangs and ends it, parent or not, also where a driver holds
    # the GIL. (`dump_traceback_later` starts a thread each time: on busy cores as slow as a step of
    # Atari.)
    faulthandler.register(signal.SIGALRM, chain=True)
    pipe, envs = Connection(descriptor), dict[int, Env]()
    with contextlib.suppress(EOFError, OSError):  # the parent closed the pipe, or is gone
        while True:
            asked = receive(pipe)
            signal.setitimer(signal.ITIMER_REAL, timeout_seconds)
            answer = handle_request(envs, *(asked or (next(iter(envs), 0), NOTIFY, ())))
            if asked is None and answer.command == NOTIFY:
                pipe.send_bytes(b"")
            else:
                pipe.send(tuple(answer))
            signal.setitimer(signal.ITIMER_REAL, 0.0)
    signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)
    for one in envs.values():
        one.close()


def handle_request(envs: dict[int, Env], env: int, command: str, arguments: Sequence[Any]) -> Reply:
    try:
        if command == "make":
            envs[env] = arguments[0]()
            return Reply(env, command, None)
        return Reply(env, command, call(envs[env], command, arguments))
    except Exception as error:  # whatever it is, the parent reports it
        own = isinstance(error, (ConfigError, WorkerError))
        line = line_of(error) if own else f"the environment raised {line_of(error)}"
        details = error.details if isinstance(error, WorkerError) else traceback.format_exc()
        return Reply(env, RAISED, (isinstance(error, ConfigError), line, details))
