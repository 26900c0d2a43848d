"""Packing of runs on this machine, and what becomes of those that fail."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
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
    make_run_spec,
    summarize,
)
from cclf.sweep.scheduler import run_all
from cclf.training.signals import SIGNALS, StopSignal

# The signals that its sweep held back for it it takes as any program does.
SLEEP = "import sys, time, signal; signal.pthread_sigmask(signal.SIG_SETMASK, []); print('asleep', flush=True); time.sleep(60)"


def finishing(run: RunSpec) -> str:
    """A program that leaves the folder of `run` as one that came to its end."""
    state = run.folder / "checkpoint/00000001/state.json"
    facts = json.dumps({"agent_steps": run.config.run.env_steps, "evaluation_due": False})
    return f"import pathlib, sys; p = pathlib.Path({str(state)!r}); p.parent.mkdir(parents=True); p.write_text({facts!r}); "


def call(
    out: Path,
    seed: int,
    task: str = "minigrid/DoorKey-5x5",
    replay_bytes: int = 0,
    threads: int = 1,
) -> RunSpec:
    config = presets.resolve(task, "cclf", seed=seed)
    config = replace(config, run=replace(config.run, threads=threads, final_eval_episodes=0))
    return make_run_spec(config, out, (), replay_bytes)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Runs become idle processes; what each found in its environment."""
    begun: list[dict[str, str]] = []
    popen = child.subprocess.Popen

    def idle(_: list[str], env: dict[str, str], **options: Any) -> Any:
        begun.append(env)
        return popen([sys.executable, "-c", SLEEP], env=env, **options)

    monkeypatch.setattr(child.subprocess, "Popen", idle)
    return begun


def fill(backend: LocalBackend, calls: list[RunSpec]) -> int:
    """How many of them find a place."""
    runs = [backend.start(Job((single,))) for single in calls]
    for run in runs:
        if run is not None:
            run.process.kill()
            run.process.wait()
    return sum(run is not None for run in runs)


def test_cores_memory_and_gpus_each_set_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: list[dict[str, str]]
) -> None:
    monkeypatch.setattr(machine, "usable_processors", lambda: 4)
    six = [call(tmp_path, seed) for seed in range(6)]
    plenty = 100 * PROCESS_BYTES
    assert fill(LocalBackend(memory_bytes=plenty, gpus=()), six) == 4
    assert fill(LocalBackend(jobs=2, memory_bytes=plenty, gpus=()), six) == 2
    assert fill(LocalBackend(jobs=6, memory_bytes=plenty, gpus=()), six) == 6, (
        "as told, whatever the cores"
    )
    assert fill(LocalBackend(memory_bytes=3 * PROCESS_BYTES, gpus=()), six) == 3
    assert fill(LocalBackend(memory_bytes=1, gpus=()), six) == 1, (
        "one always goes, and says itself what it lacks"
    )
    assert (
        fill(
            LocalBackend(memory_bytes=plenty, gpus=()),
            [call(tmp_path, seed, threads=2) for seed in range(6)],
        )
        == 2
    )
    large = [call(tmp_path / "large", seed, replay_bytes=2 * PROCESS_BYTES) for seed in range(2)]
    assert fill(LocalBackend(memory_bytes=5 * PROCESS_BYTES, gpus=()), [*large, *six]) == 3, (
        "a small one fits where a large one does not"
    )
    on_gpu = [call(tmp_path, seed, "toy/reach-1d") for seed in range(6)]
    commands.clear()
    assert fill(LocalBackend(memory_bytes=plenty, gpus=("0", "GPU-b")), on_gpu) == 2
    assert [env["CUDA_VISIBLE_DEVICES"] for env in commands] == ["0", "GPU-b"]
    assert fill(LocalBackend(memory_bytes=plenty, gpus=("0",), runs_per_gpu=3), on_gpu) == 3
    assert fill(LocalBackend(memory_bytes=plenty, gpus=("0",)), [*on_gpu[:2], *six]) == 4, (
        "A2C needs none"
    )


def test_a_gpu_is_given_on_when_its_run_ends(
    tmp_path: Path, commands: list[dict[str, str]]
) -> None:
    backend = LocalBackend(jobs=4, memory_bytes=100 * PROCESS_BYTES, gpus=("7",))
    first = backend.start(Job((call(tmp_path, 1, "toy/reach-1d"),)))
    assert first is not None
    assert backend.start(Job((call(tmp_path, 2, "toy/reach-1d"),))) is None
    first.process.kill()
    first.process.wait()
    assert (end := first.poll()) is not None
    assert end.exit_code == -9
    second = backend.start(Job((call(tmp_path, 2, "toy/reach-1d"),)))
    assert second is not None
    assert commands[-1]["CUDA_VISIBLE_DEVICES"] == "7"
    second.process.kill()
    second.process.wait()


