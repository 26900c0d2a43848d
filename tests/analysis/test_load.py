"""Results are read from runs and from result files; runs that cannot be compared are refused, and
failed runs are kept."""

import math
import re
from pathlib import Path

import pytest

from cclf import cli
from cclf.analysis import load, runs
from cclf.analysis.runs import ResultRow, StepBudget
from cclf.errors import ConfigError
from tiny_rows import TASK, row, runs_of, write_run

END = StepBudget("env_steps", 400_000)
CARTPOLE = "dmc/cartpole-swingup"


def collect(runs: Path, out: Path) -> int:
    return cli.main(["results", str(runs), "--out", str(out)])


def test_results_are_added_to_those_that_are_there(tmp_path: Path) -> None:
    out = tmp_path / "results"
    write_run(tmp_path / "first", "cclf", 1, evaluations={400_000: 0.5})
    write_run(tmp_path / "second", "cclf", 2, evaluations={12_800: 0.2})
    assert collect(tmp_path / "first", out) == 0
    assert collect(tmp_path / "second", out) == 0
    write_run(tmp_path / "later", "cclf", 2, evaluations={12_800: 0.2, 400_000: 0.7})  # continued
    assert collect(tmp_path / "later", out) == 0
    readings = [(each.seed, each.env_steps, each.return_mean) for each in load.read(out)]
    assert readings == [(1, 400_000, 0.5), (2, 12_800, 0.2), (2, 400_000, 0.7)]


def test_results_keep_long_evaluations_that_not_every_run_has(tmp_path: Path) -> None:
    out, runs = tmp_path / "results", tmp_path / "runs"
    folder = write_run(runs, "cclf", 1, evaluations={400_000: 0.5})
    header = (folder / "eval.csv").read_text().splitlines()[0]
    (folder / "final.csv").write_text(f"{header}\n400000,400000,3125,0.7,0.1,100,9999,0.7\n")
    assert collect(runs, out) == 0
    write_run(runs, "cclf", 2, evaluations={400_000: 0.6})  # its last evaluation has ten episodes
    assert collect(runs, out) == 0
    kept = [(each.seed, each.episodes, each.return_mean) for each in load.read_source(out).rows]
    assert kept == [(1, 10, 0.5), (1, 100, 0.7), (2, 10, 0.6)]
    assert [each.return_mean for each in load.read(out)] == [0.5, 0.6], "those that both have"


def test_another_run_of_the_same_name_is_refused_and_nothing_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results"
    write_run(tmp_path / "first", "cclf", 1, evaluations={12_800: 0.5, 400_000: 0.6})
    write_run(tmp_path / "second", "cclf", 1, evaluations={12_800: 0.5, 400_000: 0.7})
    assert collect(tmp_path / "first", out) == 0
    before = (out / "cclf.csv").read_text()
    assert collect(tmp_path / "second", out) == 2
    line = capsys.readouterr().err
    assert "has another run that is called" in line
    assert "seed 1, of commit abc: use another --out" in line
    assert (out / "cclf.csv").read_text() == before


def test_runs_are_read_with_clocks_machine_commit_and_state(tmp_path: Path) -> None:
    write_run(tmp_path, "re3", 3, evaluations={12800: 0.25})
    (tmp_path / "not-a-run").mkdir()
    (tmp_path / "not-a-run" / "config.json").write_text("{}")
    expected = ResultRow(
        TASK,
        "re3",
        "entropy-0.01",
        3,
        12800,
        12800,
        100,
        0.25,
        0.1,
        10,
        1.28,
        "cpu x1",
        "abc",
        "unfinished",
    )
    assert load.read(tmp_path) == [expected]


@pytest.mark.parametrize("task", ["dmc/cartpole-swingup", "toy/reach"])
def test_other_base_algorithms_are_read_by_their_profile(tmp_path: Path, task: str) -> None:
    write_run(tmp_path, "cclf", 1, task=task, evaluations={8_000: 1.0})
    assert load.read(tmp_path)[0].profile == "released"


def test_state_of_a_run_follows_from_the_files_in_its_folder(tmp_path: Path) -> None:
    write_run(tmp_path, seed=1, evaluations={400_000: 0.9})
    write_run(tmp_path, seed=2, evaluations={12_800: 0.1})
    write_run(tmp_path, seed=3, evaluations={12_800: 0.1}, failed=True)
    write_run(tmp_path, seed=4, failed=True)
    write_run(tmp_path, seed=5)
    (tmp_path / next(tmp_path.rglob("*seed-1*/manifest.json"))).unlink()
    rows = load.read(tmp_path)
    assert (rows[0].device, rows[0].commit) == ("unknown", "unknown")
    assert {row.seed: row.state for row in rows} == {
        1: "done",
        2: "unfinished",
        3: "failed",
        4: "failed",
    }
    assert math.isnan(rows[-1].return_mean)
    assert rows[-1].env_steps == 0


