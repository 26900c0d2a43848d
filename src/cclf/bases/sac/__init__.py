"""Soft actor-critic from pixels: the paper's base algorithm on DeepMind Control."""

from cclf.bases.base import Base
from cclf.bases.sac.config import SacConfig
from cclf.bases.sac.methods import METHODS, PROFILES, SIZES, of_task

BASE = Base(
    name="sac",
    package=__name__,
    plays=("continuous",),
    settings=SacConfig,
    methods=METHODS,
    profiles=PROFILES,
    of_task=of_task,
    sizes=SIZES,
    uses_gpu=True,
    keeps_replay=True,
)
