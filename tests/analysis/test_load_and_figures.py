"""Rows, figures and pages, on results made up for the test."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cclf import presets
from cclf.analysis import figures, page
from cclf.analysis.load import Row, read_results, read_runs, write_results


def row(method: str = "cclf", seed: int = 1, env_steps: int = 100, value: float = 0.5, task: str = "minigrid/Empty-16x16") -> Row:
    return Row(task, method, "entropy-0.01", seed, env_steps, env_steps, env_steps // 128, value, 0.1, 100, 1.5, "cpu x1", "abc")


def test_results_survive_the_way_to_disk_and_back(tmp_path: Path) -> None:
    rows = sorted([row("cclf", 1), row("cclf", 2, 200, 1 / 3), row("a2c", 1)])
    paths = write_results(rows, tmp_path)
    assert [path.name for path in paths] == ["a2c.csv", "cclf.csv"]
    assert sorted(read_results(tmp_path)) == rows


def test_runs_are_read_with_clocks_machine_and_commit(tmp_path: Path) -> None:
    config = presets.resolve("minigrid/DoorKey-6x6", "re3", seed=3, profile="paper")
    folder = tmp_path / config.run_name()
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    (folder / "manifest.json").write_text(json.dumps({"device": "cpu", "threads": 1, "commit": "abc"}))
    header = "env_steps,agent_steps,updates,return_mean,return_std,episodes,wall_seconds,returns"
    (folder / "eval.csv").write_text(f"{header}\n12800,12800,100,0.25,0.1,100,2.5,0.2 0.3\n")
    (tmp_path / "not-a-run").mkdir()
    (tmp_path / "not-a-run" / "eval.csv").write_text(header)
    clocks = (12800, 12800, 100)
    expected = Row("minigrid/DoorKey-6x6", "re3", "entropy-0.001", 3, *clocks, 0.25, 0.1, 100, 2.5, "cpu x1", "abc", "unfinished")
    assert read_runs(tmp_path) == [expected]


def test_curves_keep_the_clock_readings_that_all_seeds_have() -> None:
    rows = [row(seed=1, env_steps=s, value=s) for s in (100, 200, 300)] + [row(seed=2, env_steps=s, value=-s) for s in (100, 200)]
    curve = figures.curves(rows)["cclf"]
    assert curve.env_steps.tolist() == [100, 200]
    assert curve.returns.tolist() == [[100, 200], [-100, -200]]
    assert curve.seeds == [1, 2]


def test_a_panel_refuses_to_mix_tasks() -> None:
    with pytest.raises(ValueError, match="one task"):
        figures.curves([row(), row(task="minigrid/DoorKey-6x6")])


def test_figures_become_svg_that_takes_the_colour_of_the_page() -> None:
    rows = [row(method, seed, steps, 0.1 * seed) for method in ("a2c", "cclf") for seed in (1, 2) for steps in (100, 200)]
    svg = figures.inline_svg(figures.learning_curves({"a <task>": figures.curves(rows)}), 'curves "here"')
    assert svg.startswith("<svg")
    assert "currentColor" in svg
    assert "a &lt;task&gt;" in svg
    assert "curves &quot;here&quot;" in svg
    assert "http-equiv" not in svg


def test_text_from_runs_is_escaped_in_pages() -> None:
    hostile = "<script>alert(1)</script>"
    text = page.page(hostile, [page.table([hostile], [[hostile]]), page.figure("<svg></svg>", hostile)])
    assert "<script>" not in text
    assert text.count("&lt;script&gt;") == 4


def test_a_page_asks_for_nothing_outside() -> None:
    strip = page.picture_strip([np.zeros((4, 4, 3), np.uint8)], ["step 0"])
    text = page.page("title", [strip, page.video(b"mp4", "an episode")])
    assert "data:image/png;base64," in strip
    for outside in ('src="http', 'href="http', "@import", "url(http"):
        assert outside not in text


def test_analysis_needs_no_torch() -> None:
    modules = "cclf.analysis.load, cclf.analysis.figures, cclf.analysis.page, cclf.analysis.statistics"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
