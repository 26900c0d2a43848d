"""Tables as Markdown, and documents with marked places for them."""

from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from cclf import cli
from cclf.analysis import load, render, report_files
from cclf.analysis.table import Cell, Entry, Table
from cclf.errors import ConfigError
from tiny_rows import runs_of

PLACE = "before\n<!-- table a -->\nold\n<!-- end of table -->\nafter\n"


def table(
    *rows: tuple[Cell, ...], header: tuple[str, ...] = ("task", "x"), caption: str = ""
) -> str:
    entries = [
        Entry(row[:1], None, name, cell)
        for row in rows
        for name, cell in zip(header[1:], row[1:], strict=True)
    ]
    return render.to_markdown(Table("t", entries, header[:1], header[1:], caption=caption))


def test_notes_follow_their_number_and_the_best_is_bold() -> None:
    best = Cell("1.0 ± 0.1", ("[0.9, 1.1]", "some failed", "published 2"), "best")
    assert table((Cell("Pong"), best)) == (
        "| task | x |\n| --- | --- |\n"
        "| Pong | **1.0 ± 0.1** [0.9, 1.1] (some failed, published 2) |\n"
    )
    text = table((Cell("A claim", ("its source",), "claim"), Cell("held", ("why",), "held")))
    assert text.endswith("| A claim | **held**: why |\n")
    assert "| Pong | – (published 2) |" in table((Cell("Pong"), Cell("–", ("published 2",))))


def test_notes_that_all_rows_share_are_printed_once_before_the_table() -> None:
    rows = [
        (Cell(task, ("at 100 steps",)), Cell("1", (seeds,)))
        for task, seeds in (("Pong", "5 seeds"), ("Alien", "5 seeds"), ("Qbert", "1 seed"))
    ]
    text = table(*rows, caption="Returns.")
    head, body = text.split("\n\n")
    assert head == "Returns. All: at 100 steps; 5 seeds, unless a cell says otherwise."
    assert body.splitlines()[2:] == ["| Pong | 1 |", "| Alien | 1 |", "| Qbert | 1 (1 seed) |"]
    one = (Cell("Hero", ("at 200 steps",)), Cell("1"))
    assert "| Pong (at 100 steps) | 1 |" in table(*rows, one)


def test_tasks_are_columns_where_there_are_more_methods() -> None:
    row = (Cell("Pong"), Cell("1"), Cell("2"))
    assert table(row, header=("task", "x", "y")) == (
        "| method | Pong |\n| --- | --- |\n| x | 1 |\n| y | 2 |\n"
    )


def test_text_from_runs_is_escaped() -> None:
    text = table((Cell("a|b"), Cell("<!-- end of table --> *x* `y`")))
    assert "a\\|b" in text
    assert report_files.END not in text
    assert "\\*x\\* \\`y\\`" in text


@pytest.mark.parametrize(
    "text",
    [
        "[click](https://evil.example)",
        "![](https://evil.example/t.png)",
        "[1](https://evil.example)",
        "![1](https://evil.example)",
        "[1]: https://evil.example",
        "[x]\n\n[x]: https://evil.example",
        "<https://evil.example>",
        "<a href=https://evil.example>",
        "https://evil.example",
        "www.evil.example",
        "evil.example",
        "a\\[b](https://evil.example)",
        "`[click](https://evil.example)",
        "a | b\n# heading\n- item\r> quote\u2028x",
        "~~x~~ **x** __x__ _x_ $\\href{https://evil.example}{x}$",
        "&lt;a&gt; &amp; \\| \\\\",
        "\u202eevil \ud800",
    ],
)
def test_no_text_makes_links_pictures_or_lines(text: str) -> None:
    """In the caption, in a cell and in its notes."""
    shown = MarkdownIt("commonmark", {"html": False}).enable("table").enable("strikethrough")
    tokens = shown.parse(table((Cell(text), Cell("1", (text,))), caption=text))
    kinds = [inner.type for token in tokens for inner in token.children or []]
    assert set(kinds) <= {"text", "softbreak"}
    assert [token.type for token in tokens].count("tr_open") == 2
    words = [token.content for token in tokens if token.type == "inline"]
    plain = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
    assert len(words) == 5, "a caption, two names, two cells"
    shown_texts = ["".join(inner.content for inner in token.children or []) for token in tokens]
    assert shown_texts.count(plain) == 2
    for signs in ("://", "www.", "l.e"):  # of which many readers make a link
        assert not any(signs in word for word in words)