def test_gpus_are_those_that_this_process_may_see(monkeypatch: pytest.MonkeyPatch) -> None:
    for chosen, seen in (("1,3", ("1", "3")), ("", ()), ("-1", ())):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
        assert visible_gpus() == seen
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(machine, "gpus", lambda: [{}, {}])
    assert visible_gpus() == ("0", "1")


def test_a_failed_run_is_reported_and_kept_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    popen = child.subprocess.Popen

    def one_crashes(words: list[str], **options: Any) -> Any:
        crash = "import os; print('about to crash', flush=True); os.abort()"
        return popen(
            [sys.executable, "-c", crash if "1" in words else finishing(calls[1])], **options
        )

    monkeypatch.setattr(child.subprocess, "Popen", one_crashes)
    calls = [call(tmp_path, seed) for seed in (1, 2)]
    bad, good = run_all(calls, LocalBackend(jobs=1, gpus=()), StopSignal())
    assert (bad.failed, bad.exit_code, bad.last_line) == (
        True,
        -6,
        "ended by SIGABRT: about to crash",
    )
    assert (good.failed, good.exit_code, good.last_line) == (False, EXIT_DONE, str(calls[1].folder))
    assert json.loads((calls[0].folder / FAILURE_MARK).read_text())["exit_code"] == -6
    assert "about to crash" in (calls[0].folder / child.LOG).read_text()
    assert not (calls[1].folder / FAILURE_MARK).exists()


def test_of_several_seeds_in_a_process_those_that_came_to_their_end_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = [call(tmp_path, seed, "toy/catch") for seed in (1, 2)]
    code = finishing(calls[1]) + "sys.exit(1)"
    popen = child.subprocess.Popen
    monkeypatch.setattr(
        child.subprocess,
        "Popen",
        lambda _, **options: popen([sys.executable, "-c", code], **options),
    )
    outcomes = run_all(calls, LocalBackend(gpus=()), StopSignal(), seeds_per_process=2)
    assert [outcome.exit_code for outcome in outcomes] == [1, EXIT_DONE]


