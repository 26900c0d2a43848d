"""Figures from tidy rows. Colours and dashes belong to methods, so that a method looks the same in
every figure."""

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from cclf.analysis.learning import Curve, Scale, shared_scales
from cclf.analysis.plotting import new_figure, settings
from cclf.analysis.statistics import Interval
from cclf.analysis.styles import DASHES, PALETTE, RED, Style, Styles, styles
from cclf.storage.atomic_files import write_output

PANEL_INCHES = (3.6, 2.5)  # of a figure that stands beside others on a page
ENV_STEPS = "environment steps (thousands)"
_INK = "#010203"  # replaced by the page's own text colour in SVG
MANY_METHODS = 5  # whose bands, drawn as strongly as those of few, would hide each other
FEW_READINGS = 4  # of a curve, that are marked: between them it was not seen


@settings()
def learning_curves(
    panels: Mapping[str, Mapping[str, Curve]],
    optimum: Mapping[str, float] | None = None,
    legend: bool = True,
    looks: Styles | None = None,
    scales: Mapping[str, Scale] | None = None,
    ylabel: str = "return",
) -> Any:
    """One panel per entry: mean over seeds with a 95 % bootstrap interval, or with thin lines of
    its runs where they are few. Each method is named once, in the legend above.

    Panels of one task, titled "task, profile", have the same scale: they are there to be compared.
    """
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    width, height = (
        (9.0 if columns == 1 else 4.6 * columns, 3.1 * rows + 0.5) if legend else PANEL_INCHES
    )
    figure = new_figure(figsize=(width, height), layout="constrained")
    axes = np.atleast_1d(figure.subplots(rows, columns, squeeze=False)).ravel()
    looks = looks or styles(method for methods in panels.values() for method in methods)
    scales = shared_scales(panels) if scales is None else scales
    handles: dict[str, Any] = {}
    for axis, (title, methods) in zip(axes, panels.items(), strict=False):
        strength = 0.18 if len(methods) < MANY_METHODS else 0.1
        for method, curve in methods.items():
            thousands, colour = curve.env_steps / 1e3, looks[method].colour
            point = "o" if len(thousands) < FEW_READINGS else ""
            (handles[plain(method)],) = axis.plot(
                thousands, curve.returns.mean(0), lw=1.8, marker=point, ms=5, **looks[method].line
            )
            if not curve.is_drawn_run_by_run:
                axis.fill_between(thousands, *curve.outline, color=colour, alpha=strength, lw=0)
            elif len(curve.seeds) > 1:
                thin = {"lw": 0.8, "alpha": 0.45, "marker": point, "ms": 2.5}
                axis.plot(thousands, curve.outline.T, color=colour, **thin)
        style_axis(axis, ENV_STEPS, ylabel, title)
        if title in scales:
            axis.set_xlim(scales[title].x)
            axis.set_ylim(scales[title].y)
        if optimum and title in optimum:
            axis.axhline(optimum[title], color="#888888", lw=0.8, ls=(0, (4, 3)))
            axis.set_ylim(top=max(axis.get_ylim()[1], optimum[title] * 1.05))
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    if legend:
        figure.legend(
            handles.values(),
            handles.keys(),
            loc="outside upper left",
            ncols=min(len(handles), 4 * columns),
            frameon=False,
            fontsize=9,
            handlelength=2.8,
        )
    return figure


@settings()
def intervals(
    values: Mapping[str, Interval],
    xlabel: str,
    even: float | None = None,
    looks: Styles | None = None,
    inches: float = PANEL_INCHES[0],
) -> Any:
    """One line per method: its estimate as a dot, its interval as a bar; `even` marks where two
    methods are alike."""
    looks = looks or styles(values)
    figure, axis = _panel((inches, 0.28 * len(values) + 0.75))
    for place, (method, interval) in enumerate(values.items()):
        axis.plot(
            [interval.low, interval.high],
            [place, place],
            color=looks[method].colour,
            lw=5,
            alpha=0.35,
            solid_capstyle="butt",
        )
        axis.plot([interval.estimate], [place], "o", color=looks[method].colour, ms=5)
    if even is not None:
        axis.axvline(even, color="#888888", lw=0.8, ls=(0, (4, 3)))
    axis.set_yticks(range(len(values)), [plain(method) for method in values])
    axis.set_ylim(len(values) - 0.4, -0.6)  # the first on top, and none on the border
    style_axis(axis, xlabel)
    return figure


