"""Many runs on one machine: each is the same call as `cclf train`, in a process of its own.

That call itself skips what is finished and resumes what was stopped; failed runs are reported at the end."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

STOPPED = 75


@dataclass(frozen=True)
class Outcome:
    arguments: tuple[str, ...]
    exit_code: int
    last_line: str


class LocalSweep:
    """Runs argument lists of `cclf train` on `jobs` processes; on a deadline or Ctrl-C each is asked to save, none is killed."""

    def __init__(self, jobs: int, stop_after_seconds: float | None):
        self.jobs = jobs
        self.deadline = None if stop_after_seconds is None else time.monotonic() + stop_after_seconds
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._stopping = False

    def run(self, calls: Sequence[Sequence[str]]) -> list[Outcome]:
        with ThreadPoolExecutor(self.jobs) as pool:
            pending = [pool.submit(self._run_one, tuple(call)) for call in calls]
            try:
                while not all(future.done() for future in pending):
                    if self.deadline is not None and time.monotonic() > self.deadline:
                        self._stop()
                    time.sleep(0.2)
            except KeyboardInterrupt:
                self._stop()
            return [future.result() for future in pending]

    def _run_one(self, call: tuple[str, ...]) -> Outcome:
        command = [sys.executable, "-m", "cclf.cli", "train", *call]
        with self._lock:
            if self._stopping:
                return Outcome(call, STOPPED, "not started")
            # A session of its own: Ctrl-C reaches the sweep, which then asks each run to save.
            process = subprocess.Popen(
                command,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
            self._running.add(process)
        output, _ = process.communicate()
        with self._lock:
            self._running.discard(process)
        lines = output.strip().splitlines() or [""]
        print(f"[{process.returncode}] {' '.join(call)}: {lines[-1]}", file=sys.stderr, flush=True)
        return Outcome(call, process.returncode, lines[-1])

    def _stop(self) -> None:
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
            for process in self._running:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
