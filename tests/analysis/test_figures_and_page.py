"""Figures and pages of synthetic results."""

import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from cclf import cli
from cclf.analysis import (
    curves,
    figures,
    load,
    render,
    report,
    report_files,
    styles,
    verdicts,
)
from cclf.analysis.table import Cell, Entry, Table
from cclf.analysis.verdicts import Verdict
from tiny_rows import TASK, row

RESULTS = Path(__file__).parents[2] / "results"
TEMPLATES = Path(render.__file__).parent / "templates"


def test_curves_keep_the_steps_that_all_seeds_have() -> None:
    rows = [row(seed=1, env_steps=s, value=s) for s in (100, 200, 300)] + [
        row(seed=2, env_steps=s, value=-s) for s in (100, 200)
    ]
    curve = curves.curves(rows)["cclf"]
    assert curve.env_steps.tolist() == [100, 200]
    assert curve.returns.tolist() == [[100, 200], [-100, -200]]
    assert curve.seeds == [1, 2]


def test_curve_of_a_failed_run_continues_at_the_lowest_return_of_its_task() -> None:
    rows = [row(seed=1, env_steps=s, value=0.1 * s) for s in (1, 2, 3)]
    rows += [
        row(seed=2, env_steps=1, value=0.9, state="failed"),
        row(seed=3, env_steps=0, value=np.nan, episodes=0, state="failed"),
    ]
    curve = curves.curves(rows)["cclf"]
    assert curve.env_steps.tolist() == [1, 2, 3]
    assert curve.returns == pytest.approx(
        np.array([[0.1, 0.2, 0.3], [0.9, 0.1, 0.1], [0.1, 0.1, 0.1]])
    )


def test_unfinished_run_does_not_shorten_the_curve_of_the_others() -> None:
    rows = [row(seed=1, env_steps=s) for s in (1, 2, 3)] + [
        row(seed=2, env_steps=1, state="unfinished")
    ]
    assert curves.curves(rows)["cclf"].env_steps.tolist() == [1, 2, 3]
    assert curves.curves(rows[3:])["cclf"].env_steps.tolist() == [1]


@pytest.mark.parametrize("runs", [1, 4, 5])
@pytest.mark.parametrize("steps", [(100,), (100, 200, 300, 400)])
def test_up_to_four_runs_are_drawn_as_lines_and_more_as_a_band(
    runs: int, steps: tuple[int, ...]
) -> None:
    rows = [row("cclf", seed, n, seed * n) for seed in range(1, runs + 1) for n in steps]
    axis = figures.learning_curves({"a": curves.curves(rows)}).axes[0]
    mean, *thin = axis.lines
    assert list(mean.get_ydata()) == [n * (runs + 1) / 2 for n in steps]
    drawn = [list(line.get_ydata()) for line in thin]
    assert drawn == ([[n * seed for n in steps] for seed in (1, 2, 3, 4)] if runs == 4 else [])
    assert len(axis.collections) == (runs == 5)
    low, high = axis.get_ylim()
    assert runs == 5 or low < 100 <= runs * steps[-1] < high, "every run that is drawn is inside"
    assert mean.get_marker() == ("o" if len(steps) == 1 else ""), "one evaluation is a dot"


def luminance(colour: str) -> float:
    part = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in part]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


@pytest.mark.parametrize("paper", ["#fbfaf7", "#16181d"])
def test_colours_stand_out_on_light_and_dark_pages(paper: str) -> None:
    """WCAG requires a contrast of 3 to 1 for graphics."""
    assert paper in (TEMPLATES / "style.css").read_text()
    for colour in styles.PALETTE:
        low, high = sorted((luminance(colour), luminance(paper)))
        assert (high + 0.05) / (low + 0.05) >= 3.0, colour


