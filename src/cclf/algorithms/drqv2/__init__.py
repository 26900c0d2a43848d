"""DrQ-v2 (Yarats et al., 2021): a deterministic policy with noise, n-step returns and shifted
frames."""

from cclf.algorithms.base import BaseAlgorithm
from cclf.algorithms.drqv2.config import Drqv2Config
from cclf.algorithms.drqv2.presets import DEFAULTS, METHODS, SIZES, of_task

BASE = BaseAlgorithm(
    name="drqv2",
    package=__name__,
    plays=("continuous",),
    settings=Drqv2Config,
    methods=METHODS,
    defaults=DEFAULTS,
    task_defaults=of_task,
    sizes=SIZES,
    uses_gpu=True,
    uses_replay=True,
)
