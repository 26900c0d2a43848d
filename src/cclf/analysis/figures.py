"""Figures from tidy rows. Colours belong to methods, so that a method looks the same in every figure."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cclf.analysis.load import Row
from cclf.analysis.statistics import mean_interval
from cclf.presets import TASKS

COLOURS = {
    "cclf": "#d1495b",
    "cclf-distinct": "#e58a2b",
    "re3+cclf": "#8f3f97",
    "re3+cclf-distinct": "#c57bd0",
    "curl": "#3f8f8f",
    "a2c": "#4c72a4",
    "re3": "#3a9272",
    "drq": "#4c72a4",
    "rad": "#8a7a3f",
    "sac-pixel": "#7a7a7a",
}
FALLBACK_COLOUR = "#666666"
_INK = "#010203"  # replaced by the page's own text colour in SVG


class Curve(NamedTuple):
    """The runs of one method on one task, on the clock readings that all of them have."""

    env_steps: np.ndarray  # (P,)
    returns: np.ndarray  # (seeds, P)
    seeds: list[int]


def curves(rows: Sequence[Row]) -> dict[str, Curve]:
    """By method. Rows of several tasks or profiles are an error: their clocks and returns do not belong in one panel."""
    kinds = {(row.task, row.profile) for row in rows}
    if len(kinds) > 1:
        raise ValueError(f"one panel shows one task and profile, got {sorted(kinds)}: select rows first")
    by_run: dict[str, dict[int, dict[int, float]]] = {}
    for row in rows:
        by_run.setdefault(row.method, {}).setdefault(row.seed, {})[row.env_steps] = row.return_mean
    result = {}
    for method, runs in by_run.items():
        common = sorted(set.intersection(*(set(points) for points in runs.values())))
        values = np.array([[points[step] for step in common] for _, points in sorted(runs.items())])
        result[method] = Curve(np.array(common), values, sorted(runs))
    return result


def panels(rows: Sequence[Row], methods: Sequence[str] = ()) -> dict[str, dict[str, Curve]]:
    """Curves of each task under each profile, titled by both; only `methods`, in their order, where given."""
    result = {}
    known = list(TASKS)
    kinds = {(row.task, row.profile) for row in rows}
    for task, profile in sorted(
        kinds, key=lambda kind: (len(kind[1]), kind[1], known.index(kind[0]) if kind[0] in known else 0, kind[0])
    ):
        found = curves([row for row in rows if (row.task, row.profile) == (task, profile)])
        chosen = {method: found[method] for method in methods if method in found} if methods else found
        result[f"{task}, {profile}"] = chosen
    return result


def learning_curves(panels: Mapping[str, Mapping[str, Curve]], optimum: Mapping[str, float] | None = None) -> Any:
    """One panel per entry: mean over seeds with a 95 % bootstrap interval. Each method is named once, in the legend above."""
    from matplotlib.figure import Figure

    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    width = 9.0 if columns == 1 else 4.6 * columns
    figure = Figure(figsize=(width, 3.1 * rows + 0.5), layout="constrained")
    axes = np.atleast_1d(figure.subplots(rows, columns, squeeze=False)).ravel()
    handles: dict[str, Any] = {}
    for axis, (title, methods) in zip(axes, panels.items(), strict=False):
        for method, curve in methods.items():
            colour = COLOURS.get(method, FALLBACK_COLOUR)
            interval = mean_interval(curve.returns)
            thousands = curve.env_steps / 1e3
            handles[method] = axis.plot(thousands, interval.estimate, color=colour, lw=1.8)[0]
            axis.fill_between(thousands, interval.low, interval.high, color=colour, alpha=0.18, lw=0)
        if optimum and title in optimum:
            axis.axhline(optimum[title], color="#888888", lw=0.8, ls=(0, (4, 3)))
        axis.set_title(title, fontsize=10, loc="left")
        axis.set_xlabel("environment steps (thousands)", fontsize=8)
        axis.set_ylabel("return", fontsize=8)
        _plain(axis)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    figure.legend(handles.values(), handles.keys(), loc="outside upper left", ncols=len(handles), frameon=False, fontsize=9)
    return figure


def over_time(series: Mapping[str, tuple[np.ndarray, np.ndarray]], ylabel: str, colour: str) -> Any:
    """A quantity over training, one thin line per run: (env_steps, values) by label."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 2.6), layout="constrained")
    axis = figure.subplots()
    for env_steps, values in series.values():
        axis.plot(env_steps / 1e3, values, color=colour, lw=1.2, alpha=0.75)
    axis.set_xlabel("environment steps (thousands)", fontsize=8)
    axis.set_ylabel(ylabel, fontsize=8)
    axis.set_ylim(bottom=0.0)
    axis.ticklabel_format(axis="y", scilimits=(-3, 4))
    axis.yaxis.get_offset_text().set_fontsize(8)
    _plain(axis)
    return figure


def _plain(axis: Any) -> None:
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.18, lw=0.6)
    axis.spines[["top", "right"]].set_visible(False)


def inline_svg(figure: Any, label: str) -> str:
    """The figure as an SVG element whose text takes the colour and font of the page around it."""
    import matplotlib

    from cclf.analysis.page import escape

    style: Any = {"svg.fonttype": "none", "svg.hashsalt": "cclf"}  # text stays text, and the same figure gives the same bytes
    buffer = io.StringIO()
    for artist in figure.findobj():
        if hasattr(artist, "get_color") and hasattr(artist, "set_text"):
            artist.set_color(_INK)
    for axis in figure.axes:
        axis.tick_params(colors=_INK)
        axis.set_facecolor("none")
        for spine in axis.spines.values():
            spine.set_edgecolor(_INK)
    with matplotlib.rc_context(style):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)