def lab(colour: str, lacks_green: bool) -> np.ndarray:
    """CIELAB of a colour, with `lacks_green` as seen with deuteranopia (Machado et al., 2009)."""
    part = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    if lacks_green:
        seen = [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]
        linear = np.clip(np.array(seen) @ linear, 0.0, 1.0)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = np.cbrt(np.array(to_xyz) @ linear / (0.9505, 1.0, 1.089))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_colours_differ_also_with_deuteranopia_or_are_listed_as_similar() -> None:
    for one, other in combinations(styles.PALETTE, 2):
        apart = [float(np.linalg.norm(lab(one, e) - lab(other, e))) for e in (False, True)]
        assert apart[0] > 25.0, (one, other)
        assert ({one, other} in styles.SIMILAR_COLORS) == (apart[1] < 15.0), (one, other, apart)


def test_methods_have_distinct_styles_and_known_ones_fixed_styles() -> None:
    for one, other in combinations(styles.STYLES.values(), 2):
        assert one != other
    results = {path.parent.name: [] for path in RESULTS.glob("*/*.csv")}
    for path in RESULTS.glob("*/*.csv"):
        results[path.parent.name].append(path.stem)
    unknown = [f"mine-{number}" for number in range(12)]
    for drawn in (*results.values(), [*results["curiosity"], *unknown], unknown):
        found = styles.styles(drawn)
        assert list(found) == drawn
        for one, other in combinations(found.values(), 2):
            assert not styles.alike(one, other), found
        assert all(found[name] == styles.STYLES[name] for name in found if name in styles.STYLES)
    assert len({style.color for style in styles.styles(unknown[:10]).values()}) == 10
    assert len({style.dashes for style in styles.styles(unknown[:10]).values()}) == 4


def test_lines_and_the_legend_have_the_style_of_their_method() -> None:
    rows = [row(method, 1, n) for method in ("a2c", "cclf") for n in (100, 200)]
    dashed, solid = figures.learning_curves({"a": curves.curves(rows)}).axes[0].lines
    assert (dashed.get_color(), solid.get_color()) == (styles.BLUE, styles.RED)
    assert solid.get_linestyle() == "-"
    assert dashed.get_linestyle() == "--"
    a2c, cclf = map(render.stroke, styles.styles(["a2c", "cclf"]).values())
    assert a2c.startswith("repeating-linear-gradient(90deg, #4878c0 0px 12px")
    assert cclf == "#d1495b"


@pytest.mark.quick("svg")
@pytest.mark.parametrize("kind", ["svg", "pdf", "png"])
def test_the_same_figure_gives_the_same_bytes(tmp_path: Path, kind: str) -> None:
    """Otherwise the committed figures would change whenever they are drawn again."""
    for name in ("one", "two"):
        drawing = figures.histogram(np.arange(9.0), "title", "x", "y")
        figures.save(drawing, tmp_path / f"{name}.{kind}")
    one, two = ((tmp_path / f"{name}.{kind}").read_bytes() for name in ("one", "two"))
    assert one == two
    assert not any(date in one for date in (b"CreationDate", b"<dc:date>"))


def test_some_tasks_profiles_and_methods_can_be_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = "minigrid/Empty-16x16"
    rows = [row("cclf", 1, n, profile=profile) for n in (100, 200) for profile in ("one", "two")]
    rows += [row("cclf", 1, n, profile="one", task=other) for n in (100, 200)]
    load.write_results([*rows, row("curl", 1, 100, profile="one")], tmp_path / "results")
    words = ["plot", str(tmp_path / "results"), "--out", str(tmp_path / "c.svg")]

    def titles(*options: str) -> list[str]:
        assert cli.main([*words, *options]) == 0
        return re.findall(r"<!-- (minigrid/.*?) -->", (tmp_path / "c.svg").read_text())

    assert titles("--tasks", other) == [f"{other}, one"]
    assert titles("--profiles", "two") == [f"{TASK}, two"]
    capsys.readouterr()
    for options, message in (
        (["--tasks", "minigrid/Emty"], "no results of minigrid/Emty in"),
        (["--profiles", "three"], "no results of three in"),
        (["--profiles", "two", "--tasks", other], f"no results of two with --tasks {other} in"),
        (["--profiles", "two", "--methods", "curl"], "no results of two with --methods curl in"),
    ):
        assert cli.main([*words, *options]) == 2
        assert message in capsys.readouterr().err


