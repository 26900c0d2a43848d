"""matplotlib with the settings of this package, independent of configuration files and of the
settings of the calling program."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

from cclf.storage.safe_loading import data_error_context

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure
    from matplotlib.lines import Line2D as Line2D

INK = "#010203"  # of text and axes; pages replace it by their own text color
_INKED = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
# With a constant salt the same figure gives the same bytes.
_OURS = {"svg.hashsalt": "cclf", **dict.fromkeys(_INKED, INK)}

# O_PATH, on Linux, also opens a directory that may not be read.
_READ_FOLDER = os.O_PATH if sys.platform == "linux" else os.O_RDONLY


@cache
def _package() -> ModuleType:
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
    figure: Figure = _package().figure.Figure(figsize=figsize, layout=layout, dpi=dpi)
    return figure


@contextmanager
def settings(**further: str | float) -> Iterator[None]:
    """matplotlib's defaults and the settings of this package; also as a decorator of a function
    that makes or saves a figure. `further` names settings, with `_` for their dot."""
    package = _package()
    wanted = {**package.rcParamsDefault, **_OURS}
    wanted |= {name.replace("_", "."): value for name, value in further.items()}
    # As a dict: looking up the backend would choose one, and setting every value takes long.
    now = dict(dict.items(package.rcParams))
    changed = {name: value for name, value in wanted.items() if now.get(name) != value}
    changed.pop("backend", None)
    with package.rc_context(changed):
        yield
