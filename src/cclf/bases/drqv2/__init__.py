"""DrQ-v2 (Yarats et al., 2021): a deterministic policy with noise, n-step returns and shifted
frames."""

from cclf.bases.base import Base
from cclf.bases.drqv2.config import Drqv2Config
from cclf.bases.drqv2.methods import DEFAULTS, METHODS, SIZES, of_task

BASE = Base(
    name="drqv2",
    package=__name__,
    plays=("continuous",),
    settings=Drqv2Config,
    methods=METHODS,
    defaults=DEFAULTS,
    of_task=of_task,
    sizes=SIZES,
    uses_gpu=True,
    keeps_replay=True,
)