def test_a_failed_run_counts_as_the_lowest_return_of_its_task() -> None:
    rows = [
        row("cclf", 1, value=0.8),
        row("cclf", 2, 12_800, 0.6, state="failed"),
        row("a2c", 1, 12_800, 0.05),
        row("a2c", 1),
    ]
    rows.append(row("cclf", 3, 0, math.nan, state="failed"))
    rows.append(row("cclf", 4, 12_800, 0.3, state="unfinished"))  # has no score yet
    found = runs.score_matrix(rows, ["cclf", "a2c"], {TASK: END})
    assert found["cclf"].tolist() == [[0.8], [0.05], [0.05]]
    assert found["a2c"].tolist() == [[0.5]]


def test_scores_take_the_seeds_that_every_task_has() -> None:
    other = "minigrid/Empty-16x16"
    rows = [*runs_of("cclf", [0.1, 0.2, 0.3]), *runs_of("cclf", [0.7, 0.8], task=other)]
    assert runs.score_matrix(rows, ["cclf"], {TASK: END, other: END})["cclf"].tolist() == [
        [0.1, 0.7],
        [0.2, 0.8],
    ]
    assert runs.score_matrix(rows, ["re3"], {TASK: END, other: END})["re3"].shape == (0, 2)


def test_evaluation_at_a_budget_may_be_a_rollout_late_but_not_earlier() -> None:
    readings = [row(env_steps=90_000), row(env_steps=100_096), row(env_steps=110_000)]
    assert runs.evaluation_at(readings, StepBudget("env_steps", 100_000)) == readings[1]
    assert runs.evaluation_at(readings, StepBudget("env_steps", 95_000)) is None
    atari = [row(env_steps=400_000, repeat=4, task="atari/Pong")]
    assert runs.evaluation_at(atari, StepBudget("agent_steps", 100_000)) == atari[0]
    assert runs.evaluation_at(atari, StepBudget("agent_steps", 400_000)) is None


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (
            [row("cclf", task=CARTPOLE, repeat=8), row("drq", task=CARTPOLE, repeat=4)],
            "4 in .*drq.* but 8 in .*cclf",
        ),
        ([row("cclf", value=0.1), row("cclf", value=0.2)], "two runs are called"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(
    rows: list[ResultRow], words: str, tmp_path: Path
) -> None:
    load.write_results(rows, tmp_path)
    with pytest.raises(ConfigError, match=words) as error:
        load.read(tmp_path)
    assert "\n" not in str(error.value)


def test_comparing_evaluations_of_different_length_prints_a_warning_once(capsys) -> None:
    rows = [row("cclf", value=0.5, episodes=100), row("a2c", value=0.25, episodes=10)]
    runs.warn_once.cache_clear()
    for _ in range(2):
        found = runs.score_matrix(rows, ["cclf", "a2c"], {TASK: END})
    assert (found["cclf"].item(), found["a2c"].item()) == (0.5, 0.25)
    said = capsys.readouterr().err
    assert said.count("evaluations of 10 and 100 episodes are compared") == 1


def test_where_a_run_lacks_the_longer_evaluation_all_are_compared_in_the_shorter(
    tmp_path: Path, capsys
) -> None:
    both = [*atari(1, -20.0, -3.0, final=-4.0), *atari(2, -19.0, -18.0, final=-18.5)]
    load.write_results([*both, *atari(3, -9.0, -8.0)], tmp_path)
    runs.warn_once.cache_clear()
    found = runs.score_matrix(
        load.read(tmp_path), ["curl"], {"atari/Pong": StepBudget("agent_steps", 20_000)}
    )
    assert found["curl"].tolist() == [[-3.0], [-18.0], [-8.0]]
    assert (
        "atari/Pong at 80,000 env steps: not every run has an evaluation of 100 episodes"
        in capsys.readouterr().err
    )
    assert runs.with_common_episode_count(both) == both
    assert not capsys.readouterr().err


def results_file(state: str = "done", without_state: bool = False) -> dict[str, str]:
    line = [*map(str, row(state=state))][: -1 if without_state else None]
    return {"a.csv": "\n".join(map(",".join, (ResultRow._fields, line))) + "\n"}


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "holds neither runs"),
        ({"a.csv": "task,method\n"}, "column .* is missing"),
        (
            {"a.csv": ",".join(ResultRow._fields) + "\n" + ",".join(["x"] * 14) + "\n"},
            "a.csv, line 2",
        ),
        ({"config.json": "{", "eval.csv": "", "manifest.json": "{}"}, "cannot read .*config.json"),
        ({"config.json": "[]", "eval.csv": "", "manifest.json": "{}"}, "is not a JSON object"),
        (
            {"config.json": "{}", "eval.csv": "", "manifest.json": "{}"},
            "cannot read the run in",
        ),
        (results_file(state="\x1b[2J"), r"a.csv, line 2: .* not '\\x1b\[2J'"),
        (results_file(state="Done"), "one of done, failed, unfinished, not 'Done'"),
        (results_file(without_state=True), "not 'None'"),
    ],
)
def test_invalid_input_is_one_line(tmp_path: Path, files: dict[str, str], words: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=words) as error:
        load.read(tmp_path)
    assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match="does not exist"):
        load.read(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"task": 1, "method": 2, "seed": 1, "profile": "x"}', "cannot tell from .* which run"),
        ("[" * 100_000, "cannot read .*: RecursionError"),
    ],
)
def test_unreadable_failure_mark_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    (tmp_path / "failed.json").write_text(text)
    with pytest.raises(ConfigError, match="holds neither runs"):
        load.read(tmp_path)
    assert re.search(
        f"cclf: warning: a failed run is not counted: {words}", capsys.readouterr().err
    )


