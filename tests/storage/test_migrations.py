"""Run folders of earlier versions are read, and resume."""

import json
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from cclf import presets
from cclf.algorithms.sac.sac import SAC
from cclf.storage import checkpoint, migrations
from cclf.storage.run_folder import read_config
from test_cli import assert_refused, cclf
from tiny_runs import differing, rows, tables, tiny_config, tiny_options

CONFIG = tiny_config()
LONGER = replace(CONFIG, run=replace(CONFIG.run, env_steps=76))


@pytest.fixture(scope="module")
def earlier(trained):
    """The output folder of a finished run, written before the change that a test makes."""
    return trained(CONFIG).parents[3]


@pytest.fixture
def out(earlier, tmp_path):
    shutil.copytree(earlier, tmp_path / "out")
    return tmp_path / "out"


def resume(out):
    return cclf("train", *tiny_options(LONGER), "--out", out)


def final_state(out):
    return checkpoint.load(out / CONFIG.run_name() / "checkpoint")


def state_file(out, serial):
    return json.loads((out / CONFIG.run_name() / "checkpoint" / serial / "state.json").read_text())


@pytest.fixture
def added_field(monkeypatch):
    """Simulate a later version, in which the state of SAC has a new counter."""
    save, load, make = SAC.state_dict, SAC.load_state_dict, SAC.__init__

    def make_with_counter(self, *args, **kwargs):
        make(self, *args, **kwargs)
        self.added = 5

    def load_with_counter(self, state):
        load(self, {name: value for name, value in state.items() if name != "added"})
        self.added = state["added"] + 1

    monkeypatch.setattr(SAC, "__init__", make_with_counter)
    monkeypatch.setattr(SAC, "state_dict", lambda self: save(self) | {"added": self.added})
    monkeypatch.setattr(SAC, "load_state_dict", load_with_counter)


@pytest.mark.usefixtures("added_field")
def test_added_field_keeps_its_initial_value_where_a_checkpoint_lacks_it(
    out, earlier, tmp_path, monkeypatch
):
    fields = migrations.ADDED_FIELDS | {"learner/algorithm/added"}
    monkeypatch.setattr(migrations, "ADDED_FIELDS", fields)
    assert cclf("evaluate", out / CONFIG.run_name(), "--episodes", "1")[0] == 0
    code, _, err = resume(out)
    assert code == 0, err
    resumed = final_state(out)
    assert resumed["learner"]["algorithm"].pop("added") == 6
    monkeypatch.undo()  # the version without the field, from the same checkpoint
    shutil.copytree(earlier, tmp_path / "before")
    assert resume(tmp_path / "before")[0] == 0
    assert differing(resumed["learner"], final_state(tmp_path / "before")["learner"]) == []
    assert tables(out / CONFIG.run_name()) == tables(tmp_path / "before" / CONFIG.run_name())


@pytest.mark.usefixtures("added_field")
def test_added_field_that_is_not_declared_is_refused(out):
    assert_refused(resume(out), "learner/algorithm lacks 'added'")


def test_checkpoint_of_an_earlier_format_is_converted(out, monkeypatch):
    def convert(state):
        assert state["agent_steps"] == 60
        return state | {"episodes": 1_000}

    monkeypatch.setattr(migrations, "FORMAT", 2)
    monkeypatch.setattr(migrations, "MIGRATIONS", {1: convert})
    code, _, err = resume(out)
    assert code == 0, err
    assert final_state(out)["episodes"] > 1_000
    assert state_file(out, "00000003")["format"] == 2
    assert "format" not in final_state(out)
    monkeypatch.undo()
    assert_refused(resume(out), "format 2 needs a later version of cclf")
    assert_refused(cclf("evaluate", out / CONFIG.run_name()), "format 2 needs a later version")


def test_format_1_is_not_written(earlier):
    assert migrations.FORMAT > 1 or "format" not in state_file(earlier, "00000002")


@pytest.mark.parametrize(
    ("task", "old", "new"),
    [
        ("toy/catch", "n_step_slip", "n_step_bug"),
        ("minigrid/DoorKey-6x6", "re3_running_mean_slip", "re3_running_mean_bug"),
    ],
)
def test_config_of_version_0_1_is_read(tmp_path, task, old, new):
    """Version 0.1 named no base algorithm, and two settings had other names."""
    config = presets.resolve(task)
    values = config.to_dict()
    del values["base"]
    values["algorithm"][old] = values["algorithm"].pop(new)
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert read_config(tmp_path) == config


EARLIER_VERSIONS = Path(__file__).with_name("earlier_versions")


@pytest.mark.quick("sac")
@pytest.mark.parametrize("base", ["sac", "drqv2", "a2c"])
def test_checkpoint_of_version_0_2_resumes(base, tmp_path):
    """Each archive is the run folder of a run of 40 env steps, written on another machine."""
    with tarfile.open(EARLIER_VERSIONS / f"{base}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    config = read_config(tmp_path / base)
    folder = tmp_path / "runs" / config.run_name()
    shutil.copytree(tmp_path / base, folder)
    before = {name: (folder / name).read_text() for name in ("train.csv", "eval.csv")}
    command = ["train", "--from", folder / "config.json", "--env-steps", 60, "--out"]
    code, _, err = cclf(*command, tmp_path / "runs")
    assert code == 0, err
    assert "resuming at 40 env steps" in err
    assert cclf(*command, tmp_path / "whole")[0] == 0
    whole = tmp_path / "whole" / config.run_name()
    for name, text in before.items():
        assert (folder / name).read_text().startswith(text)
        for row, expected in zip(rows(folder / name), rows(whole / name), strict=True):
            for column in row.keys() - {"wall_seconds", "returns"}:
                same = pytest.approx(float(expected[column] or 0), abs=0.02)
                assert float(row[column] or 0) == same, column  # of another processor
