"""Soft actor-critic: the paper's base algorithm on DeepMind Control, from pixels; or from state."""

from cclf.algorithms.base import Base
from cclf.algorithms.sac.config import SacConfig
from cclf.algorithms.sac.presets import METHODS, OBSERVING, PROFILES, SIZES, of_task

BASE = Base(
    name="sac",
    package=__name__,
    plays=("continuous",),
    settings=SacConfig,
    methods=METHODS,
    profiles=PROFILES,
    of_task=of_task,
    sizes=SIZES,
    observing=OBSERVING,
    uses_gpu=True,
    keeps_replay=True,
)