def test_address_of_a_person_is_cut() -> None:
    assert render.escape_markdown("a@evil.example") == "a@<!---->evil\\.example"


@pytest.mark.parametrize(
    "text", ["[0.9, 1.1]", "[−3, 1,000] 50 %", "re3+cclf", "ball_in_cup-catch"]
)
def test_intervals_and_names_are_not_escaped(text: str) -> None:
    assert render.escape_markdown(text) == text


def test_marked_places_are_filled_and_nothing_else_changes() -> None:
    new = report_files.fill_placeholders(PLACE, {"a": "new\n", "b": "other\n"})
    assert new == PLACE.replace("old", "new")
    assert report_files.fill_placeholders(new, {"a": "new\n"}) == new


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (PLACE.replace("table a", "table aa"), "no table is called 'aa' here; did you mean a\\?"),
        (PLACE.replace(report_files.END, ""), "the place for table a has no end"),
        (PLACE.replace(report_files.END, "") + PLACE, "the place for table a has no end"),
    ],
)
def test_places_that_cannot_be_filled_are_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        report_files.fill_placeholders(text, {"a": "new\n"})


def test_all_verdicts_are_one_table_and_one_bad_document_changes_none(tmp_path: Path) -> None:
    rows = runs_of("cclf", [0.9] * 5) + runs_of("re3", [0.5] * 5)
    for part in ("one part", "two"):
        load.write_results(rows, tmp_path / "r" / part)
    good, bad = tmp_path / "good.md", tmp_path / "bad.md"
    good.write_text("<!-- table verdicts -->\n<!-- end of table -->\n")
    bad.write_text("<!-- table verdict -->\n<!-- end of table -->\n")
    arguments = ["report", str(tmp_path / "r"), "--out", str(tmp_path / "r.html"), "--markdown"]
    assert cli.main([*arguments, str(good), str(bad)]) == 2
    assert "**held**" not in good.read_text()
    bad.write_text("<!-- table one-part/verdicts-minigrid -->\n<!-- end of table -->\n")
    assert cli.main([*arguments, str(good), str(bad)]) == 0
    assert good.read_text().count("| MiniGrid | entropy-0.01 |") == 2
    assert bad.read_text().count("| MiniGrid | entropy-0.01 |") == 1


def test_the_command_writes_a_new_document_and_fills_an_old_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load.write_results(runs_of("cclf", [0.9] * 5) + runs_of("re3", [0.5] * 5), tmp_path / "r" / "x")
    new, old = tmp_path / "new.md", tmp_path / "old.md"
    arguments = ["report", str(tmp_path / "r"), "--out", str(tmp_path / "r.html"), "--markdown"]
    assert cli.main([*arguments, str(new)]) == 0
    text = new.read_text()
    assert "<!-- table verdicts-minigrid -->" in text
    assert "| **0.900 ± 0.000** [0.900, 0.900] |" in text
    old.write_text("# Mine\n<!-- table verdicts-minigrid -->\n<!-- end of table -->\nand so on\n")
    assert cli.main([*arguments, str(old), str(new)]) == 0
    assert new.read_text() == text
    assert "**held**: ratio 1.80 [1.80, 1.80], 5 seeds; cclf is above re3; b" in old.read_text()
    assert old.read_text().endswith("<!-- end of table -->\nand so on\n")
    capsys.readouterr()
    (tmp_path / "binary.md").write_bytes(b"\xff\xfe<!-- table x -->\n")
    assert cli.main([*arguments, str(tmp_path / "binary.md")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"cclf: cannot read {tmp_path / 'binary.md'}: 'utf-8' codec")
    assert said.count("\n") == 1
    (tmp_path / "bare.md").write_text("no place\n")
    assert cli.main([*arguments, str(tmp_path / "bare.md")]) == 2
    assert "has no place for a table" in capsys.readouterr().err
