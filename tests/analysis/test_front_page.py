"""The pictures of the README, which scripts/front.py draws."""

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from cclf.analysis import load
from cclf.config import Config
from cclf.inspection.cards import percent
from cclf.inspection.load import inspect_run
from test_gallery import A2C
from tiny_runs import CPU


@pytest.mark.slow("test_gallery.py::test_a2c_looks_are_what_training_would_compute")
def test_card_and_curves_of_the_front_page_show_the_data(
    trained: Callable[[Config], Path],
) -> None:
    look = inspect_run(trained(A2C), 64, CPU).most[0]
    path = Path(__file__).parents[2] / "scripts" / "front.py"
    front = runpy.run_path(str(path))
    drawn = " ".join(" ".join(text.get_text() for text in front["card"](look).texts).split())
    assert f"{percent(look.curiosity)} curious" in drawn
    assert front["sentence"](look) in drawn
    labels = [line.get_label() for line in front["draw_curves"]().axes[0].lines]
    rows = load.read(path.parents[1] / "results" / "curiosity")
    seeds = {
        method: len({row.seed for row in rows if (row.method, row.task, row.profile) == which})
        for method in front["CONTROLS"]
        for which in [(method, *front["SHOWN"])]
    }
    assert labels == [f"{method} ({count} seeds)" for method, count in seeds.items()]
