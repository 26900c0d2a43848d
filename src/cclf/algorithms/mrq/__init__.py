"""MR.Q (Fujimoto et al., 2025) and DR.Q (Lyu et al., 2026): pixels or state, continuous or discrete
actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cclf.algorithms.base import Defaults
from cclf.algorithms.common.off_policy_base import ReplayBase
from cclf.algorithms.mrq.config import MrqConfig
from cclf.algorithms.mrq.presets import (
    DEFAULTS,
    METHODS,
    OBSERVATION_DEFAULTS,
    SIZES,
    task_defaults,
)

if TYPE_CHECKING:
    import torch

    from cclf.algorithms.mrq.mrq import MrQ
    from cclf.config import Config
    from cclf.types import EnvSpec


class MrqAlgorithm(ReplayBase[MrqConfig]):
    name = "mrq"
    supported_tasks = ("continuous", "discrete")
    settings_type = MrqConfig
    methods = METHODS
    defaults = DEFAULTS
    observation_defaults = OBSERVATION_DEFAULTS
    sizes = SIZES

    def task_defaults(self, task: str) -> Defaults:
        return task_defaults(task)

    def make_algorithm(self, config: Config[MrqConfig], spec: EnvSpec, device: torch.device) -> MrQ:
        from cclf.algorithms.mrq.mrq import MrQ

        return MrQ(config, spec, device)


ALGORITHM = MrqAlgorithm()