@settings()
def profiles(
    thresholds: np.ndarray,
    shares: Mapping[str, Interval],
    xlabel: str,
    looks: Styles | None = None,
) -> Any:
    """The share of runs above each score, with bands: a curve further up and right is better."""
    figure, axis = _panel()
    looks = looks or styles(shares)
    for method, share in shares.items():
        axis.step(thresholds, share.estimate, where="post", lw=1.6, **looks[method].line)
        band = {"color": looks[method].colour, "alpha": 0.14, "lw": 0}
        axis.fill_between(thresholds, share.low, share.high, step="post", **band)
    axis.set_ylim(-0.02, 1.02)
    style_axis(axis, xlabel, "share of runs above")
    return figure


@settings()
def over_training(
    series: Mapping[str, Sequence[tuple[np.ndarray, np.ndarray]]],
    title: str,
    ylabel: str,
    looks: Styles | None = None,
    scale: Scale | None = None,
) -> Any:
    """A logged quantity on one task, a thin line per run in its method's style: (env_steps,
    values) by method."""
    figure, axis = _panel()
    looks = looks or styles(series)
    for method, lines in series.items():
        for env_steps, values in lines:
            axis.plot(env_steps / 1e3, values, lw=1.2, alpha=0.75, **looks[method].line)
    if scale is not None:
        axis.set_xlim(scale.x[0] / 1e3, scale.x[1] / 1e3)
        axis.set_ylim(top=scale.y[1])
    axis.set_ylim(bottom=0.0)
    axis.ticklabel_format(axis="y", scilimits=(-3, 4))
    axis.yaxis.get_offset_text().set_fontsize(8)
    style_axis(axis, ENV_STEPS, ylabel, title)
    return figure


@settings()
def lines(
    series: Mapping[str, tuple[np.ndarray, np.ndarray]], title: str, even: float | None = None
) -> Any:
    """Logged quantities of one run, (env_steps, values) by name; shares lie around `even`, what no
    preference would give."""
    figure, axis = _panel()
    drawn = in_turn(series)
    for name, (env_steps, values) in series.items():
        axis.plot(
            env_steps / 1e3,
            values,
            lw=1.4,
            **drawn[name].line,
            label=plain(name),
        )
    if even is not None:
        axis.axhline(even, color="#888888", lw=0.8, ls=(0, (4, 3)))
        axis.set_ylim(0.0, 2.0 * even)
    axis.ticklabel_format(axis="y", scilimits=(-3, 4), useOffset=False)
    axis.yaxis.get_offset_text().set_fontsize(8)
    if len(series) > 1:
        axis.legend(frameon=False, fontsize=8, ncols=2, handlelength=2.6)
    style_axis(axis, ENV_STEPS, title=title)
    return figure


def in_turn(names: Iterable[str]) -> dict[str, Style]:
    """Styles of quantities that stand beside each other in one figure."""
    return {
        name: Style(PALETTE[number % len(PALETTE)], DASHES[number % len(DASHES)])
        for number, name in enumerate(names)
    }


def _median(axis: Any, x: np.ndarray, y: np.ndarray, style: Style) -> None:
    """Along x, which is in order; nothing where x has one group only."""
    groups = _groups(x)
    if len(groups) < 2:
        return
    middles = [float(np.median(x[group])) for group in groups]
    low, median, high = np.array([np.quantile(y[group], (0.25, 0.5, 0.75)) for group in groups]).T
    axis.fill_between(middles, low, high, color=style.colour, alpha=0.2, lw=0)
    axis.plot(middles, median, lw=1.6, **style.line)


