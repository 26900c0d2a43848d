"""Sweeps and the demo: real runs, tiny ones."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cclf import cli
from cclf.analysis.load import read_runs
from cclf.commands import demo
from cclf.commands.sweep import plan
from cclf.errors import EXIT_STOPPED
from tiny_rows import row

TINY = [
    "--env-steps",
    "512",
    "--eval-every-env-steps",
    "256",
    "--eval-episodes",
    "2",
    "--no-tensorboard",
    "--no-video",
]
LONG = ["--env-steps", "3000000", "--eval-every-env-steps", "3000000", *TINY[4:]]
TASK = "minigrid/DoorKey-5x5"


def test_a_sweep_trains_every_run_and_a_second_one_skips_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "sweep",
        "--tasks",
        TASK,
        "--methods",
        "a2c",
        "--seeds",
        "2",
        "--out",
        str(tmp_path),
        "--jobs",
        "2",
    ]
    assert cli.main([*arguments, "--", *TINY]) == 0
    assert "1 of 1 runs done" in capsys.readouterr().err
    rows = read_runs(tmp_path)
    assert [(row.method, row.seed, row.env_steps) for row in rows] == [
        ("a2c", 2, 256),
        ("a2c", 2, 512),
    ]
    before = {path: path.read_bytes() for path in tmp_path.rglob("train.csv")}
    assert cli.main([*arguments, "--", *TINY]) == 0
    assert {path: path.read_bytes() for path in tmp_path.rglob("train.csv")} == before


def test_a_sweep_has_every_method_with_every_seed(tmp_path: Path) -> None:
    calls = plan([TASK], ["a2c", "cclf"], ["released"], [1, 2], tmp_path, TINY)
    assert sorted((call.config.method_name, call.config.seed) for call in calls) == [
        (method, seed) for method in ("a2c", "cclf") for seed in (1, 2)
    ]


@pytest.mark.slow(
    "sweep/test_local.py::test_what_was_not_begun_is_stopped_and_what_was_is_asked_to_save"
)
def test_a_deadline_stops_a_sweep_which_then_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "sweep",
        "--tasks",
        TASK,
        "--methods",
        "a2c",
        "--seeds",
        "1",
        "--out",
        str(tmp_path),
        "--jobs",
        "1",
    ]
    assert cli.main([*arguments, "--stop-after-seconds", "8", "--", *LONG]) == EXIT_STOPPED
    assert "1 stopped" in capsys.readouterr().err
    assert list(tmp_path.rglob("state.json"))


@pytest.mark.slow(
    "sweep/test_local.py::test_what_was_not_begun_is_stopped_and_what_was_is_asked_to_save"
)
def test_a_signal_to_a_sweep_lets_its_runs_save(tmp_path: Path) -> None:
    arguments = [
        "sweep",
        "--tasks",
        TASK,
        "--methods",
        "a2c",
        "--seeds",
        "1",
        "--out",
        str(tmp_path),
        "--jobs",
        "1",
        "--",
        *LONG,
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "cclf.cli", *arguments], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.rglob("train.csv")) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == EXIT_STOPPED, errors
    assert list(tmp_path.rglob("state.json")), "the run was asked to save, not left running"


def test_bad_names_end_a_sweep_before_it_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs"
    assert cli.main(["sweep", "--tasks", TASK, "--methods", "a2c", "cclv", "--out", str(out)]) == 2
    assert "did you mean cclf" in capsys.readouterr().err
    assert (
        cli.main(
            [
                "sweep",
                "--tasks",
                TASK,
                "--methods",
                "a2c",
                "--out",
                str(out),
                "--",
                "--num-env",
                "3",
            ]
        )
        == 2
    )
    assert not out.exists()


def test_results_of_nothing_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["results", str(tmp_path)]) == 2
    assert "holds neither runs" in capsys.readouterr().err


@pytest.mark.slow("test_the_demo_prints_how_many_runs_of_each_method_solved_the_task")
def test_the_demo_trains_prints_findings_and_writes_both_pages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "TASK", TASK)
    monkeypatch.setattr(demo, "SEEDS", (1,))
    monkeypatch.setattr(demo, "OPTIONS", [*TINY, "--log-every-agent-steps", "128"])
    assert cli.main(["demo", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[-2:] == [str(tmp_path / "report.html"), str(tmp_path / "curiosity.html")]
    assert "The most curious" in (tmp_path / "curiosity.html").read_text()


def test_the_demo_prints_how_many_runs_of_each_method_solved_the_task(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [
        row(method, seed, env_steps, value)
        for method, values in (
            ("a2c", (0.1, 0.5)),
            ("cclf", (0.2, 0.96)),
            ("cclf-shuffled", (0.92, 0.94)),
        )
        for seed in (1, 2, 3)
        for env_steps, value in zip((100, 200), values, strict=True)
    ]
    demo._print_results(rows)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for line in (
        "a2c 0.500 0 of 3 never",
        "cclf 0.960 3 of 3 200",
        "cclf-shuffled 0.940 3 of 3 100",
    ):
        assert line in lines


@pytest.mark.slow("test_the_update_benchmark_checks_parity_first")
def test_the_loop_benchmark_counts_steps(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    arguments = [
        "--task",
        "toy/reach-1d",
        "--method",
        "rad",
        "--seconds",
        "0.3",
        "--device",
        "cpu",
        "--json",
    ]
    assert cli.main(["bench", "loop", *arguments]) == 0
    report = json.loads(capsys.readouterr().out)["rad"]
    assert report["agent_steps_per_second"] > 0


def test_the_update_benchmark_checks_parity_first(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    assert (
        cli.main(
            [
                "bench",
                "update",
                "--task",
                "toy/reach-1d",
                "--methods",
                "drq",
                "--pairs",
                "2",
                "--device",
                "cpu",
                "--json",
            ]
        )
        == 0
    )
    report = json.loads(capsys.readouterr().out)
    assert report["drq"]["median_ms"] > 0
    parity = report["drq"]["parity"]
    assert parity["least_step_cosine"] == parity["step_cosine"] == pytest.approx(1.0, abs=1e-12)
