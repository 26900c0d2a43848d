"""`cclf train --from`: repeat a run from its config file, with changes by options."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import rainbow_inputs
from cclf import cli, presets
from cclf.config import Config
from cclf.storage.run_folder import read_config
from tiny_runs import tables, tiny_config, tiny_options

TINY = tiny_config(method="rad", seed=3, env_steps=30)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("first")
    assert cli.main(["train", *tiny_options(TINY), "--out", str(out)]) == 0
    return out / TINY.run_name()


def configs(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """The resolved config of a command line."""
    assert cli.main(["train", *words, "--dry-run", "--json"]) == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return said


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["train", *words]) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1, said.err
    assert said.out == ""
    return said.err


def test_a_run_is_made_again_from_its_folder_to_the_same_bytes(
    tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", "--from", str(run), "--out", str(tmp_path)]) == 0
    again = Path(capsys.readouterr().out.strip())
    assert again == tmp_path / TINY.run_name()
    assert tables(again) == tables(run)
    assert read_config(again) == read_config(run)


def test_config_file_gives_the_same_config_and_options_change_it(
    tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(TINY.to_dict()))
    known = configs(capsys, f"--from={run / 'config.json'}")
    assert known == TINY.resolve_precision(gpu=False).to_dict()
    assert configs(capsys, "--from", str(file)) == TINY.to_dict()
    changed = configs(
        capsys, "--seed", "9", "--from", str(file), "--env-steps", "90", "--batch-size", "8"
    )
    assert (changed["seed"], changed["run"]["env_steps"]) == (9, 90)
    assert changed["algorithm"] == TINY.to_dict()["algorithm"] | {"batch_size": 8}


def test_a_file_can_be_trained_with_several_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rainbow.json"
    file.write_text(json.dumps(rainbow_inputs.tiny_cclf(seed=3).to_dict()))
    words = ["--from", str(file), "--with-seeds", "4", "--env-steps", "5", "--out", str(tmp_path)]
    assert cli.main(["train", *words]) == 0
    folders = [Path(line) for line in capsys.readouterr().out.split()]
    assert [read_config(folder).seed for folder in folders] == [3, 4]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["toy/reach-1d"], "conflicts with toy/reach-1d"),
        (["--method", "cclf"], "conflicts with --method"),
        (["--base", "sac"], "conflicts with --base"),
        (["--profile", "paper"], "conflicts with --profile"),
        (["--with-tasks", "toy/reach"], "conflicts with --with-tasks"),
        (["--bonus-temperature", "0.5"], "bonus_temperature=0.5 conflicts with"),
        (["--batch-sise", "8"], "batch-sise"),
    ],
)
def test_options_that_conflict_with_the_file_are_refused(
    run: Path, words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert line in refusal(capsys, "--from", str(run), *words)


def broken(change: dict[str, Any]) -> str:
    return json.dumps(TINY.to_dict() | change)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{", "cannot read"),
        ("[1]", "cannot read"),
        ("{}", "cannot read"),
        (broken({"surplus": 1}), "cannot read"),
        (broken({"run": {"env_steps": "many"}}), "env_steps=many must be a whole number"),
        (broken({"task": "toy/nowhere"}), "unknown task 'toy/nowhere'"),
        (broken({"task": "toy/catch"}), "conflicts with toy/catch"),
        (broken({"task": "dmc/../../x"}), "unknown task 'dmc/../../x'"),
        (broken({"method_name": "../../x"}), "unknown method '../../x'"),
        (broken({"profile": "mine"}), "unknown profile 'mine'"),
        (broken({"base": "nobody"}), "nobody"),
    ],
)
def test_a_broken_file_is_refused_in_one_line_that_names_it(
    tmp_path: Path,
    text: str,
    line: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(text)
    said = refusal(capsys, "--from", "config.json")
    assert line in said
    assert "config.json" in said
    assert os.listdir() == ["config.json"]


def test_a_file_that_is_not_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "No such file" in refusal(capsys, "--from", str(tmp_path / "nowhere.json"))
    assert "is not a run folder" in refusal(capsys, "--from", str(tmp_path))


def test_file_imports_no_module_without_trust(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "strange_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    config: Config = presets.resolve("gym/strange_module:Square-v0", "rad", make_env=False)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config.to_dict()))
    said = refusal(capsys, "--from", str(file), "--out", str(tmp_path / "runs"))
    assert "imports the Python module 'strange_module'" in said
    assert "--trust-imports" in said
    assert "strange_module" not in sys.modules
    # A dry run makes the environment, so with a yes the module runs.
    assert cli.main(["train", "--from", str(file), "--trust-imports", "--dry-run"]) == 1
    assert "failed in make(): SystemExit: imported" in capsys.readouterr().err


def test_trust_imports_is_refused_without_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--trust-imports is for --from" in refusal(capsys, "toy/reach-1d", "--trust-imports")
