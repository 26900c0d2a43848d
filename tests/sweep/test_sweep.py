"""Sweeps and the demo with real but tiny runs."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cclf import cli
from cclf.analysis.load import read_runs
from cclf.commands import demo
from cclf.errors import EXIT_STOPPED
from tiny_rows import row
from tiny_sweep import GRID

QUIET = ["--eval-episodes", "2", "--no-tensorboard", "--no-video"]
TINY = ["--env-steps", "512", "--eval-every-env-steps", "256", *QUIET]
LONG = ["--env-steps", "3000000", "--eval-every-env-steps", "3000000", *QUIET]


def sweep_words(out: Path, *words: str) -> list[str]:
    return ["sweep", "--tasks", GRID, "--methods", "a2c", "--seeds", "2", "--out", str(out), *words]


def test_sweep_trains_every_run_and_a_second_one_skips_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = sweep_words(tmp_path, "--jobs", "2", "--", *TINY)
    assert cli.main(words) == 0
    assert "1 of 1 runs done" in capsys.readouterr().err
    rows = [(row.method, row.seed, row.env_steps) for row in read_runs(tmp_path)]
    assert rows == [("a2c", 2, 256), ("a2c", 2, 512)]
    before = {path: path.read_bytes() for path in tmp_path.rglob("train.csv")}
    assert cli.main(words) == 0
    assert {path: path.read_bytes() for path in tmp_path.rglob("train.csv")} == before


DEFAULT_TEST_OF_STOPS = (
    "sweep/test_local.py::test_stop_request_reaches_running_runs_and_starts_no_others"
)


@pytest.mark.slow(DEFAULT_TEST_OF_STOPS)
def test_deadline_stops_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = sweep_words(tmp_path, "--stop-after-seconds", "8", "--", *LONG)
    assert cli.main(words) == EXIT_STOPPED
    assert "1 stopped" in capsys.readouterr().err
    assert list(tmp_path.rglob("state.json"))


@pytest.mark.slow(DEFAULT_TEST_OF_STOPS)
def test_signal_to_a_sweep_lets_its_runs_save(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cclf.cli", *sweep_words(tmp_path, "--", *LONG)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(tmp_path.rglob("train.csv")) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == EXIT_STOPPED, errors
    assert list(tmp_path.rglob("state.json")), "the run was asked to save"


@pytest.mark.slow("test_demo_prints_how_many_runs_of_each_method_solved_the_task")
def test_demo_trains_prints_results_and_writes_both_pages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "TASK", GRID)
    monkeypatch.setattr(demo, "SEEDS", (1,))
    monkeypatch.setattr(demo, "OPTIONS", [*TINY, "--log-every-agent-steps", "128"])
    assert cli.main(["demo", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[-2:] == [str(tmp_path / "report.html"), str(tmp_path / "curiosity.html")]
    assert "The most curious" in (tmp_path / "curiosity.html").read_text()


def test_demo_prints_how_many_runs_of_each_method_solved_the_task(
    capsys: pytest.CaptureFixture[str],
) -> None:
    returns = {"a2c": (0.1, 0.5), "cclf": (0.2, 0.96), "cclf-shuffled": (0.92, 0.94)}
    demo._print_results(
        row(method, seed, env_steps, value)
        for method, values in returns.items()
        for seed in (1, 2, 3)
        for env_steps, value in zip((100, 200), values, strict=True)
    )
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for line in (
        "a2c 0.500 0 of 3 never",
        "cclf 0.960 3 of 3 200",
        "cclf-shuffled 0.940 3 of 3 100",
    ):
        assert line in lines
