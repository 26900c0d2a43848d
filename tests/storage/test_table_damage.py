"""Tables and folders that were changed after the run: training prints one line and changes nothing,
and commands that only read print a warning."""

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import cclf as package
from cclf.errors import DataError
from cclf.storage import checkpoint
from cclf.storage.loggers import RunLog
from cclf.storage.tables import (
    CsvTable,
    TableRecord,
    read_final_record,
    rows_to_keep,
    rows_until,
    table_damage,
)
from cclf.training import trainer
from test_cli import assert_refused, cclf, contents
from tiny_runs import rows, tables, tiny_config, tiny_options

CONFIG = tiny_config(method="rad", final_eval_episodes=1)
LONGER = replace(CONFIG, run=replace(CONFIG.run, env_steps=64))


def train(out, config=CONFIG):
    return cclf("train", *tiny_options(config), "--out", out)


@pytest.fixture(scope="module")
def finished(trained):
    return trained(CONFIG)


@pytest.fixture
def run(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / CONFIG.run_name()))


def out_of(run):
    return run.parents[len(CONFIG.run_name().split("/")) - 1]


def recorded(run):
    saved = checkpoint.load(run / "checkpoint")["tables"]
    return {name: TableRecord(**record) for name, record in saved.items()}


def without_records(run):
    """Write a checkpoint as version 0.1 did, which recorded no tables."""
    checkpoints = checkpoint.Checkpoints(run / "checkpoint")
    state = checkpoints.load()
    del state["tables"]
    checkpoints.save(state)


def assert_refused_unchanged(run, config, *words):
    """Training is refused and no file changes; the content of the lock does not matter."""
    before = contents(run) | {"lock": b""}
    assert_refused(train(out_of(run), config), *words)
    assert contents(run) | {"lock": b""} == before


def assert_begins_with_tables_of(finished, run):
    pairs = zip(tables(run), tables(finished), strict=True)
    assert all(ours[: len(theirs)] == theirs for ours, theirs in pairs)


def collect(run):
    shutil.rmtree(run.parent / "results", ignore_errors=True)
    return cclf("results", out_of(run), "--out", run.parent / "results")


def assert_warned(run, *words):
    code, _, err = collect(run)
    assert (code, err.count("\n")) == (0, 1), err
    for word in (f"warning: the tables of {run} may be wrong: ", *words):
        assert word in err


def edited(pattern, by):
    def edit(path):
        text = path.read_text()
        assert re.search(pattern, text), "nothing to change"
        path.write_text(re.sub(pattern, by, text, count=1))

    return edit


def folder_instead(path):
    path.unlink()
    path.mkdir()


DAMAGE = {
    "deleted": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "without its rows": lambda path: path.write_text(path.read_text().splitlines(keepends=True)[0]),
    "without its first row": edited(r"\n.*", ""),
    "without its last row": edited(r"\n[^\n]*\n$", "\n"),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-3]),
    "a digit changed": edited(r"(\n\d+,\d+,\d+,.*)\d", r"\g<1>x"),
    "a row twice": edited(r"\n(.*)\n", r"\n\g<1>\n\g<1>\n"),
    "a column renamed": edited("updates", "update"),
    "no header": lambda path: path.write_text(path.read_text().partition("\n")[2]),
    "no text": lambda path: path.write_bytes(b"\xff\xfe" + path.read_bytes()),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "a word instead of a number": edited(r"\n\d+", "\nmany"),
    "a folder": folder_instead,
}
FINAL_RETURN = edited(r"(\n6[04],6[04],\d+,)[^,\n]*(?=[^\n]*\n$)", r"\g<1>999")  # the last such row


@pytest.mark.parametrize("table", ["train", "eval"])
def test_table_that_differs_from_the_checkpoints_record_is_refused(run, table):
    path, records = run / f"{table}.csv", recorded(run)
    rows_to_keep(run, 60, False, records)
    whole, damages = path.read_bytes(), dict(DAMAGE)
    if table == "eval":
        damages["another wall time"] = edited(r"(\n\d+,\d+,\d+,[^,]*,[^,]*,\d+,)", r"\g<1>7")
    remedy = f"restore it from a copy, or delete {run / 'checkpoint'} to train from the beginning"
    for name, damage in damages.items():
        damage(path)
        with pytest.raises(DataError) as refusal:
            rows_to_keep(run, 60, False, records)
        line = str(refusal.value)
        assert line.startswith(f"cannot go on with {path}: "), name
        assert remedy in line, name
        assert "\n" not in line, name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        path.write_bytes(whole)


