"""Trains the runs of a sweep with a backend. On a deadline or a signal each run is asked to save;
none is killed."""

import time
from collections.abc import Sequence
from typing import Protocol

from cclf.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, FULL_DISK, ConfigError
from cclf.sweep.display import SweepDisplay
from cclf.sweep.plan import (
    NOT_STARTED,
    Job,
    JobEnd,
    RunOutcome,
    RunSpec,
    full_disk_message,
    group_into_jobs,
    is_finished,
    read_progress,
    record_failure,
)
from cclf.training.signals import SIGNALS, StopSignal

POLL_SECONDS = 0.1
# Exit codes of a process that a signal ended before its handlers were installed, or that got a
# second signal.
ENDED_BY_SIGNAL = {code for number in SIGNALS for code in (-number, 128 + number)}


class StartedJob(Protocol):
    def poll(self) -> JobEnd | None: ...  # None while it runs
    def ask_to_stop(self) -> None: ...


class Backend(Protocol):
    def start(self, job: Job) -> StartedJob | None: ...  # None if it does not fit now


def run_all(
    specs: Sequence[RunSpec],
    backend: Backend,
    stop: StopSignal,
    stop_after_seconds: float | None = None,
    seeds_per_process: int = 1,
    games_per_process: int = 1,
) -> list[RunOutcome]:
    """Train the runs. Returns one outcome per run, in the order of `specs`. Finished runs are
    skipped; `cclf train` itself resumes stopped ones."""
    deadline = None if stop_after_seconds is None else time.monotonic() + stop_after_seconds
    outcomes: dict[RunSpec, RunOutcome] = {
        spec: record_failure(RunOutcome(spec, EXIT_DONE, "finished before"))
        for spec in specs
        if is_finished(spec)
    }
    unfinished = [spec for spec in specs if spec not in outcomes]
    waiting = group_into_jobs(unfinished, seeds_per_process, games_per_process)
    running: dict[Job, StartedJob] = {}
    stopping = False
    with SweepDisplay(specs) as display:
        while waiting or running:
            is_late = deadline is not None and time.monotonic() > deadline
            if not stopping and (stop.requested or is_late):
                stopping = True
                for spec in (spec for job in waiting for spec in job.specs):
                    outcomes[spec] = RunOutcome(spec, EXIT_STOPPED, NOT_STARTED)
                waiting = []
                display.stopping([spec for job in running for spec in job.specs], outcomes)
                for started in running.values():
                    started.ask_to_stop()
            _start_jobs(waiting, running, outcomes, backend)
            for job, started in list(running.items()):
                if (end := started.poll()) is not None:
                    del running[job]
                    outcomes |= {spec: _outcome(spec, end, stopping) for spec in job.specs}
            display.show(outcomes, [spec for job in running for spec in job.specs])
            time.sleep(POLL_SECONDS)
        display.show(outcomes, ())
    return [outcomes[spec] for spec in specs]


def _start_jobs(
    waiting: list[Job],
    running: dict[Job, StartedJob],
    outcomes: dict[RunSpec, RunOutcome],
    backend: Backend,
) -> None:
    """Move the jobs that fit from `waiting` to `running`."""
    for job in list(waiting):
        try:
            started = backend.start(job)
        except (ConfigError, OSError) as error:
            waiting.remove(job)
            outcomes |= {spec: _not_started(spec, error) for spec in job.specs}
            return  # `start` may have waited for a lock: poll the running jobs before the next one
        if started is not None:
            waiting.remove(job)
            running[job] = started


def _outcome(spec: RunSpec, end: JobEnd, stop_requested: bool) -> RunOutcome:
    """How a run ended. It is done if its folder shows that."""
    if is_finished(spec):
        outcome = RunOutcome(spec, EXIT_DONE, str(spec.folder))
    elif end.exit_code == EXIT_DONE:
        env_steps = read_progress(spec.folder).env_steps
        steps = f"{env_steps:,} of {spec.config.run.env_steps:,} env steps"
        line = f"its process ended with exit code 0 after {steps}"
        outcome = RunOutcome(spec, EXIT_FAILED, f"{line}: {end.message}")
    elif stop_requested and end.exit_code in ENDED_BY_SIGNAL:
        line = "stopped before it could save; the last checkpoint is kept"
        outcome = RunOutcome(spec, EXIT_STOPPED, line)
    else:
        outcome = RunOutcome(spec, end.exit_code, end.message)
    return record_failure(outcome)


def _not_started(spec: RunSpec, error: ConfigError | OSError) -> RunOutcome:
    """The outcome of a run that could not be started. It is not recorded as failed."""
    if isinstance(error, ConfigError):
        return RunOutcome(spec, EXIT_BAD_INPUT, " ".join(str(error).split()))
    if error.errno in FULL_DISK:
        return RunOutcome(spec, EXIT_FAILED, full_disk_message(spec.out))
    return RunOutcome(spec, EXIT_BAD_INPUT, f"cannot start the run in {spec.folder}: {error}")
