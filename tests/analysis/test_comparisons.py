"""Comparisons of methods against numbers worked out by hand."""

import pytest

from cclf.analysis.comparisons import (
    across_tasks_table,
    differences_table,
    over_training_table,
)
from cclf.analysis.runs import ResultRow
from cclf.analysis.suites import aggregate_scores, group_rows
from cclf.analysis.table import Table
from tiny_rows import TASK, row, runs_of


def table(*runs: list[ResultRow]) -> Table:
    (group,) = group_rows([row for some in runs for row in some])
    return differences_table(group)


def test_difference_of_cclf_and_each_method_has_an_interval_and_an_effect_size() -> None:
    """Means 0.7 and 0.4; sums of squares 4 * 0.01 and 0, over 8: a pooled standard deviation of
    sqrt(0.005)."""
    ours, theirs = runs_of("cclf", [0.6, 0.6, 0.7, 0.8, 0.8]), runs_of("re3", [0.4] * 5)
    found = table(ours, theirs, runs_of("a2c", [0.9]))
    assert found.header == ("task", "re3"), "one seed has no deviation"
    (cells,) = found.rows
    assert cells[1].text == "0.300"
    assert cells[1].notes[1] == "d 4.24"
    assert cells[1].style == "best"
    (record,) = found.records
    assert (record["difference"], record["d"]) == pytest.approx((0.3, 0.3 / 0.005**0.5))


def test_differences_of_few_seeds_are_not_bold_and_one_method_has_no_table() -> None:
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


def test_comparison_across_tasks_by_hand() -> None:
    """The IQM is the mean of the middle two of four runs: 0.5 and 0.7 minus 0.2 and 0.6. CCLF is
    better in all four pairs on DoorKey and in one and a half on Empty (a tie is a half): 5.5 of 8.
    """
    ours = on_two_tasks("cclf", [0.9, 0.7], [0.5, 0.1])
    theirs = on_two_tasks("re3", [0.6, 0.2], [0.1, 0.8])
    found = across(ours, theirs)
    ((name, iqm, beats, won),) = found.rows
    assert (name.text, iqm.text, beats.text, won.text) == ("re3", "0.200", "0.688", "1 of 2")
    assert {record["interval_over"] for record in found.records} == {"runs"}
    assert "resample the tasks" not in found.caption
    assert across(theirs, on_two_tasks("a2c", [0.1, 0.2], [0.1, 0.2])).records == []


def test_comparison_across_tasks_of_one_seed_resamples_tasks() -> None:
    ours = on_two_tasks("cclf", [0.9, 0.9], [0.5, 0.5])
    found = across(ours, on_two_tasks("re3", [0.6], [0.6]))
    assert found.rows[0][1].notes == ("[-0.100, 0.300]",)
    assert found.caption.endswith("so intervals resample the tasks: re3.")


def over_training(*runs: list[ResultRow]) -> Table:
    (group,) = group_rows([row for some in runs for row in some])
    return over_training_table(group)


STEPS = range(50_000, 400_001, 50_000)  # eight evaluations


def run(method: str, seed: int, slope: float, **fields: object) -> list[ResultRow]:
    """Returns that grow linearly from slope / 8 to slope, with the mean 9 / 16 slope."""
    return [row(method, seed, steps, slope * steps / 400_000, **fields) for steps in STEPS]


def test_means_over_evaluations_and_their_differences() -> None:
    ours = [run("cclf", seed, 0.8) for seed in range(1, 6)]
    theirs = [run("cclf-shuffled", seed, 0.16) for seed in range(1, 6)]
    found = over_training(*ours, *theirs)
    assert [cell.text for cell in found.rows[0]][:5] == ["cclf", "DoorKey-6x6", "5", "0.450", "–"]
    last = found.rows[1]
    assert [cell.text for cell in last][2:] == ["5", "0.090", "0.360"], "curl was not run"
    assert last[4].notes == ("[0.360, 0.360]",)
    assert last[4].style == "best"
    assert tuple(found.records[1].values())[:5] == pytest.approx(
        (TASK, "entropy-0.01", "cclf-shuffled", 5, 0.09)
    )


def test_means_over_training_need_finished_runs_with_the_same_evaluation_steps() -> None:
    pair = [run("cclf", seed, 0.8) + run("curl", seed, 0.4) for seed in (1, 2)]
    unlike = [
        run("cclf", 3, 0.1, state="unfinished")[:4],
        run("cclf", 5, 0.1)[1:],
    ]
    found = over_training(*pair, *unlike)
    assert [record["seeds"] for record in found.records] == [2, 2]
    assert [record["mean"] for record in found.records] == pytest.approx([0.225, 0.45]), (
        "curl, cclf"
    )
    assert found.rows[0][4].style == "", "two seeds are too few to tell apart"


def test_a_failed_run_stays_in_the_mean_at_the_lowest_return() -> None:
    """Two of 0.45 and one of 0.05, the first evaluation of curl: 0.95 / 3."""
    pair = [run("cclf", seed, 0.8) + run("curl", seed, 0.4) for seed in (1, 2)]
    found = over_training(*pair, run("cclf", 3, 0.8, state="failed")[:2])
    assert [record["seeds"] for record in found.records] == [2, 3]
    assert found.records[1]["mean"] == pytest.approx(0.95 / 3)


def test_few_evaluations_one_method_or_one_seed_give_no_table_over_training() -> None:
    alone = [run("cclf", seed, 0.8) for seed in (1, 2)]
    assert over_training(*alone).rows == []
    assert over_training(*alone, run("curl", 1, 0.4)).rows == []
    short = [run(method, seed, 0.8)[1:] for method in ("cclf", "curl") for seed in (1, 2)]
    assert over_training(*short).rows == []
