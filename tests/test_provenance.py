"""The code version and the machine of each row: neither the commit of another repository nor that
of a later resume."""

import json
import subprocess
from dataclasses import replace

import pytest

from cclf import __version__
from cclf.analysis import load
from cclf.errors import ConfigError
from cclf.storage import manifest as manifests
from cclf.storage.manifest import append_history
from test_cli import cclf
from tiny_rows import write_run
from tiny_runs import tiny_config, tiny_options


def git(repository, *words):
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    done = subprocess.run(
        ["git", "-C", repository, *who, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The package in an environment inside the repository of another project."""
    monkeypatch.delenv("CCLF_COMMIT", raising=False)
    package = tmp_path / "env" / "cclf"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (tmp_path / "theirs.py").write_text("")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "theirs.py")
    git(tmp_path, "commit", "-q", "-m", "theirs")
    return package


def test_code_version_is_the_commit_of_a_repository_that_contains_the_package(
    installed, monkeypatch
):
    assert manifests.code_version(installed) == f"cclf {__version__}"
    git(installed, "add", "__init__.py")
    git(installed, "commit", "-q", "-m", "now it holds the package")
    assert manifests.code_version(installed) == git(installed, "rev-parse", "--short=12", "HEAD")
    monkeypatch.setenv("PATH", "")  # without git
    assert manifests.code_version(installed) == f"cclf {__version__}"
    monkeypatch.setenv("CCLF_COMMIT", "abc")
    assert manifests.code_version(installed) == "abc"


def test_rows_before_a_resume_keep_their_commit(tmp_path, monkeypatch):
    config = tiny_config(method="rad")
    for commit, env_steps in (("a", 30), ("a", 60), ("b", 90), ("c", 120)):
        monkeypatch.setenv("CCLF_COMMIT", commit)
        longer = replace(config, run=replace(config.run, env_steps=env_steps))
        assert cclf("train", *tiny_options(longer), "--out", tmp_path)[0] == 0
    manifest = json.loads((tmp_path / config.run_name() / "manifest.json").read_text())
    assert manifest["commit"] == "a"
    assert [(entry["from_env_steps"], entry["commit"]) for entry in manifest["history"]] == [
        (60, "b"),
        (90, "c"),
    ]
    assert manifest["history"][0]["python"] == manifest["python"], "an entry holds all facts"
    assert [row.commit for row in load.read_runs(tmp_path)] == ["a", "a", "b", "c"]


HISTORY = {
    "commit": "a",
    "history": [{"from_env_steps": 30, "commit": "b"}, {"from_env_steps": 60, "commit": "c"}],
}


@pytest.mark.parametrize(
    ("before", "now", "env_steps", "commits"),
    [
        (None, {"commit": "x"}, 0, [(0, "x")]),
        # killed before a first checkpoint: no row of it is left
        ({"commit": "a"}, {"commit": "x"}, 0, [(0, "x")]),
        ({"commit": "a"}, {"commit": "a"}, 30, [(0, "a")]),
        (
            {"commit": "a", "ms_per_frame": 1.0},
            {"commit": "a", "ms_per_frame": 2.0},
            30,
            [(0, "a")],
        ),
        (HISTORY, {"commit": "c"}, 90, [(0, "a"), (30, "b"), (60, "c")]),
        (HISTORY, {"commit": "c"}, 60, [(0, "a"), (30, "b"), (60, "c")]),
        # rows after 60 were cut off
        (HISTORY, {"commit": "x"}, 60, [(0, "a"), (30, "b"), (60, "x")]),
        (HISTORY, {"commit": "a"}, 30, [(0, "a")]),
        (None, {"commit": "x"}, 30, [(0, None), (30, "x")]),  # the manifest was lost
    ],
)
def test_history_records_what_changed_and_when(before, now, env_steps, commits):
    facts = append_history(before, now, env_steps)
    entries = [{"from_env_steps": 0, **facts}, *facts.get("history", [])]
    assert [(entry["from_env_steps"], entry["commit"]) for entry in entries] == commits


def test_damaged_history_is_refused_when_rows_are_read(tmp_path):
    write_run(
        tmp_path, "a2c", 1, evaluations={128: 0.5}, manifest={"history": [{"from_env_steps": "x"}]}
    )
    with pytest.raises(ConfigError, match="cannot read the run in"):
        load.read_runs(tmp_path)
