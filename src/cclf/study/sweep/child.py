"""`python -m cclf.study.sweep.child PARENT ...` becomes `cclf train ...`, asked to save and stop
when its parent process dies.

Else a run would go on alone after a lost sweep or a lost Ray worker, and hold its folder against
the one that takes over.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from cclf.runtime import interpreter
from cclf.runtime.stop import held_back
from cclf.study.sweep.plan import Job, RunStatus, last_line, progress

LOG = "output.txt"
_PR_SET_PDEATHSIG = 1  # of Linux's prctl; elsewhere a run outlives its parent


def start(job: Job, out: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """The job as a process; what it says goes to a file in its first run folder, so that a failure
    keeps its reasons."""
    folder = job.folders(out)[0]
    folder.mkdir(parents=True, exist_ok=True)
    own = {"OMP_NUM_THREADS": str(job.first.cpus), **environment}
    # A session of its own: Ctrl-C reaches the sweep, which then asks each run to save. It begins
    # with signals held back, until it listens for them: one that comes while it starts is not lost,
    # and does not kill it.
    with (folder / LOG).open("wb") as log, held_back():
        return subprocess.Popen(
            interpreter.command(
                "-m", "cclf.study.sweep.child", str(os.getpid()), *job.arguments(out)
            ),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=interpreter.environment() | own,
        )


def reports(job: Job, out: Path, exit_code: int | None) -> list[RunStatus]:
    """How the runs of a job stand, from their folders under `out`, and the last words of their
    process."""
    folders = job.folders(out)
    words = "" if exit_code is None else last_line((folders[0] / LOG).read_text(errors="replace"))
    return [progress(folder)._replace(exit_code=exit_code, last_line=words) for folder in folders]


def main(parent: int, arguments: list[str]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before we asked
            sys.exit(128 + signal.SIGTERM)
    os.execv(sys.executable, interpreter.command("-m", "cclf.cli", "train", *arguments))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
