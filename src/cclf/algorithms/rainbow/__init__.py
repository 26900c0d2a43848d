"""Data-efficient Rainbow, the paper's base algorithm on Atari 100K."""

from cclf.algorithms.base import Base
from cclf.algorithms.rainbow.config import RainbowConfig
from cclf.algorithms.rainbow.presets import DEFAULTS, METHODS, PROFILES, SIZES, of_task

BASE = Base(
    name="rainbow",
    package=__name__,
    plays=("discrete",),
    settings=RainbowConfig,
    methods=METHODS,
    profiles=PROFILES,
    defaults=DEFAULTS,
    of_task=of_task,
    sizes=SIZES,
    warmup_setting="learn_start_agent_steps",
    learns_tasks_together=True,
    renamed_settings={"n_step_slip": "n_step_bug"},
    uses_gpu=True,
    keeps_replay=True,
)
