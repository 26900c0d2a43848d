"""Environments in processes of their own, watched: one that dies or hangs is ended and replaced,
never waited for without end.

A worker is a fresh interpreter (CUDA and GL contexts do not survive a fork) that does not import
torch. It owns one or several environments, answers in the order it was asked, and leaves when its
pipe closes, so nothing outlives the parent, however that ended. Frames travel through the pipe: 30
us for 100x100 RGB, a hundredth of the time it takes to draw one. Where steps are shorter, an
environment may share memory with whoever asks (`shared`), and be rung.
"""

import contextlib
import os
import re
import select
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, Protocol

from cclf.errors import ConfigError, WorkerError
from cclf.training import subprocesses
from cclf.training.worker_process import GRACE_SECONDS, NOTIFY, RAISED, Reply, call, receive

TIMEOUT_SECONDS = 60.0  # for one answer
START_SECONDS = 60.0  # more, for the first: a worker imports its packages before
MAX_RESTARTS = 3  # of one episode or one answer, by workers that died or hung
WAIT_SECONDS = 0.1  # at a time, where there is nothing else to do

# an Env or what else is to live elsewhere; a function of a module or a `partial` of one, no closure
Factory = Callable[[], Any]

# the environment is gone with its worker; a new one, not yet reset, has taken its place
WORKER_LOST = "lost"


class EnvPool(Protocol):
    """Environments by number. What is sent is answered some time later, for each environment in the
    order it was sent."""

    size: int

    def send(self, env: int, command: str, *arguments: Any) -> None: ...
    # as `send(env, NOTIFY)`, but without a word: question and answer are in memory that both share
    def ring(self, env: int) -> None: ...
    # what is answered by now, or after that long each
    def receive(self, patience_seconds: float = 0.0) -> list[Reply]: ...
    def busy(self) -> list[Connection]: ...  # where more is awaited
    def forget(self) -> None: ...  # answers to what was sent before are not wanted
    def close(self) -> None: ...


