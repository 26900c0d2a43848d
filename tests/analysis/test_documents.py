"""The committed documents agree with the committed results: tables equal the output of the command,
and numbers in sentences equal those of the data."""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from cclf.analysis import load, report, report_files, runs, statistics

ROOT = Path(__file__).parents[2]
MARK = "\n<!-- table "
MADE = sorted(
    path
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
    if report_files.END in path.read_text(encoding="utf-8")
)


@cache
def composed() -> report.ReportContent:
    return report.build_report(ROOT / "results")


@cache
def tables() -> dict[str, str]:
    return report_files.markdown_tables(composed())


def test_pages_of_results_contain_generated_tables() -> None:
    assert {path.name for path in MADE} >= {"curiosity.md", "results.md"}


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.name)
def test_tables_of_a_document_equal_the_output_of_the_command(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    command = "`cclf report results --markdown`"
    assert report_files.fill_placeholders(text, tables()) == text, (
        f"{path.name} is old: run {command} or make docs"
    )


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.name)
def test_changed_number_in_a_document_is_detected(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    begin = text.index("|", text.index(MARK))
    other = text[:begin] + text[begin:].replace("0", "1", 1)
    assert report_files.fill_placeholders(other, tables()) == text


# --- numbers in sentences ---

SIGNED = r"(−?[\d,]*\.?\d+)"
WITH_INTERVAL = re.compile(rf"{SIGNED} \[{SIGNED}, {SIGNED}\]")
ESTIMATES = ("mean", "estimate", "difference")
CARTPOLE, PRECISIONS = "dmc/cartpole-swingup", ("released-bf16", "released")
END = {CARTPOLE: runs.StepBudget("env_steps", 100_000)}
# Rank correlations that `cclf inspect` printed for runs that are not kept.
EXPLORED = {
    "docs/curiosity.md": [("−0.40", "−0.43", "−0.36"), ("−0.38", "−0.42", "−0.34")],
}


def sentences(name: str) -> str:
    """A document's words outside its tables, on one line."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return " ".join(re.sub(rf"{MARK}.*?{report_files.END}", "", text, flags=re.DOTALL).split())


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


def difference(pair: list[np.ndarray]) -> statistics.Interval:
    return statistics.bootstrap_statistic(
        pair, lambda parts: statistics.mean(parts[0]) - statistics.mean(parts[1])
    )


def ratio(pair: list[np.ndarray]) -> statistics.Interval:
    return statistics.bootstrap_statistic(
        pair, lambda parts: statistics.mean(parts[0]) / statistics.mean(parts[1])
    )


def final_returns(folder: str, profile: str, task: str, method: str) -> np.ndarray:
    rows = [row for row in load.read(ROOT / "results" / folder) if row.profile == profile]
    budget = END if folder == "dmc" else {task: last_step(rows, task)}
    return runs.score_matrix([row for row in rows if row.task == task], [method], budget)[method]


def last_step(rows: list[runs.ResultRow], task: str) -> runs.StepBudget:
    return runs.StepBudget("env_steps", max(row.env_steps for row in rows if row.task == task))


def of_methods(*methods: str) -> np.ndarray:
    """Returns on cartpole-swingup at 100,000 steps in bfloat16."""
    return np.concatenate(
        [final_returns("dmc", "released-bf16", CARTPOLE, method) for method in methods]
    )


@cache
def computed_intervals() -> list[statistics.Interval]:
    """Intervals in sentences that are in no table."""
    pairs = [
        [final_returns("dmc", profile, CARTPOLE, method) for profile in PRECISIONS]
        for method in ("drq", "cclf")
    ]
    pairs += [
        [of_methods("drq", "curl+"), of_methods("rad", "curl")],  # a second view
        [of_methods("curl", "curl+"), of_methods("rad", "drq")],  # the contrastive loss
        [of_methods("curl+"), of_methods("cclf-shuffled")],
    ]
    doors = [
        [final_returns("minigrid", "entropy-0.01", task, name) for name in ("cclf", "curl")]
        for task in ("minigrid/DoorKey-6x6", "minigrid/DoorKey-8x8")
    ]
    return [*map(difference, pairs), *map(ratio, doors)]


@pytest.mark.parametrize("name", ["README.md", "docs/results.md", "docs/curiosity.md"])
def test_intervals_in_sentences_equal_those_of_the_data(name: str) -> None:
    statements = WITH_INTERVAL.findall(sentences(name))
    assert len(statements) > 5
    known = [*known_intervals(), *computed_intervals()]
    unknown = [
        words
        for words in statements
        if not any(
            all(
                printed(float(value), word) == word for value, word in zip(each, words, strict=True)
            )
            for each in known
        )
    ]
    assert unknown == EXPLORED.get(name, [])
