"""The errors that people see, and help with names."""

import difflib
from collections.abc import Iterable


class ConfigError(ValueError):
    """Bad input from the user: shown as one line, exit code 2."""


class DataError(ConfigError):
    """A file of a run folder that cannot be used. The message names the file and the reason."""


class StopRun(ValueError):  # noqa: N818 (it is raised on purpose, as StopIteration is)
    """Raised by a callback of `cclf.train`: the run is saved and stops."""


class WorkerError(ValueError):
    """An environment failed for good, here or in a process of its own: shown as one line and, below
    it, the details, which end with a line break or are empty; exit code 1."""

    def __init__(self, line: str, details: str = ""):
        super().__init__(line)
        self.details = details


def short_error(error: BaseException) -> str:
    """Of what libraries raise.

    >>> short_error(OSError("no such\\n  screen"))
    'OSError: no such screen'
    """
    try:
        words = str(error).split()
    except Exception:  # it cannot even be printed
        words = []
    name = type(error).__name__
    return " ".join([f"{name}:", *words]) if words else name


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing.

    >>> did_you_mean("ccfl", ["cclf", "drq"]), did_you_mean("xyz", ["cclf"])
    ('; did you mean cclf?', '')
    """
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""
