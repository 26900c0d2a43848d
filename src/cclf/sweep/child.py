"""The process of a job: `python -m cclf.sweep.child PARENT ...` executes `cclf train ...` such that it
gets SIGTERM when its parent process dies.

Otherwise a run would continue after its sweep or Ray worker died, and hold the folder lock that the
restarted run needs.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from cclf.errors import EXIT_STOPPED
from cclf.storage.atomic_files import INHERITED_LOCK, folder_lock
from cclf.storage.safe_loading import open_file
from cclf.sweep.plan import Job, JobEnd
from cclf.training import subprocesses
from cclf.training.signals import signals_blocked

LOG = "output.txt"
_PR_SET_PDEATHSIG = 1  # of Linux's prctl; elsewhere a run outlives its parent
_TAIL_BYTES = 65_536  # of a log, in which the last message is searched
_ERROR, _WARNING = "cclf: ", "cclf: warning: "


class Child:
    """The subprocess of a job. It holds the lock of the first run folder from the start, and its output
    is logged there."""

    def __init__(self, job: Job, environment: Mapping[str, str]):
        """Raises ConfigError if another process is training in that folder; its log is not changed."""
        self.job = job
        self._end: JobEnd | None = None
        folder = job.first.folder
        folder.mkdir(parents=True, exist_ok=True)
        variables = {"OMP_NUM_THREADS": str(job.first.cpus), **environment}
        # A new session, so that Ctrl-C reaches only the sweep, which then signals each run. Signals
        # are blocked in the child until its handlers are installed, so one that arrives during
        # startup is neither lost nor fatal.
        with folder_lock(folder) as lock, signals_blocked():
            self._log = _new_log(folder / LOG)
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                subprocesses.python_command(
                    "-m", "cclf.sweep.child", str(os.getpid()), *job.arguments
                ),
                stdout=self._log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(lock,),
                env=subprocesses.child_environment() | variables | {INHERITED_LOCK: str(lock)},
            )

    def poll(self) -> JobEnd | None:
        """How the process ended; None while it runs."""
        exit_code = self.process.poll()
        if exit_code is not None and self._end is None:
            self._end = JobEnd(exit_code, _exit_message(self._log, exit_code))
            self._log.close()
        return self._end

    def ask_to_stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)  # without effect if it has ended


def _new_log(path: Path) -> BinaryIO:
    """Create a new log. An existing file, link or pipe at this path is removed, never opened."""
    path.unlink(missing_ok=True)
    return open_file(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)


def _exit_message(log: BinaryIO, exit_code: int) -> str:
    """One line on how the process that wrote this log ended."""
    text = ""
    with contextlib.suppress(OSError):
        log.seek(max(0, os.fstat(log.fileno()).st_size - _TAIL_BYTES))
        text = log.read().decode(errors="replace")
    message = last_message(text, exit_code != EXIT_STOPPED) or "without a message"
    if exit_code < 0:
        return f"ended by signal {-exit_code} ({signal.strsignal(-exit_code)}): {message}"
    return message


def last_message(text: str, is_error: bool = True) -> str:
    """The last error message of the program if there is one, or else the last line of the output, such
    as the end of a traceback or the last progress.

    >>> last_message("cclf: the disk is full\\nit said so\\n")
    'the disk is full'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(_ERROR) and not line.startswith(_WARNING)]
    last = (errors if errors and is_error else lines)[-1:]
    return "".join(last).removeprefix(_ERROR)


def main(parent: int, arguments: list[str]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the parent died before prctl was called
            sys.exit(128 + signal.SIGTERM)
    os.execv(sys.executable, subprocesses.python_command("-m", "cclf.cli", "train", *arguments))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
