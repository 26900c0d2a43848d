"""The runs of a sweep, the processes that train them, and the record of a failed run."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from cclf import cli, presets
from cclf.analysis import experiments, load, verdicts
from cclf.analysis.runs import StepBudget, score_matrix, warn_once
from cclf.commands.sweep import plan
from cclf.commands.train import train_config
from cclf.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_STOPPED, ConfigError
from cclf.sweep.plan import (
    FAILURE_MARK,
    PROCESS_BYTES,
    RunOutcome,
    RunSpec,
    group_into_jobs,
    is_finished,
    make_run_spec,
    read_progress,
    record_failure,
)
from tiny_rows import write_run
from tiny_sweep import GRID, save, spec

SWEEP = ["sweep", "--tasks", GRID, "--methods", "a2c"]
RATES = "learning_rate=1e-4,3e-4"


def make_spec(out: Path, seed: int = 1, **run: int) -> RunSpec:
    return spec(out, seed, method="a2c", env_steps=1_000, **run)


def refusal(capsys: pytest.CaptureFixture[str], words: list[str], out: Path) -> str:
    """The error of a command that is refused before it writes anything."""
    command, _, extra = " ".join(words).partition(" --- ")
    after = ["--", *extra.split()] if extra else []
    assert cli.main([*command.split(), "--out", str(out), *after]) == EXIT_BAD_INPUT
    printed, error = capsys.readouterr()
    assert (printed, error.count("\n")) == ("", 1)
    assert not out.exists()
    return error


def test_run_is_finished_when_its_files_show_it(tmp_path: Path) -> None:
    run = make_spec(tmp_path)
    assert not is_finished(run)
    save(run, 999)
    assert not is_finished(run)
    save(run, 1_000, evaluation_due=True, serial=2)
    assert not is_finished(run)
    save(run, 1_000, serial=3)
    assert is_finished(run)
    (run.folder / "checkpoint/00000003/state.json").write_text("{")
    assert not is_finished(run)
    save(run, 1_000, serial=3)
    (run.folder / "failure").mkdir()
    assert not is_finished(run), "`cclf train` reports the reason"
    (run.folder / "failure").rmdir()
    run = make_spec(tmp_path, final_eval_episodes=100)
    assert not is_finished(run)
    (run.folder / "final.csv").write_text("env_steps,return_mean\n500,0.5\n")
    assert not is_finished(run), "of a smaller budget"
    (run.folder / "final.csv").write_text("env_steps,return_mean\n500,0.5\n1000,0.5\n")
    assert is_finished(run)


HEADER = b"env_steps,episode_return\n"
ROWS = b"".join(b"%d,%s\n" % (100 * i, b"0.5" if i == 7_000 else b"") for i in range(1, 7_011))


@pytest.mark.parametrize(
    ("table", "progress"),
    [
        (HEADER + ROWS + b"7011", (701_000, 0, 0.5)),  # the last line is incomplete
        (HEADER + b"100,0.25\n", (100, 0, 0.25)),
        (HEADER, (0, 0, None)),
        (b"", (0, 0, None)),
        (b"a,b\n1,2\n", (0, 0, None)),
        (HEADER + b"x,y\n", (0, 0, None)),
        (b"\0\n\0\n", (0, 0, None)),
        (b"\xff\xfe,env_steps\n1,2\n", (0, 0, None)),
        (None, (0, 0, None)),
    ],
)
def test_progress_is_read_from_the_end_of_a_table(
    table: bytes | None, progress: tuple[int, int, float | None], tmp_path: Path
) -> None:
    if table is not None:
        (tmp_path / "train.csv").write_bytes(table)
    assert read_progress(tmp_path) == progress


# --- failed runs


def test_failed_run_is_marked_until_it_is_done(tmp_path: Path) -> None:
    run = make_spec(tmp_path)
    mark = run.folder / FAILURE_MARK
    for code in (EXIT_BAD_INPUT, EXIT_STOPPED, EXIT_DONE):
        record_failure(RunOutcome(run, code, ""))
        assert not mark.exists()
    record_failure(RunOutcome(run, -9, "killed"))
    facts = json.loads(mark.read_text())
    names = ("exit_code", "last_line", "method", "seed")
    assert [facts[name] for name in names] == [-9, "killed", "a2c", 1]
    record_failure(RunOutcome(run, EXIT_STOPPED, "stopped"))
    assert mark.exists()
    record_failure(RunOutcome(run, EXIT_DONE, ""))
    assert not mark.exists()


def test_failed_run_counts_as_the_lowest_return(tmp_path: Path) -> None:
    """Also a run that failed before it wrote a file: its folder contains the failure mark of the
    sweep only."""
    budget = {GRID: StepBudget("env_steps", 1_000)}
    changes = {"run": {"env_steps": 1_000}}
    for seed, value in ((1, 0.75), (3, 0.5)):
        evaluations = {500: 0.25, 1_000: value}
        write_run(tmp_path, "a2c", seed, task=GRID, evaluations=evaluations, changes=changes)
    failed = make_spec(tmp_path, 2).folder / FAILURE_MARK
    record_failure(RunOutcome(make_spec(tmp_path, 2), -9, "killed"))
    rows = load.read(tmp_path)
    assert {row.seed: row.state for row in rows} == {1: "done", 2: "failed", 3: "done"}
    scores = score_matrix(rows, ["a2c"], budget)["a2c"]
    assert sorted(scores[:, 0]) == [0.25, 0.5, 0.75]
    note = json.loads(failed.read_text())
    del note["config"]  # as earlier versions wrote it
    failed.write_text(json.dumps(note))
    assert repr(load.read(tmp_path)) == repr(rows)
    failed.unlink()
    scores = score_matrix(load.read(tmp_path), ["a2c"], budget)["a2c"]
    assert sorted(scores[:, 0]) == [0.5, 0.75]


@pytest.mark.quick("{}")
@pytest.mark.parametrize("content", ["", "{}", "[1]"])
def test_results_and_report_count_failed_runs_and_warn_of_unreadable_marks(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    for seed in (1, 2, 3):
        record_failure(RunOutcome(make_spec(runs, seed), -9, "killed"))
    path = make_spec(runs).folder / FAILURE_MARK
    path.write_text(content)
    for command, out in (("results", "results"), ("report", "report.html")):
        warn_once.cache_clear()
        assert cli.main([command, str(runs), "--out", str(tmp_path / out)]) == 0
        error = capsys.readouterr().err
        assert error.count("cclf: warning: a failed run is not counted: cannot ") == 1
        assert str(path) in error
    assert (tmp_path / "results/a2c.csv").read_text().count(",failed") == 2
    assert "2 of 2 runs failed" in (tmp_path / "report.html").read_text()


def test_mark_of_a_run_that_has_finished_since_is_ignored(tmp_path: Path) -> None:
    run = make_spec(tmp_path)
    changes = {"run": {"env_steps": 1_000}}
    write_run(tmp_path, "a2c", 1, task=GRID, evaluations={1_000: 0.75}, changes=changes)
    record_failure(RunOutcome(run, -15, "stopped as it ended"))
    assert [row.state for row in load.read(tmp_path)] == ["failed"], "no complete checkpoint"
    save(run, 1_000)
    assert [row.state for row in load.read(tmp_path)] == ["done"]
    (run.folder / "failure").mkdir()
    assert [row.state for row in load.read(tmp_path)] == ["failed"], "its numbers were not finite"


# --- processes


def test_runs_are_grouped_into_processes_by_seeds(tmp_path: Path) -> None:
    calls = [
        make_run_spec(presets.resolve("toy/catch", method, seed=seed), tmp_path)
        for seed in (1, 2, 3)
        for method in ("curl", "cclf")
    ]
    assert [job.specs for job in group_into_jobs(calls, 1)] == [(single,) for single in calls]
    jobs = group_into_jobs(calls, 2)
    assert [[(c.config.method_name, c.config.seed) for c in job.specs] for job in jobs] == [
        [("curl", 1), ("curl", 2)],
        [("cclf", 1), ("cclf", 2)],
        [("curl", 3)],
        [("cclf", 3)],
    ]
    words = f"toy/catch --method curl --profile released --seed 1 --out {tmp_path} --with-seeds 2"
    assert " ".join(jobs[0].arguments) == words
    alone = words.replace("--seed 1", "--seed 3").removesuffix(" --with-seeds 2")
    assert " ".join(jobs[2].arguments) == alone
    heavy = [replace(single, memory_bytes=PROCESS_BYTES + 100) for single in calls[:1]] * 3
    assert group_into_jobs(heavy, 3)[0].memory_bytes == PROCESS_BYTES + 300
    with pytest.raises(ConfigError, match="--seeds-per-process 2 conflicts with base a2c"):
        group_into_jobs([make_spec(tmp_path)], seeds_per_process=2)


def test_runs_are_grouped_into_processes_by_games_with_the_same_seeds(tmp_path: Path) -> None:
    games = ("atari/Pong", "atari/Alien", "atari/Krull")
    calls = [
        make_run_spec(presets.resolve(task, method, seed=seed), tmp_path)
        for task in games
        for seed in (1, 2, 3)
        for method in ("curl", "cclf")
    ]
    jobs = group_into_jobs(calls, seeds_per_process=2, games_per_process=2)
    grouped = [single for job in jobs for single in job.specs]
    assert (len(grouped), set(grouped)) == (len(calls), set(calls))
    further = f"--out {tmp_path} --with-seeds 2 --with-tasks atari/Alien"
    assert " ".join(jobs[0].arguments).endswith(f"--seed 1 {further}")
    for job in jobs:  # the order of `cclf train`: task by task, with all seeds
        runs = [(single.config.task, single.config.seed) for single in job.specs]
        tasks, seeds = ({*names} for names in zip(*runs, strict=True))
        assert len(runs) == len(tasks) * len(seeds)
        assert runs == sorted(runs, key=lambda run: (games.index(run[0]), run[1]))
        assert len({single.config.method_name for single in job.specs}) == 1
    grids = [make_spec(tmp_path), spec(tmp_path, 1, "minigrid/Empty-5x5", "a2c")]
    assert len(group_into_jobs(grids, 1, games_per_process=9)) == 2, "these share no update"


def test_plan_starts_with_the_longest_and_forecasts_the_memory_of_replays(tmp_path: Path) -> None:
    calls = plan(["toy/reach-1d", "toy/reach"], ["drq"], ["released"], [1, 2], tmp_path, [])
    expected = [(task, seed) for task in ("toy/reach", "toy/reach-1d") for seed in (1, 2)]
    assert [(c.config.task, c.config.seed) for c in calls] == expected
    frame_bytes = 20 * 20 * 3
    assert calls[0].memory_bytes - PROCESS_BYTES > 3_000 * frame_bytes
    assert 1_500 * frame_bytes < calls[2].memory_bytes - PROCESS_BYTES < 3_000 * frame_bytes
    assert all(c.may_use_gpu for c in calls)
    assert not plan([GRID], ["a2c"], ["released"], [1], tmp_path, [])[0].may_use_gpu


# --- options


@pytest.mark.parametrize("command", ["sweep --table minigrid", "reproduce minigrid"])
def test_options_that_the_command_sets_are_refused_after_the_dashes(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--method=cclf --seed --with-seeds --with_tasks=x --out --dry-run --profile --help -h"
    for word in words.split():
        error = refusal(capsys, [command, "---", "--no-video", word], tmp_path / "runs")
        assert f"{word} after -- conflicts with the command" in error


def test_vary_trains_each_method_with_each_combination(tmp_path: Path) -> None:
    vary = [RATES, "rollout-steps=4,8"]
    runs = plan([GRID], ["a2c", "cclf"], ["released"], [2], tmp_path, [], vary)
    assert len(runs) == len({run.folder for run in runs}) == 8
    a2c = [run for run in runs if run.config.method_name == "a2c"]
    assert {run.variant: run.config.algorithm.learning_rate for run in a2c} == {
        f"learning_rate={rate} rollout_steps={steps}": float(rate)
        for rate in ("1e-4", "3e-4")
        for steps in (4, 8)
    }
    for run in runs:
        assert run.label == f"{GRID} {run.config.method_name} {run.variant} seed {run.config.seed}"
        assert train_config(run.arguments).config == run.config
    switched = plan(
        ["toy/reach-1d"], ["cclf"], ["released"], [1], tmp_path, [], ["reward=true,false"]
    )
    assert [run.config.method.reward for run in switched] == [True, False]


def test_dry_run_prints_the_variants_and_trains_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*SWEEP, "--seeds", "1", "2", "--vary", RATES, "--out", str(tmp_path / "runs")]
    assert cli.main([*words, "--dry-run"]) == 0
    out = capsys.readouterr().out
    for rate in ("1e-4", "3e-4"):
        assert re.search(rf"minigrid +a2c learning_rate={rate} +2 +0 +400,000", out)
    assert "4 runs, 0 finished, 1,600,000 env steps in all" in out
    assert not list(tmp_path.rglob("config.json"))


@pytest.mark.parametrize(
    ("vary", "line"),
    [
        (["learning_rate"], "--vary learning_rate: write OPTION=VALUE,VALUE"),
        (["learning_rate="], "--vary learning_rate=: write OPTION=VALUE,VALUE"),
        ([RATES, RATES], "name each option and each value once"),
        (["rollout_steps=4,4"], "name each option and each value once"),
        (["env-steps=1,2"], "name each option and each value once"),
        (["seed=1,2"], "the sweep sets --seed"),
        (["learning_rat=1,2"], "learning-rat"),
        (["learning_rate=much,little"], "learning-rate"),
        (["threads=1,2"], "vary only options that change results"),
        (["re3_weight=0.1,0.2"], "re3"),
    ],
)
def test_invalid_vary_is_refused(
    vary: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*SWEEP, *(f"--vary {text}" for text in vary), "---", "--env-steps", "1000"]
    assert line in refusal(capsys, words, tmp_path / "runs")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--table tabel1", "did you mean table1"),
        ("--table table7", "use one of table1, ablation, minigrid, atari, curiosity"),
        ("--tasks toy/reach", "needs --tasks and --methods"),
        ("--table minigrid --methods cclv", "did you mean cclf"),
        ("--table minigrid --jobs -1", "--jobs -1 must be 0 or more"),
        ("--table minigrid --seeds-per-process 0", "1 or more"),
        ("--table minigrid --backend slurm", "backend"),
        ("--table minigrid --- --num-env 3", "unknown option --num-env; did you mean --num-envs"),
    ],
)
def test_invalid_options_of_a_sweep_are_refused(
    words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refusal(capsys, ["sweep", words], tmp_path / "runs")


# --- the tables of the paper


def base_among(options: tuple[str, ...]) -> str | None:
    return options[options.index("--base") + 1] if "--base" in options else None


@pytest.mark.parametrize(
    "name", [name for name in experiments.TABLES if experiments.TABLES[name]["paper"].tasks]
)
def test_tables_of_the_paper_have_the_runs_of_their_claims(name: str) -> None:
    table = experiments.TABLES[name]["paper"]
    claims = verdicts.claims(name)
    assert claims
    assert {task for claim in claims for task in claim.tasks} <= set(table.tasks)
    assert {method for claim in claims for method in claim.methods} <= set(table.methods)
    for budget in experiments.TABLES[name].values():
        base = base_among(budget.options)
        for task in budget.tasks:
            presets.resolve(task, budget.methods[0], base_name=base)
        for method in budget.methods:
            presets.resolve(budget.tasks[0], method, base_name=base)


def test_ablation_has_all_fifteen_combinations() -> None:
    assert len(set(experiments.TABLES["ablation"]["paper"].methods)) == 15
