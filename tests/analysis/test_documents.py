"""Documents say what the committed results say: their tables are what the command gives, and
figures in sentences are those of the data."""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from cclf.analysis import documents, load, report, report_files, runs, statistics

ROOT = Path(__file__).parents[2]
MARK = "\n<!-- table "
MADE = sorted(
    path
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
    if documents.has_placeholders(path.read_text(encoding="utf-8"))
)


@cache
def composed() -> report.Report:
    return report.build_report(ROOT / "results")


@cache
def tables() -> dict[str, str]:
    return report_files.markdown_tables(composed())


def test_the_pages_of_results_have_tables_that_a_command_writes() -> None:
    assert {path.name for path in MADE} >= {"atari.md", "dmc.md", "minigrid.md", "results.md"}


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.name)
def test_a_document_holds_what_the_command_gives(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    command = "`cclf report results --markdown`"
    assert documents.fill_placeholders(text, tables()) == text, (
        f"{path.name} is old: run {command} or make docs"
    )


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.name)
def test_a_changed_figure_is_noticed(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    begin = text.index("|", text.index(MARK))
    other = text[:begin] + text[begin:].replace("0", "1", 1)
    assert documents.fill_placeholders(other, tables()) == text


# --- figures in sentences ---

SIGNED = r"(−?[\d,]*\.?\d+)"
WITH_INTERVAL = re.compile(rf"{SIGNED} \[{SIGNED}, {SIGNED}\]")
DIFFERENCE = re.compile(
    rf"(\w+\+?) (?:less|and) (\w+\+?)(?: is| cannot be told apart\*\*:|:)? "
    rf"{SIGNED} \[{SIGNED}, {SIGNED}\]"
)
ESTIMATES = ("mean", "estimate", "difference")
METHODS = ("drq", "cclf")  # in both precisions
END = {"dmc/cartpole-swingup": runs.StepBudget("env_steps", 100_000)}


def sentences(name: str) -> str:
    """A document's words outside its tables, on one line."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return " ".join(re.sub(rf"{MARK}.*?{documents.END}", "", text, flags=re.DOTALL).split())


def printed(value: float, like: str) -> str:
    """With as many digits as the text has; a document may say "below by 152" for -152."""
    digits = len(like.partition(".")[2])
    return f"{value:,.{digits}f}".replace("-", "−")


@cache
def known_intervals() -> list[tuple[float, float, float]]:
    found = []
    for table in (table for part in composed().parts for table in part.tables):
        columns = tuple(table.records[0])
        names = [name for name in ESTIMATES if name in columns][:1]
        ends = {name: ("low", "high") for name in names if {"low", "high"} <= set(columns)}
        others = [name for name in columns if f"{name}_low" in columns]
        ends |= {name: (f"{name}_low", f"{name}_high") for name in others}
        for line in table.records:
            intervals = [(line[name], line[low], line[high]) for name, (low, high) in ends.items()]
            found += [known for known in intervals if isinstance(known[1], float)]
    return found + [(-value, -high, -low) for value, low, high in found]


def is_known(words: tuple[str, ...]) -> bool:
    return any(
        all(printed(value, word) == word for value, word in zip(known, words, strict=True))
        for known in known_intervals()
    )


def test_every_interval_among_the_readmes_findings_is_in_a_table() -> None:
    findings = sentences("README.md").partition("## What we found")[2]
    told = [
        words
        for finding in findings.split("- **")
        if re.search(r"docs/(minigrid|dmc|atari)\.md", finding)
        for words in WITH_INTERVAL.findall(finding)
    ]
    assert told
    assert [words for words in told if not is_known(words)] == []


@pytest.mark.parametrize(
    ("name", "begin", "end", "intervals"),
    [
        ("docs/curiosity.md", "## Would it show?", "## ", 5),
        ("docs/curiosity.md", "- **On RE3 neither.**", "An earlier look", 3),
        ("docs/curiosity.md", "**SAC on `toy/reach`**", "Such runs", 1),
        ("docs/curiosity.md", "**DrQ-v2 on pendulum-swingup**", "A run finds", 1),
        ("docs/results.md", "**The same holds on RE3.**", "![Controls]", 3),
    ],
)
def test_every_interval_of_these_passages_is_in_a_table(
    name: str, begin: str, end: str, intervals: int
) -> None:
    told = WITH_INTERVAL.findall(sentences(name).partition(begin)[2].partition(end)[0])
    assert len(told) == intervals
    assert [words for words in told if not is_known(words)] == []


def test_differences_of_precisions_in_the_text_are_those_of_the_data() -> None:
    """Of cartpole-swingup at 100,000 steps."""
    rows = load.read(ROOT / "results" / "dmc")
    scores = {
        profile: runs.score_matrix([one for one in rows if one.profile == profile], METHODS, END)
        for profile in ("released-bf16", "released")
    }
    passage = sentences("docs/results.md").partition("- **bfloat16 and float32")[2].partition("- **")[0]
    told = WITH_INTERVAL.findall(passage)
    assert len(told) == len(METHODS)
    for method, words in zip(METHODS, told, strict=True):
        found = difference([by_method[method] for by_method in scores.values()])
        assert tuple(printed(float(v), word) for v, word in zip(found, words, strict=True)) == words


def difference(pair: list[np.ndarray]) -> statistics.Interval:
    return statistics.bootstrap_statistic(
        pair, lambda parts: statistics.mean(parts[0]) - statistics.mean(parts[1])
    )


def test_differences_in_the_text_of_control_are_those_of_the_data() -> None:
    """Of cartpole-swingup at 100,000 steps, in bfloat16."""
    rows = [one for one in load.read(ROOT / "results" / "dmc") if one.profile == "released-bf16"]
    told = DIFFERENCE.findall(sentences("docs/results.md"))
    assert told
    for one, other, *words in told:
        names = (one.lower(), other.lower())
        scores = runs.score_matrix(rows, names, END)
        found = difference([scores[name] for name in names])
        figures = [printed(float(v), word) for v, word in zip(found, words, strict=True)]
        assert figures == words, f"{one} less {other}"
