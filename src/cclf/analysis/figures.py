"""Figures of results. A method has the same color and dashes in every figure.

Figures are drawn with matplotlib's defaults and the settings of this package, independent of
configuration files and of the settings of the calling program.
"""

import html
import io
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cclf.analysis.curves import Panels, Scale, Series, shared_scales
from cclf.analysis.statistics import Interval
from cclf.analysis.styles import DASHES, PALETTE, RED, LineStyle, Style, Styles, styles
from cclf.storage.atomic_files import write_output
from cclf.storage.safe_loading import data_error_context

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

TEXT_COLOR = "#010203"  # of text and axes; HTML pages replace it by their own text color
_COLOR_KEYS = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
# With a constant salt the same figure gives the same bytes.
_SETTINGS = {"svg.hashsalt": "cclf", **dict.fromkeys(_COLOR_KEYS, TEXT_COLOR)}
PANEL_INCHES = (3.6, 2.5)  # width and height of a figure in a grid of figures
ENV_STEPS = "environment steps"
MANY_METHODS = 5  # with more, bands are paler, so that they do not hide each other
REFERENCE_LINE: LineStyle = {"color": "#888888", "lw": 0.8, "ls": (0, (4, 3))}
FEW_EVALUATIONS = 4  # of a curve: with fewer, each is marked

Draw = Callable[[], "Figure"]


class FigureGrid(NamedTuple):
    """Figures that are shown in a grid with one legend and one caption; `files` are written for
    papers."""

    caption: str
    panels: Mapping[str, Draw]  # by title, also the label for screen readers
    styles: Styles = MappingProxyType({})  # of the legend
    files: Mapping[str, Draw] = MappingProxyType({})


# O_PATH, on Linux, also opens a directory that may not be read.
_READ_FOLDER = os.O_PATH if sys.platform == "linux" else os.O_RDONLY


@cache
def _matplotlib() -> ModuleType:
    """Import matplotlib from another directory: the first import reads a file matplotlibrc in the
    working directory, which may be an untrusted run folder."""
    working_directory = os.open(".", _READ_FOLDER)
    try:
        os.chdir(os.sep)
        advice = "check your matplotlibrc and the variables MATPLOTLIBRC and MPLBACKEND"
        with data_error_context("cannot import matplotlib", advice):
            import matplotlib
            import matplotlib.figure
    finally:
        os.fchdir(working_directory)
        os.close(working_directory)
    return matplotlib


def new_figure(
    figsize: tuple[float, float], layout: str = "constrained", dpi: float | None = None
) -> "Figure":
    figure: Figure = _matplotlib().figure.Figure(figsize=figsize, layout=layout, dpi=dpi)
    return figure


@contextmanager
def settings(**further: str | float) -> Iterator[None]:
    """matplotlib's defaults and the settings of this package; also as a decorator of a function
    that makes or saves a figure. `further` names settings, with `_` for their dot."""
    matplotlib = _matplotlib()
    wanted = {**matplotlib.rcParamsDefault, **_SETTINGS}
    wanted |= {name.replace("_", "."): value for name, value in further.items()}
    # dict.items, since rcParams["backend"] would choose one. Setting only what differs is faster.
    current = dict(dict.items(matplotlib.rcParams))
    changed = {name: value for name, value in wanted.items() if current.get(name) != value}
    changed.pop("backend", None)
    with matplotlib.rc_context(changed):
        yield


