"""The mean return over training, against numbers worked out by hand."""

import pytest

from cclf.analysis.comparisons import over_training_table
from cclf.analysis.runs import ResultRow
from cclf.analysis.suites import group_rows
from cclf.analysis.table import Table
from tiny_rows import TASK, row

STEPS = range(50_000, 400_001, 50_000)  # eight evaluations


def run(method: str, seed: int, slope: float, **fields: object) -> list[ResultRow]:
    """Returns that grow evenly from slope / 8 to slope: 9 / 16 slope on average."""
    return [row(method, seed, steps, slope * steps / 400_000, **fields) for steps in STEPS]


def table(*runs: list[ResultRow]) -> Table:
    (group,) = group_rows([row for some in runs for row in some])
    return over_training_table(group)


def test_means_over_evaluations_and_their_differences() -> None:
    ours = [run("cclf", seed, 0.8) for seed in range(1, 6)]
    theirs = [run("cclf-shuffled", seed, 0.16) for seed in range(1, 6)]
    found = table(*ours, *theirs)
    assert [cell.text for cell in found.rows[0]][:5] == ["cclf", "DoorKey-6x6", "5", "0.450", "–"]
    last = found.rows[1]
    assert [cell.text for cell in last][2:] == ["5", "0.090", "0.360"], "curl was not run"
    assert last[4].notes == ("[0.360, 0.360]",)
    assert last[4].style == "best"
    assert tuple(found.records[1].values())[:5] == pytest.approx(
        (TASK, "entropy-0.01", "cclf-shuffled", 5, 0.09)
    )


def test_runs_that_end_well_and_were_evaluated_at_the_same_steps_count() -> None:
    pair = [run("cclf", seed, 0.8) + run("curl", seed, 0.4) for seed in (1, 2)]
    unlike = [
        run("cclf", 3, 0.1, state="unfinished")[:4],
        run("cclf", 5, 0.1)[1:],
    ]
    found = table(*pair, *unlike)
    assert [record["seeds"] for record in found.records] == [2, 2]
    assert [record["mean"] for record in found.records] == pytest.approx([0.225, 0.45]), (
        "curl, cclf"
    )
    assert found.rows[0][4].style == "", "two seeds are too few to tell apart"


def test_a_failed_run_stays_in_the_mean_at_the_lowest_return() -> None:
    """Two of 0.45 and one of 0.05, the first evaluation of curl: 0.95 / 3."""
    pair = [run("cclf", seed, 0.8) + run("curl", seed, 0.4) for seed in (1, 2)]
    found = table(*pair, run("cclf", 3, 0.8, state="failed")[:2])
    assert [record["seeds"] for record in found.records] == [2, 3]
    assert found.records[1]["mean"] == pytest.approx(0.95 / 3)


def test_few_evaluations_one_method_or_one_seed_are_no_table() -> None:
    alone = [run("cclf", seed, 0.8) for seed in (1, 2)]
    assert table(*alone).rows == []
    assert table(*alone, run("curl", 1, 0.4)).rows == []
    short = [run(method, seed, 0.8)[1:] for method in ("cclf", "curl") for seed in (1, 2)]
    assert table(*short).rows == []