def anonymous_file() -> IO[bytes]:
    """An empty file without a name, in memory where the system can: for `EnvWorkers.shared`."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("cclf"), "r+b")
    return tempfile.TemporaryFile()


class LocalEnvs:
    """The pool without processes: a command is carried out when it is sent."""

    def __init__(self, envs: Sequence[Any]):
        self.envs, self.size = envs, len(envs)
        self._answers: deque[Reply] = deque()

    def send(self, env: int, command: str, *arguments: Any) -> None:
        self._answers.append(Reply(env, command, call(self.envs[env], command, arguments)))

    def ring(self, env: int) -> None:
        self.send(env, NOTIFY)

    def receive(self, patience_seconds: float = 0.0) -> list[Reply]:  # noqa: ARG002
        answers = list(self._answers)
        self._answers.clear()
        return answers

    def busy(self) -> list[Connection]:
        return []

    def forget(self) -> None:
        self._answers.clear()

    def close(self) -> None:
        for env in self.envs:
            env.close()


class EnvWorkers:
    """The pool with processes: environment e lives in worker e modulo `workers`. `name` is what
    errors call it, the task; `shared` are descriptors of files that workers have by the same
    numbers."""

    def __init__(
        self,
        makes: Sequence[Factory],
        workers: int,
        name: str,
        timeout_seconds: float = TIMEOUT_SECONDS,
        shared: Sequence[int] = (),
    ):
        self.size = len(makes)
        shares = [dict(list(enumerate(makes))[number::workers]) for number in range(workers)]
        self._workers = [
            _Worker(f"worker {number} of {name}", share, timeout_seconds, shared)
            for number, share in enumerate(shares)
        ]

    def send(self, env: int, command: str, *arguments: Any) -> None:
        self._workers[env % len(self._workers)].send(env, command, *arguments)

    def ring(self, env: int) -> None:
        self._workers[env % len(self._workers)].ring()

    def receive(self, patience_seconds: float = 0.0) -> list[Reply]:
        """Raises the error of an environment that raised: it would do so again."""
        answers = self.receive_all(patience_seconds)
        for answer in answers:
            if answer.command == RAISED:
                raise answer.value
        return answers

    def receive_all(self, patience_seconds: float = 0.0) -> list[Reply]:
        """The same with RAISED among the answers, for those that ask for several runs."""
        return [answer for worker in self._workers for answer in worker.receive(patience_seconds)]

    def busy(self) -> list[Connection]:
        return [worker.pipe for worker in self._workers if worker.unanswered]

    def forget(self) -> None:
        for worker in self._workers:
            worker.unwanted = worker.unanswered

    def close(self) -> None:
        """Ask them to leave, and end those that do not."""
        started = [worker for worker in self._workers if worker.process is not None]
        for worker in started:
            worker.pipe.close()
        deadline = time.monotonic() + GRACE_SECONDS
        for worker in started:
            worker.end(max(0.0, deadline - time.monotonic()))


class _Worker:
    """One process and the environments it owns; it starts when first asked for something."""

    def __init__(
        self,
        name: str,
        makes: Mapping[int, Factory],
        timeout_seconds: float,
        shared: Sequence[int],
    ):
        self.name, self.makes, self.timeout_seconds = name, makes, timeout_seconds
        self.shared = shared
        self.process: subprocess.Popen[bytes] | None = None
        self.unanswered = self.unwanted = 0
        self.asked_at = 0.0

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        self.said = tempfile.TemporaryFile()  # noqa: SIM115 (open while the worker lives)
        program = (
            "import sys; from cclf.training.worker_process import main; "
            "main(int(sys.argv[1]), float(sys.argv[2]))"
        )
        with theirs:
            # Even half an answer is not waited for without end. A closed pipe must reach the
            # worker: nobody else holds our end.
            for limit in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                ours.setsockopt(
                    socket.SOL_SOCKET, limit, struct.pack("ll", int(self.timeout_seconds + 1), 0)
                )
            self.pipe = Connection(ours.detach())
            self.poller = select.poll()  # kept: `pipe.poll` would make one each time
            self.poller.register(self.pipe, select.POLLIN)
            try:
                self.process = subprocess.Popen(
                    subprocesses.python_command(
                        "-c", program, str(theirs.fileno()), str(self.timeout_seconds)
                    ),
                    pass_fds=[theirs.fileno(), *self.shared],
                    stdin=subprocess.DEVNULL,
                    stdout=self.said,
                    stderr=self.said,
                    process_group=0,  # Ctrl-C is for the parent
                    env=subprocesses.child_environment() | {"OMP_NUM_THREADS": "1"},
                )
            except OSError as error:
                raise WorkerError(f"{self.name} cannot be started: {error}") from error
        self.unanswered, self.allowed_seconds = 0, self.timeout_seconds + START_SECONDS
        for env, make in self.makes.items():
            self.send(env, "make", make)
        self.unwanted = self.unanswered

    def send(self, env: int, command: str, *arguments: Any) -> None:
        self._begin()
        with contextlib.suppress(OSError):  # it is gone, which shows when its answer is awaited
            self.pipe.send((env, command, arguments))

    def ring(self) -> None:
        assert len(self.makes) == 1, "a ring names no environment"
        self._begin()
        with contextlib.suppress(OSError):
            self.pipe.send_bytes(b"")

    def _begin(self) -> None:
        if self.process is None:
            self._start()
        if not self.unanswered:
            self.asked_at = time.monotonic()
        self.unanswered += 1

    def receive(self, patience_seconds: float) -> list[Reply]:
        answers = []
        try:
            while self.unanswered and self.poller.poll(patience_seconds * 1000.0):
                answer = Reply(*(receive(self.pipe) or (next(iter(self.makes)), NOTIFY, None)))
                self.unanswered -= 1
                self.asked_at, self.allowed_seconds = (
                    time.monotonic(),
                    self.timeout_seconds + GRACE_SECONDS,
                )
                if answer.command == RAISED:
                    bad_input, line, details = answer.value
                    error = (
                        ConfigError(line)
                        if bad_input
                        else WorkerError(f"{self.name}: {line}", details)
                    )
                    answers.append(Reply(answer.env, RAISED, error))
                    self.unwanted = max(0, self.unwanted - 1)
                elif self.unwanted:
                    self.unwanted -= 1
                else:
                    answers.append(answer)
        except (EOFError, OSError):
            return self._replaced(GRACE_SECONDS)  # it is on its way out
        if self.unanswered and time.monotonic() - self.asked_at > self.allowed_seconds:
            return self._replaced(0.0)
        return answers

    def _replaced(self, grace_seconds: float) -> list[Reply]:
        self.pipe.close()
        code = self.end(grace_seconds)
        line = f"{self.name} {_describe_exit(code, self._last_words(), self.timeout_seconds)}"
        self.said.close()
        self._start()
        return [Reply(env, WORKER_LOST, line) for env in self.makes]

    def end(self, grace_seconds: float) -> int | None:
        """Kill it unless it ends by itself. Its exit code; None: it had to be killed."""
        assert self.process is not None, "only what was started ends"
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(grace_seconds)
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in a driver: left behind
            self.process.wait(GRACE_SECONDS)
        return None

    def _last_words(self) -> str:
        size = os.fstat(self.said.fileno()).st_size
        return os.pread(self.said.fileno(), 10_000, max(0, size - 10_000)).decode(errors="replace")


def _describe_exit(code: int | None, last_words: str, timeout_seconds: float) -> str:
    if code in (None, -signal.SIGALRM):
        frames = last_words.rpartition("Current thread")[2]
        where = re.search(r'File "([^"]+)", line (\d+) in (\S+)', frames)  # the innermost
        place = f" (in {where[3]}, {Path(where[1]).name}:{where[2]})" if where else ""
        return f"did not answer within {timeout_seconds:g} seconds{place}"
    if code < 0:
        return f"was killed by signal {-code}" + (
            " (is memory short?)" if code == -signal.SIGKILL else ""
        )
    last = last_words.strip().splitlines()[-1:]
    return f"ended with exit code {code}" + (f": {last[0]}" if last else "")