@pytest.mark.parametrize(
    ("table", "damage", "config"),
    [("eval", "deleted", LONGER), ("eval", "a digit changed", CONFIG), ("final", "zeros", LONGER)],
)
def test_training_refuses_a_damaged_table_and_changes_nothing(run, table, damage, config):
    """Also for a finished run, and for a final evaluation that no checkpoint has recorded."""
    DAMAGE[damage](run / f"{table}.csv")
    assert_refused_unchanged(run, config, f"cannot go on with {run / table}.csv")


def test_rows_after_the_checkpoint_are_removed(run, finished):
    for table in ("train", "eval"):
        with (run / f"{table}.csv").open("a") as file:
            file.write("50,50,what a killed run wrote\n")
    assert train(out_of(run), LONGER)[0] == 0
    assert_begins_with_tables_of(finished, run)
    assert [row["env_steps"] for row in rows(run / "eval.csv")] == ["30", "60", "64"]
    # The final evaluation of the first end is in the records of the second.
    assert recorded(run)["final"].rows == 1
    assert [row["env_steps"] for row in rows(run / "final.csv")] == ["60", "64"]
    (run / "final.csv").unlink()
    with pytest.raises(DataError, match=r"final\.csv: it is missing"):
        rows_to_keep(run, 64, False, recorded(run))


@pytest.mark.parametrize("due", [True, False])
def test_tables_without_records_are_kept_up_to_the_checkpoint(run, due):
    """A checkpoint of version 0.1, saved before or after the evaluation of its step."""
    RunLog(run, (), (), rows_to_keep(run, 30, due, {})).close()
    assert [row["env_steps"] for row in rows(run / "eval.csv")] == ([] if due else ["30"])
    (run / "eval.csv").unlink()
    rows_to_keep(run, 30, due, {})
    DAMAGE["a word instead of a number"](run / "train.csv")
    with pytest.raises(DataError, match="cannot go on with"):
        rows_to_keep(run, 60, False, {})


@pytest.mark.parametrize("is_recorded", [True, False])
def test_resumed_table_keeps_its_own_columns(tmp_path, is_recorded):
    """A later version declares the metric `new` and no longer computes `old`."""
    path = tmp_path / "t.csv"
    table = CsvTable(path, ("env_steps", "old"))
    table.write({"env_steps": 10, "old": 1})
    table.close()
    record = table.record() if is_recorded else None
    for _ in range(2):  # the second time as after a kill before the next checkpoint
        again = CsvTable(path, ("env_steps", "new"), rows_until(tmp_path, "t", 10, record))
        again.write({"env_steps": 20, "new": 2})
        again.close()
        assert path.read_text() == "env_steps,old\n10,1\n20,\n"


@pytest.mark.quick("not recorded")
@pytest.mark.parametrize("version", ["recorded", "not recorded"])
def test_run_resumes_after_a_metric_was_added(run, finished, monkeypatch, version):
    """A resumed run keeps the columns of train.csv, whatever metrics the algorithm declares now."""
    whole = out_of(run) / "whole"
    shutil.copytree(finished, whole / CONFIG.run_name())
    assert train(whole, LONGER)[0] == 0  # as if no metric had been added
    if version == "not recorded":
        without_records(run)

    def with_another_metric(folder, metric_names, *rest):
        return RunLog(folder, ("added_metric", *metric_names), *rest)

    monkeypatch.setattr(trainer, "RunLog", with_another_metric)
    code, _, err = train(out_of(run), LONGER)
    assert code == 0, err
    assert (run / "train.csv").read_text() == (whole / CONFIG.run_name() / "train.csv").read_text()
    assert table_damage(run, "train", "eval", "final") == ""


# --- something else in place of the checkpoints


def dead_link(path):
    path.symlink_to("/nowhere/checkpoint")


