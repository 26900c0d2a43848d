"""Start child Python processes without the working directory on `sys.path`.

The working directory may be a run folder from someone else, and `-m` and `-c` would add it. What the
user added stays: folders in PYTHONPATH, the folder of the script that runs, and the folder of this
package.
"""

import os
import sys
from pathlib import Path

_PACKAGE_PARENT = str(Path(__file__).parents[2])


def python_command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", *arguments]


def child_environment() -> dict[str, str]:
    """Environment variables with which a child process and its children import the same modules as
    this process."""
    search_path = os.pathsep.join(child_sys_path())
    return {**os.environ, "PYTHONPATH": search_path, "PYTHONSAFEPATH": "1"}


def child_sys_path() -> list[str]:
    """`sys.path` without the working directory, unless the user added it."""
    python_path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    added = [_PACKAGE_PARENT, *(folder for folder in python_path if folder)]
    main = vars(sys.modules["__main__"])
    if main.get("__spec__") is None and (script := main.get("__file__")):  # not -m or -c
        added.append(os.path.dirname(script) or os.curdir)
    here = os.path.realpath(os.curdir)
    keep_here = any(os.path.realpath(folder) == here for folder in added)
    return [
        folder for folder in sys.path if folder and (keep_here or os.path.realpath(folder) != here)
    ]
