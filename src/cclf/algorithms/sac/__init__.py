"""Soft actor-critic: the base algorithm of the paper on DeepMind Control, from pixels or from state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cclf.algorithms.base import Defaults
from cclf.algorithms.common.off_policy_base import OffPolicyBase
from cclf.algorithms.sac.config import SacConfig
from cclf.algorithms.sac.presets import (
    METHODS,
    OBSERVATION_DEFAULTS,
    PROFILES,
    SIZES,
    task_defaults,
)

if TYPE_CHECKING:
    import torch

    from cclf.algorithms.sac.sac import SAC
    from cclf.config import Config
    from cclf.types import EnvSpec


class SacAlgorithm(OffPolicyBase[SacConfig]):
    name = "sac"
    settings_type = SacConfig
    methods = METHODS
    profiles = PROFILES
    sizes = SIZES
    observation_defaults = OBSERVATION_DEFAULTS

    def task_defaults(self, task: str) -> Defaults:
        return task_defaults(task)

    def make_algorithm(self, config: Config[SacConfig], spec: EnvSpec, device: torch.device) -> SAC:
        from cclf.algorithms.sac.sac import SAC
        from cclf.training.cuda_graphs import select_compiler

        compiler = select_compiler(device, config.run.compile)
        return SAC(config, spec.action_dim, device, compiler, spec.state_dim)


ALGORITHM = SacAlgorithm()