def test_incomplete_row_is_not_read(tmp_path: Path) -> None:
    """The first half of 0.75 is 0, which looks like a return."""
    folder = write_run(tmp_path, evaluations={200_000: 0.5})
    with (folder / "eval.csv").open("a") as file:
        file.write("400000,400000,3125,0")
    assert [(each.env_steps, each.state) for each in load.read(tmp_path)] == [
        (200_000, "unfinished")
    ]


def test_runs_in_a_folder_that_is_named_as_a_part_of_a_run_are_read(tmp_path: Path) -> None:
    write_run(tmp_path / "failure", evaluations={400_000: 0.5})
    assert len(load.read(tmp_path)) == 1


def atari(
    seed: int, *values: float, final: float | None = None, state: str = "done"
) -> list[ResultRow]:
    """Evaluations of 10 episodes every 10K agent steps, and a longer one of the last agent."""
    rows = [
        row("curl", seed, 40_000 * n, value, task="atari/Pong", repeat=4, episodes=10)
        for n, value in enumerate(values, 1)
    ]
    if final is not None:
        rows.append(rows[-1]._replace(return_mean=final, episodes=100))
    return [row._replace(state=state) for row in rows]


def test_the_best_evaluation_is_of_training_and_not_the_longer_last_one() -> None:
    rows = [
        *atari(1, -20.0, -3.0, -15.0, final=-1.0),
        *atari(2, -19.0, -18.0, final=-18.5),
        *atari(3, -5.0, state="failed"),
    ]
    assert runs.best_scores(rows, ["curl"], ["atari/Pong"])["curl"].tolist() == [
        [-3.0],
        [-18.0],
        [-20.0],
    ]
    once = [*atari(1, -20.0, -3.0), *atari(2, -1.0, final=-1.5)]
    assert runs.best_scores(once, ["curl"], ["atari/Pong"])["curl"].tolist() == [[-3.0]], (
        "a single evaluation is no best"
    )
    done = atari(1, -20.0, -3.0, final=-4.0)
    assert runs.score_matrix(done, ["curl"], {"atari/Pong": StepBudget("agent_steps", 20_000)})[
        "curl"
    ].tolist() == [[-4.0]]


def test_a_longer_last_evaluation_is_read_with_the_clock_of_its_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path, evaluations={200_000: 0.4, 400_000: 0.5})
    header = (folder / "eval.csv").read_text().splitlines()[0]
    (folder / "final.csv").write_text(f"{header}\n400000,400000,3125,0.7,0.1,100,9999,0.7\n")
    last = next(iter(runs.runs(load.read(tmp_path)).values()))[-1]
    assert (last.return_mean, last.episodes, last.wall_seconds, last.state) == (
        0.7,
        100,
        40.0,
        "done",
    )


def test_final_evaluation_of_the_same_length_is_one_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path, evaluations={200_000: 0.5})
    (folder / "final.csv").write_text((folder / "eval.csv").read_text().replace("0.5", "0.7"))
    assert [row.return_mean for row in load.read(tmp_path)] == [0.5]


def test_folder_that_may_not_be_entered_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("os.scandir", refuse)
    with pytest.raises(PermissionError):
        load.read(tmp_path)
