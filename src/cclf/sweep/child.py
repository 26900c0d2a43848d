"""`python -m cclf.sweep.child PARENT ...` becomes `cclf train ...`, asked to save and stop
when its parent process dies.

Else a run would go on alone after a lost sweep or a lost Ray worker, and hold its folder against
the one that takes over.
"""

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from cclf.storage.atomic_files import INHERITED_LOCK, folder_lock
from cclf.storage.safe_loading import open_file
from cclf.sweep.plan import Job, RunStatus, progress
from cclf.training import subprocesses
from cclf.training.signals import signals_blocked

LOG = "output.txt"
_PR_SET_PDEATHSIG = 1  # of Linux's prctl; elsewhere a run outlives its parent
_END_BYTES = 65_536  # of a log, in which the last message is looked for
# What cclf.training.progress prints of a run that goes on: a head line, and rows that may be labelled.
_PROGRESS = re.compile(r"(\S+ seed \d+: )?\s*([\d,]+/[\d,]+ |env steps +eval return )")
_ADVICE = "the last checkpoint is good"  # the line below the traceback of an environment
_TRACEBACK = "Traceback (most recent call last)"


class Child:
    """The process of a job. It holds the lock of the first run folder from its start on; there its
    output goes, so that a failure keeps its reasons."""

    def __init__(self, job: Job, out: Path, environment: Mapping[str, str]):
        """A ConfigError if another process trains in that folder: its log stays as it is."""
        self._job, self._out = job, out
        self._message: str | None = None
        folder = job.folders(out)[0]
        folder.mkdir(parents=True, exist_ok=True)
        own = {"OMP_NUM_THREADS": str(job.first.cpus), **environment}
        # A session of its own: Ctrl-C reaches the sweep, which then asks each run to save. It
        # begins with signals held back, until it listens for them: one that comes while it starts
        # is not lost, and does not kill it.
        with folder_lock(folder) as lock, signals_blocked():
            self._log = _new_log(folder / LOG)
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                subprocesses.python_command(
                    "-m", "cclf.sweep.child", str(os.getpid()), *job.arguments(out)
                ),
                stdout=self._log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(lock,),
                env=subprocesses.child_environment() | own | {INHERITED_LOCK: str(lock)},
            )

    def reports(self) -> list[RunStatus]:
        """How the runs of the job stand, from their folders, and the last message of a process that
        has ended."""
        exit_code = self.process.poll()
        if exit_code is not None and self._message is None:
            self._message = _end_of(self._log, exit_code)
            self._log.close()
        return [
            progress(folder)._replace(exit_code=exit_code, last_line=self._message or "")
            for folder in self._job.folders(self._out)
        ]


def _new_log(path: Path) -> BinaryIO:
    """In the place of an earlier one, or of a link or a pipe, which is not opened."""
    path.unlink(missing_ok=True)
    return open_file(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)


def _end_of(log: BinaryIO, exit_code: int) -> str:
    """In one line, how the process that wrote this log ended."""
    text = ""
    with contextlib.suppress(OSError):
        log.seek(max(0, os.fstat(log.fileno()).st_size - _END_BYTES))
        text = log.read().decode(errors="replace")
    message = last_message(text) or "without a message"
    return f"ended by {_name(-exit_code)}: {message}" if exit_code < 0 else message


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def last_message(text: str) -> str:
    """Of what a run printed the last line that is no row of its progress; of an environment that
    failed, the line above its traceback.

    >>> last_message("cclf: the disk is full\\n  500/2,500  10.59 ± 0  8  -  left 00:00:10\\n")
    'the disk is full'
    """
    lines = [line for line in text.splitlines() if line.strip() and not _PROGRESS.match(line)]
    if lines and lines[-1].startswith(_ADVICE):
        lines.pop()
    tracebacks = [place for place, line in enumerate(lines) if line.startswith(_TRACEBACK)]
    if tracebacks and tracebacks[-1] > 0 and lines[tracebacks[-1] - 1].startswith("cclf: "):
        lines = lines[: tracebacks[-1]]
    return lines[-1].strip().removeprefix("cclf: ") if lines else ""


def main(parent: int, arguments: list[str]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before we asked
            sys.exit(128 + signal.SIGTERM)
    os.execv(sys.executable, subprocesses.python_command("-m", "cclf.cli", "train", *arguments))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
