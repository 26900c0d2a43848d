"""Many runs on one machine: each is the same call as `cclf train`, in a process of its own.

That call itself skips what is finished and resumes what was stopped; failed runs are reported at the end.
"""

import contextlib
import csv
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cclf.runtime.stop import Stop

STOPPED = 75


@dataclass(frozen=True)
class Call:
    """One run: the arguments of `cclf train`, and what a table of runs shows of it."""

    task: str
    method: str
    seed: int
    env_steps: int
    folder: Path
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    call: Call
    exit_code: int
    last_line: str


class LocalSweep:
    """Works through calls on `jobs` processes; on a deadline or a signal each run is asked to save, none is killed."""

    def __init__(self, jobs: int, stop: Stop, stop_after_seconds: float | None = None):
        self.jobs, self.stop = jobs, stop
        self.deadline = None if stop_after_seconds is None else time.monotonic() + stop_after_seconds
        self.outcomes: dict[Call, Outcome] = {}
        self._running: dict[Call, subprocess.Popen[str]] = {}
        self._lock = threading.Lock()
        self._stopping = False

    def run(self, calls: Sequence[Call]) -> list[Outcome]:
        with _Screen(calls) as screen, ThreadPoolExecutor(self.jobs) as pool:
            pending = [pool.submit(self._run_one, call) for call in calls]
            while not all(future.done() for future in pending):
                if self.stop.requested or (self.deadline is not None and time.monotonic() > self.deadline):
                    self._stop()
                screen.show(self.outcomes, set(self._running))
                time.sleep(0.25)
            screen.show(self.outcomes, set())
            return [future.result() for future in pending]

    def _run_one(self, call: Call) -> Outcome:
        with self._lock:
            if self._stopping:
                return Outcome(call, STOPPED, "not started")
            # A session of its own: Ctrl-C reaches the sweep, which then asks each run to save.
            process = subprocess.Popen(
                [sys.executable, "-m", "cclf.cli", "train", *call.arguments],
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
            self._running[call] = process
        output, _ = process.communicate()
        outcome = Outcome(call, process.returncode, (output.strip().splitlines() or [""])[-1])
        with self._lock:
            del self._running[call]
            self.outcomes[call] = outcome
        return outcome

    def _stop(self) -> None:
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
            for process in self._running.values():
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)


class _Screen:
    """A live table of the runs in a terminal, a line per finished run elsewhere."""

    def __init__(self, calls: Sequence[Call]):
        self.calls = calls
        self._told: set[Call] = set()
        self._live: Any = None

    def __enter__(self) -> "_Screen":
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, outcomes: dict[Call, Outcome], running: set[Call]) -> None:
        if self._live is not None:
            self._live.update(self._table(outcomes, running), refresh=True)
            return
        for call, outcome in list(outcomes.items()):
            if call not in self._told:
                self._told.add(call)
                state = {0: "done", STOPPED: "stopped"}.get(outcome.exit_code, f"failed ({outcome.exit_code})")
                line = f"{state}: {call.task} {call.method} seed {call.seed}: {outcome.last_line}"
                print(f"[{len(outcomes)}/{len(self.calls)}] {line}", file=sys.stderr, flush=True)

    def _table(self, outcomes: dict[Call, Outcome], running: set[Call]) -> Any:
        from rich import box
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, caption=f"{len(outcomes)} of {len(self.calls)} runs ended", caption_justify="left")
        for name in ("task", "method", "seed", "env steps", "", "return"):
            table.add_column(name, justify="right" if name in ("seed", "env steps", "return") else "left")
        waiting = [call for call in self.calls if call not in outcomes and call not in running]
        ended = [call for call in self.calls if call in outcomes]
        for call in [*ended[-12:], *(call for call in self.calls if call in running), *waiting[:3]]:
            steps, reward = _newest(call.folder / "train.csv")
            failed = call in outcomes and outcomes[call].exit_code not in (0, STOPPED)
            bar = "[red]failed[/]" if failed else ProgressBar(call.env_steps, steps, width=24)
            table.add_row(call.task, call.method, str(call.seed), f"{steps:,}", bar, reward)
        return table


def _newest(table: Path) -> tuple[int, str]:
    """The last clock reading and training return in a run's train.csv."""
    try:
        with table.open(newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError:
        return 0, "-"
    returns = [row["episode_return"] for row in rows if row["episode_return"]]
    return (int(rows[-1]["env_steps"]) if rows else 0), (f"{float(returns[-1]):.3g}" if returns else "-")
