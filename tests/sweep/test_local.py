"""Packing of runs on this machine, and what becomes of those that fail."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cclf import machine, presets
from cclf.runtime.stop import Stop
from cclf.sweep import child
from cclf.sweep.local import LocalBackend, visible_gpus
from cclf.sweep.loop import run_all
from cclf.sweep.plan import DONE, FAILURE_MARK, PROCESS_BYTES, STOPPED, Call, Job, Outcome, Report, call_of
from cclf.sweep.screen import Screen

SLEEP = "import sys, time; print('asleep', flush=True); time.sleep(60)"


def call(out: Path, seed: int, task: str = "minigrid/DoorKey-5x5", replay_bytes: int = 0, threads: int = 1) -> Call:
    config = presets.resolve(task, "cclf", seed=seed)
    return call_of(replace(config, run=replace(config.run, threads=threads)), out, (), replay_bytes)


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


def fill(backend: LocalBackend, calls: list[Call]) -> int:
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
    assert fill(LocalBackend(jobs=6, memory_bytes=plenty, gpus=()), six) == 6, "as told, whatever the cores"
    assert fill(LocalBackend(memory_bytes=3 * PROCESS_BYTES, gpus=()), six) == 3
    assert fill(LocalBackend(memory_bytes=1, gpus=()), six) == 1, "one always goes, and says itself what it lacks"
    assert fill(LocalBackend(memory_bytes=plenty, gpus=()), [call(tmp_path, seed, threads=2) for seed in range(6)]) == 2
    large = [call(tmp_path, seed, replay_bytes=2 * PROCESS_BYTES) for seed in range(2)]
    assert fill(LocalBackend(memory_bytes=5 * PROCESS_BYTES, gpus=()), [*large, *six]) == 3, (
        "a small one fits where a large one does not"
    )
    on_gpu = [call(tmp_path, seed, "toy/reach-1d") for seed in range(6)]
    commands.clear()
    assert fill(LocalBackend(memory_bytes=plenty, gpus=("0", "GPU-b")), on_gpu) == 2
    assert [env["CUDA_VISIBLE_DEVICES"] for env in commands] == ["0", "GPU-b"]
    assert fill(LocalBackend(memory_bytes=plenty, gpus=("0",), runs_per_gpu=3), on_gpu) == 3
    assert fill(LocalBackend(memory_bytes=plenty, gpus=("0",)), [*on_gpu[:2], *six]) == 4, "A2C needs none"


def test_a_gpu_is_given_on_when_its_run_ends(tmp_path: Path, commands: list[dict[str, str]]) -> None:
    backend = LocalBackend(jobs=4, memory_bytes=100 * PROCESS_BYTES, gpus=("7",))
    first = backend.start(Job((call(tmp_path, 1, "toy/reach-1d"),)))
    assert first is not None
    assert backend.start(Job((call(tmp_path, 2, "toy/reach-1d"),))) is None
    first.process.kill()
    first.process.wait()
    assert first.poll()[0].exit_code == -9
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


def test_a_failed_run_is_reported_and_kept_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    popen = child.subprocess.Popen

    def one_crashes(words: list[str], **options: Any) -> Any:
        crash = "import os; print('about to crash', flush=True); os.abort()"
        return popen([sys.executable, "-c", crash if "1" in words else "print('well')"], **options)

    monkeypatch.setattr(child.subprocess, "Popen", one_crashes)
    calls = [call(tmp_path, seed) for seed in (1, 2)]
    bad, good = run_all(calls, LocalBackend(jobs=1, gpus=()), Stop())
    assert (bad.failed, bad.exit_code, bad.last_line) == (True, -6, "about to crash")
    assert (good.failed, good.exit_code, good.last_line) == (False, DONE, str(calls[1].folder))
    assert json.loads((calls[0].folder / FAILURE_MARK).read_text())["exit_code"] == -6
    assert "about to crash" in (calls[0].folder / child.LOG).read_text()
    assert not (calls[1].folder / FAILURE_MARK).exists()


def test_of_several_seeds_in_a_process_those_that_came_to_their_end_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = [call(tmp_path, seed) for seed in (1, 2)]
    state = calls[1].folder / "checkpoint/00000001/state.json"
    facts = json.dumps({"agent_steps": calls[1].config.run.env_steps, "evaluation_due": False})
    code = f"import pathlib, sys; p = pathlib.Path({str(state)!r}); p.parent.mkdir(parents=True); p.write_text({facts!r}); "
    code += "sys.exit(1)"
    popen = child.subprocess.Popen
    monkeypatch.setattr(child.subprocess, "Popen", lambda _, **options: popen([sys.executable, "-c", code], **options))
    outcomes = run_all(calls, LocalBackend(gpus=()), Stop(), seeds_per_process=2)
    assert [outcome.exit_code for outcome in outcomes] == [1, DONE]


def test_what_was_not_begun_is_stopped_and_what_was_is_asked_to_save(tmp_path: Path, commands: list[dict[str, str]]) -> None:
    class AfterAWhile:
        polls = 0

        @property
        def requested(self) -> bool:
            self.polls += 1
            return "asleep" in "".join(path.read_text() for path in tmp_path.rglob(child.LOG))

    outcomes: list[Outcome] = run_all([call(tmp_path, seed) for seed in (1, 2)], LocalBackend(jobs=1, gpus=()), AfterAWhile())  # type: ignore[arg-type]
    assert [outcome.exit_code for outcome in outcomes] == [-15, STOPPED], (
        "the idle process knows no better than to die of SIGTERM"
    )
    assert len(commands) == 1
    assert os.path.exists(outcomes[0].call.folder)


def test_the_live_table_shows_what_ended_what_runs_and_what_waits(tmp_path: Path) -> None:
    calls = [call(tmp_path, seed) for seed in (1, 2, 3)]
    outcomes = {calls[0]: Outcome(calls[0], -9, "killed")}
    reports = {calls[1]: Report(123_456, 0.875)}
    console = Console(width=120)
    with console.capture() as capture:
        console.print(Screen(calls).table(outcomes, [calls[1]], reports))
    lines = [line.split() for line in capture.get().splitlines() if "DoorKey" in line]
    assert [line[2] for line in lines] == ["1", "2", "3"]
    assert "failed" in lines[0]
    assert (lines[1][3], lines[1][-1]) == ("123,456", "0.875")
    assert (lines[2][3], lines[2][-1]) == ("0", "-")
    assert "1 of 3 runs ended" in capture.get()