@settings()
def learning_curves(
    panels: Panels,
    legend: bool = True,
    method_styles: Styles | None = None,
    scales: Mapping[str, Scale] | None = None,
) -> "Figure":
    """One panel per entry: the mean over seeds with its 95 % bootstrap interval, or with thin lines
    for the runs if there are few. Panels of one task, titled "task, profile", share a scale."""
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    width, height = (
        (9.0 if columns == 1 else 4.6 * columns, 3.1 * rows + 0.5) if legend else PANEL_INCHES
    )
    figure = new_figure(figsize=(width, height))
    axes = np.atleast_1d(figure.subplots(rows, columns, squeeze=False)).ravel()
    method_styles = method_styles or styles(
        method for methods in panels.values() for method in methods
    )
    scales = shared_scales(panels) if scales is None else scales
    handles: dict[str, Line2D] = {}
    for axis, (title, methods) in zip(axes, panels.items(), strict=False):
        alpha = 0.18 if len(methods) < MANY_METHODS else 0.1
        for method, curve in methods.items():
            steps, style = curve.env_steps, method_styles[method]
            marker = "o" if len(steps) < FEW_EVALUATIONS else ""
            (handles[escape_mathtext(method)],) = axis.plot(
                steps, curve.returns.mean(0), lw=1.8, marker=marker, ms=5, **style.line
            )
            if curve.has_interval:
                axis.fill_between(steps, *curve.extent, color=style.color, alpha=alpha, lw=0)
            elif len(curve.seeds) > 1:
                runs = curve.returns.T
                axis.plot(steps, runs, color=style.color, lw=0.8, alpha=0.45, marker=marker, ms=2.5)
        style_axis(axis, ENV_STEPS, "return", title)
        if title in scales:
            axis.set(xlim=scales[title].x, ylim=scales[title].y)
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
    reference_value: float | None = None,
    method_styles: Styles | None = None,
    inches: float = PANEL_INCHES[0],
) -> "Figure":
    """One line per method: its estimate as a dot, its interval as a bar. `reference_value` is
    marked: the value at which two methods are equal."""
    method_styles = method_styles or styles(values)
    figure, axis = _panel((inches, 0.28 * len(values) + 0.75))
    for row, (method, (estimate, low, high)) in enumerate(values.items()):
        color = method_styles[method].color
        axis.plot([low, high], [row, row], color=color, lw=5, alpha=0.35, solid_capstyle="butt")
        axis.plot([estimate], [row], "o", color=color, ms=5)
    if reference_value is not None:
        axis.axvline(reference_value, **REFERENCE_LINE)
    axis.set_yticks(range(len(values)), [escape_mathtext(method) for method in values])
    axis.set_ylim(len(values) - 0.4, -0.6)  # the first method on top, and a margin at both ends
    style_axis(axis, xlabel)
    return figure


@settings()
def performance_profiles(
    thresholds: np.ndarray,
    shares: Mapping[str, Interval],
    xlabel: str,
    method_styles: Styles | None = None,
) -> "Figure":
    """The share of runs above each score, with bands. A higher curve is better."""
    figure, axis = _panel()
    method_styles = method_styles or styles(shares)
    for method, (share, low, high) in shares.items():
        style = method_styles[method]
        axis.step(thresholds, share, where="post", lw=1.6, **style.line)
        axis.fill_between(thresholds, low, high, step="post", color=style.color, alpha=0.14, lw=0)
    axis.set_ylim(-0.02, 1.02)
    style_axis(axis, xlabel, "share of runs above")
    return figure


@settings()
def over_training(
    series: Mapping[str, Sequence[Series]],
    title: str,
    ylabel: str = "",
    series_styles: Styles | None = None,
    scale: Scale | None = None,
    reference_value: float | None = None,
) -> "Figure":
    """Logged quantities over training, on an axis that begins at 0: for each name a line per run.
    Without `series_styles` the names are in a legend. `reference_value` is a dashed line."""
    figure, axis = _panel()
    used_styles = series_styles or default_styles(series)
    for name, runs in series.items():
        for number, (env_steps, values) in enumerate(runs):
            label = "_" if series_styles or number else escape_mathtext(name)
            axis.plot(env_steps, values, lw=1.4, alpha=0.8, label=label, **used_styles[name].line)
    top = axis.get_ylim()[1]
    if scale is not None:
        axis.set_xlim(scale.x)
        top = scale.y[1]
    if reference_value is not None:
        axis.axhline(reference_value, **REFERENCE_LINE)
        top = 2.0 * reference_value
    axis.set_ylim(0.0, 1.08 * top)
    if not series_styles and len(series) > 1:
        axis.legend(frameon=False, fontsize=8, ncols=2, handlelength=2.6)
    axis.ticklabel_format(axis="y", scilimits=(-3, 4), useMathText=True)
    axis.yaxis.get_offset_text().set_fontsize(8)
    style_axis(axis, ENV_STEPS, ylabel, title)
    return figure


def default_styles(names: Iterable[str]) -> dict[str, Style]:
    """Styles of several quantities in one figure."""
    return {
        name: Style(PALETTE[number % len(PALETTE)], DASHES[number % len(DASHES)])
        for number, name in enumerate(names)
    }


@settings()
def histogram(
    values: np.ndarray, title: str, xlabel: str, ylabel: str, color: str = RED
) -> "Figure":
    figure, axis = _panel()
    axis.hist(values, bins=40, color=color, alpha=0.75)
    style_axis(axis, xlabel, ylabel, title)
    return figure


