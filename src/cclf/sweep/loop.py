"""Works through calls with a backend. On a deadline or a signal each run is asked to save; none is killed."""

import time
from collections.abc import Sequence
from typing import Protocol

from cclf.runtime.stop import Stop
from cclf.sweep.plan import DONE, STOPPED, Call, Outcome, Report, is_finished, mark
from cclf.sweep.screen import Screen

POLL_SECONDS = 0.1


class Run(Protocol):
    """A call that was started."""

    def poll(self) -> Report: ...
    def ask_to_stop(self) -> None: ...


class Backend(Protocol):
    def start(self, call: Call) -> Run | None: ...  # None where there is no room for it now


def run_all(calls: Sequence[Call], backend: Backend, stop: Stop, stop_after_seconds: float | None = None) -> list[Outcome]:
    """One outcome per call, in their order. Finished runs are skipped; `cclf train` itself resumes what was stopped."""
    deadline = None if stop_after_seconds is None else time.monotonic() + stop_after_seconds
    outcomes: dict[Call, Outcome] = {call: Outcome(call, DONE, "finished before") for call in calls if is_finished(call)}
    waiting = [call for call in calls if call not in outcomes]
    running: dict[Call, Run] = {}
    reports: dict[Call, Report] = {}
    stopping = False
    with Screen(calls) as screen:
        while waiting or running:
            if not stopping and (stop.requested or (deadline is not None and time.monotonic() > deadline)):
                stopping = True
                outcomes |= {call: Outcome(call, STOPPED, "not started") for call in waiting}
                waiting = []
                for run in running.values():
                    run.ask_to_stop()
            for call in list(waiting):
                started = backend.start(call)
                if started is not None:
                    waiting.remove(call)
                    running[call] = started
            for call, run in list(running.items()):
                reports[call] = report = run.poll()
                if report.exit_code is not None:
                    del running[call]
                    outcomes[call] = Outcome(call, report.exit_code, report.last_line)
                    mark(outcomes[call])
            screen.show(outcomes, running.keys(), reports)
            time.sleep(POLL_SECONDS)
        screen.show(outcomes, set(), reports)
    return [outcomes[call] for call in calls]
