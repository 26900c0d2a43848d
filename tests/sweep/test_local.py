"""Sweeps on this machine: how runs share it, how each run ends, and what the sweep prints."""

import io
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cclf import presets
from cclf.errors import EXIT_DONE, EXIT_STOPPED
from cclf.storage import machine
from cclf.sweep import child
from cclf.sweep.display import SweepDisplay
from cclf.sweep.local import LocalBackend, visible_gpus
from cclf.sweep.plan import (
    FAILURE_MARK,
    PROCESS_BYTES,
    Job,
    RunOutcome,
    RunProgress,
    RunSpec,
    summarize,
)
from cclf.sweep.scheduler import run_all
from cclf.training.signals import SIGNALS, StopSignal
from tiny_sweep import POPEN, becomes, finishing, spec

# A child starts with blocked signals; like any program it unblocks them.
UNBLOCK = "import os, signal, sys, time; signal.pthread_sigmask(signal.SIG_SETMASK, []); "
SLEEP = f"{UNBLOCK}print('asleep', flush=True); time.sleep(60)"
PLENTY = 100 * PROCESS_BYTES
TOY = "toy/reach-1d"


def run_one(run: RunSpec) -> RunOutcome:
    [outcome] = run_all([run], LocalBackend(gpus=()), StopSignal())
    return outcome


@pytest.fixture
def environments(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, str]]]:
    """Runs become idle processes; the environment variables of each."""
    started, processes = [], []

    def idle(_: list[str], env: dict[str, str], **options: Any) -> Any:
        started.append(env)
        processes.append(POPEN([sys.executable, "-c", SLEEP], env=env, **options))
        return processes[-1]

    monkeypatch.setattr(child.subprocess, "Popen", idle)
    yield started
    for process in processes:
        process.kill()
        process.wait()


def fill(backend: LocalBackend, calls: list[RunSpec]) -> int:
    """How many of the jobs are started at the same time."""
    children = [started for each in calls if (started := backend.start(Job((each,))))]
    for each in children:
        each.process.kill()
        each.process.wait()
    return len(children)


def test_cores_memory_and_gpus_limit_the_number_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environments: list[dict[str, str]]
) -> None:
    monkeypatch.setattr(machine, "usable_processors", lambda: 4)
    six = [spec(tmp_path, seed) for seed in range(6)]
    two_cores = [spec(tmp_path, seed, threads=2) for seed in range(6)]
    large = [spec(tmp_path / "large", seed, memory=2 * PROCESS_BYTES) for seed in range(2)]
    on_gpu = [spec(tmp_path, seed, TOY) for seed in range(6)]
    assert fill(LocalBackend(0, 1, PLENTY, ()), six) == 4
    assert fill(LocalBackend(2, 1, PLENTY, ()), six) == 2
    assert fill(LocalBackend(6, 1, PLENTY, ()), six) == 6, "--jobs, whatever the cores"
    assert fill(LocalBackend(0, 1, 3 * PROCESS_BYTES, ()), six) == 3
    assert fill(LocalBackend(0, 1, 1, ()), six) == 1, "one starts, and reports what is missing"
    assert fill(LocalBackend(0, 1, PLENTY, ()), two_cores) == 2
    assert fill(LocalBackend(0, 1, 5 * PROCESS_BYTES, ()), [*large, *six]) == 3
    environments.clear()
    assert fill(LocalBackend(0, 1, PLENTY, ("0", "GPU-b")), on_gpu) == 2
    assert [env["CUDA_VISIBLE_DEVICES"] for env in environments] == ["0", "GPU-b"]
    assert fill(LocalBackend(0, 3, PLENTY, ("0",)), on_gpu) == 3
    assert fill(LocalBackend(0, 1, PLENTY, ("0",)), [*on_gpu[:2], *six]) == 4, "A2C needs none"


def test_gpu_of_a_run_that_ended_is_given_to_the_next(
    tmp_path: Path, environments: list[dict[str, str]]
) -> None:
    backend = LocalBackend(jobs=4, memory_bytes=PLENTY, gpus=("7",))
    first = backend.start(Job((spec(tmp_path, 1, TOY),)))
    assert first is not None
    assert backend.start(Job((spec(tmp_path, 2, TOY),))) is None
    first.process.kill()
    first.process.wait()
    assert (end := first.poll()) is not None
    assert end.exit_code == -9
    assert backend.start(Job((spec(tmp_path, 2, TOY),))) is not None
    assert environments[-1]["CUDA_VISIBLE_DEVICES"] == "7"


