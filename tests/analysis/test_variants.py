"""Runs of one method with different settings have names that say what differs."""

import csv
from pathlib import Path

import pytest

from cclf import cli
from cclf.analysis import load
from cclf.analysis.variants import run_key
from cclf.errors import ConfigError
from tiny_rows import TASK, write_run

EMPTY = "minigrid/Empty-16x16"


def write(
    out: Path, seed: int = 1, task: str = TASK, method: str = "re3", **settings: object
) -> Path:
    groups = {"algorithm": settings} if settings else {}
    evaluations = {200_000: 0.1 * seed, 400_000: 0.2 * seed}
    name = "-".join(map(str, (task.replace("/", "-"), method, seed, *settings.values())))
    return write_run(
        out, method, seed, task=task, evaluations=evaluations, changes=groups, name=name
    )


def methods(folder: Path) -> list[str]:
    return sorted({row.method for row in load.read(folder)})


def test_run_with_another_setting_is_named_by_it(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path, learning_rate=0.0003)  # the same seed
    write(tmp_path, seed=2, learning_rate=0.0003)
    assert methods(tmp_path) == ["re3", "re3, learning_rate=0.0003"]
    seeds = {(row.method, row.seed) for row in load.read(tmp_path)}
    assert seeds == {("re3", 1), ("re3, learning_rate=0.0003", 1), ("re3, learning_rate=0.0003", 2)}


def test_settings_that_all_runs_share_are_not_named(tmp_path: Path) -> None:
    for seed in (1, 2):
        write(tmp_path, seed=seed, learning_rate=0.0003)
    assert methods(tmp_path) == ["re3"]


def test_setting_that_varies_on_one_task_is_named_on_all(tmp_path: Path) -> None:
    """Otherwise an average across tasks would mix the two settings."""
    write(tmp_path)
    write(tmp_path, learning_rate=0.0003)
    write(tmp_path, task=EMPTY, learning_rate=0.0003)
    named = {row.method for row in load.read(tmp_path) if row.task == EMPTY}
    assert named == {"re3, learning_rate=0.0003"}


def test_variants_of_unknown_presets_name_every_difference(tmp_path: Path) -> None:
    for rate in (0.001, 0.002):
        folder = write(tmp_path, learning_rate=rate)
        config = (folder / "config.json").read_text().replace('"re3"', '"mine"')
        (folder / "config.json").write_text(config)
    assert methods(tmp_path) == ["mine, learning_rate=0.001", "mine, learning_rate=0.002"]


def test_name_of_many_differences_is_short_and_unique(tmp_path: Path) -> None:
    write(tmp_path)
    for rate in (0.1, 0.2):
        write(
            tmp_path, learning_rate=rate, discount=0.5, gae_lambda=0.5, num_envs=3, rollout_steps=7
        )
    long = [name for name in methods(tmp_path) if name != "re3"]
    assert len(long) == 2
    assert all(len(name) < 70 for name in long)


def test_field_of_one_version_only_is_not_compared(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path, seed=2, a_field_of_tomorrow=1)
    assert methods(tmp_path) == ["re3"]


def test_same_settings_and_seed_in_two_folders_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a", learning_rate=0.0003)
    write(tmp_path / "b", learning_rate=0.0003)
    with pytest.raises(ConfigError, match="are the same run"):
        load.read(tmp_path)


def test_results_and_report_show_variants_as_methods(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, out, tables = tmp_path / "runs", tmp_path / "results", tmp_path / "tables"
    for seed in (1, 2):
        write(runs, seed)
        write(runs, seed, learning_rate=0.0003)
    assert cli.main(["results", str(runs), "--out", str(out)]) == 0
    assert [path.name for path in out.iterdir()] == ["re3.csv"], "variants share a file"
    assert methods(out) == ["re3", "re3, learning_rate=0.0003"]
    page = str(tmp_path / "report.html")
    assert cli.main(["report", str(runs), "--out", page, "--tables", str(tables)]) == 0
    with next(tables.glob("returns-*.csv")).open(newline="") as file:
        assert [line["method"] for line in csv.DictReader(file)] == methods(out)
    capsys.readouterr()
    assert (
        cli.main(["report", str(out), "--out", page, "--methods", "re3, learning_rate=0.03"]) == 2
    )
    assert "did you mean re3, learning_rate=0.0003?" in capsys.readouterr().err


def test_precision_is_part_of_the_profile() -> None:
    config = {
        "task": "dmc/walker-walk",
        "method_name": "cclf",
        "profile": "paper",
        "seed": 2,
        "algorithm": {"precision": "bf16"},
    }
    assert run_key(config).profile == "paper-bf16"
    assert run_key(config | {"algorithm": {"precision": "fp32"}}).profile == "paper"
