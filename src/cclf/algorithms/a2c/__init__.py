"""Advantage actor-critic on MiniGrid, with RE3 where asked for."""

from cclf.algorithms.a2c.config import A2cConfig
from cclf.algorithms.a2c.presets import DEFAULTS, METHODS, PROFILES, of_task, profile_label
from cclf.algorithms.base import BaseAlgorithm

BASE = BaseAlgorithm(
    name="a2c",
    package=__name__,
    plays=("grid",),
    settings=A2cConfig,
    methods=METHODS,
    profiles=PROFILES,
    defaults=DEFAULTS,
    task_defaults=of_task,
    profile_label=profile_label,
)
