"""Packages that a user may leave out, each with its pip extra: asked about before the work that
needs them, not after it."""

import importlib.util
from collections.abc import Iterable

from cclf.errors import ConfigError

# What pip calls an extra of this package -> the modules that it brings.
MODULES = {
    "video": ("imageio", "imageio_ffmpeg"),
    "report": ("matplotlib", "jinja2"),
    "tensorboard": ("tensorboard",),
    "minigrid": ("minigrid", "gymnasium"),
    "export": ("onnx", "onnxscript", "onnxruntime"),
    "pandas": ("pandas",),
    "ray": ("ray",),
    "trackio": ("trackio",),
    "wandb": ("wandb",),
}


def missing_packages(extras: Iterable[str]) -> dict[str, list[str]]:
    """Of these extras those that are not whole, with the modules they lack. Nothing is imported."""
    lacking = {
        extra: [module for module in MODULES[extra] if not _is_installed(module)]
        for extra in extras
    }
    return {extra: modules for extra, modules in lacking.items() if modules}


def require_extras(purpose: str, extras: Iterable[str]) -> None:
    lacking = missing_packages(extras)
    if lacking:
        raise ConfigError(f"{purpose} needs {install_hint(lacking)}")


def install_hint(lacking: dict[str, list[str]]) -> str:
    """What is missing, and how to get it, for the end of a line.

    >>> install_hint({"video": ["imageio_ffmpeg"], "report": ["matplotlib"]})
    "imageio_ffmpeg, matplotlib: pip install 'cclf[video,report]'"
    """
    modules = [module for names in lacking.values() for module in names]
    return f"{', '.join(modules)}: pip install 'cclf[{','.join(lacking)}]'"


def rendering_extras(task: str) -> tuple[str, ...]:
    """What pictures of a task take beyond what playing it takes: MiniGrid's own rules are here, its
    drawing is not."""
    return ("minigrid",) if task.startswith("minigrid/") else ()


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # a stand-in without a spec
        return False
