"""scripts/docs_figures.py: what its figures show, by hand."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from cclf.analysis import load
from tiny_rows import TASK, row, runs_of

PATH = Path(__file__).parents[2] / "scripts" / "docs_figures.py"
program = SimpleNamespace(**runpy.run_path(str(PATH)))


def test_effect_sizes_of_each_task_by_hand(tmp_path: Path) -> None:
    """Means 0.7 and 0.6, both with a standard deviation of 0.1; with two evaluations only, the last
    one counts."""
    other = "minigrid/Empty-16x16"
    for task in (TASK, other):
        rows = runs_of("cclf", [0.6, 0.7, 0.8], task=task) + runs_of(
            "curl", [0.5, 0.6, 0.7], task=task
        )
        load.write_results([*rows, row("re3", value=0.5, task=task)], tmp_path / task)
    rows = [each for task in (TASK, other) for each in load.read(tmp_path / task)]
    found = program.effect_sizes(rows, "cclf", "curl")
    assert list(found) == [
        f"{task.partition('/')[2]}, entropy-0.01 (3, end)" for task in (other, TASK)
    ]
    for interval in found.values():
        assert float(interval.estimate) == pytest.approx(1.0)
        assert float(interval.low) < 1.0 < float(interval.high)
    assert program.effect_sizes(rows, "cclf", "re3") == {}, "one seed has no deviation"


def test_final_scores_are_the_last_returns_on_the_scale_of_each_game() -> None:
    """Pong: random -20.7, human 14.6; Freeway: 0 and 29.6."""
    rows = [row("cclf", 1, 200_000, 14.6, task="atari/Pong", repeat=4)]
    rows += runs_of("cclf", [-20.7, 14.6], task="atari/Pong", repeat=4)[1:]
    rows += [row("cclf", 1, 400_000, -20.7, task="atari/Pong", repeat=4)]
    rows += runs_of("cclf", [29.6], task="atari/Freeway", repeat=4)
    rows += runs_of("curl", [2.96], task="atari/Freeway", repeat=4)
    rows += runs_of("curl", [5.0], task="atari/Unknown", repeat=4)
    ((name, found),) = program.final_scores(rows, ["cclf", "curl"]).items()
    assert name.startswith("atari")
    assert list(found) == ["atari/Freeway", "atari/Pong"], "(1 + 0.1) / 2 before (0 + 1) / 2"
    assert found["atari/Pong"]["cclf"].tolist() == pytest.approx([0.0, 1.0])
    assert {m: s.tolist() for m, s in found["atari/Freeway"].items()} == {
        "curl": pytest.approx([0.1]),
        "cclf": pytest.approx([1.0]),
    }
    ((_, only),) = program.final_scores(rows, ["curl"]).items()
    assert {task: list(scores) for task, scores in only.items()} == {"atari/Freeway": ["curl"]}


def test_effect_size_of_runs_with_many_evaluations_is_of_the_mean_over_training() -> None:
    """0.5 and 0.4 over ten evaluations that rise by 0.2 from seed to seed, though both end alike."""
    steps = [n * 10_000 for n in range(1, 11)]
    rows = [
        row(method, seed, at, 1.0 if at == steps[-1] else level + 0.2 * seed)
        for method, level in (("cclf", 0.1), ("curl", 0.0))
        for seed in (1, 2, 3)
        for at in steps
    ]
    ((label, interval),) = program.effect_sizes(rows, "cclf", "curl").items()
    assert label == "DoorKey-6x6, entropy-0.01 (3)"
    assert float(interval.estimate) == pytest.approx(0.1 / 0.2)


def test_effect_size_on_atari_is_at_the_end_and_not_of_the_best_evaluations() -> None:
    rows = [
        row(method, seed, steps, value, task="atari/Pong", repeat=4)
        for method, end in (("cclf", 4.0), ("curl", 3.0))
        for seed in (1, 2)
        for steps, value in ((40_000, 9.0 * seed), (80_000, end + seed))
    ]
    ((label, interval),) = program.effect_sizes(rows, "cclf", "curl").items()
    assert label == "Pong, entropy-0.01 (2, end)"
    assert float(interval.estimate) == pytest.approx(1.0 / 0.5**0.5)


@pytest.mark.filterwarnings("error::RuntimeWarning")  # numpy: the mean of an empty slice
def test_final_scores_are_drawn_where_a_method_has_no_run() -> None:
    rows = runs_of("cclf", [0.5, 0.7])
    rows += runs_of("curl", [0.4], task="minigrid/Empty-16x16")
    drawing = program.draw_final_scores(rows, ("cclf", "curl"), "entropy-0.01", "score")
    labels = [label.get_text() for label in drawing.axes[0].get_yticklabels()]
    assert labels == ["DoorKey-6x6", "Empty-16x16"]
