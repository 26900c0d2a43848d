"""Figures and pages, on results made up for the test."""

import subprocess
import sys

import numpy as np
import pytest

from cclf.study import figures, page
from tiny_rows import row


def test_curves_keep_the_clock_readings_that_all_seeds_have() -> None:
    rows = [row(seed=1, env_steps=s, value=s) for s in (100, 200, 300)] + [
        row(seed=2, env_steps=s, value=-s) for s in (100, 200)
    ]
    curve = figures.curves(rows)["cclf"]
    assert curve.env_steps.tolist() == [100, 200]
    assert curve.returns.tolist() == [[100, 200], [-100, -200]]
    assert curve.seeds == [1, 2]


def test_a_failed_run_goes_on_at_the_lowest_return_of_its_task() -> None:
    rows = [row(seed=1, env_steps=s, value=0.1 * s) for s in (1, 2, 3)]
    rows += [
        row(seed=2, env_steps=1, value=0.9, state="failed"),
        row(seed=3, env_steps=0, value=np.nan, episodes=0, state="failed"),
    ]
    curve = figures.curves(rows)["cclf"]
    assert curve.env_steps.tolist() == [1, 2, 3]
    assert curve.returns == pytest.approx(
        np.array([[0.1, 0.2, 0.3], [0.9, 0.1, 0.1], [0.1, 0.1, 0.1]])
    )


def test_a_run_on_its_way_does_not_cut_the_curve_of_the_others() -> None:
    rows = [row(seed=1, env_steps=s) for s in (1, 2, 3)] + [
        row(seed=2, env_steps=1, state="unfinished")
    ]
    assert figures.curves(rows)["cclf"].env_steps.tolist() == [1, 2, 3]
    assert figures.curves(rows[3:])["cclf"].env_steps.tolist() == [1]


def test_a_panel_refuses_to_mix_tasks() -> None:
    with pytest.raises(ValueError, match="one task"):
        figures.curves([row(), row(task="minigrid/Empty-16x16")])


def test_panels_of_one_task_have_one_scale_and_other_tasks_their_own() -> None:
    def curve(height: float) -> dict[str, figures.Curve]:
        return figures.curves([row("cclf", 1, steps, height * steps) for steps in (100, 200)])

    panels = {"dmc/a, paper": curve(1.0), "dmc/a, released": curve(5.0), "dmc/b, paper": curve(0.1)}
    axes = figures.learning_curves(panels).axes
    assert axes[0].get_ylim() == axes[1].get_ylim()
    assert axes[1].get_ylim()[1] > 1000.0
    assert axes[2].get_ylim()[1] < 30.0


def test_one_evaluation_is_a_dot() -> None:
    (line,) = figures.learning_curves({"a": figures.curves([row("cclf")])}).axes[0].lines
    assert line.get_marker() == "o", "a line through one point would not be seen"


def test_figures_become_svg_that_takes_the_colour_of_the_page() -> None:
    rows = [
        row(method, seed, steps, 0.1 * seed)
        for method in ("a2c", "cclf")
        for seed in (1, 2)
        for steps in (100, 200)
    ]
    svg = figures.inline_svg(
        figures.learning_curves({"a <task>": figures.curves(rows)}), 'curves "here"'
    )
    assert svg.startswith("<svg")
    assert "currentColor" in svg
    assert "a &lt;task&gt;" in svg
    assert "curves &quot;here&quot;" in svg
    assert "http-equiv" not in svg


def test_text_from_runs_is_escaped_in_pages() -> None:
    hostile = "<script>alert(1)</script>"
    text = page.page(
        hostile, [page.table([hostile], [[hostile]]), page.figure("<svg></svg>", hostile)]
    )
    assert "<script>" not in text
    assert text.count("&lt;script&gt;") == 5


def test_a_page_asks_for_nothing_outside() -> None:
    strip = page.picture_strip([np.zeros((4, 4, 3), np.uint8)], ["step 0"])
    text = page.page("title", [strip, page.video(b"mp4", "an episode")])
    assert "data:image/png;base64," in strip
    for outside in ('src="http', 'href="http', "@import", "url(http"):
        assert outside not in text


def test_analysis_needs_no_torch() -> None:
    modules = "cclf.study.report, cclf.study.published, cclf.study.verdict"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
