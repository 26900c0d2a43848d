"""Tables and folders that are not what the run left: one line, nothing changed, nothing lost in
silence; commands that only read say so."""

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


def known_rows(run):
    return {
        name: TableRecord(**facts)
        for name, facts in checkpoint.load(run / "checkpoint")["tables"].items()
    }


def out_of(run):
    return run.parents[len(CONFIG.run_name().split("/")) - 1]


def state_of(run):
    """Every byte that a refusal must leave as it was; the lock says nothing."""
    return {name: data for name, data in contents(run).items() if name != "lock"}


def edited(pattern, by):
    def edit(path):
        text = path.read_text()
        assert re.search(pattern, text), "a mutation that changes nothing tests nothing"
        path.write_text(re.sub(pattern, by, text, count=1))

    return edit


def folder_instead(path):
    path.unlink()
    path.mkdir()


DAMAGE = {
    "deleted": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "without its rows": lambda path: path.write_text(path.read_text().splitlines(keepends=True)[0]),
    "without its first row": lambda path: path.write_text(
        re.sub(r"\n.*", "", path.read_text(), count=1)
    ),
    "without its last row": lambda path: path.write_text(
        re.sub(r"\n[^\n]*\n$", "\n", path.read_text())
    ),
    "torn": lambda path: path.write_bytes(path.read_bytes()[:-3]),
    "a digit changed": edited(r"(\n\d+,\d+,\d+,.*)\d", r"\g<1>x"),
    "a row twice": edited(r"\n(.*)\n", r"\n\g<1>\n\g<1>\n"),
    "a column renamed": edited("updates", "update"),
    "no header": lambda path: path.write_text(path.read_text().partition("\n")[2]),
    "no text": lambda path: path.write_bytes(b"\xff\xfe" + path.read_bytes()),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "a word for a number": edited(r"\n\d+", "\nmany"),
    "a folder": folder_instead,
}


@pytest.mark.parametrize("table", ["train", "eval"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_table_that_is_not_what_the_checkpoint_knows_is_refused(run, table, damage):
    known = known_rows(run)
    rows_to_keep(run, 60, False, known)
    DAMAGE[damage](run / f"{table}.csv")
    with pytest.raises(DataError) as refusal:
        rows_to_keep(run, 60, False, known)
    assert str(refusal.value).startswith(f"cannot go on with {run / table}.csv: ")
    assert (
        f"restore it from a copy, or delete {run / 'checkpoint'} to train from the beginning"
        in str(refusal.value)
    )
    assert "\n" not in str(refusal.value)


def test_the_clock_on_the_wall_counts_too(run):
    edited(r"(\n\d+,\d+,\d+,[^,]*,[^,]*,\d+,)", r"\g<1>7")(run / "eval.csv")
    with pytest.raises(DataError, match="the first 2 are not those"):
        rows_to_keep(run, 60, False, known_rows(run))


@pytest.mark.parametrize(
    ("table", "damage", "config"),
    [
        ("eval", "deleted", LONGER),
        ("train", "no text", LONGER),
        ("eval", "a digit changed", CONFIG),
        ("final", "zeros", LONGER),
    ],
)
def test_the_command_refuses_it_in_one_line_and_changes_nothing(run, table, damage, config):
    """Also a run that was finished before, and a row that no checkpoint knows yet."""
    out = run.parents[len(CONFIG.run_name().split("/")) - 1]
    DAMAGE[damage](run / f"{table}.csv")
    before = contents(run / "checkpoint") | {
        path.name: path.read_bytes() for path in run.glob("*.csv")
    }
    assert_refused(train(out, config), f"cannot go on with {run / table}.csv")
    assert (
        contents(run / "checkpoint") | {path.name: path.read_bytes() for path in run.glob("*.csv")}
        == before
    )


def test_rows_that_the_checkpoint_does_not_know_are_cut_off(run, finished):
    for table in ("train", "eval"):
        with (run / f"{table}.csv").open("a") as file:
            file.write("50,50,what a killed run wrote, and even this\n")
    rows_to_keep(run, 60, False, known_rows(run))
    assert train(run.parents[len(CONFIG.run_name().split("/")) - 1], LONGER)[0] == 0
    kept, before = tables(run), tables(finished)
    assert [ours[: len(theirs)] for ours, theirs in zip(kept, before, strict=True)] == [*before]
    assert [row["env_steps"] for row in rows(run / "eval.csv")] == ["30", "60", "64"]
    # The final evaluation of the first end is known to the checkpoints of the second.
    assert known_rows(run)["final"].rows == 1
    assert [row["env_steps"] for row in rows(run / "final.csv")] == ["60", "64"]
    (run / "final.csv").unlink()
    with pytest.raises(DataError, match=r"final\.csv: it is missing"):
        rows_to_keep(run, 64, False, known_rows(run))


def test_a_checkpoint_of_an_earlier_version_takes_the_files_own_word(run):
    rows_to_keep(run, 60, False, {})
    assert [row["env_steps"] for row in rows_until(run, "eval", 59)] == ["30"]
    (run / "eval.csv").unlink()
    rows_to_keep(run, 60, False, {})
    DAMAGE["a word for a number"](run / "train.csv")
    with pytest.raises(DataError, match="cannot go on with"):
        rows_to_keep(run, 60, False, {})
    rows_to_keep(run, 0, False, {})  # where nothing is kept, nothing is read


@pytest.mark.parametrize("due", [True, False])
def test_evaluation_that_is_due_again_is_cut_off_without_records_too(run, due):
    """A checkpoint of an earlier version, saved before or after the evaluation of its step."""
    RunLog(run, (), (), rows_to_keep(run, 30, due, {})).close()
    assert [row["env_steps"] for row in rows(run / "eval.csv")] == ([] if due else ["30"])


@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "not recorded"])
def test_resumed_table_keeps_its_own_columns(tmp_path, recorded):
    """A later version declares the metric `new` and no longer computes `old`."""
    path = tmp_path / "t.csv"
    table = CsvTable(path, ("env_steps", "old"))
    table.write({"env_steps": 10, "old": 1})
    table.close()
    record = table.record() if recorded else None
    for _ in range(2):  # the second time as if it had been killed before the next checkpoint
        again = CsvTable(path, ("env_steps", "new"), rows_until(tmp_path, "t", 10, record))
        again.write({"env_steps": 20, "new": 2})
        again.close()
        assert path.read_text() == "env_steps,old\n10,1\n20,\n"


