"""Tables of a report against numbers worked out by hand."""

import math

import pytest

from cclf.analysis import comparisons, render, runs, tables
from cclf.analysis.runs import ResultRow, StepBudget
from cclf.analysis.suites import (
    SuiteResults,
    aggregate_scores,
    group_rows,
    report_steps,
    sort_methods,
)
from cclf.analysis.table import Cell, Entry, Table, layout
from tiny_rows import TASK, row, runs_of

EMPTY = "minigrid/Empty-16x16"


def group(rows: list[ResultRow]) -> SuiteResults:
    (found,) = group_rows(rows)
    return found


def line(table: Table, task: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """A row as {column: (text, notes)}."""
    (cells,) = (cells for cells in table.rows if cells[0].text == task)
    return {name: cell[:2] for name, cell in zip(table.header, cells, strict=True)}


def curve(method: str, seed: int, *values: float, state: str = "done") -> list[ResultRow]:
    return [
        row(method, seed, 100_000 * number, value, state=state)
        for number, value in enumerate(values, 1)
    ]


def steps_of(rows: list[ResultRow], task: str) -> list[StepBudget]:
    return report_steps(runs.runs(rows), task)


def test_report_steps_are_the_ends_of_runs_and_published_steps_before() -> None:
    steps = (50_000, 100_000, 150_000)
    control = [row(task="dmc/cartpole-swingup", repeat=8, env_steps=n) for n in steps]
    assert steps_of(control, "dmc/cartpole-swingup") == [
        StepBudget("env_steps", 100_000),
        StepBudget("env_steps", 150_000),
    ]
    on_their_way = [
        row(seed=seed, env_steps=n, state="unfinished")
        for seed, n in ((1, 100), (1, 200), (2, 100))
    ]
    assert steps_of(on_their_way, TASK) == [StepBudget("env_steps", 100)]
    assert steps_of([row(env_steps=0, value=math.nan, state="failed")], TASK) == []


def test_rows_are_grouped_by_suite_and_profile_in_the_order_of_the_presets() -> None:
    rows = [
        row(task=TASK),
        row(task=EMPTY),
        row(profile="entropy-0.001"),
        row(task="dmc/walker-walk", profile="released"),
    ]
    assert [(g.suite, g.profile, list(g.by_task)) for g in group_rows(rows)] == [
        ("dmc", "released", ["dmc/walker-walk"]),
        ("minigrid", "entropy-0.01", [EMPTY, TASK]),
        ("minigrid", "entropy-0.001", [TASK]),
    ]
    assert sort_methods("minigrid", ["zzz", "cclf", "a2c"]) == ["a2c", "cclf", "zzz"]
    assert sort_methods("dmc", ["cclf", "curl", "sac-pixel"]) == ["sac-pixel", "curl", "cclf"]


def test_steps_table_counts_runs_that_never_reach_the_return_or_lose_it_again() -> None:
    """The lowest return is 0 and the best final mean 1: the target is 0.9, and a final return below
    0.5 counts as lost."""
    rows = [
        *curve("cclf", 1, 0.0, 1.0, 1.0),
        *curve("cclf", 2, 0.0, 0.5, 1.0),
        *curve("cclf", 3, 1.0, 1.0, 1.0),
    ]
    rows += [
        *curve("re3", 1, 0.0, 1.0, 0.2),
        *curve("re3", 2, 0.0, 0.1, 0.1),
        *curve("re3", 3, 0.95, state="failed"),
    ]
    found = line(comparisons.steps_table(group(rows)), "DoorKey-6x6")
    assert found["task"] == ("DoorKey-6x6", ("to a return of 0.900",))
    assert found["cclf"] == ("200,000", ("3 of 3 runs",))
    assert found["re3"] == ("200,000", ("2 of 3 runs", "2 lost it again"))


def test_steps_table_omits_tasks_with_different_evaluation_steps() -> None:
    table = comparisons.steps_table(
        group([*curve("cclf", 1, 0.1, 0.9), row("re3", 1, 200_000, 0.4)])
    )
    assert table.entries == []
    assert table.caption.endswith("so not compared: DoorKey-6x6.")


def test_cost_is_the_median_of_finished_runs_by_machine() -> None:
    rows = [
        row("cclf", seed, seconds=seconds) for seed, seconds in ((1, 100.0), (2, 200.0), (3, 400.0))
    ]
    rows += [
        row("cclf", 4, seconds=1.0, state="unfinished"),
        row("re3", 1, seconds=50.0, device="cpu x2"),
    ]
    table = tables.cost_table(group(rows))
    assert [cells[0].notes for cells in table.rows] == [("cpu x1",), ("cpu x2",)]
    first, second = (tuple(record.values()) for record in table.records)
    assert first[3:] == ("cclf", 3, 200.0, pytest.approx(3125 / 200), 2000.0)
    assert second[3:6] == ("re3", 1, 50.0)


def cell_styles(*runs: list[ResultRow]) -> dict[str, str]:
    """The style of each method's cell in a table of one row."""
    (table,) = tables.score_tables(group([one for some in runs for one in some]))
    styles = {cell.style for cell in table.rows[0]}
    assert ("In bold:" in layout(table).caption) == ("best" in styles)
    return {name: cell.style for name, cell in zip(table.header, table.rows[0], strict=True)}


def test_best_mean_is_bold_only_if_its_interval_excludes_all_other_means() -> None:
    high, low = runs_of("cclf", [0.8, 0.82, 0.84, 0.86, 0.9]), runs_of("re3", [0.5] * 5)
    near = runs_of("a2c", [0.7, 0.75, 0.8, 0.83, 0.9])
    assert cell_styles(high, low) == {"task": "", "re3": "", "cclf": "best"}
    assert set(cell_styles(high, low, near).values()) == {""}, "0.796 reaches into 0.844's interval"
    assert set(cell_styles(high).values()) == {""}, "alone it is the best of nothing"
    assert set(cell_styles(low, runs_of("cclf", [0.5] * 5)).values()) == {""}, "a tie has no best"


def test_no_mean_is_bold_with_too_few_seeds() -> None:
    high = runs_of("cclf", [0.8, 0.82, 0.84, 0.86, 0.9])
    assert set(cell_styles(high, runs_of("re3", [0.1])).values()) == {""}
    assert set(cell_styles(high[:4], runs_of("re3", [0.1] * 5)).values()) == {""}


def test_steps_table_uses_the_return_of_a_claim() -> None:
    """The paper's claims name a return of 0.9 on DoorKey-6x6, so the table uses it although the
    best run ends at 0.5. Without such a claim the target is nine tenths of the range."""
    found = line(comparisons.steps_table(group(curve("cclf", 1, 0.0, 0.95, 0.5))), "DoorKey-6x6")
    assert found["task"][1] == ("to a return of 0.900",)
    assert found["cclf"] == ("200,000", ("1 of 1 runs",))
    other = [one._replace(task="minigrid/Unlock") for one in curve("cclf", 1, 0.0, 0.95, 0.5)]
    assert line(comparisons.steps_table(group(other)), "Unlock")["task"][1] == (
        "to a return of 0.450",
    )


def test_one_seed_has_no_spread_and_across_tasks_an_interval_over_tasks() -> None:
    rows = [*runs_of("cclf", [0.2]), *runs_of("cclf", [0.6], task=EMPTY)]
    (table,) = tables.score_tables(group(rows))
    assert [record["low"] for record in table.records] == [None, None]
    across = tables.aggregate_table(aggregate_scores(group(rows))[0])
    mean = next(record for record in across.records if record["estimator"] == "mean")
    assert tuple(mean)[5:] == ("seeds", "estimate", "low", "high", "interval_over")
    assert tuple(mean.values())[5:] == (1, pytest.approx(0.4), 0.2, 0.6, "tasks")
    assert "One seed, so intervals resample the tasks" in across.caption


def test_across_tasks_only_methods_with_every_task_are_compared() -> None:
    rows = [
        *runs_of("cclf", [0.2, 0.4]),
        *runs_of("cclf", [0.6, 0.8], task=EMPTY),
        *runs_of("re3", [0.9, 0.9]),
    ]
    (aggregate,) = aggregate_scores(group(rows))
    assert aggregate.when == "at 400,000 env steps"
    assert aggregate.excluded == ["re3"]
    assert aggregate.scores["cclf"].tolist() == [[0.6, 0.2], [0.8, 0.4]]
    table = tables.aggregate_table(aggregate)
    assert [cell.text for cell in table.rows[0]] == ["cclf", "0.500", "0.500", "0.500", "0.500"]
    assert "excluded: re3" in table.caption


def test_control_scores_are_returns_divided_by_a_thousand() -> None:
    rows = [
        r
        for task in ("dmc/walker-walk", "dmc/finger-spin")
        for r in runs_of("cclf", [500.0, 700.0], task=task, repeat=2)
    ]
    (aggregate,) = aggregate_scores(
        group([r._replace(env_steps=100_000, agent_steps=50_000) for r in rows])
    )
    assert aggregate.scores["cclf"].tolist() == [[0.5, 0.5], [0.7, 0.7]]


def test_single_task_has_no_aggregate() -> None:
    assert aggregate_scores(group(runs_of("cclf", [0.2, 0.4]))) == []


def test_latex_omits_published_numbers_and_has_a_unique_label() -> None:
    pong, alien = ((Cell(name, ("at 100",)),) for name in ("Pong", "Alien"))
    entries = [
        Entry(pong, None, "ours", Cell("1.0")),
        Entry(pong, None, "published", Cell("–", ("published 2",))),
        Entry(alien, None, "other", Cell("7", style="best")),
    ]
    columns = ("ours", "published", "other")
    table = Table("returns", entries, ("task",), columns, "Returns", "atari, x", "means.")
    text = render.to_latex(table, "part one")
    assert r"\caption{Returns: atari, x. Means. All: at 100.}" in text
    assert r"\label{tab:part-one-returns}" in text
    assert "\ntask & ours & other \\\\\n" in text
    assert "\nPong & 1.0 & -- \\\\\n" in text
    assert "published" not in text
    assert r"\textbf{7}" in text
