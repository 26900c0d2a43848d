"""What runs, what is left of it, and what a failed run leaves behind."""

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

TASK = "minigrid/DoorKey-5x5"


def call(out: Path, seed: int = 1, method: str = "a2c", env_steps: int = 1_000) -> RunSpec:
    config = presets.resolve(TASK, method, seed=seed)
    return make_run_spec(
        replace(config, run=replace(config.run, env_steps=env_steps)),
        out,
        ("--env-steps", str(env_steps)),
    )


def save(run: RunSpec, agent_steps: int, evaluation_due: bool = False, serial: int = 1) -> None:
    path = run.folder / f"checkpoint/{serial:08d}/state.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"agent_steps": agent_steps, "evaluation_due": evaluation_due}))


def test_a_run_is_finished_when_its_newest_checkpoint_stands_at_the_end(tmp_path: Path) -> None:
    run = call(tmp_path)
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
    assert not is_finished(run), "`cclf train` says why it refuses"


def test_a_run_with_a_final_evaluation_is_finished_when_that_is_written(tmp_path: Path) -> None:
    run = call(tmp_path)
    run = replace(
        run, config=replace(run.config, run=replace(run.config.run, final_eval_episodes=100))
    )
    save(run, 1_000)
    assert not is_finished(run)
    (run.folder / "final.csv").write_text("env_steps,return_mean\n500,0.5\n")
    assert not is_finished(run), "that was the end of a smaller budget"
    (run.folder / "final.csv").write_text("env_steps,return_mean\n500,0.5\n1000,0.5\n")
    assert is_finished(run)


def test_progress_is_read_from_the_end_of_a_long_table(tmp_path: Path) -> None:
    assert read_progress(tmp_path).env_steps == 0
    rows = "".join(f"{100 * i},{'0.5' if i == 7000 else ''}\n" for i in range(1, 7_011))
    (tmp_path / "train.csv").write_text("env_steps,episode_return\n" + rows + "7011")
    assert read_progress(tmp_path) == (701_000, 0, 0.5), "the torn last line is left out"
    (tmp_path / "train.csv").write_text("env_steps,episode_return\n")
    assert read_progress(tmp_path) == (0, 0, None)


def test_failed_runs_leave_a_mark_that_a_later_success_takes_back(tmp_path: Path) -> None:
    run = call(tmp_path)
    record_failure(RunOutcome(run, -9, "killed"))
    facts = json.loads((run.folder / FAILURE_MARK).read_text())
    assert (facts["exit_code"], facts["last_line"], facts["method"], facts["seed"]) == (
        -9,
        "killed",
        "a2c",
        1,
    )
    record_failure(RunOutcome(run, EXIT_DONE, ""))
    assert not (run.folder / FAILURE_MARK).exists()
    for code in (EXIT_BAD_INPUT, EXIT_STOPPED, EXIT_DONE):
        record_failure(RunOutcome(run, code, ""))
        assert not (run.folder / FAILURE_MARK).exists()


def test_failed_runs_stay_in_the_statistics(tmp_path: Path) -> None:
    runs = [call(tmp_path, seed) for seed in (1, 2)]
    for run in runs:
        run.folder.mkdir(parents=True)
        (run.folder / "config.json").write_text(json.dumps(run.config.to_dict()))
        (run.folder / "manifest.json").write_text(
            '{"device": "cpu", "threads": 1, "commit": "abc"}'
        )
        header = (
            "env_steps,agent_steps,updates,return_mean,return_std,episodes,wall_seconds,returns\n"
        )
        (run.folder / "eval.csv").write_text(
            header
            + "500,500,4,0.25,0,2,1,\n"
            + ("1000,1000,8,0.75,0,2,2,\n" if run is runs[0] else "")
        )
    record_failure(RunOutcome(runs[1], -9, "killed"))
    scores = score_matrix(load.read_runs(tmp_path), ["a2c"], {TASK: StepBudget("env_steps", 1_000)})
    assert sorted(scores["a2c"][:, 0]) == [0.25, 0.75], (
        "the failed one counts with the lowest return seen"
    )
    (runs[1].folder / FAILURE_MARK).unlink()
    scores = score_matrix(load.read_runs(tmp_path), ["a2c"], {TASK: StepBudget("env_steps", 1_000)})
    assert sorted(scores["a2c"][:, 0]) == [0.75], "without its mark it would be left out"


