"""Environments in processes of their own, watched: one that dies or hangs is ended and replaced, never waited for without end.

A worker is a fresh interpreter (CUDA and GL contexts do not survive a fork) that never imports torch. It owns one or several
environments, answers in the order it was asked, and leaves when its pipe closes, so nothing outlives the parent, however that
ended. Frames travel through the pipe: 30 us for 100x100 RGB, a hundredth of the time it takes to draw one.
"""

import contextlib
import faulthandler
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from cclf.types import Env

TIMEOUT_SECONDS = 60.0  # for one answer; the first includes the worker's imports
GRACE_SECONDS = 2.0  # for a worker to end by itself, or to write down where it hangs

Make = Callable[[], Env]  # travels to another process: a function of a module or a `partial` of one, no closure


class Answer(NamedTuple):
    env: int
    command: str  # what was asked for, or LOST
    value: Any  # what came of it; for LOST one line that says why


LOST = "lost"  # the environment is gone with its worker; a new one, not yet reset, has taken its place


class WorkerError(ValueError):
    """One line for a person; `details` is the traceback or the last words of the worker."""

    def __init__(self, line: str, details: str = ""):
        super().__init__(line)
        self.details = details


class EnvPool(Protocol):
    """Environments by number. What is sent is answered some time later, for each environment in the order it was sent."""

    size: int

    def send(self, env: int, command: str, *arguments: Any) -> None: ...
    def receive(self) -> list[Answer]: ...  # what is answered by now
    def busy(self) -> list[Connection]: ...  # where more is awaited
    def forget(self) -> None: ...  # answers to what was sent before are not wanted
    def close(self) -> None: ...


class LocalEnvs:
    """The pool without processes: a command is carried out when it is sent."""

    def __init__(self, envs: Sequence[Env]):
        self.envs, self.size = envs, len(envs)
        self._answers: deque[Answer] = deque()

    def send(self, env: int, command: str, *arguments: Any) -> None:
        self._answers.append(Answer(env, command, getattr(self.envs[env], command)(*arguments)))

    def receive(self) -> list[Answer]:
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
    """The pool with processes: environment e lives in worker e modulo `workers`. `name` is what errors call it, the task."""

    def __init__(self, makes: Sequence[Make], workers: int, name: str, timeout_seconds: float = TIMEOUT_SECONDS):
        self.size = len(makes)
        shares = [dict(list(enumerate(makes))[number::workers]) for number in range(workers)]
        self._workers = [_Worker(f"worker {number} of {name}", share, timeout_seconds) for number, share in enumerate(shares)]

    def send(self, env: int, command: str, *arguments: Any) -> None:
        self._workers[env % len(self._workers)].send(env, command, *arguments)

    def receive(self) -> list[Answer]:
        """Never waits. Raises WorkerError when an environment raised: it would do so again."""
        return [answer for worker in self._workers for answer in worker.receive()]

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

    def __init__(self, name: str, makes: Mapping[int, Make], timeout_seconds: float):
        self.name, self.makes, self.timeout_seconds = name, makes, timeout_seconds
        self.process: subprocess.Popen[bytes] | None = None
        self.unanswered = self.unwanted = 0
        self.asked_at = 0.0

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        self.said = tempfile.TemporaryFile()  # noqa: SIM115 (open while the worker lives)
        program = "import sys; from cclf.runtime.workers import main; main(int(sys.argv[1]), float(sys.argv[2]))"
        search = os.pathsep.join(path or os.getcwd() for path in sys.path)
        with theirs:
            # Even half an answer is not waited for without end. A closed pipe must reach the worker: nobody else holds our end.
            for limit in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                ours.setsockopt(socket.SOL_SOCKET, limit, struct.pack("ll", int(self.timeout_seconds + 1), 0))
            self.pipe = Connection(ours.detach())
            try:
                self.process = subprocess.Popen(
                    [sys.executable, "-c", program, str(theirs.fileno()), str(self.timeout_seconds)],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=self.said,
                    stderr=self.said,
                    process_group=0,  # Ctrl-C is for the parent
                    env=os.environ | {"PYTHONPATH": search, "OMP_NUM_THREADS": "1"},
                )
            except OSError as error:
                raise WorkerError(f"{self.name} cannot be started: {error}") from error
        self.unanswered = 0
        for env, make in self.makes.items():
            self.send(env, "make", make)
        self.unwanted = self.unanswered

    def send(self, env: int, command: str, *arguments: Any) -> None:
        if self.process is None:
            self._start()
        if not self.unanswered:
            self.asked_at = time.monotonic()
        self.unanswered += 1
        with contextlib.suppress(OSError):  # it is gone, which shows when its answer is awaited
            self.pipe.send((env, command, arguments))

    def receive(self) -> list[Answer]:
        answers = []
        try:
            while self.unanswered and self.pipe.poll():
                answer = Answer(*self.pipe.recv())
                self.unanswered -= 1
                self.asked_at = time.monotonic()
                if answer.command == "raised":
                    line, details = answer.value
                    raise WorkerError(f"{self.name}: the environment raised {line}", details)
                if self.unwanted:
                    self.unwanted -= 1
                else:
                    answers.append(answer)
        except (EOFError, OSError):
            return self._replaced(GRACE_SECONDS)  # it is on its way out
        if self.unanswered and time.monotonic() - self.asked_at > self.timeout_seconds + GRACE_SECONDS:
            return self._replaced(0.0)
        return answers

    def _replaced(self, grace_seconds: float) -> list[Answer]:
        self.pipe.close()
        code = self.end(grace_seconds)
        line = f"{self.name} {_fate(code, self._last_words(), self.timeout_seconds)}"
        self.said.close()
        self._start()
        return [Answer(env, LOST, line) for env in self.makes]

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


