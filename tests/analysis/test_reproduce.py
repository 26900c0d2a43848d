"""`cclf reproduce`: which claims a budget can test, and what is printed of them."""

from dataclasses import replace
from pathlib import Path

import pytest

from cclf import cli, presets
from cclf.analysis import experiments, load, verdicts
from cclf.analysis.verdicts import decidable_claims
from cclf.commands import reproduce
from cclf.commands.sweep import plan
from cclf.sweep.plan import RunSpec, make_run_spec

RESULTS = Path(__file__).parents[2] / "results" / "minigrid"


def make_spec(
    out: Path, seed: int = 1, method: str = "cclf", task: str = "minigrid/DoorKey-6x6", **run: int
) -> RunSpec:
    config = presets.resolve(task, method, seed=seed)
    return make_run_spec(
        replace(
            config,
            run=replace(config.run, **{"env_steps": 1_000, "eval_every_env_steps": 300} | run),
        ),
        out,
    )


def names_of(specs: list[RunSpec]) -> set[str]:
    claims = verdicts.claims("minigrid")
    return {claim.name for claim in decidable_claims(claims, [spec.config for spec in specs])}


def test_only_what_a_budget_runs_is_judged(tmp_path: Path) -> None:
    every = {claim.name for claim in verdicts.claims("minigrid")}
    table = experiments.find_table("minigrid", "small")
    specs = plan(table.tasks, table.methods, ["released"], [1], tmp_path, [*table.options])
    assert names_of(specs) == {name for name in every if "doorkey8" not in name}


@pytest.mark.parametrize(
    ("methods", "env_steps", "names"),
    [
        (("cclf", "a2c"), 400_000, set()),
        (("cclf", "a2c", "re3"), 400_000, {"doorkey6-re3", "doorkey6-above-re3"}),
        (("cclf", "a2c", "re3"), 399_000, set()),
    ],
)
def test_a_claim_needs_all_its_methods_and_steps(
    methods: tuple[str, ...], env_steps: int, names: set[str], tmp_path: Path
) -> None:
    assert names_of([make_spec(tmp_path, method=m, env_steps=env_steps) for m in methods]) == names


@pytest.mark.slow("test_claims_beyond_the_budget_are_counted")
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
    monkeypatch.setattr(verdicts, "decidable_claims", lambda claims, _: claims)
    rows = [row for row in load.read(RESULTS) if row.profile == "entropy-0.01"]
    arguments = ["reproduce", "minigrid", "--out", str(tmp_path)]
    assert cli.main([*arguments, "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "1 runs, 0 finished, 256 env steps in all" in printed
    assert not list(tmp_path.iterdir()), "a dry run leaves nothing"
    assert "verdict" not in printed
    read = load.read
    monkeypatch.setattr(load, "read", lambda path: rows if read(path) else [])
    monkeypatch.setenv("COLUMNS", "350")
    assert cli.main(arguments) == 0
    printed = capsys.readouterr().out
    for claim in verdicts.claims("minigrid"):
        [line] = [line for line in printed.splitlines() if claim.text in line]
        found = verdicts.evaluate_claim(claim, rows)
        assert found.state in line
        assert found.text in line
    assert "did not hold" in printed
    assert "undecided" in printed
    assert cli.main([*arguments, "--dry-run"]) == 0
    assert "1 runs, 1 finished" in capsys.readouterr().out


def test_claims_beyond_the_budget_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(load, "read", lambda _: load.read_results(RESULTS))
    reproduce._print_verdicts("minigrid", [], tmp_path)
    assert f"{len(verdicts.claims('minigrid'))} further claims need more" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tabel1"], "did you mean table1"),
        (["tabel1"], "use one of table1, ablation, minigrid, atari, curiosity"),
        (["minigrid", "--budget", "large"], "budget"),
        (["minigrid", "--profile", "papers"], "did you mean paper"),
        (["minigrid", "--address", "here"], "use --backend ray"),
        (["minigrid", "--", "--num-env", "3"], "--num-env"),
        ([], "cclf reproduce --help"),
    ],
)
def test_invalid_options_are_one_line(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = [] if not words else ["--out", str(tmp_path / "runs")]
    end = words.index("--") if "--" in words else len(words)
    assert cli.main(["reproduce", *words[:end], *out, *words[end:]]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()