def test_a_retried_run_keeps_its_mark_until_it_comes_to_its_end(tmp_path: Path) -> None:
    run = call(tmp_path)
    record_failure(RunOutcome(run, -9, "killed"))
    record_failure(RunOutcome(run, EXIT_STOPPED, "stopped"))
    assert (run.folder / FAILURE_MARK).exists(), "failures stay"


def test_a_run_that_failed_before_it_wrote_anything_stays_in_the_statistics(tmp_path: Path) -> None:
    """Its folder holds the sweep's mark alone."""
    runs = [call(tmp_path, seed) for seed in (1, 2)]
    finished = write_run(
        tmp_path,
        "a2c",
        1,
        task=TASK,
        evaluations={1_000: 0.75},
        changes={"run": {"env_steps": 1_000}},
    )
    write_run(
        tmp_path,
        "a2c",
        3,
        task=TASK,
        evaluations={1_000: 0.5},
        changes={"run": {"env_steps": 1_000}},
    )
    record_failure(RunOutcome(runs[1], -9, "killed"))
    assert [path.name for path in runs[1].folder.iterdir()] == [FAILURE_MARK]
    rows = load.read(tmp_path)
    assert {row.seed: row.state for row in rows} == {1: "done", 2: "failed", 3: "done"}
    scores = score_matrix(rows, ["a2c"], {TASK: StepBudget("env_steps", 1_000)})
    assert sorted(scores["a2c"][:, 0]) == [0.5, 0.5, 0.75], "it counts with the lowest return"
    assert finished.exists()
    note = json.loads((runs[1].folder / FAILURE_MARK).read_text())
    del note["config"]  # as earlier versions wrote it
    (runs[1].folder / FAILURE_MARK).write_text(json.dumps(note))
    assert repr(load.read(tmp_path)) == repr(rows)


def test_runs_that_all_failed_at_their_start_are_reported(tmp_path: Path) -> None:
    for seed in (1, 2):
        record_failure(RunOutcome(call(tmp_path / "runs", seed), -9, "killed"))
    assert cli.main(["results", str(tmp_path / "runs"), "--out", str(tmp_path / "results")]) == 0
    assert (tmp_path / "results/a2c.csv").read_text().count(",failed") == 2
    assert cli.main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "report.html")]) == 0
    assert "2 of 2 runs failed" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("content", ["", "{}", "[1]"])