def test_published_curves_end_where_ours_end() -> None:
    task = "dmc/finger-spin"
    rows = [row("drq-v2", 1, steps, 5.0, task=task) for steps in (100_000, 200_000)]
    (found,) = curves.with_published(curves.panels(rows)).values()
    assert list(found) == ["drq-v2", "drq-v2, published"]
    published = found["drq-v2, published"]
    assert published.env_steps.tolist() == [100_000, 200_000], "500,000 and more were published too"
    assert published.returns[:3].tolist() == [[518.3, 642.5], [579.1, 793.8], [2.8, 3.4]]
    assert len(published.returns) == 9
    others = curves.panels([row("cclf", 1, 100_000, task=task)])
    assert curves.with_published(others) == others, "DrQ-v2 is not among them"


def test_logged_quantity_is_drawn_from_zero_with_its_name_only_among_several() -> None:
    """Otherwise an axis from 0.9999998 to 1 would show noise as a trend."""
    series = {name: [(np.array([10.0, 20.0]), np.array([0.98, 0.97]))] for name in ("c", "c′")}
    one = figures.over_training({"c": series["c"]}, "curiosity").axes[0]
    both = figures.over_training(series, "curiosity", reference_value=0.75).axes[0]
    low, high = one.get_ylim()
    assert (low, high > 0.98, high < 1.2) == (0.0, True, True)
    assert both.get_ylim() == (0.0, pytest.approx(1.62))
    assert one.get_legend() is None
    assert [text.get_text() for text in both.get_legend().get_texts()] == ["c", "c′"]


def test_scatter_groups_a_few_distinct_values_by_value() -> None:
    """Most transitions occur once in their batch: groups of equal size would merge all values."""
    copies = np.array([1.0] * 99 + [2.0])
    axis = figures.scatter(copies, np.arange(100.0), "copies", "copies", "place").axes[0]
    _, median = axis.lines
    assert median.get_xdata().tolist() == [1.0, 2.0]
    assert median.get_ydata().tolist() == [49.0, 99.0]


def test_figures_become_svg_that_takes_the_colour_of_the_page() -> None:
    rows = [
        row(method, seed, steps, 0.1 * seed)
        for method in ("a2c", "cclf")
        for seed in (1, 2)
        for steps in (100, 200)
    ]
    svg = figures.inline_svg(
        figures.learning_curves({"a <task>": curves.curves(rows)}), 'curves "here"'
    )
    assert svg.startswith("<svg")
    assert "currentColor" in svg
    assert "a &lt;task&gt;" in svg
    assert "curves &quot;here&quot;" in svg
    assert "http-equiv" not in svg


def page_of(*tables: Table, title: str = "title") -> str:
    grid = figures.FigureGrid(title, {}, {title: styles.Style("")})
    section = report.Section(title, title, [grid], tables, is_open=True)
    claim = verdicts.claims("cost")[0]._replace(text=title)
    claims = {"cost": {title: [(claim, Verdict("held", title))]}}
    part = report.ReportPart(title, {}, claims, [section])
    return report_files.to_html(report.ReportContent(title, [part]))


def test_text_from_runs_is_escaped_in_pages() -> None:
    hostile = "<script>alert(1)</script>\" onload='x'"
    cell = Cell(hostile, (hostile,), hostile)
    table = Table("t", [Entry((cell,))], (hostile,), (), hostile, hostile, hostile)
    text = page_of(table, title=hostile)
    assert "<script>" not in text
    assert "onload='" not in text
    assert text.count("&lt;script&gt;") >= 15


def test_analysis_needs_no_torch() -> None:
    modules = "cclf.analysis.report, cclf.analysis.published, cclf.analysis.verdicts"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