def _fate(code: int | None, last_words: str, timeout_seconds: float) -> str:
    watchdog = last_words.rpartition("Timeout (")[2] if "Timeout (" in last_words else ""
    if code is None or watchdog:
        where = re.search(r'File "([^"]+)", line (\d+) in (\S+)', watchdog)  # the innermost frame
        place = f" (in {where[3]}, {Path(where[1]).name}:{where[2]})" if where else ""
        return f"did not answer within {timeout_seconds:g} seconds{place}"
    if code < 0:
        return f"was killed by signal {-code}" + (" (is memory short?)" if code == -signal.SIGKILL else "")
    last = last_words.strip().splitlines()[-1:]
    return f"ended with exit code {code}" + (f": {last[0]}" if last else "")


def main(descriptor: int, timeout_seconds: float) -> None:
    """The worker."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):  # some schedulers send them to all processes of a job
        signal.signal(number, signal.SIG_IGN)
    pipe, envs = Connection(descriptor), dict[int, Env]()
    with contextlib.suppress(EOFError, OSError):  # the parent closed the pipe, or is gone
        while True:
            env, command, arguments = pipe.recv()
            # From a thread that needs no GIL: it ends this process where a driver hangs, parent or not.
            faulthandler.dump_traceback_later(timeout_seconds, exit=True)
            pipe.send(_carry_out(envs, env, command, arguments))
            faulthandler.cancel_dump_traceback_later()
    faulthandler.dump_traceback_later(GRACE_SECONDS, exit=True)
    for one in envs.values():
        one.close()


def _carry_out(envs: dict[int, Env], env: int, command: str, arguments: Sequence[Any]) -> tuple[int, str, Any]:
    try:
        if command == "make":
            envs[env] = arguments[0]()
            return env, command, None
        return env, command, getattr(envs[env], command)(*arguments)
    except Exception as error:  # whatever it is, the parent reports it
        line = " ".join(f"{type(error).__name__}: {error}".split())
        return env, "raised", (line, traceback.format_exc())
