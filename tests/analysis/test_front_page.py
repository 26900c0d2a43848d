"""The pictures of the README, which scripts/front.py draws."""

import runpy
from pathlib import Path

from cclf.analysis.figures import TEXT_COLOR

ROOT = Path(__file__).parents[2]


def test_speed_chart_shows_the_ratios_of_the_performance_page() -> None:
    front = runpy.run_path(str(ROOT / "scripts" / "front.py"))
    labels = [text.get_text() for text in front["speed_chart"]().axes[0].texts]
    ratios = [label.removesuffix(" times as fast") for label in labels]
    page = (ROOT / "docs" / "performance.md").read_text()
    assert sorted(map(int, ratios)) == [10, 16, 78, 123]
    for ratio in ("| 78 |", "| 10 |", "| 16, 123 |"):
        assert ratio in page
    readme = (ROOT / "README.md").read_text()
    assert all(f"{ratio} times" in readme for ratio in ratios)


def test_front_pictures_are_those_of_the_script_in_both_colors() -> None:
    for name in ("light", "dark"):
        picture = (ROOT / "docs" / "figures" / f"front-speed-{name}.svg").read_text()
        assert TEXT_COLOR not in picture