def test_gpus_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    for chosen, seen in (("1,3", ("1", "3")), ("", ()), ("-1", ())):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
        assert visible_gpus() == seen
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(machine, "gpus", lambda: [{}, {}])
    assert visible_gpus() == ("0", "1")


# --- how runs end


def test_failed_run_is_reported_and_other_runs_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [spec(tmp_path, seed) for seed in (1, 2)]
    crash = "import os; print('about to crash', flush=True); os.abort()"

    def first_crashes(words: list[str], **options: Any) -> Any:
        program = crash if "1" in words else finishing(runs[1])
        return POPEN([sys.executable, "-c", program], **options)

    monkeypatch.setattr(child.subprocess, "Popen", first_crashes)
    bad, good = run_all(runs, LocalBackend(jobs=1, gpus=()), StopSignal())
    line = "ended by signal 6 (Aborted): about to crash"
    assert (bad.failed, bad.exit_code, bad.last_line) == (True, -6, line)
    assert (good.failed, good.exit_code, good.last_line) == (False, 0, str(runs[1].folder))
    assert "about to crash" in (runs[0].folder / child.LOG).read_text()
    assert (runs[0].folder / FAILURE_MARK).exists()
    assert not (runs[1].folder / FAILURE_MARK).exists()


def test_finished_runs_of_a_process_that_fails_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [spec(tmp_path, seed, "toy/catch") for seed in (1, 2)]
    becomes(monkeypatch, finishing(runs[1]) + "sys.exit(1)")
    outcomes = run_all(runs, LocalBackend(gpus=()), StopSignal(), seeds_per_process=2)
    assert [outcome.exit_code for outcome in outcomes] == [1, EXIT_DONE]


def test_process_that_ends_early_with_exit_code_0_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    becomes(monkeypatch, "print('goodbye')")
    outcome = run_one(spec(tmp_path))
    assert (outcome.failed, outcome.exit_code) == (True, 1)
    assert "exit code 0 after 0 of 400,000 env steps: goodbye" in outcome.last_line
    assert (outcome.spec.folder / FAILURE_MARK).exists()


@pytest.mark.quick("75", "-9")
@pytest.mark.parametrize("code", [1, 2, 75, 143, -9])
def test_finished_run_is_done_whatever_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    run = spec(tmp_path)
    ending = "import os; os.kill(os.getpid(), 9)" if code == -9 else f"sys.exit({code})"
    becomes(monkeypatch, finishing(run) + ending)
    assert run_one(run).exit_code == EXIT_DONE
    (run.folder / FAILURE_MARK).write_text("{}")  # of an earlier failure
    assert run_one(run)[1:] == (EXIT_DONE, "finished before")
    assert not (run.folder / FAILURE_MARK).exists()


def test_signal_that_the_sweep_did_not_send_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    becomes(monkeypatch, f"{UNBLOCK}os.kill(os.getpid(), signal.SIGTERM)")
    outcome = run_one(spec(tmp_path))
    assert outcome.exit_code == -15
    assert (outcome.spec.folder / FAILURE_MARK).exists()


def signalled(
    out: Path, number: signal.Signals, delay_seconds: float, *options: str
) -> "subprocess.Popen[bytes]":
    """The process of a run that gets a signal `delay_seconds` after its start."""
    words = (TOY, "--method", "rad", "--seed", "1", "--device", "cpu", "--no-tensorboard")
    run = RunSpec(presets.resolve(TOY, "rad", seed=1), (*words, "--no-video", *options), out)
    process = child.Child(Job((run,)), {}).process
    time.sleep(delay_seconds)
    process.send_signal(number)
    return process


@pytest.mark.quick("15")
@pytest.mark.parametrize("number", SIGNALS, ids=int)
def test_signal_in_the_first_instant_does_not_kill_a_run(
    tmp_path: Path, number: signal.Signals
) -> None:
    """The interpreter has not started yet. A dry run has nothing to save and ends normally."""
    assert signalled(tmp_path, number, 0.0, "--dry-run").wait(60) == 0


