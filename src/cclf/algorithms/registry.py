"""The base algorithms: those of this package, and those that other packages add."""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING, Any, get_args

from cclf.algorithms.base import DEFAULT_PROFILE, BaseAlgorithm
from cclf.config import Config, TaskKind
from cclf.envs.make import make_env
from cclf.errors import ConfigError, did_you_mean
from cclf.plugins import add_from_packages

if TYPE_CHECKING:
    import torch

    from cclf.training.agent import Agent
    from cclf.training.evaluation_workers import EvaluationWorkers
    from cclf.types import Learner

# A new base algorithm is a line here. The first that supports a task is its default.
BUILT_IN = (
    "cclf.algorithms.sac",
    "cclf.algorithms.rainbow",
    "cclf.algorithms.a2c",
    "cclf.algorithms.drqv2",
)
# Groups of entry points, each of which names a `BaseAlgorithm` object. The first is the older name.
ENTRY_POINT_GROUPS = ("cclf.bases", "cclf.algorithms")


@cache
def algorithms() -> dict[str, BaseAlgorithm]:
    """All base algorithms by name."""
    built_in: list[BaseAlgorithm] = [importlib.import_module(name).ALGORITHM for name in BUILT_IN]
    found = {algorithm.name: algorithm for algorithm in built_in}
    for group in ENTRY_POINT_GROUPS:
        add_from_packages(group, BaseAlgorithm, found, _validate_algorithm)
    return found


def find_algorithm(name: str) -> BaseAlgorithm:
    known = algorithms()
    if name not in known:
        raise ConfigError(
            f"unknown base algorithm {name!r}{did_you_mean(name, known)}: "
            f"use one of {', '.join(known)}, or install the package that adds it"
        )
    return known[name]


def algorithm_of(config: Config) -> BaseAlgorithm:
    return find_algorithm(config.base)


def default_algorithm(kind: TaskKind) -> BaseAlgorithm:
    return next(each for each in algorithms().values() if kind in each.supported_tasks)


def make_learner(config: Config, device: torch.device) -> Learner:
    """The learner of one run in its own environment."""
    return algorithm_of(config).make_learner(config, device, make_env)


def make_agent(
    config: Config,
    device: torch.device,
    evaluation_workers: EvaluationWorkers | None = None,
) -> Agent:
    """The agent of one run in evaluation environments of its own, with untrained weights."""
    return algorithm_of(config).make_agent(config, device, make_env, evaluation_workers)


def _validate_algorithm(algorithm: BaseAlgorithm) -> str:
    """What is wrong with a base algorithm of another package, to be read after its name."""
    needed = ("name", "supported_tasks", "settings_type", "methods")
    lacking = [name for name in needed if not hasattr(algorithm, name)]
    if lacking:
        return f"which lacks {', '.join(lacking)}"
    settings: Any = algorithm.settings_type
    lacking = [
        name for name in ("base", "rules", "check", "updates_at") if not hasattr(settings, name)
    ]
    if not lacking and "__dataclass_fields__" not in vars(settings):
        lacking = ["the decorator @dataclass(frozen=True)"]
    if lacking:
        return f"whose settings lack {', '.join(lacking)}"
    if settings.base != algorithm.name:
        return f"whose settings say base={settings.base!r} where its name is {algorithm.name!r}"
    known, kinds = get_args(TaskKind), algorithm.supported_tasks
    if not kinds or not set(kinds) <= set(known):
        return f"which supports {', '.join(kinds) or 'no task'}: use some of {', '.join(known)}"
    if not algorithm.methods:
        return "which has no method"
    return (
        "" if DEFAULT_PROFILE in algorithm.profiles else f"whose profiles lack {DEFAULT_PROFILE!r}"
    )