def test_results_of_a_failure_mark_that_cannot_be_read_warns_and_counts_the_others(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    for seed in (1, 2):
        record_failure(RunOutcome(call(runs, seed), -9, "killed"))
    path = call(runs).folder / FAILURE_MARK
    path.write_text(content)
    for command, out in (("results", "results"), ("report", "report.html")):
        warn_once.cache_clear()
        assert cli.main([command, str(runs), "--out", str(tmp_path / out)]) == 0
        error = capsys.readouterr().err
        assert error.count("cclf: warning: a failed run is not counted: cannot ") == 1
        assert str(path) in error
    assert (tmp_path / "results/a2c.csv").read_text().count(",failed") == 1


def test_a_stale_mark_does_not_deny_what_the_folder_proves(tmp_path: Path) -> None:
    run = call(tmp_path)
    write_run(
        tmp_path,
        "a2c",
        1,
        task=TASK,
        evaluations={1_000: 0.75},
        changes={"run": {"env_steps": 1_000}},
    )
    record_failure(RunOutcome(run, -15, "stopped as it ended"))
    assert [row.state for row in load.read(tmp_path)] == ["failed"], (
        "without a whole checkpoint it did not end well"
    )
    save(run, 1_000)
    assert [row.state for row in load.read(tmp_path)] == ["done"]
    (run.folder / "failure").mkdir()
    assert [row.state for row in load.read(tmp_path)] == ["failed"], "its numbers were not finite"


@pytest.mark.parametrize(
    "word",
    [
        "--method=cclf",
        "--seed",
        "--with-seeds",
        "--with_tasks=x",
        "--out",
        "--dry-run",
        "--profile",
        "--help",
        "-h",
    ],
)
@pytest.mark.parametrize("command", [["sweep", "--table", "minigrid"], ["reproduce", "minigrid"]])
def test_options_that_the_sweep_sets_are_refused_after_the_dashes(
    command: list[str], word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extra = [word] if "=" in word or word in ("--dry-run", "--help", "-h") else [word, "2"]
    assert cli.main([*command, "--out", str(tmp_path / "runs"), "--", "--no-video", *extra]) == 2
    error = capsys.readouterr().err
    assert f"{word} after -- conflicts with the command" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def catch(out: Path, seed: int, method: str) -> RunSpec:
    return make_run_spec(presets.resolve("toy/catch", method, seed=seed), out)


def test_seeds_of_one_method_share_a_process_with_seeds_per_process(tmp_path: Path) -> None:
    calls = [catch(tmp_path, seed, method) for seed in (1, 2, 3) for method in ("curl", "cclf")]
    assert [job.specs for job in group_into_jobs(calls, 1)] == [(single,) for single in calls]
    jobs = group_into_jobs(calls, 2)
    assert [[(c.config.method_name, c.config.seed) for c in job.specs] for job in jobs] == [
        [("curl", 1), ("curl", 2)],
        [("cclf", 1), ("cclf", 2)],
        [("curl", 3)],
        [("cclf", 3)],
    ]
    words = "toy/catch --method curl --profile released --seed 1 --out o --with-seeds 2"
    assert " ".join(jobs[0].arguments(Path("o"))) == words
    assert " ".join(jobs[2].arguments(Path("o"))) == words.replace(
        "--seed 1", "--seed 3"
    ).removesuffix(" --with-seeds 2")
    heavy = [replace(single, memory_bytes=PROCESS_BYTES + 100) for single in calls[:1]] * 3
    assert group_into_jobs(heavy, 3)[0].memory_bytes == PROCESS_BYTES + 300


def test_seeds_per_process_is_refused_where_runs_share_no_update(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--seeds-per-process 2 conflicts with base a2c"):
        group_into_jobs([call(tmp_path)], seeds_per_process=2)


RATES = "learning_rate=1e-4,3e-4"


@pytest.mark.quick("vary0-labels0")
@pytest.mark.parametrize(
    ("vary", "labels"),
    [
        ([RATES], ["learning_rate=1e-4", "learning_rate=3e-4"]),
        (
            [RATES, "rollout-steps=4,8"],
            [
                f"learning_rate={rate} rollout_steps={steps}"
                for rate in ("1e-4", "3e-4")
                for steps in (4, 8)
            ],
        ),
        (["env-steps=5000"], ["env_steps=5000"]),
    ],
)
def test_vary_trains_each_method_with_each_combination(
    tmp_path: Path, vary: list[str], labels: list[str]
) -> None:
    runs = plan([TASK], ["a2c", "cclf"], ["released"], [1, 2], tmp_path, [], vary)
    assert len(runs) == len({run.folder for run in runs}) == 4 * len(labels)
    assert [
        run.variant for run in runs if (run.method.split()[0], run.config.seed) == ("a2c", 1)
    ] == labels
    for run in runs:
        assert run.label == f"{TASK} {run.config.method_name} {run.variant} seed {run.config.seed}"
        assert train_config(run.arguments()).config == run.config
        if "learning_rate" in run.variant:
            assert (
                f"learning_rate={run.config.algorithm.learning_rate:.0e}".replace("e-0", "e-")
                in run.variant
            )
    assert [len(job.specs) for job in group_into_jobs(runs)] == [1] * len(runs)


def test_vary_switches_options_on_and_off(tmp_path: Path) -> None:
    runs = plan(["toy/reach-1d"], ["cclf"], ["released"], [1], tmp_path, [], ["reward=true,false"])
    assert [run.config.method.reward for run in runs] == [True, False]


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
def test_vary_of_bad_options_is_refused(
    vary: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sweep", "--tasks", TASK, "--methods", "a2c", "--out", str(tmp_path / "runs")]
    words += [word for text in vary for word in ("--vary", text)]
    assert cli.main([*words, "--", "--env-steps", "1000"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert line in err
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_prints_the_variants_and_trains_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sweep", "--tasks", TASK, "--methods", "a2c", "--seeds", "1", "2", "--vary", RATES]
    assert cli.main([*words, "--out", str(tmp_path / "runs"), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"minigrid a2c learning_rate=1e-4 +2 +0 +400,000", out)
    assert re.search(r"minigrid a2c learning_rate=3e-4 +2 +0 +400,000", out)
    assert "4 runs, 0 finished, 1,600,000 env steps in all" in out
    assert not list(tmp_path.rglob("config.json"))


def test_games_with_the_same_seeds_share_a_process_when_told(tmp_path: Path) -> None:
    games, seeds = ("atari/Pong", "atari/Alien", "atari/Krull"), (1, 2, 3)
    calls = [
        make_run_spec(presets.resolve(task, method, seed=seed), tmp_path)
        for task in games
        for seed in seeds
        for method in ("curl", "cclf")
    ]
    jobs = group_into_jobs(calls, seeds_per_process=2, games_per_process=2)
    held = [single for job in jobs for single in job.specs]
    assert len(held) == len(calls)
    assert set(held) == set(calls)
    assert " ".join(jobs[0].arguments(Path("o"))) == (
        "atari/Pong --method curl --profile released --seed 1 --out o --with-seeds 2 --with-tasks "
        "atari/Alien"
    )
    for job in jobs:  # as `cclf train` makes them of those words: task by task, with all seeds
        runs = [(single.config.task, str(single.config.seed)) for single in job.specs]
        tasks, seeds_of_job = ({*names} for names in zip(*runs, strict=True))
        assert len(runs) == len(tasks) * len(seeds_of_job)
        assert runs == sorted(runs, key=lambda run: (games.index(run[0]), run[1]))
        assert len({single.config.method_name for single in job.specs}) == 1
    grids = [
        call(tmp_path, 1),
        make_run_spec(
            presets.resolve("minigrid/Empty-5x5", "a2c"), tmp_path, ("--env-steps", "1000")
        ),
    ]
    assert len(group_into_jobs(grids, 1, games_per_process=9)) == 2, "only games are stacked"


def test_a_plan_forecasts_the_memory_of_replays_and_starts_with_the_longest(tmp_path: Path) -> None:
    calls = plan(["toy/reach-1d", "toy/reach"], ["drq"], ["released"], [1, 2], tmp_path, [])
    assert [(c.config.task, c.config.seed) for c in calls] == [
        (t, s) for t in ("toy/reach", "toy/reach-1d") for s in (1, 2)
    ]
    frame_bytes = 20 * 20 * 3
    assert (
        calls[0].memory_bytes - PROCESS_BYTES
        > 3_000 * frame_bytes
        > calls[2].memory_bytes - PROCESS_BYTES
        > 1_500 * frame_bytes
    )
    assert all(c.may_use_gpu for c in calls)
    assert not plan([TASK], ["a2c"], ["released"], [1], tmp_path, [])[0].may_use_gpu


def base_among(options: tuple[str, ...]) -> str | None:
    return options[options.index("--base") + 1] if "--base" in options else None


@pytest.mark.parametrize(
    "name", [name for name in experiments.TABLES if experiments.TABLES[name]["paper"].tasks]
)
def test_the_tables_of_the_paper_hold_what_their_claims_speak_of(name: str) -> None:
    table = experiments.TABLES[name]["paper"]
    claims = verdicts.claims(name)
    assert claims
    assert {task for claim in claims for task in claim.tasks} <= set(table.tasks)
    assert {method for claim in claims for method in claim.methods} <= set(table.methods)
    for budget in experiments.TABLES[name].values():
        for task in budget.tasks:
            for method in budget.methods:
                presets.resolve(task, method, base_name=base_among(budget.options))


def test_the_ablation_has_all_fifteen_combinations() -> None:
    assert len(set(experiments.TABLES["ablation"]["paper"].methods)) == 15


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--table", "tabel1"], "did you mean table1"),
        (["--tasks", TASK], "needs --tasks and --methods"),
        (["--table", "minigrid", "--methods", "cclv"], "did you mean cclf"),
        (["--table", "minigrid", "--jobs", "-1"], "--jobs -1 must be 0 or more"),
        (["--table", "minigrid", "--seeds-per-process", "0"], "1 or more"),
        (["--table", "minigrid", "--backend", "slurm"], "backend"),
    ],
)
def test_bad_words_are_one_line(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["sweep", *words, "--out", str(tmp_path / "runs")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()