@pytest.mark.slow("test_signal_in_the_first_instant_does_not_kill_a_run")
@pytest.mark.parametrize("number", SIGNALS)
def test_signal_at_any_moment_of_its_start_stops_a_run(
    tmp_path: Path, number: signal.Signals
) -> None:
    delays = [0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6]
    started = [
        signalled(tmp_path / str(delay), number, delay, "--env-steps", "100000") for delay in delays
    ]
    codes = [process.wait(240) for process in started]
    logs = "".join(path.read_text() for path in tmp_path.rglob(child.LOG))
    assert codes == [EXIT_STOPPED] * len(delays), logs
    assert "Traceback" not in logs


def test_stop_request_reaches_running_runs_and_starts_no_others(
    tmp_path: Path, environments: list[dict[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    class WhenAsleep(StopSignal):
        @property
        def requested(self) -> bool:  # type: ignore[override]
            return any("asleep" in path.read_text() for path in tmp_path.rglob(child.LOG))

        @requested.setter
        def requested(self, _: bool) -> None: ...

    runs = [spec(tmp_path, seed) for seed in (1, 2, 3)]
    outcomes = run_all(runs, LocalBackend(jobs=1, gpus=()), WhenAsleep())
    assert [outcome.exit_code for outcome in outcomes] == [EXIT_STOPPED] * 3
    assert [outcome.state for outcome in outcomes] == ["stopped", "not started", "not started"]
    assert summarize(outcomes, 3) == "0 of 3 runs done, 1 stopped, 2 not started"
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("stopping: 1 to be saved, 2 not started; Ctrl-C again")
    assert len(lines) == 2, "no line for each that was not started"
    assert len(environments) == 1
    assert not (outcomes[0].spec.folder / FAILURE_MARK).exists()


# --- what it prints


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_terminal_shows_finished_runs_as_lines_and_running_ones_as_bars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    runs = [spec(tmp_path, seed) for seed in (1, 2, 3)]
    runs[1].folder.mkdir(parents=True)
    (runs[1].folder / "train.csv").write_text("env_steps,episode_return\n123456,0.875\n")
    with SweepDisplay(runs) as display:
        display.show({runs[0]: RunOutcome(runs[0], -9, "killed")}, [runs[1]])
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue())
    assert f"[1/3] failed: {runs[0].label}: killed" in text
    assert re.search(r"0 of 3 runs done, 1 failed, 1 running, 1 waiting .* 1/3 runs", text)
    assert re.search(rf"{runs[1].label} .* 123,456/400,000 env steps  left -  return 0.875", text)
    assert runs[2].label not in text


def test_time_left_counts_waiting_runs_and_not_the_warm_up(tmp_path: Path) -> None:
    seconds = 0.0
    runs = [spec(tmp_path, seed) for seed in (1, 2, 3, 4)]
    total, running = runs[0].config.run.env_steps, runs[1:3]
    display = SweepDisplay(runs, lambda: seconds)
    outcomes = {runs[0]: RunOutcome(runs[0], EXIT_DONE, "")}
    for second in range(100):  # of a warm-up: a thousand steps each
        seconds = float(second)
        display.update(outcomes, dict.fromkeys(running, RunProgress(1_000 * second)))
    assert display.seconds_left(running) is None
    begun = 1_000 * 99
    for second in range(200):
        seconds = 100.0 + second
        progress = RunProgress(begun + 10 * second, updates=1 + second)
        display.update(outcomes, dict.fromkeys(running, progress))
    steps_left = 2 * (total - begun - 10 * 199) + total
    assert display.seconds_left(running) == pytest.approx(steps_left / 20.0, rel=0.02)
    assert display.seconds_left(running[:1]) == pytest.approx(steps_left / 10.0, rel=0.02)


def test_time_left_is_at_least_that_of_the_slowest_run(tmp_path: Path) -> None:
    seconds = 0.0
    slow, fast = spec(tmp_path, 1), spec(tmp_path, 2)
    display = SweepDisplay([slow, fast], lambda: seconds)
    for second in range(100):
        seconds = float(second)
        display.update(
            {}, {slow: RunProgress(10 * second, 1), fast: RunProgress(1_000 * second, 1)}
        )
    expected = (slow.config.run.env_steps - 990) / 10.0
    assert display.seconds_left([slow, fast]) == pytest.approx(expected, rel=0.02)
