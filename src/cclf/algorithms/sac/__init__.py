"""Soft actor-critic: the paper's base algorithm on DeepMind Control, from pixels; or from state."""

from cclf.algorithms.base import BaseAlgorithm
from cclf.algorithms.sac.config import SacConfig
from cclf.algorithms.sac.presets import METHODS, OBSERVING, PROFILES, SIZES, of_task

BASE = BaseAlgorithm(
    name="sac",
    package=__name__,
    plays=("continuous",),
    settings=SacConfig,
    methods=METHODS,
    profiles=PROFILES,
    task_defaults=of_task,
    sizes=SIZES,
    observation_defaults=OBSERVING,
    uses_gpu=True,
    uses_replay=True,
)
