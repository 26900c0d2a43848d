"""Rainbow from the command line: training with its final evaluation, and the benchmark."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cclf import cli
from cclf.algorithms.rainbow import bench as bench_rainbow
from cclf.envs.make import make_env
from cclf.training import devices
from cclf.training.agent import load_agent
from cclf.training.seeding import derive
from cclf.training.trainer import final_evaluation
from rainbow_inputs import CPU, tiny
from test_cli import assert_refused, cclf
from tiny_runs import rows, tiny_options

WORDS = [*tiny_options(tiny("curl")), "--final-eval-episodes", 3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    code, out, err = cclf("train", *WORDS, "--out", tmp_path_factory.mktemp("runs"))
    assert code == 0, err
    return Path(out.strip())


def test_train_writes_rows_of_evaluations_and_a_final_one(folder):
    evaluations, final = rows(folder / "eval.csv"), rows(folder / "final.csv")
    assert [(row["env_steps"], row["episodes"]) for row in evaluations] == [
        ("12", "2"),
        ("24", "2"),
    ]
    assert [
        (row["env_steps"], row["agent_steps"], row["updates"], row["episodes"]) for row in final
    ] == [("24", "24", "13", "3")]
    assert final[0].keys() == evaluations[0].keys()
    assert len(final[0]["returns"].split()) == 3
    assert rows(folder / "train.csv")[-1]["updates"] == "9"


def test_the_final_evaluation_is_of_the_final_agent(folder):
    agent, config, env_steps = load_agent(folder, CPU, 3)
    seeds = [derive(config.seed, "final", episode) for episode in range(3)]
    expected = agent.evaluate(seeds, False).returns
    agent.close()
    assert env_steps == 24
    assert [float(value) for value in rows(folder / "final.csv")[0]["returns"].split()] == expected


def test_same_command_repeats_the_final_evaluation_only_if_it_is_missing(folder):
    before = (folder / "final.csv").read_text()
    out = folder.parents[3]
    (folder / "final.csv").unlink()
    assert cclf("train", *WORDS, "--out", out)[0] == 0
    again = rows(folder / "final.csv", "wall_seconds")
    assert [row["returns"] for row in again] == [before.splitlines()[1].split(",")[-1]]
    stamp = (folder / "final.csv").stat().st_mtime_ns
    assert cclf("train", *WORDS, "--out", out)[0] == 0
    assert (folder / "final.csv").stat().st_mtime_ns == stamp


def test_stopped_final_evaluation_writes_no_file(folder):
    (folder / "final.csv").unlink(missing_ok=True)
    assert not final_evaluation(folder, CPU, lambda: True)
    assert not (folder / "final.csv").exists()
    assert final_evaluation(folder, CPU, lambda: False)
    assert (folder / "final.csv").exists()


def test_bench_reports_parity_before_speed():
    words = (
        "--tiny",
        "--methods",
        "rainbow",
        "--stacks",
        "2",
        "--rounds",
        "1",
        "--replay-transitions",
        "100",
        "--device",
        "cpu",
    )
    code, out, err = cclf("bench", "rainbow", *words, "--json")
    assert code == 0, err
    report = json.loads(out)
    figures = report["rainbow"]
    assert figures["parity"]["stack_relative_difference"] < 1e-4
    assert figures["parity"]["fast_relative_difference"] < 1e-4
    assert figures["median_ms"] == figures["stack_1"]["median_ms"] > 0
    assert figures["stack_2"]["run_updates_per_second"] == pytest.approx(
        2e3 / figures["stack_2"]["median_ms"]
    )
    assert {"device", "commit", "command"} <= report.keys()
    assert err.index("parity") < err.index("run-updates/s")


def test_parity_of_the_bench_detects_a_difference(monkeypatch):
    from cclf.algorithms.rainbow.batched import BatchedRainbow

    inner = BatchedRainbow.update

    def clipped_together(self, *arguments):
        if len(self.runs) > 1:
            self.settings = replace(self.settings, max_gradient_norm=1e-3)
        return inner(self, *arguments)

    monkeypatch.setattr(BatchedRainbow, "update", clipped_together)
    options = bench_rainbow.Options(precision="fp32", replay_transitions=100, tiny=True)
    parity = bench_rainbow.parity(bench_rainbow._config("rainbow", options), CPU, make_env)
    assert parity["stack_relative_difference"] > 0.01
    assert parity["fast_relative_difference"] < 1e-6


@pytest.mark.parametrize(
    "words",
    [
        ("--stacks", "0"),
        ("--rounds", "0"),
        ("--methods", "sac-pixel"),
        ("--precision", "tf32", "--device", "cpu"),
    ],
)
def test_bench_refuses_invalid_options_before_it_measures(words, monkeypatch, capsys):
    monkeypatch.setattr(bench_rainbow, "parity", lambda *_: pytest.fail("it measured"))
    assert cli.main(["bench", "rainbow", *words]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("device", "asked", "expected"),
    [("cpu", 0, None), ("cpu", 3, 3), ("cuda", 0, 1), ("cuda", 3, 3)],
)
def test_default_number_of_threads_with_a_gpu_is_one(monkeypatch, device, asked, expected):
    requested = []
    monkeypatch.setattr(torch, "set_num_threads", requested.append)
    config = tiny("rainbow")
    devices.configure_torch(
        replace(config, run=replace(config.run, threads=asked)), torch.device(device)
    )
    assert requested == [expected] * (expected is not None)


def test_tasks_of_different_algorithms_do_not_train_together():
    assert_refused(cclf("train", "atari/Pong", "--with-tasks", "toy/reach"), "different algorithms")
    assert_refused(
        cclf("train", "atari/Pong", "--with-tasks", "atari/Pong"), "give each of them once"
    )
