"""Tables that are not what the checkpoint knows: one line, nothing changed, nothing lost in
silence."""

import re
import shutil
from dataclasses import replace

import pytest

from cclf.errors import ConfigError
from cclf.runtime import checkpoint
from cclf.runtime.metrics import CsvTable, KnownRows, check_tables, kept_rows
from test_cli import assert_refused, cclf, contents
from tiny_runs import rows, tables, tiny_config, tiny_options

CONFIG = tiny_config(final_eval_episodes=1)
LONGER = replace(CONFIG, run=replace(CONFIG.run, env_steps=90))


def train(out, config=CONFIG):
    return cclf("train", *tiny_options(config), "--out", out)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("trained")
    assert train(out)[0] == 0
    return out


@pytest.fixture
def run(trained, tmp_path):
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    return tmp_path / CONFIG.run_name()


def known_rows(run):
    return {
        name: KnownRows(**facts)
        for name, facts in checkpoint.load(run / "checkpoint")["tables"].items()
    }


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
    check_tables(run, 60, False, known)
    DAMAGE[damage](run / f"{table}.csv")
    with pytest.raises(ConfigError) as refusal:
        check_tables(run, 60, False, known)
    assert str(refusal.value).startswith(f"cannot go on with {run / table}.csv: ")
    assert (
        f"restore it from a copy, or delete {run / 'checkpoint'} to train from the beginning"
        in str(refusal.value)
    )
    assert "\n" not in str(refusal.value)


def test_the_clock_on_the_wall_counts_too(run):
    edited(r"(\n\d+,\d+,\d+,[^,]*,[^,]*,\d+,)", r"\g<1>7")(run / "eval.csv")
    with pytest.raises(ConfigError, match="its first 2 rows are not those"):
        check_tables(run, 60, False, known_rows(run))


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


def test_rows_that_the_checkpoint_does_not_know_are_cut_off(run, trained):
    for table in ("train", "eval"):
        with (run / f"{table}.csv").open("a") as file:
            file.write("50,50,what a killed run wrote, and even this\n")
    check_tables(run, 60, False, known_rows(run))
    assert train(run.parents[len(CONFIG.run_name().split("/")) - 1], LONGER)[0] == 0
    kept, before = tables(run), tables(trained / CONFIG.run_name())
    assert [ours[: len(theirs)] for ours, theirs in zip(kept, before, strict=True)] == [*before]
    assert [row["env_steps"] for row in rows(run / "eval.csv")] == ["30", "60", "90"]
    # The final evaluation of the first end is known to the checkpoints of the second.
    assert known_rows(run)["final"].rows == 1
    assert [row["env_steps"] for row in rows(run / "final.csv")] == ["60", "90"]
    (run / "final.csv").unlink()
    with pytest.raises(ConfigError, match=r"final\.csv: it is missing"):
        check_tables(run, 90, False, known_rows(run))


def test_a_checkpoint_of_an_earlier_version_takes_the_files_own_word(run):
    check_tables(run, 60, False, {})
    assert [row["env_steps"] for row in kept_rows(run / "eval.csv", 59, None)] == ["30"]
    (run / "eval.csv").unlink()
    check_tables(run, 60, False, {})
    DAMAGE["a word for a number"](run / "train.csv")
    with pytest.raises(ConfigError, match="cannot go on with"):
        check_tables(run, 60, False, {})
    check_tables(run, 0, False, {})  # where nothing is kept, nothing is read


def test_other_columns_in_a_later_version_lose_nothing_and_still_fit_the_checkpoint(tmp_path):
    path = tmp_path / "t.csv"
    table = CsvTable(path, ("env_steps", "old"), 0)
    table.write({"env_steps": 10, "old": 1})
    table.close()
    for _ in range(2):  # the second time as if it had been killed before it saved
        again = CsvTable(path, ("env_steps", "new"), 10, table.known())
        again.close()
        assert rows(path) == [{"env_steps": "10", "new": "", "old": "1"}]
    assert again.known() != table.known()
