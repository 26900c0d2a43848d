"""How a child interpreter is started: it never finds modules in the working directory.

That may be a run folder from a stranger, and `-m` and `-c` put it on the search path. What the user
put there on purpose stays: a folder named in PYTHONPATH, the folder of the script that runs, and
the one that this package was found in.
"""

import os
import sys
from pathlib import Path

_HOME = str(Path(__file__).parents[2])  # where the package cclf lies


def python_command(*words: str) -> list[str]:
    return [sys.executable, "-P", *words]


def child_environment() -> dict[str, str]:
    """For such a child and those that it starts: it finds the modules that this process finds."""
    search = os.pathsep.join(child_sys_path())
    return {**os.environ, "PYTHONPATH": search, "PYTHONSAFEPATH": "1"}


def child_sys_path() -> list[str]:
    """This process's own, without the working directory where Python added that by itself."""
    meant = [_HOME, *(word for word in os.environ.get("PYTHONPATH", "").split(os.pathsep) if word)]
    main = sys.modules.get("__main__")
    if (
        main is not None
        and getattr(main, "__spec__", None) is None
        and getattr(main, "__file__", None)
    ):
        meant.append(os.path.dirname(str(main.__file__)) or os.curdir)  # a script, not -m or -c
    here = os.path.realpath(os.curdir)
    here_is_meant = any(os.path.realpath(folder) == here for folder in meant)
    return [
        entry for entry in sys.path if entry and (here_is_meant or os.path.realpath(entry) != here)
    ]
