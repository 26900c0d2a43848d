"""Benchmarks of updates and of training, small enough for a CPU."""

import json
from dataclasses import replace

import pytest

from cclf import benchmark, cli
from tiny_runs import CPU, tiny_config


def report_of(capsys: pytest.CaptureFixture[str], words: str) -> dict[str, dict[str, float]]:
    """The document that `cclf bench` prints, with nothing else on standard output."""
    assert cli.main(["bench", *words.split(), "--device", "cpu", "--json"]) == 0
    report: dict[str, dict[str, float]] = json.loads(capsys.readouterr().out)
    assert {"task", "device", "commit", "command"} <= report.keys()
    return report


def test_bench_update_prints_times_and_parity(capsys: pytest.CaptureFixture[str]) -> None:
    figures = report_of(capsys, "update --task toy/reach-1d --methods drq --pairs 2")["drq"]
    assert 0 < figures["p10_ms"] <= figures["median_ms"] <= figures["p90_ms"]
    cosines = figures["parity"]["step_cosine"], figures["parity"]["least_step_cosine"]
    assert cosines == (pytest.approx(1.0, abs=1e-12),) * 2


@pytest.mark.slow("test_bench_update_prints_times_and_parity")
@pytest.mark.parametrize(("base", "method"), [("sac", "cclf"), ("drqv2", "drq-v2+cclf")])
def test_parity_of_cclf_is_one_on_a_cpu(base: str, method: str) -> None:
    report = benchmark.bench_updates(
        [tiny_config(base=base, method=method, env_steps=200)], "cpu", 2
    )
    assert report[method]["parity"]["step_cosine"] == pytest.approx(1.0)


@pytest.mark.slow("test_bench_update_prints_times_and_parity")
def test_bench_loop_counts_steps(capsys: pytest.CaptureFixture[str]) -> None:
    figures = report_of(capsys, "loop --task toy/reach-1d --method rad --seconds 0.3")["rad"]
    assert figures["agent_steps_per_second"] > 0


def test_parity_reports_the_worst_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other discounts: other targets, other steps. Over two batches the least is below the median."""
    config = benchmark.bench_configs("toy/reach-1d", None, ["drq"], "fp32")[0]
    config = replace(config, algorithm=replace(config.algorithm, batch_size=8))
    learner = benchmark.make_off_policy_learner(config, CPU)
    benchmark._fill_replay(learner, benchmark._random_frames(learner, 20))
    other = replace(config, algorithm=replace(config.algorithm, discount=0.5))
    monkeypatch.setattr(benchmark, "float32_config", lambda _: other)
    monkeypatch.setattr(benchmark, "PARITY_BATCHES_ON_CPU", 2)
    found = benchmark.step_parity(config, learner)
    assert found["least_step_cosine"] < found["step_cosine"] < 1.0 - 1e-6
    assert found["critic_loss_relative_difference"] > 0.0
    learner.close()


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