@settings()
def histogram(values: np.ndarray, title: str, xlabel: str, ylabel: str, colour: str = RED) -> Any:
    figure, axis = _panel()
    axis.hist(values, bins=40, color=colour, alpha=0.75)
    style_axis(axis, xlabel, ylabel, title)
    return figure


@settings()
def cloud(x: np.ndarray, y: np.ndarray, title: str, xlabel: str, ylabel: str) -> Any:
    """Points, as a picture inside the figure, and the median of y along x with the middle half
    around it."""
    figure, axis = _panel(dpi=150)
    order = np.argsort(x, kind="stable")
    shown = order[np.linspace(0, len(order) - 1, min(len(order), 4_000)).astype(int)]
    size = 2.5 if len(shown) > 1_000 else 4.0  # few dots would be lost
    axis.plot(x[shown], y[shown], ".", ms=size, alpha=0.4, color="#7598c6", mew=0, rasterized=True)
    _median(axis, x[order], y[order], Style(RED))
    style_axis(axis, xlabel, ylabel, title)
    return figure


def _groups(ordered: np.ndarray) -> list[slice]:
    """About twelve groups of like size, none of which parts equal values; where there are no more
    values than that, each is a group.

    >>> _groups(np.array([1.0, 1.0, 1.0, 2.0]))
    [slice(0, 3, None), slice(3, 4, None)]
    """
    starts = np.flatnonzero(np.diff(ordered, prepend=np.nan) != 0.0)
    if len(starts) <= 12:
        return [slice(start, end) for start, end in pairwise([*starts.tolist(), len(ordered)])]
    wanted = np.linspace(0, len(ordered), 13).astype(int)[1:-1]
    edges = sorted({0, len(ordered), *np.searchsorted(ordered, ordered[wanted]).tolist()})
    return [slice(start, end) for start, end in pairwise(edges)]


def plain(text: str) -> str:
    """A name as it is: matplotlib takes what stands between dollar signs for mathematics. A very
    long one is cut."""
    return (text if len(text) <= 48 else f"{text[:47]}…").replace("$", r"\$")


def _panel(inches: tuple[float, float] = PANEL_INCHES, dpi: float | None = None) -> tuple[Any, Any]:
    figure = new_figure(figsize=inches, layout="constrained", dpi=dpi)
    return figure, figure.subplots()


def style_axis(axis: Any, xlabel: str, ylabel: str = "", title: str = "") -> None:
    """Labels, grid and spines, the same in every figure."""
    axis.set_title(plain(title), fontsize=10, loc="left")
    axis.set_xlabel(xlabel, fontsize=8)
    axis.set_ylabel(ylabel, fontsize=8)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.18, lw=0.6)
    axis.spines[["top", "right"]].set_visible(False)


@settings(svg_fonttype="none")
def inline_svg(figure: Any, label: str) -> str:
    """The figure as an SVG element whose text takes the colour and font of the page around it."""
    from cclf.analysis.page import escape

    buffer = io.StringIO()
    ink(figure, _INK)
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)


def ink(figure: Any, colour: str) -> None:
    """All text and axes of a figure in one colour."""
    for artist in figure.findobj():
        if hasattr(artist, "get_color") and hasattr(artist, "set_text"):
            artist.set_color(colour)
    for axis in figure.axes:
        axis.tick_params(colors=colour)
        axis.set_facecolor("none")
        for spine in axis.spines.values():
            spine.set_edgecolor(colour)


@settings()
def save(figure: Any, path: Path, transparent: bool = False) -> None:
    """As the kind of file that its name says; the same figure gives the same bytes. The file is
    written whole, or stays as it was."""
    undated = {"CreationDate": None} if path.suffix == ".pdf" else {"Date": None}
    buffer = io.BytesIO()
    figure.savefig(
        buffer,
        format=path.suffix[1:],
        dpi=200,
        transparent=transparent,
        metadata=undated if path.suffix in (".pdf", ".svg") else None,
    )
    write_output(path, buffer.getvalue())
