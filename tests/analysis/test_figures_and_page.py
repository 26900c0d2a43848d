"""Figures and pages, on results made up for the test."""

import subprocess
import sys

import numpy as np
import pytest

from cclf.analysis import figures, page
from tiny_rows import row


def test_curves_keep_the_clock_readings_that_all_seeds_have() -> None:
    rows = [row(seed=1, env_steps=s, value=s) for s in (100, 200, 300)] + [row(seed=2, env_steps=s, value=-s) for s in (100, 200)]
    curve = figures.curves(rows)["cclf"]
    assert curve.env_steps.tolist() == [100, 200]
    assert curve.returns.tolist() == [[100, 200], [-100, -200]]
    assert curve.seeds == [1, 2]


def test_a_panel_refuses_to_mix_tasks() -> None:
    with pytest.raises(ValueError, match="one task"):
        figures.curves([row(), row(task="minigrid/Empty-16x16")])


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
    assert text.count("&lt;script&gt;") == 5


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