@pytest.mark.quick("not recorded")
@pytest.mark.parametrize("version", ["recorded", "not recorded"])
def test_run_resumes_after_a_metric_was_added(run, finished, monkeypatch, version):
    """Resuming goes on with the columns of train.csv, whatever the algorithm declares now."""
    whole = out_of(run) / "whole"
    shutil.copytree(finished, whole / CONFIG.run_name())
    assert train(whole, LONGER)[0] == 0  # as if no metric had been added

    if version == "not recorded":
        checkpoints = checkpoint.Checkpoints(run / "checkpoint")
        state = checkpoints.load()
        del state["tables"]
        checkpoints.save(state)

    def with_another_metric(folder, metric_names, *rest):
        return RunLog(folder, ("added_metric", *metric_names), *rest)

    monkeypatch.setattr(trainer, "RunLog", with_another_metric)
    code, _, err = train(out_of(run), LONGER)
    assert code == 0, err
    assert (run / "train.csv").read_text() == (whole / CONFIG.run_name() / "train.csv").read_text()
    assert table_damage(run, "train", "eval", "final") == ""


# --- a checkpoint folder that is none, files in it that lead nowhere
# ---------------------------------------------------------------------------------------------------


def dead_link(path):
    path.symlink_to("/nowhere/checkpoint")