NO_FOLDER = {
    "a dead link": dead_link,
    "a file": lambda path: path.write_text("moved to another disk"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
}


def test_checkpoint_that_is_not_a_folder_is_refused_and_nothing_changes(run, tmp_path):
    code, _, err = cclf("export", run, "--card", "--out", tmp_path / "card")
    assert code == 0, err
    os.rename(run / "checkpoint", run.parent / "moved")
    reason = f"cannot read the checkpoints in {run}"
    for kind, put in NO_FOLDER.items():
        put(run / "checkpoint")
        before = contents(run) if kind == "a file" else {}
        assert_refused(train(out_of(run), LONGER), reason, "restore")
        assert before.items() <= contents(run).items()
        (run / "checkpoint").unlink()
    dead_link(run / "checkpoint")
    # Exported weights are not used instead of a missing checkpoint.
    shutil.copy(tmp_path / "card" / "model.safetensors", run)
    assert_refused(cclf("evaluate", run, "--episodes", "1"), reason)
    (run / "checkpoint").unlink()
    os.rename(run.parent / "moved", run / "checkpoint")
    assert train(out_of(run), LONGER)[0] == 0


def test_run_without_a_checkpoint_starts_from_the_beginning(run):
    shutil.rmtree(run / "checkpoint")
    assert train(out_of(run))[0] == 0
    assert [row["env_steps"] for row in rows(run / "final.csv")] == ["60"]
    assert table_damage(run, "train", "eval", "final") == ""


@pytest.mark.quick("backup")
@pytest.mark.parametrize("name", ["frames-00000002-000000000032.safetensors", "backup"])
def test_dead_link_among_the_frames_loses_no_row(run, finished, name):
    """The newest checkpoint needs the first file, and no checkpoint the second."""
    path = run / "checkpoint" / "frames" / name
    path.unlink(missing_ok=True)
    dead_link(path)
    code, _, err = train(out_of(run), LONGER)
    assert code == 0, err
    assert ("checkpoint 00000002 is damaged" in err) == (name != "backup")
    assert_begins_with_tables_of(finished, run)


def test_rows_stay_if_another_run_of_the_command_is_refused(tmp_path):
    """The manifest of the second run cannot be written."""
    config = tiny_config("toy/catch", env_steps=24, eval_every_env_steps=12)
    assert train(tmp_path, config)[0] == 0
    run = tmp_path / config.run_name()
    with (run / "eval.csv").open("a") as file:
        file.write("75,75,1,1,1,1,1,1\n")
    longer = replace(config, run=replace(config.run, env_steps=36))
    folder = tmp_path / replace(longer, seed=2).run_name()
    (folder / "manifest.json").mkdir(parents=True)
    before = (run / "eval.csv").read_bytes()
    words = [*tiny_options(longer), "--with-seeds", 2, "--out", tmp_path]
    assert_refused(cclf("train", *words), str(folder / "manifest.json"))
    assert (run / "eval.csv").read_bytes() == before


# --- JSON files


UNUSABLE = {
    "deep": "[" * 100_000,
    "a list": "[1]",
    "a name twice": '{"commit": "a", "commit": "b"}',
    "no list": '{"history": 3}',
    "no number": '{"history": [{"from_env_steps": "x"}]}',
}


@pytest.mark.quick("deep", "no number")
@pytest.mark.parametrize("kind", UNUSABLE)
def test_run_goes_on_without_its_manifest_and_tensorboard(run, kind):
    (run / "manifest.json").write_text(UNUSABLE[kind])
    dead_link(run / "tensorboard")
    config = replace(LONGER, run=replace(LONGER.run, tensorboard=True))
    code, _, err = train(out_of(run), config)
    assert code == 0, err
    assert "warning: no TensorBoard: " in err
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["commit"] is None, "of the first rows"
    assert [entry["from_env_steps"] for entry in manifest["history"]] == [60]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"task": "toy/catch", ', "the name 'task' is there twice"),
        ("[" * 100_000, "RecursionError"),
        (None, "No such file"),
    ],
)
def test_config_that_is_ambiguous_or_unreadable_is_refused(run, tmp_path, text, words):
    path = run / "config.json"
    if text is None:
        path.unlink()
        dead_link(path)
    else:
        path.write_text(text + path.read_text().lstrip()[1:])
    for command in (
        ["results", run, "--out", tmp_path / "results"],
        ["evaluate", run],
        ["train", "--from", run, "--dry-run"],
    ):
        assert_refused(cclf(*command), str(path), words)
    assert_refused_unchanged(run, LONGER, str(path), words)


