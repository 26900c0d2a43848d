"""Which base algorithms there are: those of this package, and those that other packages add."""

import importlib
from dataclasses import is_dataclass
from functools import cache
from typing import Any, get_args

from cclf.algorithms.base import DEFAULT_PROFILE, BaseAlgorithm
from cclf.config import TaskKind
from cclf.errors import ConfigError, did_you_mean
from cclf.plugins import add_from_packages

# A new base algorithm is a line here. The first that plays a task is its default.
BUILT_IN = (
    "cclf.algorithms.sac",
    "cclf.algorithms.rainbow",
    "cclf.algorithms.a2c",
    "cclf.algorithms.drqv2",
)
ENTRY_POINTS = "cclf.bases"  # group of entry points, each of which names a `BaseAlgorithm`


@cache
def bases() -> dict[str, BaseAlgorithm]:
    built_in = [importlib.import_module(name).BASE for name in BUILT_IN]
    found = {base.name: base for base in built_in}
    add_from_packages(ENTRY_POINTS, BaseAlgorithm, found, _validate_algorithm)
    return found


def find_base(name: str) -> BaseAlgorithm:
    known = bases()
    if name not in known:
        raise ConfigError(
            f"unknown base algorithm {name!r}{did_you_mean(name, known)}: "
            f"use one of {', '.join(known)}, or install the package that adds it"
        )
    return known[name]


def default_base(play: TaskKind) -> BaseAlgorithm:
    return next(base for base in bases().values() if play in base.plays)


def _validate_algorithm(base: BaseAlgorithm) -> str:
    """What is wrong with a base algorithm of another package, to be read after its name."""
    settings: Any = base.settings
    missing = [
        name for name in ("base", "rules", "check", "updates_at") if not hasattr(settings, name)
    ]
    if missing or not is_dataclass(base.settings):
        return (
            f"whose settings lack {', '.join(missing) or 'the decorator @dataclass(frozen=True)'}"
        )
    if settings.base != base.name:
        return f"whose settings say base={settings.base!r} where its name is {base.name!r}"
    plays = get_args(TaskKind)
    if not base.plays or not set(base.plays) <= set(plays):
        return f"which plays {', '.join(base.plays) or 'nothing'}: use some of {', '.join(plays)}"
    if not base.methods:
        return "which has no method"
    return "" if DEFAULT_PROFILE in base.profiles else f"whose profiles lack {DEFAULT_PROFILE!r}"
