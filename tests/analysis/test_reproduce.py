"""`cclf reproduce`: the forecast's arithmetic, which claims a budget can test, and what is printed
of them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cclf import cli, presets
from cclf.analysis import experiments, load, reproduce, verdict
from cclf.analysis.reproduce import Speed, decidable, forecast, seconds_left, wall_seconds
from cclf.benchmark import cost
from cclf.commands.sweep import plan
from cclf.sweep.plan import Call, call_of
from cclf.training.signals import StopSignal

RESULTS = Path(__file__).parents[2] / "results" / "minigrid"
SPEED = Speed(
    "minigrid/Empty-16x16",
    "cpu",
    agent_steps_per_second=100.0,
    evaluation_seconds=2.0,
    start_seconds=3.0,
)


def call(
    out: Path, seed: int = 1, method: str = "cclf", task: str = "minigrid/DoorKey-6x6", **run: int
) -> Call:
    config = presets.resolve(task, method, seed=seed)
    return call_of(
        replace(
            config,
            run=replace(config.run, **{"env_steps": 1_000, "eval_every_env_steps": 300} | run),
        ),
        out,
    )


def begin(run: Call, env_steps: int) -> None:
    run.folder.mkdir(parents=True)
    (run.folder / "train.csv").write_text(f"env_steps,episode_return\n{env_steps},0.5\n")


def finish(run: Call) -> None:
    path = run.folder / "checkpoint/00000001/state.json"
    path.parent.mkdir(parents=True)
    path.write_text(
        json.dumps({"agent_steps": run.config.planned_agent_steps, "evaluation_due": False})
    )


def test_what_is_left_of_a_run_worked_out_by_hand(tmp_path: Path) -> None:
    # 1,000 steps at 100/s, evaluations at 300, 600, 900 and 1,000 of 2 s, 3 s to start
    assert seconds_left(call(tmp_path), SPEED) == pytest.approx(3 + 10 + 4 * 2)
    begun = call(tmp_path, seed=2)
    begin(begun, 650)  # evaluations at 900 and 1,000 are left
    assert seconds_left(begun, SPEED) == pytest.approx(3 + 3.5 + 2 * 2)
    final = call(tmp_path, seed=3, final_eval_episodes=250)  # of 100 episodes each before
    assert seconds_left(final, SPEED) == pytest.approx(3 + 10 + 4 * 2 + 2.5 * 2)
    repeated = call(
        tmp_path,
        task="dmc/cartpole-swingup",
        method="drq",
        env_steps=1_600,
        eval_every_env_steps=1_600,
    )
    assert seconds_left(repeated, SPEED) == pytest.approx(3 + 1_600 / 8 / 100 + 2), (
        "a speed is in agent steps"
    )


def test_the_wall_clock_of_packed_runs() -> None:
    # 5+3 | 4+3, then 3 on the one free at 7
    assert wall_seconds([5.0, 4.0, 3.0, 3.0, 3.0], 2) == 10.0
    assert wall_seconds([1.0] * 6, 3) == 2.0
    assert wall_seconds([], 2) == 0.0


def test_a_forecast_counts_finished_runs_and_adds_the_others(tmp_path: Path) -> None:
    calls = [call(tmp_path, seed, method) for seed in (1, 2) for method in ("a2c", "cclf")]
    finish(calls[0])
    speeds = {
        ("minigrid", "a2c"): SPEED,
        ("minigrid", "cclf"): SPEED._replace(agent_steps_per_second=50.0),
    }
    found = forecast(calls, speeds, places=2)
    assert (found.runs, found.finished, found.places) == (4, 1, 2)
    assert found.busy_seconds == pytest.approx(31 + 21 + 31)
    assert found.wall_seconds == pytest.approx(52)  # 31 | 21 + 31, in the order of the calls
    assert [(line.kind[1], line.runs_left, line.env_steps_per_second) for line in found.lines] == [
        ("a2c", 1, 100.0),
        ("cclf", 2, 50.0),
    ]


def test_only_what_a_budget_runs_is_judged(tmp_path: Path) -> None:
    def names(budget: experiments.Budget, **run: int) -> set[str]:
        table = experiments.find_table("minigrid", budget)
        extra = [
            *table.options,
            *(
                word
                for key, value in run.items()
                for word in (f"--{key.replace('_', '-')}", str(value))
            ),
        ]
        calls = plan(table.tasks, table.methods, ["released"], [1], tmp_path, extra)
        return {claim.name for claim in decidable(verdict.claims("minigrid"), calls)}

    every = {claim.name for claim in verdict.claims("minigrid")}
    assert names("paper") == every
    assert names("small") == {name for name in every if "doorkey8" not in name}
    assert names("small", env_steps=399_000) == set(), "no run reaches the moment of a claim"


def test_a_claim_without_one_of_its_methods_is_left_out(tmp_path: Path) -> None:
    calls = [call(tmp_path, method=method, env_steps=400_000) for method in ("cclf", "a2c")]
    assert not decidable(verdict.claims("minigrid"), calls)
    calls.append(call(tmp_path, method="re3", env_steps=400_000))
    assert {claim.name for claim in decidable(verdict.claims("minigrid"), calls)} == {
        "doorkey6-re3",
        "doorkey6-above-re3",
    }


def test_reproduce_trains_what_is_missing_and_prints_a_verdict_for_every_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The runs are tiny; the rows that are judged are those of the committed results."""
    task = "minigrid/Empty-5x5"
    tiny = (
        "--env-steps",
        "256",
        "--eval-every-env-steps",
        "256",
        "--eval-episodes",
        "2",
        "--no-video",
        "--no-tensorboard",
    )
    monkeypatch.setitem(
        experiments.TABLES["minigrid"],
        "small",
        experiments.Experiment("tiny", (task,), ("a2c",), (1,), tiny),
    )
    monkeypatch.setattr(
        reproduce, "measure", lambda calls, _: {reproduce.kind_of(c): SPEED for c in calls}
    )
    monkeypatch.setattr(reproduce, "decidable", lambda claims, _: claims)
    rows = [row for row in load.read(RESULTS) if row.profile == "entropy-0.01"]
    arguments = ["reproduce", "minigrid", "--out", str(tmp_path)]
    assert cli.main([*arguments, "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "1 runs, 0 of them finished: about 8 s of work" in printed  # 3 + 2.56 + 2
    assert not list(tmp_path.iterdir()), "a dry run leaves nothing"
    assert "verdict" not in printed
    read = load.read
    monkeypatch.setattr(load, "read", lambda path: rows if read(path) else [])
    monkeypatch.setenv("COLUMNS", "350")
    assert cli.main(arguments) == 0
    printed = capsys.readouterr().out
    for claim in verdict.claims("minigrid"):
        [line] = [line for line in printed.splitlines() if claim.text in line]
        found = verdict.judge(claim, rows)
        assert found.state in line
        assert found.text in line
    assert "did not hold" in printed
    assert "undecided" in printed
    assert cli.main([*arguments, "--dry-run"]) == 0
    assert "1 runs, 1 of them finished: about 0 s" in capsys.readouterr().out


def test_claims_beyond_the_budget_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from cclf.commands import reproduce as sweeping

    monkeypatch.setattr(load, "read", lambda _: load.read_results(RESULTS))
    sweeping._print_verdicts("minigrid", [], tmp_path)
    assert f"{len(verdict.claims('minigrid'))} further claims need more" in capsys.readouterr().out


@pytest.mark.slow
def test_speeds_are_measured_for_every_kind_of_run(tmp_path: Path) -> None:
    calls = [
        call(tmp_path),
        call(tmp_path, method="re3"),
        call(tmp_path, method="drq", task="toy/reach-1d"),
        call(tmp_path, seed=2),
    ]
    speeds = reproduce.measure(calls, StopSignal())
    assert list(speeds) == [("minigrid", "cclf"), ("minigrid", "re3"), ("toy", "drq")]
    for speed in speeds.values():
        assert (
            min(speed.agent_steps_per_second, speed.evaluation_seconds, speed.start_seconds) > 0.0
        )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tabel1"], "did you mean table1"),
        (["minigrid", "--budget", "large"], "budget"),
        (["minigrid", "--profile", "papers"], "did you mean paper"),
        (["minigrid", "--address", "here"], "use --backend ray"),
        (["minigrid", "--", "--num-env", "3"], "--num-env"),
        ([], "cclf reproduce --help"),
    ],
)
def test_bad_words_are_one_line(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = [] if not words else ["--out", str(tmp_path / "runs")]
    end = words.index("--") if "--" in words else len(words)
    assert cli.main(["reproduce", *words[:end], *out, *words[end:]]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def costs(**milliseconds: list[float]) -> dict[str, cost.Cost]:
    return {
        name: cost.Cost(1_000, 6_000, np.array(times), {}) for name, times in milliseconds.items()
    }


def test_costs_are_judged_by_the_interval_of_their_ratio() -> None:
    claim = cost.CostClaim("", "training-time-ratio", "ours", "theirs", 1.0)
    quick, slow, noisy = [1.0] * 10, [2.0] * 10, [0.5, 1.9] * 5
    assert cost.judge(claim, costs(ours=quick, theirs=slow))[:3] == ("held", "0.5 [0.5, 0.5]", 0.5)
    assert cost.judge(claim, costs(ours=slow, theirs=quick)).state == "did not hold"
    assert cost.judge(claim, costs(ours=noisy, theirs=quick)).state == "undecided"
    busy = [1.0, 5.0, 1.0, 9.0, 1.0]
    assert cost.judge(claim, costs(ours=busy, theirs=[2 * t for t in busy])).high == 0.5, (
        "a busy moment is one for both"
    )
    at_least = claim._replace(limit=1.5, at_most=False)
    assert cost.judge(at_least, costs(ours=slow, theirs=quick)).state == "held"
    assert cost.judge(at_least, costs(ours=quick, theirs=slow)).state == "did not hold"


def test_a_models_size_is_its_parameters_and_what_its_gradients_need() -> None:
    # 10 kB and 20 kB
    small, large = cost.Cost(1_000, 6_000, np.ones(1), {}), cost.Cost(1_000, 16_000, np.ones(1), {})
    found = cost.judge(
        cost.CostClaim("", "model-size-ratio", "a", "b", 0.67), {"a": small, "b": large}
    )
    assert (found.state, found.estimate) == ("held", 0.5)


def test_every_cost_claim_names_methods_that_are_measured() -> None:
    assert len(cost.claims()) == 8
    for claim in cost.claims():
        assert {claim.method, claim.rival} <= set(cost.METHODS)


def test_costs_are_written_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = {name: [float(place + 1), float(place + 2)] for place, name in enumerate(cost.METHODS)}
    monkeypatch.setattr(cost, "measure", lambda *_: costs(**times))
    assert cli.main(["reproduce", "cost", "--out", str(tmp_path / "cost")]) == 0
    assert str(tmp_path / "cost" / "cost.svg") in capsys.readouterr().out
    written = json.loads((tmp_path / "cost" / "cost.json").read_text())
    assert written["cclf"]["median_ms"] == 7.5
    assert {"device", "commit", "command", "precision", "batch_size"} <= written.keys()
    drawn = (tmp_path / "cost" / "cost.svg").read_text()
    assert drawn.count("<!-- cclf -->") == 2, "in both panels"
    assert cli.main(["reproduce", "cost", "--", "--precision", "fp8"]) == 2


@pytest.mark.slow
def test_five_views_keep_more_for_gradients_than_two_and_have_the_same_parameters() -> None:
    found = cost.measure(["drq", "drq-5"], "cpu", batch_size=4, pairs=2)
    two, five = found.values()
    assert two.parameters == five.parameters > 10**6
    # 5 : 2, but for the actor's part, which is the same
    assert 2.0 < five.kept_bytes / two.kept_bytes < 2.6
    assert [len(each.milliseconds) for each in found.values()] == [2, 2]


@pytest.mark.parametrize(
    "words", [["--seeds", "1", "2"], ["--profile", "paper"], ["--backend", "ray"], ["--jobs", "3"]]
)
def test_options_that_cost_cannot_use_are_refused(words, capsys):
    assert cli.main(["reproduce", "cost", "--dry-run", *words]) == 2
    assert f"{words[0]} conflicts with cost" in capsys.readouterr().err


def test_cost_takes_the_options_that_act():
    assert cli.main(["reproduce", "cost", "--dry-run", "--budget", "paper"]) == 0


OWN = "curiosity, curiosity-toy, curiosity-re3, curiosity-drqv2"


def test_an_unknown_table_is_told_of_all_that_the_command_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["reproduce", "table7"]) == 2
    said = capsys.readouterr().err
    assert "did you mean table1?" in said
    assert said.rstrip().endswith(f"use one of table1, ablation, minigrid, atari, {OWN}, cost")
    assert cli.main(["reproduce", "costs"]) == 2
    assert "did you mean cost?" in capsys.readouterr().err
    assert cli.main(["sweep", "--table", "cost"]) == 2, "nothing of it is a run"
    assert (
        capsys.readouterr()
        .err.rstrip()
        .endswith(f"use one of table1, ablation, minigrid, atari, {OWN}")
    )