def becomes(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Every run is this program instead."""
    popen = child.subprocess.Popen
    monkeypatch.setattr(
        child.subprocess,
        "Popen",
        lambda _, **options: popen([sys.executable, "-c", program], **options),
    )


def test_a_process_that_leaves_early_with_exit_code_0_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    becomes(monkeypatch, "print('goodbye')")
    run = call(tmp_path, 1)
    [outcome] = run_all([run], LocalBackend(gpus=()), StopSignal())
    assert (outcome.failed, outcome.exit_code) == (True, 1)
    assert "exit code 0 after 0 of 400,000 env steps: goodbye" in outcome.last_line
    assert (run.folder / FAILURE_MARK).exists()


@pytest.mark.parametrize("code", [1, 2, 75, 143, -9])
def test_a_run_that_reached_its_end_is_done_whatever_its_process_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    run = call(tmp_path, 1)
    ending = "import os; os.kill(os.getpid(), 9)" if code == -9 else f"sys.exit({code})"
    becomes(monkeypatch, finishing(run) + ending)
    [outcome] = run_all([run], LocalBackend(gpus=()), StopSignal())
    assert outcome.exit_code == EXIT_DONE


def test_a_finished_run_loses_the_mark_of_an_earlier_failure(tmp_path: Path) -> None:
    run = call(tmp_path, 1)
    exec(finishing(run))
    (run.folder / FAILURE_MARK).write_text("{}")
    [outcome] = run_all([run], LocalBackend(gpus=()), StopSignal())
    assert (outcome.exit_code, outcome.last_line) == (EXIT_DONE, "finished before")
    assert not (run.folder / FAILURE_MARK).exists()


def test_a_signal_that_nobody_asked_for_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "import os, signal; signal.pthread_sigmask(signal.SIG_SETMASK, []); os.kill(os.getpid(), signal.SIGTERM)"
    becomes(monkeypatch, program)
    [outcome] = run_all([call(tmp_path, 1)], LocalBackend(gpus=()), StopSignal())
    assert outcome.exit_code == -15
    assert (outcome.spec.folder / FAILURE_MARK).exists()


TOY = (
    "toy/reach-1d",
    "--method",
    "rad",
    "--seed",
    "1",
    "--device",
    "cpu",
    "--no-tensorboard",
    "--no-video",
)


def signalled(
    out: Path, number: signal.Signals, delay_seconds: float, *options: str
) -> "subprocess.Popen[bytes]":
    """A run that gets a signal so long after its process was made."""
    job = Job((RunSpec(presets.resolve("toy/reach-1d", "rad", seed=1), (*TOY, *options), out),))
    process = child.Child(job, out, {}).process
    time.sleep(delay_seconds)
    process.send_signal(number)
    return process


@pytest.mark.quick("15")
@pytest.mark.parametrize("number", SIGNALS, ids=int)
def test_a_signal_in_the_first_instant_does_not_kill_a_run(
    tmp_path: Path, number: signal.Signals
) -> None:
    """Its process has not even become Python yet. A dry run has nothing to save and ends as
    ever."""
    assert signalled(tmp_path, number, 0.0, "--dry-run").wait(60) == 0


@pytest.mark.slow("test_a_signal_in_the_first_instant_does_not_kill_a_run")
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_at_any_moment_of_its_start_stops_a_run_and_never_kills_it(
    tmp_path: Path, number: signal.Signals
) -> None:
    delays = [0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6]
    begun = [
        signalled(tmp_path / str(delay), number, delay, "--env-steps", "100000") for delay in delays
    ]
    codes = [process.wait(240) for process in begun]
    said = "".join(path.read_text() for path in tmp_path.rglob(child.LOG))
    assert codes == [EXIT_STOPPED] * len(delays), said
    assert "Traceback" not in said


def test_what_was_not_begun_is_stopped_and_what_was_is_asked_to_save(
    tmp_path: Path, commands: list[dict[str, str]]
) -> None:
    class AfterAWhile:
        polls = 0

        @property
        def requested(self) -> bool:
            self.polls += 1
            return "asleep" in "".join(path.read_text() for path in tmp_path.rglob(child.LOG))

    outcomes: list[RunOutcome] = run_all(
        [call(tmp_path, seed) for seed in (1, 2)], LocalBackend(jobs=1, gpus=()), AfterAWhile()
    )  # type: ignore[arg-type]
    assert [outcome.exit_code for outcome in outcomes] == [EXIT_STOPPED, EXIT_STOPPED], (
        "also where it knew no better than to die of it"
    )
    assert len(commands) == 1
    assert os.path.exists(outcomes[0].spec.folder)
    assert not (outcomes[0].spec.folder / FAILURE_MARK).exists()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_terminal_shows_ended_runs_as_lines_and_running_ones_as_bars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    calls = [call(tmp_path, seed) for seed in (1, 2, 3)]
    outcomes = {calls[0]: RunOutcome(calls[0], -9, "killed")}
    calls[1].folder.mkdir(parents=True)
    (calls[1].folder / "train.csv").write_text("env_steps,episode_return\n123456,0.875\n")
    with SweepDisplay(calls) as display:
        display.show(outcomes, [calls[1]])
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue())
    assert f"[1/3] failed: {calls[0].label}: killed" in text
    assert re.search(r"0 of 3 runs done, 1 failed, 1 running, 1 waiting .* 1/3 runs", text)
    assert re.search(rf"{calls[1].label} .* 123,456/400,000 env steps  left -  return 0.875", text)
    assert calls[2].label not in text


def test_counts_after_a_stop_are_honest(
    tmp_path: Path, commands: list[dict[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    class AfterAWhile:
        @property
        def requested(self) -> bool:
            return "asleep" in "".join(path.read_text() for path in tmp_path.rglob(child.LOG))

    calls = [call(tmp_path, seed) for seed in (1, 2, 3)]
    outcomes = run_all(calls, LocalBackend(jobs=1, gpus=()), AfterAWhile())  # type: ignore[arg-type]
    assert [outcome.state for outcome in outcomes] == ["stopped", "not started", "not started"]
    assert summarize(outcomes, 3) == "0 of 3 runs done, 1 stopped, 2 not started"
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("stopping: 1 to be saved, 2 not started; Ctrl-C again")
    assert len(said) == 2, "no line for each that was not started"
    assert len(commands) == 1


def test_the_time_left_of_a_sweep(tmp_path: Path) -> None:
    seconds = 0.0
    calls = [call(tmp_path, seed) for seed in (1, 2, 3, 4)]
    total = calls[0].config.run.env_steps
    left = SweepDisplay(calls, lambda: seconds)
    running = calls[1:3]
    outcomes = {calls[0]: RunOutcome(calls[0], EXIT_DONE, "")}
    for second in range(100):  # of a warm-up: a thousand steps each
        seconds = float(second)
        left.update(outcomes, dict.fromkeys(running, RunProgress(1_000 * second)))
    assert left.seconds_left(running) is None
    begun = 1_000 * 99
    for second in range(200):
        seconds = 100.0 + second
        status = RunProgress(begun + 10 * second, updates=1 + second)
        left.update(outcomes, dict.fromkeys(running, status))
    steps_left = 2 * (total - begun - 10 * 199) + total
    assert left.seconds_left(running) == pytest.approx(steps_left / 20.0, rel=0.02)
    alone = left.seconds_left(running[:1])
    assert alone == pytest.approx(steps_left / 10.0, rel=0.02), "one at a time"


def test_the_last_run_of_a_sweep_takes_what_it_takes(tmp_path: Path) -> None:
    seconds = 0.0
    long, short = call(tmp_path, 1), call(tmp_path, 2)
    total = long.config.run.env_steps
    left = SweepDisplay([long, short], lambda: seconds)
    for second in range(100):
        seconds = float(second)
        slow, fast = RunProgress(10 * second, 1), RunProgress(1_000 * second, 1)
        left.update({}, {long: slow, short: fast})
    assert left.seconds_left([long, short]) == pytest.approx((total - 990) / 10.0, rel=0.02)