@settings()
def scatter(x: np.ndarray, y: np.ndarray, title: str, xlabel: str, ylabel: str) -> "Figure":
    """Points (as a bitmap) and, if x has several values, the median of y along x with its middle
    half as a band."""
    figure, axis = _panel(dpi=150)
    order = np.argsort(x, kind="stable")
    shown = order[np.linspace(0, len(order) - 1, min(len(order), 4_000)).astype(int)]
    size = 2.5 if len(shown) > 1_000 else 6.0  # small dots are hard to see if there are few
    axis.plot(x[shown], y[shown], ".", ms=size, alpha=0.4, color="#7598c6", mew=0, rasterized=True)
    groups = [order[part] for part in _groups(x[order])]
    if len(groups) > 1:
        middles = [float(np.median(x[group])) for group in groups]
        quartiles = np.array([np.quantile(y[group], (0.25, 0.5, 0.75)) for group in groups])
        low, median, high = quartiles.T
        axis.fill_between(middles, low, high, color=RED, alpha=0.2, lw=0)
        axis.plot(middles, median, lw=1.6, color=RED)
    style_axis(axis, xlabel, ylabel, title)
    return figure


def _groups(ordered: np.ndarray) -> list[slice]:
    """About twelve groups of similar size that keep equal values together; if there are fewer
    values than that, each is a group.

    >>> _groups(np.array([1.0, 1.0, 1.0, 2.0]))
    [slice(0, 3, None), slice(3, 4, None)]
    """
    starts = np.flatnonzero(np.diff(ordered, prepend=np.nan) != 0.0)
    if len(starts) > 12:
        equal_parts = np.linspace(0, len(ordered), 13).astype(int)[1:-1]
        starts = np.unique([0, *np.searchsorted(ordered, ordered[equal_parts])])
    return [slice(start, end) for start, end in pairwise([*starts.tolist(), len(ordered)])]


def escape_mathtext(text: str) -> str:
    """A name to be drawn literally: matplotlib renders text between dollar signs as mathematics.
    Long names are cut."""
    return (text if len(text) <= 48 else f"{text[:47]}…").replace("$", r"\$")


def format_steps(steps: float) -> str:
    """A number of steps on an axis.

    >>> format_steps(250.0), format_steps(12_500.0), format_steps(400_000.0), format_steps(2.5e6)
    ('250', '12.5K', '400K', '2.5M')
    """
    if abs(steps) >= 1e6:
        return f"{steps / 1e6:g}M"
    return f"{steps / 1e3:g}K" if abs(steps) >= 1e4 else f"{steps:,.10g}"


def _panel(
    inches: tuple[float, float] = PANEL_INCHES, dpi: float | None = None
) -> "tuple[Figure, Axes]":
    figure = new_figure(figsize=inches, dpi=dpi)
    return figure, figure.subplots()


def style_axis(axis: "Axes", xlabel: str, ylabel: str = "", title: str = "") -> None:
    """Labels, grid and spines, the same in every figure."""
    axis.set_title(escape_mathtext(title), fontsize=10, loc="left")
    axis.locator_params(axis="x", nbins=6 if xlabel == ENV_STEPS else 5)
    if xlabel == ENV_STEPS:
        axis.xaxis.set_major_formatter(lambda steps, _: format_steps(steps))
    axis.set_xlabel(xlabel, fontsize=8)
    axis.set_ylabel(ylabel, fontsize=8)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.18, lw=0.6)
    axis.spines[["top", "right"]].set_visible(False)


@settings(svg_fonttype="none")
def inline_svg(figure: "Figure", label: str) -> str:
    """The figure as an SVG element whose text has the color and font of the page."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace(TEXT_COLOR, "currentColor")
    return svg.replace("<svg", f'<svg role="img" aria-label="{html.escape(label)}"', 1)


@settings()
def to_bytes(figure: "Figure", suffix: str, transparent: bool = False) -> bytes:
    """The figure as a file of the format svg, pdf or png; the same figure gives the same bytes."""
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(suffix)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=suffix, dpi=200, transparent=transparent, metadata=metadata)
    return buffer.getvalue()


def save(figure: "Figure", path: Path, transparent: bool = False) -> None:
    """Write a figure in the format of the file name. On an error the old file is unchanged."""
    write_output(path, to_bytes(figure, path.suffix[1:], transparent))
