"""Effect sizes against numbers worked out by hand."""

import pytest

from cclf.analysis.comparisons import across_tasks_table, differences_table
from cclf.analysis.runs import ResultRow
from cclf.analysis.suites import aggregate_scores, group_rows
from cclf.analysis.table import Table
from tiny_rows import runs_of


def table(*runs: list[ResultRow]) -> Table:
    (group,) = group_rows([row for some in runs for row in some])
    return differences_table(group)


def test_cclf_less_each_other_method_with_interval_and_effect_size() -> None:
    """Means 0.7 and 0.4; squares 4 * 0.01 and 0 over 8: a pooled deviation of sqrt(0.005)."""
    ours, theirs = runs_of("cclf", [0.6, 0.6, 0.7, 0.8, 0.8]), runs_of("re3", [0.4] * 5)
    found = table(ours, theirs, runs_of("a2c", [0.9]))
    assert found.header == ("task", "re3"), "one seed has no deviation"
    (cells,) = found.rows
    assert cells[1].text == "0.300"
    assert cells[1].notes[1] == "d 4.24"
    assert cells[1].style == "best"
    (record,) = found.records
    assert (record["difference"], record["d"]) == pytest.approx((0.3, 0.3 / 0.005**0.5))


def test_few_seeds_are_not_bold_and_nothing_to_compare_is_no_table() -> None:
    (cells,) = table(runs_of("cclf", [0.8, 0.9]), runs_of("re3", [0.1] * 5)).rows
    assert cells[1].style == ""
    assert table(runs_of("cclf", [0.8])).rows == []
    assert table(runs_of("re3", [0.8, 0.9])).rows == []


def across(*runs: list[ResultRow]) -> Table:
    (group,) = group_rows([row for some in runs for row in some])
    (aggregate,) = aggregate_scores(group)
    return across_tasks_table(aggregate)


def on_two_tasks(method: str, first: list[float], second: list[float]) -> list[ResultRow]:
    return runs_of(method, first) + runs_of(method, second, task="minigrid/Empty-16x16")


def test_across_tasks_cclf_is_set_beside_each_other_method() -> None:
    """Four runs each, of which the middle two count: 0.5 and 0.7 less 0.2 and 0.6. Of the pairs on
    DoorKey all four are won, on Empty one and a half: 5.5 of 8 in all."""
    ours = on_two_tasks("cclf", [0.9, 0.7], [0.5, 0.1])
    theirs = on_two_tasks("re3", [0.6, 0.2], [0.1, 0.8])
    found = across(ours, theirs)
    ((name, iqm, beats, won),) = found.rows
    assert (name.text, iqm.text, beats.text, won.text) == ("re3", "0.200", "0.688", "1 of 2")
    assert {record["interval_over"] for record in found.records} == {"runs"}
    assert "resample the tasks" not in found.caption
    assert across(theirs, on_two_tasks("a2c", [0.1, 0.2], [0.1, 0.2])).records == []


def test_across_tasks_one_seed_makes_intervals_of_tasks() -> None:
    ours = on_two_tasks("cclf", [0.9, 0.9], [0.5, 0.5])
    found = across(ours, on_two_tasks("re3", [0.6], [0.6]))
    assert found.rows[0][1].notes == ("[-0.100, 0.300]",)
    assert found.caption.endswith("so intervals resample the tasks: re3.")
