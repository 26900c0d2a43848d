"""Draws the pictures at the top of README, for light and dark pages: a card of the most curious
sample of a run, and learning curves of CCLF and its controls.

    .venv/bin/cclf demo
    .venv/bin/python scripts/front.py runs/demo/minigrid/DoorKey-6x6/cclf/seed-3-*
"""

import sys
import textwrap
from pathlib import Path
from typing import Any

import torch

from cclf.analysis import curves, figures, load
from cclf.analysis.figures import INK, settings
from cclf.analysis.styles import RED, styles
from cclf.inspection.cards import percent
from cclf.inspection.load import inspect_run
from cclf.inspection.records import ShownSample

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "figures"
INKS = {"light": "#1f2328", "dark": "#f0f6fc"}
CONTROLS = ("cclf", "cclf-shuffled", "cclf-even", "curl")
SHOWN = ("minigrid/DoorKey-6x6", "entropy-0.01")  # of the curves: task and profile


@settings()
def card(sample: ShownSample) -> Any:
    """What it saw, how sure it was of it, and why."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.4, 3.3))
    figure.text(0.02, 0.93, f"{percent(sample.curiosity)} curious", fontsize=13, weight="bold")
    words = textwrap.fill(sentence(sample), 44)
    figure.text(0.02, 0.89, words, fontsize=9.5, va="top", linespacing=1.35)
    for place, (title, observation) in enumerate(
        (("what it saw", sample.now), ("what came next", sample.following))
    ):
        left = 0.02 + 0.5 * place
        axis = figure.add_axes((left, 0.09, 0.46, 0.46))
        axis.imshow(observation.frames[-1], interpolation="nearest")
        axis.axis("off")
        axis.set_title(title, fontsize=9, loc="left", pad=3)
        bar = figure.add_axes((left, 0.055, 0.46, 0.018))
        bar.barh([0], [1.0], color="#888888", alpha=0.35)
        bar.barh([0], [observation.belief], color=RED)
        bar.set_xlim(0.0, 1.0)
        bar.axis("off")
        figure.text(left, 0.0, f"{percent(observation.belief)} sure", fontsize=9)
    return figure


def sentence(sample: ShownSample) -> str:
    """What happened and how sure the agent was, for readers who know no equation."""
    parts = [f"Its next move: {sample.action}."]
    if sample.step is not None:
        steps = f"After {sample.step} step{'s' * (sample.step > 1)} of a game."
        parts.insert(0, steps if sample.step else "At the start of a game.")
    if sample.reward > 0:
        parts.append("That reached the goal.")
    if sample.copies is not None:
        copies, batch = sample.copies
        parts.append(
            f"{copies} of the {batch} moments it was asked about look exactly like this, so it "
            f"can be {percent(1 / copies)} sure at most."
            if copies > 1
            else f"No other of the {batch} moments it was asked about looks like this."
        )
    parts.append(f"It was {percent(sample.now.belief)} sure.")
    return " ".join(parts)


@settings()
def draw_curves() -> Any:
    rows = [
        row
        for row in load.read(ROOT / "results" / "curiosity")
        if (row.task, row.profile) == SHOWN and row.method in CONTROLS
    ]
    drawn = {method: curves.curves(rows)[method] for method in CONTROLS}
    drawing = figures.learning_curves(
        {"DoorKey-6x6": drawn}, legend=False, method_styles=styles(CONTROLS)
    )
    drawing.set_size_inches(5.2, 3.3)
    (axis,) = drawing.axes
    for line, (method, curve) in zip(axis.lines, drawn.items(), strict=True):
        line.set_label(f"{method} ({len(curve.seeds)} seeds)")
    axis.legend(loc="upper left", frameon=False, fontsize=9.5, handlelength=2.6)
    axis.tick_params(labelsize=9)
    for label in (axis.xaxis.label, axis.yaxis.label):
        label.set_size(9.5)
    return drawing


def main() -> None:
    report = inspect_run(Path(sys.argv[1]), 512, torch.device("cpu"))
    for name, ink in INKS.items():
        for part, drawing in (("card", card(report.most[0])), ("curves", draw_curves())):
            path = OUT / f"front-{part}-{name}.svg"
            figures.save(drawing, path, transparent=True)
            path.write_text(path.read_text().replace(INK, ink))
            print(path)


if __name__ == "__main__":
    main()
