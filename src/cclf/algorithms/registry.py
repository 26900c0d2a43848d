"""The base algorithms: those of this package, and those of other packages."""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING, get_args

from cclf.algorithms.base import DEFAULT_PROFILE, BaseAlgorithm
from cclf.config import AlgorithmSettings, Config, ObservationType, TaskKind
from cclf.envs.make import make_env
from cclf.errors import ConfigError, did_you_mean
from cclf.plugins import load_entry_points

if TYPE_CHECKING:
    import torch

    from cclf.training.agent import Agent
    from cclf.training.evaluation import EvaluationWorkers
    from cclf.types import Learner

# Modules of the base algorithms. The first that supports a task is the task's default.
BUILT_IN = (
    "cclf.algorithms.sac",
    "cclf.algorithms.rainbow",
    "cclf.algorithms.a2c",
    "cclf.algorithms.drqv2",
    "cclf.algorithms.mrq",
)
# Groups of entry points of plugins; each entry point names a `BaseAlgorithm` object. The first group is
# the older name.
ENTRY_POINT_GROUPS = ("cclf.bases", "cclf.algorithms")


@cache
def algorithms() -> dict[str, BaseAlgorithm]:
    """All base algorithms by name."""
    built_in: list[BaseAlgorithm] = [importlib.import_module(name).ALGORITHM for name in BUILT_IN]
    known = {algorithm.name: algorithm for algorithm in built_in}
    for group in ENTRY_POINT_GROUPS:
        load_entry_points(group, BaseAlgorithm, known, _validate_algorithm)
    return known


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


def default_algorithm(kind: TaskKind, observe: ObservationType = "pixels") -> BaseAlgorithm:
    """The first algorithm for this kind of task that supports these observations; if there is none, the
    first for this kind of task."""
    able = [each for each in algorithms().values() if kind in each.supported_tasks]
    fits = [each for each in able if observe in each.settings_type.supported_observations]
    return (fits or able)[0]


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
    """What is wrong with a plugin's base algorithm, as a clause after its name; empty if nothing is."""
    needed = {"name", "supported_tasks", "settings_type", "methods"}
    if missing := sorted(needed - set(dir(algorithm))):
        return f"which lacks {', '.join(missing)}"
    settings = algorithm.settings_type
    if not issubclass(settings, AlgorithmSettings):
        return f"whose settings {settings.__name__} are no subclass of AlgorithmSettings"
    missing = sorted(settings.__abstractmethods__ | ({"base"} - set(dir(settings))))
    if "__dataclass_fields__" not in vars(settings):
        missing = ["the decorator @dataclass(frozen=True)"]
    if missing:
        return f"whose settings lack {', '.join(missing)}"
    if settings.base != algorithm.name:
        return f"whose settings say base={settings.base!r}, but its name is {algorithm.name!r}"
    known, kinds = get_args(TaskKind), algorithm.supported_tasks
    if not kinds or not set(kinds) <= set(known):
        return f"which supports {', '.join(kinds) or 'no task'}: use some of {', '.join(known)}"
    if not algorithm.methods or DEFAULT_PROFILE not in algorithm.profiles:
        return f"which needs a method and the profile {DEFAULT_PROFILE!r}"
    return ""