NO_FOLDER = {
    "a dead link": dead_link,
    "a file": lambda path: path.write_text("moved to another disk"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.quick("a dead link")
@pytest.mark.parametrize("kind", NO_FOLDER)
def test_checkpoint_that_is_no_folder_is_refused_and_nothing_changes(run, kind):
    os.rename(run / "checkpoint", run.parent / "away")
    NO_FOLDER[kind](run / "checkpoint")
    before = state_of(run)
    assert_refused(train(out_of(run), LONGER), f"cannot read the checkpoints in {run}", "restore")
    assert state_of(run) == before
    (run / "checkpoint").unlink()
    os.rename(run.parent / "away", run / "checkpoint")
    assert train(out_of(run), LONGER)[0] == 0


def test_shared_weights_do_not_stand_in_for_a_checkpoint_that_is_gone(run, tmp_path):
    code, _, err = cclf("export", run, "--card", "--out", tmp_path / "card")
    assert code == 0, err
    shutil.copy(tmp_path / "card" / "model.safetensors", run)
    shutil.rmtree(run / "checkpoint")
    dead_link(run / "checkpoint")
    assert_refused(
        cclf("evaluate", run, "--episodes", "1"), f"cannot read the checkpoints in {run}"
    )


def test_run_without_a_checkpoint_begins_again(run):
    shutil.rmtree(run / "checkpoint")
    assert train(out_of(run))[0] == 0
    assert [row["env_steps"] for row in rows(run / "final.csv")] == ["60"]
    assert table_damage(run, "train", "eval", "final") == ""


@pytest.mark.quick("backup")
@pytest.mark.parametrize("name", ["frames-00000002-000000000032.safetensors", "backup"])
def test_dead_link_among_the_frames_costs_no_row(run, finished, name):
    """The newest checkpoint is damaged with the first, and with the second it is not."""
    path = run / "checkpoint" / "frames" / name
    path.unlink(missing_ok=True)
    dead_link(path)
    code, _, err = train(out_of(run), LONGER)
    assert code == 0, err
    assert ("checkpoint 00000002 is damaged" in err) == (name != "backup")
    kept, before = tables(run), tables(finished)
    assert [ours[: len(theirs)] for ours, theirs in zip(kept, before, strict=True)] == [*before]


def test_run_that_cannot_be_recorded_is_refused_before_rows_of_another_are_cut(tmp_path):
    """Two runs in one command: the manifest of the second cannot be written."""
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


def test_tensorboard_that_cannot_begin_does_not_stop_a_run(run):
    dead_link(run / "tensorboard")
    config = replace(LONGER, run=replace(LONGER.run, tensorboard=True))
    code, _, err = train(out_of(run), config)
    assert code == 0, err
    assert "warning: no TensorBoard: " in err


# --- facts in JSON
# ---------------------------------------------------------------------------------------------------


@pytest.mark.quick("text0")
@pytest.mark.parametrize("text", ["[" * 100_000, '{"commit": "a", "commit": "b"}', "[1]"])
def test_manifest_that_says_nothing_does_not_stop_a_run(run, text):
    (run / "manifest.json").write_text(text)
    code, _, err = train(out_of(run), LONGER)
    assert code == 0, err
    facts = json.loads((run / "manifest.json").read_text())
    assert facts["commit"] is None, "of the first rows"
    assert [entry["from_env_steps"] for entry in facts["history"]] == [60]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"task": "toy/catch", ', "the name 'task' is there twice"),
        ('{"env": {"a": 1, "a": 2}, ', "the name 'a' is there twice"),
        ("[" * 100_000, "RecursionError"),
        (None, "No such file"),
    ],
)
def test_config_with_two_meanings_or_none_is_refused(run, tmp_path, text, words):
    path = run / "config.json"
    if text is None:
        path.unlink()
        dead_link(path)
    else:
        path.write_text(text + path.read_text().lstrip()[1:])
    for words_of_command in (
        ["results", run, "--out", tmp_path / "results"],
        ["evaluate", run],
        ["train", "--from", run, "--dry-run"],
    ):
        assert_refused(cclf(*words_of_command), str(path), words)
    before = state_of(run)
    assert_refused(train(out_of(run), LONGER), str(path), words)
    assert state_of(run) == before


# --- commands that only read
# ---------------------------------------------------------------------------------------------------


def collect(run, *words):
    return cclf("results", out_of(run), "--out", run.parent / "results", *words)


def assert_warned(run, result, *words):
    code, _, err = result
    assert code == 0, err
    assert err.count("\n") == 1
    assert f"warning: the tables of {run} may be wrong: " in err
    for word in words:
        assert word in err


@pytest.mark.parametrize("damage", ["without its first row", "a number is none", "deleted"])
def test_results_of_an_evaluation_table_that_training_refuses_are_warned_of(run, damage):
    other = replace(CONFIG, seed=2)
    shutil.copytree(run, out_of(run) / other.run_name())
    config = out_of(run) / other.run_name() / "config.json"
    config.write_text(config.read_text().replace('"seed": 1', '"seed": 2'))
    assert collect(run)[0] == 0
    assert collect(run)[2] == "", "nothing is said of runs that are as they were left"
    none = edited(r"(\n30,30,\d+,)[^,]*", r"\g<1>nan")
    (DAMAGE | {"a number is none": none})[damage](run / "eval.csv")
    shutil.rmtree(run.parent / "results")
    assert_warned(run, collect(run), f"{run / 'eval.csv'}: it")
    assert_refused(train(out_of(run), LONGER), f"{run / 'eval.csv'}: it")


