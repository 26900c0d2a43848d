"""matplotlib with the settings of this package, whatever files it finds and whatever the calling
program has set."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from cclf.storage.safe_loading import data_error_context

# Text stays text, and the same figure gives the same bytes.
_OURS: dict[str, Any] = {"svg.hashsalt": "cclf"}


@cache
def _package() -> Any:
    """The first import reads a file matplotlibrc of the working directory, which may be a run
    folder from a stranger, so it happens in another directory."""
    working_directory = os.open(".", getattr(os, "O_PATH", os.O_RDONLY))
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


def new_figure(**options: Any) -> Any:
    return _package().figure.Figure(**options)


@contextmanager
def settings(**further: Any) -> Iterator[None]:
    """matplotlib's defaults and the settings of this package; also as a decorator of a function
    that makes or saves a figure. `further` names settings, with `_` for their dot."""
    package = _package()
    wanted = {**package.rcParamsDefault, **_OURS}
    wanted |= {name.replace("_", "."): value for name, value in further.items()}
    # dict: to look up the backend would choose one, and to set what is set already takes long
    now = dict(dict.items(package.rcParams))
    changed = {name: value for name, value in wanted.items() if now.get(name) != value}
    changed.pop("backend", None)
    with package.rc_context(changed):
        yield
