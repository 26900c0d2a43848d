"""Works through calls with a backend. On a deadline or a signal each run is asked to save; none is killed."""

import time
from collections.abc import Sequence
from typing import Protocol

from cclf.runtime.stop import Stop
from cclf.sweep.plan import DONE, STOPPED, Call, Job, Outcome, Report, is_finished, jobs_of, mark
from cclf.sweep.screen import Screen

POLL_SECONDS = 0.1


class Run(Protocol):
    """A job that was started."""

    def poll(self) -> list[Report]: ...  # one for each of its calls
    def ask_to_stop(self) -> None: ...


class Backend(Protocol):
    def start(self, job: Job) -> Run | None: ...  # None where there is no room for it now


def run_all(
    calls: Sequence[Call],
    backend: Backend,
    stop: Stop,
    stop_after_seconds: float | None = None,
    seeds_per_process: int = 1,
    games_per_process: int = 1,
) -> list[Outcome]:
    """One outcome per call, in their order. Finished runs are skipped; `cclf train` itself resumes what was stopped."""
    deadline = None if stop_after_seconds is None else time.monotonic() + stop_after_seconds
    outcomes: dict[Call, Outcome] = {call: Outcome(call, DONE, "finished before") for call in calls if is_finished(call)}
    waiting = jobs_of([call for call in calls if call not in outcomes], seeds_per_process, games_per_process)
    running: dict[Job, Run] = {}
    reports: dict[Call, Report] = {}
    stopping = False
    with Screen(calls) as screen:
        while waiting or running:
            if not stopping and (stop.requested or (deadline is not None and time.monotonic() > deadline)):
                stopping = True
                outcomes |= {call: Outcome(call, STOPPED, "not started") for job in waiting for call in job.calls}
                waiting = []
                for run in running.values():
                    run.ask_to_stop()
            for job in list(waiting):
                started = backend.start(job)
                if started is not None:
                    waiting.remove(job)
                    running[job] = started
            for job, run in list(running.items()):
                reports |= zip(job.calls, run.poll(), strict=True)
                if reports[job.first].exit_code is not None:
                    del running[job]
                    outcomes |= {call: _outcome(call, reports[call], alone=len(job.calls) == 1) for call in job.calls}
            screen.show(outcomes, [call for job in running for call in job.calls], reports)
            time.sleep(POLL_SECONDS)
        screen.show(outcomes, set(), reports)
    return [outcomes[call] for call in calls]


def _outcome(call: Call, report: Report, alone: bool) -> Outcome:
    """What a run came to. The exit code of a process with several says the worst of them: one that reached its end is done."""
    assert report.exit_code is not None, "the process has ended"
    exit_code = DONE if not alone and is_finished(call) else report.exit_code
    outcome = Outcome(call, exit_code, report.last_line if exit_code else str(call.folder))
    mark(outcome)
    return outcome