@pytest.mark.parametrize("damage", ["a number changed", "zeros", "without its rows"])
def test_final_evaluation_that_is_not_what_was_written_is_found(run, damage):
    changed = edited(r"(\n60,60,\d+,)[^,]*", r"\g<1>999")
    (DAMAGE | {"a number changed": changed})[damage](run / "final.csv")
    before = state_of(run)
    assert_warned(run, collect(run), f"{run / 'final.csv'}: ", "delete it to make the final")
    for config in (CONFIG, LONGER):
        assert_refused(train(out_of(run), config), f"cannot go on with {run / 'final.csv'}: ")
    assert state_of(run) == before
    if damage == "a number changed":
        (run / "final.json").unlink()
        assert collect(run)[2] == ""
        assert train(out_of(run))[0] == 0
        assert rows(run / "final.csv")[0]["return_mean"] == "999", "as of an earlier version"


def test_final_evaluation_that_is_gone_is_made_again(run, finished):
    (run / "final.csv").unlink()
    assert_warned(run, collect(run), f"{run / 'final.csv'} is missing")
    assert train(out_of(run))[0] == 0
    made, before = (rows(each / "final.csv", "wall_seconds") for each in (run, finished))
    assert made == before
    assert collect(run)[2] == ""


@pytest.mark.parametrize(
    "text", ["", "[]", '{"rows": 1}', '{"columns": [], "rows": -1, "sha256": ""}', "[" * 100_000]
)
def test_facts_of_the_final_evaluation_that_say_nothing_are_refused(run, text):
    (run / "final.json").write_text(text)
    assert "warning: the tables of" in collect(run)[2]
    assert_refused(train(out_of(run)), f"cannot read {run / 'final.json'}")


def test_final_row_without_its_facts_is_measured_again(run, finished):
    """As a kill leaves it between the two, after an earlier final evaluation."""
    assert train(out_of(run), LONGER)[0] == 0
    assert json.loads((run / "final.json").read_text())["rows"] == 2
    whole = rows(run / "final.csv", "wall_seconds")
    shutil.copy(finished / "final.json", run)
    edited(r"(\n64,64,\d+,)[^,]*", r"\g<1>999")(run / "final.csv")
    assert collect(run)[2] == ""
    assert train(out_of(run), LONGER)[0] == 0
    assert rows(run / "final.csv", "wall_seconds") == whole
    assert read_final_record(run).rows == 2


def test_runs_of_earlier_versions_are_not_warned_of(run):
    """Their checkpoints know no tables, and they have no final.json."""
    (run / "final.json").unlink()
    checkpoints = checkpoint.Checkpoints(run / "checkpoint")
    state = checkpoints.load()
    del state["tables"]
    checkpoints.save(state)
    edited(r"(\n60,60,\d+,)[^,]*", r"\g<1>999")(run / "final.csv")
    DAMAGE["without its first row"](run / "eval.csv")
    assert collect(run)[::2] == (0, "")
    assert train(out_of(run))[0] == 0
    assert table_damage(run, "train", "eval", "final") == ""


def test_run_that_goes_on_is_never_warned_of(tmp_path):
    """Neither in any of its steps, nor where it goes on from the checkpoint before a damaged one."""
    said = []
    options = {"env_steps": 40, "eval_every_env_steps": 20, "eval_episodes": 1, "threads": 1}
    options |= {"batch_size": 4, "hidden_dim": 16, "conv_filters": 4, "feature_dim": 8}
    options |= {"warmup_agent_steps": 20, "log_every_agent_steps": 5, "final_eval_episodes": 1}
    options |= {"tensorboard": False, "video": False, "device": "cpu", "out": tmp_path}

    def check(_):
        [config] = tmp_path.glob("toy/*/*/*/config.json")
        said.append(table_damage(config.parent, "train", "eval", "final"))

    folder = package.train("toy/reach-1d", "cclf", on_step=check, **options).folder
    newest = folder / "checkpoint" / "00000002" / "tensors.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    package.train("toy/reach-1d", "cclf", on_step=check, **options | {"env_steps": 45})
    assert len(said) > 40
    assert set(said) == {""}
