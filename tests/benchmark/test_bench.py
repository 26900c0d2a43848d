"""Benchmarks of updates, small enough for a CPU."""

import pytest

from cclf import cli
from cclf.benchmark import updates
from tiny_runs import tiny_config


@pytest.mark.quick("sac-cclf")
@pytest.mark.parametrize(("base", "method"), [("sac", "cclf"), ("drqv2", "drq-v2+cclf")])
def test_update_benchmark_reports_times_and_parity(base: str, method: str) -> None:
    report = updates.bench_updates([tiny_config(base=base, method=method, env_steps=200)], "cpu", 2)
    figures = report[method]
    assert figures["parity"]["step_cosine"] == pytest.approx(1.0)
    assert figures["p10_ms"] <= figures["median_ms"] <= figures["p90_ms"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("minigrid --seconds nan", "--seconds nan must lie in [0.01, 86400]"),
        ("loop --seconds inf", "--seconds inf must lie in"),
        ("loop --seconds 0", "--seconds 0.0 must lie in"),
        ("minigrid --processes -1", "--processes -1 must lie in [0, 1024]"),
        ("minigrid --processes 100000", "--processes 100000 must lie in"),
        ("minigrid --methods", "--methods needs at least one value"),
        ("update --pairs 1", "--pairs 1 must lie in [2,"),
        ("update --pairs 99999999999999999999", "must lie in [2,"),
        ("rainbow --rounds 99999999999", "--rounds 99999999999 must lie in"),
        ("rainbow --stacks", "--stacks needs at least one value"),
        ("rainbow --replay-transitions 99", "--replay-transitions 99 must lie in [100,"),
        ("loop --task toy/catch", "e.g. toy/reach, or cclf bench rainbow"),
        ("update --task toy/catch", "e.g. toy/reach, or cclf bench rainbow"),
        ("loop --task minigrid/Empty-5x5", "use a task with continuous actions, e.g. toy/reach"),
        ("loop --device cpu:1", "device 'cpu:1' is not supported"),
    ],
)
def test_invalid_benchmark_options_are_refused_in_one_line(
    words: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", *words.split()]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert line in err
