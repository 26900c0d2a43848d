"""Works through calls with a backend. On a deadline or a signal each run is asked to save; none is
killed."""

import time
from collections.abc import Sequence
from typing import Protocol

from cclf.errors import ConfigError
from cclf.sweep.display import Screen
from cclf.sweep.plan import (
    BAD_INPUT,
    DONE,
    FAILED,
    FAILURE_MARK,
    FULL_DISK,
    NOT_STARTED,
    STOPPED,
    Call,
    Job,
    Outcome,
    RunStatus,
    full_disk,
    is_finished,
    jobs_of,
    mark,
)
from cclf.training.signals import SIGNALS, StopSignal

POLL_SECONDS = 0.1
# How a process ends that a signal killed before it could listen, or that was signalled twice and
# quit at once.
ENDED_BY_SIGNAL = {code for number in SIGNALS for code in (-number, 128 + number)}


class StartedJob(Protocol):
    """A job that was started."""

    def poll(self) -> list[RunStatus]: ...  # one for each of its calls
    def ask_to_stop(self) -> None: ...


class Backend(Protocol):
    def start(self, job: Job) -> StartedJob | None: ...  # None where there is no room for it now


def run_all(
    calls: Sequence[Call],
    backend: Backend,
    stop: StopSignal,
    stop_after_seconds: float | None = None,
    seeds_per_process: int = 1,
    games_per_process: int = 1,
) -> list[Outcome]:
    """One outcome per call, in their order. Finished runs are skipped; `cclf train` itself resumes
    what was stopped."""
    deadline = None if stop_after_seconds is None else time.monotonic() + stop_after_seconds
    outcomes: dict[Call, Outcome] = {
        call: _marked(Outcome(call, DONE, "finished before")) for call in calls if is_finished(call)
    }
    waiting = jobs_of(
        [call for call in calls if call not in outcomes], seeds_per_process, games_per_process
    )
    running: dict[Job, StartedJob] = {}
    reports: dict[Call, RunStatus] = {}
    stopping = False
    with Screen(calls) as screen:
        while waiting or running:
            if not stopping and (
                stop.requested or (deadline is not None and time.monotonic() > deadline)
            ):
                stopping = True
                outcomes |= {
                    call: Outcome(call, STOPPED, NOT_STARTED)
                    for job in waiting
                    for call in job.calls
                }
                waiting = []
                screen.stopping([call for job in running for call in job.calls], outcomes)
                for run in running.values():
                    run.ask_to_stop()
            for job in list(waiting):
                try:
                    started = backend.start(job)
                except (ConfigError, OSError) as error:
                    waiting.remove(job)
                    outcomes |= {call: _refused(call, error) for call in job.calls}
                    break  # the lock may have been waited for: look after the others first
                if started is not None:
                    waiting.remove(job)
                    running[job] = started
            for job, run in list(running.items()):
                reports |= zip(job.calls, run.poll(), strict=True)
                if reports[job.first].exit_code is not None:
                    del running[job]
                    outcomes |= {
                        call: _outcome(call, reports[call], asked=stopping) for call in job.calls
                    }
            screen.show(outcomes, [call for job in running for call in job.calls], reports)
            time.sleep(POLL_SECONDS)
        screen.show(outcomes, set(), reports)
    return [outcomes[call] for call in calls]


def _outcome(call: Call, report: RunStatus, asked: bool) -> Outcome:
    """What a run came to: done is what its folder proves. `asked`: the sweep had asked it to
    stop."""
    assert report.exit_code is not None, "the process has ended"
    if is_finished(call):
        outcome = Outcome(call, DONE, str(call.folder))
    elif report.exit_code == DONE:
        steps = f"{report.env_steps:,} of {call.config.run.env_steps:,} env steps"
        outcome = Outcome(
            call,
            FAILED,
            f"its process left with exit code 0 before its end, after {steps}: {report.last_line}",
        )
    elif asked and report.exit_code in ENDED_BY_SIGNAL:
        outcome = Outcome(
            call, STOPPED, "stopped before it could save; what was saved before is kept"
        )
    else:
        outcome = Outcome(call, report.exit_code, report.last_line)
    return _marked(outcome)


def _refused(call: Call, error: ConfigError | OSError) -> Outcome:
    """Of a run that could not be started. Nothing was tried, so nothing is marked as failed."""
    if is_finished(call):  # by another process, meanwhile
        return _marked(Outcome(call, DONE, str(call.folder)))
    if isinstance(error, ConfigError):
        return Outcome(call, BAD_INPUT, " ".join(str(error).split()))
    if error.errno in FULL_DISK:
        return Outcome(call, FAILED, full_disk(call.out))
    return Outcome(call, BAD_INPUT, f"cannot start the run in {call.folder}: {error}")


def _marked(outcome: Outcome) -> Outcome:
    """Its mark written or taken back; what prevents that, such as a full disk, is said with how the
    run ended."""
    try:
        mark(outcome)
    except OSError as error:
        is_full = error.errno in FULL_DISK
        if is_full and outcome.last_line.startswith("the disk is full"):
            return outcome
        path = outcome.call.folder / FAILURE_MARK
        why = full_disk(outcome.call.out) if is_full else f"cannot change {path}: {error.strerror}"
        return outcome._replace(last_line=f"{outcome.last_line}; {why}")
    return outcome
