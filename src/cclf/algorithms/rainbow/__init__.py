"""Data-efficient Rainbow, the paper's base algorithm on Atari 100K."""

from cclf.algorithms.base import BaseAlgorithm
from cclf.algorithms.rainbow.config import RainbowConfig
from cclf.algorithms.rainbow.presets import DEFAULTS, METHODS, PROFILES, SIZES, of_task

BASE = BaseAlgorithm(
    name="rainbow",
    package=__name__,
    plays=("discrete",),
    settings=RainbowConfig,
    methods=METHODS,
    profiles=PROFILES,
    defaults=DEFAULTS,
    task_defaults=of_task,
    sizes=SIZES,
    warmup_field="learn_start_agent_steps",
    batches_runs=True,
    uses_gpu=True,
    uses_replay=True,
)
