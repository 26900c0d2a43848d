"""The errors that users see, exit codes, and parts of messages: hints to similar names and to missing
packages."""

import difflib
import errno
import importlib.util
from collections.abc import Iterable

# Exit codes of `cclf`: success; a run failed; invalid input; stopped by a signal after saving.
EXIT_DONE, EXIT_FAILED, EXIT_BAD_INPUT, EXIT_STOPPED = 0, 1, 2, 75
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)  # OSError.errno: no space left, or quota exceeded

# The optional dependencies of this package: the name of each extra, and the modules that it installs.
EXTRAS = {
    "video": ("imageio", "imageio_ffmpeg"),
    "report": ("matplotlib", "jinja2"),
    "tensorboard": ("tensorboard",),
    "minigrid": ("minigrid", "gymnasium"),
    "atari": ("ale_py",),
    "export": ("onnx", "onnxscript", "onnxruntime"),
    "pandas": ("pandas",),
    "ray": ("ray",),
    "trackio": ("trackio",),
    "wandb": ("wandb",),
    "hub": ("huggingface_hub",),
}

# What other packages call an option, and what it is called here.
_OTHER_NAMES = {
    "lr": "learning_rate",
    "gamma": "discount",
    "timesteps": "env_steps",
    "total_timesteps": "env_steps",
    "learning_starts": "warmup_agent_steps",
    "buffer_size": "replay_capacity_transitions",
}
COMMON_OPTIONS = _OTHER_NAMES | {
    f"--{name.replace('_', '-')}": f"--{option.replace('_', '-')}"
    for name, option in _OTHER_NAMES.items()
}


class ConfigError(ValueError):
    """Invalid input of the user: shown as one line, exit code 2."""


class DataError(ConfigError):
    """A file of a run folder that cannot be used. The message names the file and the reason."""


class StopRun(ValueError):  # noqa: N818 (not a failure: a callback raises it to stop a run)
    """Raised by a callback of `cclf.train`: the run is saved and stops."""


class WorkerError(ValueError):
    """An environment failed and cannot continue, in this process or in a worker: exit code 1. Shown
    as one line, followed by `details`, which are empty or end with a line break."""

    def __init__(self, line: str, details: str = ""):
        super().__init__(line)
        self.details = details


def short_error(error: BaseException) -> str:
    """An error of a library as one line.

    >>> short_error(OSError("no such\\n  screen"))
    'OSError: no such screen'
    """
    try:
        words = str(error).split()
    except Exception:  # its __str__ is broken
        words = []
    name = type(error).__name__
    return " ".join([f"{name}:", *words]) if words else name


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or an empty text if no known name is similar.

    >>> did_you_mean("ccfl", ["cclf", "drq"]), did_you_mean("xyz", ["cclf"])
    ('; did you mean cclf?', '')
    """
    names = list(known)
    usual = COMMON_OPTIONS.get(name)
    close = [usual] if usual in names else difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


def missing_packages(extras: Iterable[str]) -> dict[str, list[str]]:
    """The modules that are not installed, by extra. Nothing is imported."""
    missing = {
        extra: [module for module in EXTRAS[extra] if importlib.util.find_spec(module) is None]
        for extra in extras
    }
    return {extra: modules for extra, modules in missing.items() if modules}


def require_extras(purpose: str, extras: Iterable[str]) -> None:
    """Raise ConfigError unless all modules of these extras are installed."""
    if missing := missing_packages(extras):
        raise ConfigError(f"{purpose} needs {install_hint(missing)}")


def install_hint(missing: dict[str, list[str]]) -> str:
    """The missing modules and the command that installs them, for the end of a message.

    >>> install_hint({"video": ["imageio_ffmpeg"], "report": ["matplotlib"]})
    "imageio_ffmpeg, matplotlib: pip install 'cclf[video,report]'"
    """
    modules = [module for names in missing.values() for module in names]
    return f"{', '.join(modules)}: pip install 'cclf[{','.join(missing)}]'"


def rendering_extras(task: str) -> tuple[str, ...]:
    """The extras that rendering a task needs and training on it does not."""
    return ("minigrid",) if task.startswith("minigrid/") else ()
