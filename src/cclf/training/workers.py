"""Pools of objects, such as environments, in worker processes. A worker that crashes or hangs is
ended, its unanswered calls raise `WorkerLostError`, and the next call starts a new worker.

A worker is a new interpreter, because CUDA and OpenGL contexts do not survive a fork. It does not
import torch, and it exits when its pipe is closed, so that no worker outlives the parent process.
Arguments and results are pickled: 30 us for a 100x100 RGB image, a hundredth of the time to render
it. Objects with shorter steps can share memory with the parent and be called with `notify`.
"""

import contextlib
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import IO, Any, Concatenate, Generic, ParamSpec, TypeVar

from cclf.errors import ConfigError, WorkerError
from cclf.training import subprocesses
from cclf.training.worker_process import (
    GRACE_SECONDS,
    NOTIFY,
    START_SECONDS,
    Closeable,
    call_method,
)

TIMEOUT_SECONDS = 60.0  # for the result of one call
MAX_RESTARTS = 3  # of one episode whose worker crashed or hung
WAIT_SECONDS = 0.1  # for one poll, if there is nothing else to do

T = TypeVar("T", bound=Closeable)
P = ParamSpec("P")
R = TypeVar("R")
Args = tuple[object, ...]
Kwargs = Mapping[str, object]


class WorkerLostError(WorkerError):
    """The worker crashed or hung, and its object is lost."""


@dataclass(eq=False, slots=True)
class Pending(Generic[R]):
    """The result of a call, which may not have arrived yet."""

    done: bool = False
    error: Exception | None = None
    _values: tuple[R, ...] = ()  # contains one value once the call has returned

    def result(self) -> R:
        """The returned value, once `done`. Raises the error if the call failed."""
        if self.error is not None:
            raise self.error
        return self._values[0]

    def set_result(self, value: R) -> None:
        self._values, self.done = (value,), True

    def set_error(self, error: Exception) -> None:
        self.error, self.done = error, True


