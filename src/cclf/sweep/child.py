"""`python -m cclf.sweep.child PARENT ...` becomes `cclf train ...`, which saves and stops when its
parent process dies.

Otherwise a run would continue after its sweep or Ray worker died, and hold the folder lock that the
restarted run needs.
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
# The progress output of cclf.training.progress: the header and rows, optionally labelled.
_PROGRESS = re.compile(r"(\S+ seed \d+: )?\s*([\d,]+/[\d,]+ |env steps +eval return )")
_CHECKPOINT_NOTE = "the last checkpoint is good"  # below the traceback of an environment
_TRACEBACK = "Traceback (most recent call last)"


class Child:
    """The subprocess of a job. It holds the lock of the first run folder from the start, and its output
    is logged there."""

    def __init__(self, job: Job, out: Path, environment: Mapping[str, str]):
        """Raises ConfigError if another process is training in that folder; its log is not changed."""
        self._job, self._out = job, out
        self._message: str | None = None
        folder = job.folders(out)[0]
        folder.mkdir(parents=True, exist_ok=True)
        own = {"OMP_NUM_THREADS": str(job.first.cpus), **environment}
        # A new session, so that Ctrl-C reaches only the sweep, which then signals each run. Signals
        # are blocked in the child until its handlers are installed, so one that arrives during
        # startup is neither lost nor fatal.
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

    def statuses(self) -> list[RunStatus]:
        """The status of each run, read from its folder, with the last message if the process has
        ended."""
        exit_code = self.process.poll()
        if exit_code is not None and self._message is None:
            self._message = _exit_message(self._log, exit_code)
            self._log.close()
        return [
            progress(folder)._replace(exit_code=exit_code, last_line=self._message or "")
            for folder in self._job.folders(self._out)
        ]


def _new_log(path: Path) -> BinaryIO:
    """Create a new log. An existing file, link or pipe at this path is removed, never opened."""
    path.unlink(missing_ok=True)
    return open_file(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)


def _exit_message(log: BinaryIO, exit_code: int) -> str:
    """How the process that wrote this log ended, in one line."""
    text = ""
    with contextlib.suppress(OSError):
        log.seek(max(0, os.fstat(log.fileno()).st_size - _END_BYTES))
        text = log.read().decode(errors="replace")
    message = last_message(text) or "without a message"
    return f"ended by {_signal_name(-exit_code)}: {message}" if exit_code < 0 else message


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def last_message(text: str) -> str:
    """The last line of the output that is not a progress row. If an environment failed, the line above
    its traceback.

    >>> last_message("cclf: the disk is full\\n  500/2,500  10.59 ± 0  8  -  left 00:00:10\\n")
    'the disk is full'
    """
    lines = [line for line in text.splitlines() if line.strip() and not _PROGRESS.match(line)]
    if lines and lines[-1].startswith(_CHECKPOINT_NOTE):
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
