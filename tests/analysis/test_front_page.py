"""The pictures of the README, which scripts/front.py draws."""

import runpy
from pathlib import Path

from cclf.analysis import load
from cclf.inspection.cards import percent
from cclf.inspection.load import inspect_run
from cclf.storage import run_folder
from tiny_runs import CPU, run, tiny_config

A2C = tiny_config("minigrid/DoorKey-6x6", env_steps=320, eval_every_env_steps=320)


def test_card_and_curves_of_the_front_page_show_the_data(tmp_path: Path) -> None:
    with run_folder.create_run_folder(A2C, tmp_path) as folder:
        run(A2C, folder)
    look = inspect_run(folder, 64, CPU).most[0]
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