# --- commands that only read


def test_results_of_a_damaged_evaluation_table_are_warned_of(run):
    other = replace(CONFIG, seed=2)
    shutil.copytree(run, out_of(run) / other.run_name())
    config = out_of(run) / other.run_name() / "config.json"
    config.write_text(config.read_text().replace('"seed": 1', '"seed": 2'))
    assert collect(run)[::2] == (0, ""), "no warning of undamaged runs"
    DAMAGE["without its first row"](run / "eval.csv")
    assert_warned(run, f"{run / 'eval.csv'}: it")


@pytest.mark.parametrize("damage", ["a return changed", "zeros", "without its rows"])
def test_damaged_final_evaluation_is_refused_and_warned_of(run, damage):
    (DAMAGE | {"a return changed": FINAL_RETURN})[damage](run / "final.csv")
    assert_warned(run, f"{run / 'final.csv'}: ", "delete it to make the final")
    for config in (CONFIG, LONGER):
        assert_refused_unchanged(run, config, f"cannot go on with {run / 'final.csv'}: ")
    if damage == "a return changed":
        (run / "final.json").unlink()  # as in runs of earlier versions
        assert collect(run)[2] == ""
        assert train(out_of(run))[0] == 0
        assert rows(run / "final.csv")[0]["return_mean"] == "999"


def test_missing_final_evaluation_is_made_again(run, finished):
    (run / "final.csv").unlink()
    assert_warned(run, f"{run / 'final.csv'} is missing")
    assert train(out_of(run))[0] == 0
    made, before = (rows(each / "final.csv", "wall_seconds") for each in (run, finished))
    assert made == before
    assert collect(run)[2] == ""


@pytest.mark.parametrize("text", ["[]", '{"columns": [], "rows": -1, "sha256": ""}', "[" * 100_000])
def test_damaged_record_of_the_final_evaluation_is_refused(run, text):
    (run / "final.json").write_text(text)
    assert_warned(run)
    assert_refused(train(out_of(run)), f"cannot read {run / 'final.json'}")


def test_final_row_without_its_record_is_measured_again(run, finished):
    """The process was killed between the row and its record, after an earlier final evaluation."""
    assert train(out_of(run), LONGER)[0] == 0
    assert json.loads((run / "final.json").read_text())["rows"] == 2
    whole = rows(run / "final.csv", "wall_seconds")
    shutil.copy(finished / "final.json", run)
    FINAL_RETURN(run / "final.csv")
    assert collect(run)[2] == ""
    assert train(out_of(run), LONGER)[0] == 0
    assert rows(run / "final.csv", "wall_seconds") == whole
    assert read_final_record(run).rows == 2


def test_runs_of_earlier_versions_are_not_warned_of(run):
    """Their checkpoints recorded no tables, and they have no final.json."""
    (run / "final.json").unlink()
    without_records(run)
    FINAL_RETURN(run / "final.csv")
    DAMAGE["without its first row"](run / "eval.csv")
    assert collect(run)[::2] == (0, "")
    assert train(out_of(run))[0] == 0
    assert table_damage(run, "train", "eval", "final") == ""


def test_run_in_training_is_not_warned_of(tmp_path):
    """At each of its steps, also after it resumed from the checkpoint before a damaged one."""
    found = []
    options = {"env_steps": 40, "eval_every_env_steps": 20, "eval_episodes": 1, "threads": 1}
    options |= {"batch_size": 4, "hidden_dim": 16, "conv_filters": 4, "feature_dim": 8}
    options |= {"warmup_agent_steps": 20, "log_every_agent_steps": 5, "final_eval_episodes": 1}
    options |= {"tensorboard": False, "video": False, "device": "cpu", "out": tmp_path}

    def check(_):
        [config] = tmp_path.glob("toy/*/*/*/config.json")
        found.append(table_damage(config.parent, "train", "eval", "final"))

    folder = package.train("toy/reach-1d", "cclf", on_step=check, **options).folder
    newest = folder / "checkpoint" / "00000002" / "tensors.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    package.train("toy/reach-1d", "cclf", on_step=check, **options | {"env_steps": 45})
    assert len(found) > 40
    assert set(found) == {""}