class Pool(ABC, Generic[T]):
    """Numbered objects. Each one executes its calls in the order of submission."""

    size: int

    def submit(
        self,
        index: int,
        method: Callable[Concatenate[T, P], R],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Pending[R]:
        """Call the method of this name: `pool.submit(0, Env.step, action)`."""
        call = Pending[R]()
        self._send(index, call, method.__name__, args, kwargs)
        return call

    def notify(self, index: int) -> Pending[None]:
        """Call `notify()` without pickling: arguments and results are in shared memory."""
        call = Pending[None]()
        self._send(index, call, *NOTIFY)
        return call

    def wait(self, calls: Sequence[Pending[R]]) -> list[R]:
        """The results of all calls, in their order. Raises the first error among them."""
        while not all(call.done for call in calls):
            self.poll(WAIT_SECONDS)
        return [call.result() for call in calls]

    def poll(self, timeout_seconds: float = 0.0) -> None:
        """Receive the results that have arrived. Waits for each worker at most this long."""

    def connections(self) -> list[Connection]:
        """The pipes on which results are awaited."""
        return []

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _send(
        self, index: int, call: Pending[R], name: str, args: Args, kwargs: Kwargs
    ) -> None: ...


class LocalPool(Pool[T]):
    """A pool without processes: calls are executed when they are submitted."""

    def __init__(self, objects: Sequence[T]):
        self.objects, self.size = objects, len(objects)

    def _send(self, index: int, call: Pending[R], name: str, args: Args, kwargs: Kwargs) -> None:
        try:
            call.set_result(call_method(self.objects[index], name, args, kwargs))
        except Exception as error:
            call.set_error(error)

    def close(self) -> None:
        for each in self.objects:
            each.close()


class WorkerPool(Pool[T]):
    """A pool with one process for each object."""

    def __init__(
        self,
        factories: Sequence[Callable[[], T]],
        name: str,
        timeout_seconds: float = TIMEOUT_SECONDS,
        shared: Sequence[int] = (),
    ):
        """`factories` are functions of modules or `partial`s of such functions, so that they can be
        pickled. `name` describes the pool in errors. `shared` are file descriptors that the workers
        inherit under the same numbers."""
        self.size = len(factories)
        self._workers = [
            _Worker(f"worker {index} of {name}", factory, timeout_seconds, shared)
            for index, factory in enumerate(factories)
        ]

    def _send(self, index: int, call: Pending[R], name: str, args: Args, kwargs: Kwargs) -> None:
        self._workers[index].send(call, name, args, kwargs)

    def poll(self, timeout_seconds: float = 0.0) -> None:
        for worker in self._workers:
            worker.poll(timeout_seconds)

    def connections(self) -> list[Connection]:
        return [worker.pipe for worker in self._workers if worker.calls]

    def close(self) -> None:
        """Ask the workers to exit, and kill those that do not."""
        started = [worker for worker in self._workers if worker.process is not None]
        for worker in started:
            worker.pipe.close()
        deadline = time.monotonic() + GRACE_SECONDS
        for worker in started:
            worker.end(max(0.0, deadline - time.monotonic()))
            worker.output.close()


def anonymous_file() -> IO[bytes]:
    """An empty file without a name, in memory if possible, for `WorkerPool(shared=...)`."""
    if sys.platform == "linux":
        return open(os.memfd_create("cclf"), "r+b")
    return tempfile.TemporaryFile()


class _Worker:
    """One process, started by the first call."""

    def __init__(
        self,
        name: str,
        factory: Callable[[], Closeable],
        timeout_seconds: float,
        shared: Sequence[int],
    ):
        self.name, self.factory = name, factory
        self.timeout_seconds, self.shared = timeout_seconds, shared
        self.process: subprocess.Popen[bytes] | None = None
        self.calls: deque[Pending[Any]] = deque()  # without a result yet
        self.waiting_since = 0.0

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        self.output = tempfile.TemporaryFile()  # noqa: SIM115 (open until the worker ends)
        program = (
            "import sys; from cclf.training.worker_process import main; "
            "main(int(sys.argv[1]), float(sys.argv[2]))"
        )
        with theirs:
            # Timeouts, because an incomplete message would block forever. No other process inherits
            # our end, so that the worker notices when it is closed.
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                ours.setsockopt(
                    socket.SOL_SOCKET, option, struct.pack("ll", int(self.timeout_seconds + 1), 0)
                )
            self.pipe = Connection(ours.detach())
            self.poller = select.poll()  # `pipe.poll` would create one for each call
            self.poller.register(self.pipe, select.POLLIN)
            try:
                self.process = subprocess.Popen(
                    subprocesses.python_command(
                        "-c", program, str(theirs.fileno()), str(self.timeout_seconds)
                    ),
                    pass_fds=[theirs.fileno(), *self.shared],
                    stdin=subprocess.DEVNULL,
                    stdout=self.output,
                    stderr=self.output,
                    process_group=0,  # Ctrl-C is for the parent
                    env=subprocesses.child_environment() | {"OMP_NUM_THREADS": "1"},
                )
            except OSError as error:
                raise WorkerError(f"{self.name} cannot be started: {error}") from error
        self.allowed_seconds = self.timeout_seconds + START_SECONDS
        with contextlib.suppress(OSError):
            self.pipe.send(self.factory)

    def send(self, call: Pending[R], name: str, args: Args, kwargs: Kwargs) -> None:
        if self.process is None:
            self._start()
        if not self.calls:
            self.waiting_since = time.monotonic()
        self.calls.append(call)
        with contextlib.suppress(OSError):  # the worker is gone, which the next poll reports
            if name == NOTIFY[0]:
                self.pipe.send_bytes(b"")
            else:
                self.pipe.send((name, args, kwargs))

    def poll(self, timeout_seconds: float) -> None:
        try:
            while self.calls and self.poller.poll(timeout_seconds * 1000.0):
                message = self.pipe.recv_bytes()
                self.waiting_since = time.monotonic()
                self.allowed_seconds = self.timeout_seconds + GRACE_SECONDS
                reply = ForkingPickler.loads(message) if message else None
                call = self.calls.popleft()
                if isinstance(reply, ConfigError):
                    call.set_error(reply)
                elif isinstance(reply, WorkerError):
                    call.set_error(WorkerError(f"{self.name}: {reply}", reply.details))
                else:
                    call.set_result(reply)
        except (EOFError, OSError):
            self._lose(GRACE_SECONDS)  # the worker is exiting by itself
        if self.calls and time.monotonic() - self.waiting_since > self.allowed_seconds:
            self._lose(0.0)

    def _lose(self, grace_seconds: float) -> None:
        """End the process and report it as the error of all calls without a result."""
        self.pipe.close()
        exit_code = self.end(grace_seconds)
        size = os.fstat(self.output.fileno()).st_size
        output = os.pread(self.output.fileno(), 10_000, max(0, size - 10_000)).decode(
            errors="replace"
        )
        self.output.close()
        self.process = None
        line = f"{self.name} {_describe_exit(exit_code, output, self.timeout_seconds)}"
        while self.calls:
            self.calls.popleft().set_error(WorkerLostError(line))

    def end(self, grace_seconds: float) -> int | None:
        """Kill the process unless it exits by itself. Returns its exit code, or None if it was
        killed here."""
        assert self.process is not None, "the worker has not been started"
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(grace_seconds)
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # blocked in a driver
            self.process.wait(GRACE_SECONDS)
        return None


def _describe_exit(exit_code: int | None, output: str, timeout_seconds: float) -> str:
    if exit_code in (None, -signal.SIGALRM):
        frames = output.rpartition("Current thread")[2]
        innermost = re.search(r'File "([^"]+)", line (\d+) in (\S+)', frames)
        place = (
            f" (in {innermost[3]}, {Path(innermost[1]).name}:{innermost[2]})" if innermost else ""
        )
        return f"did not answer within {timeout_seconds:g} seconds{place}"
    if exit_code < 0:
        hint = " (is memory short?)" if exit_code == -signal.SIGKILL else ""
        return f"was killed by signal {-exit_code}{hint}"
    last_line = output.strip().splitlines()[-1:]
    return f"ended with exit code {exit_code}" + (f": {last_line[0]}" if last_line else "")
