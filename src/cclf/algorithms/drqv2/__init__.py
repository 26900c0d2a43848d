"""DrQ-v2 (Yarats et al., 2021): a deterministic policy with noise, n-step returns and shifted
frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cclf.algorithms.base import Defaults
from cclf.algorithms.common.off_policy_base import OffPolicyBase
from cclf.algorithms.drqv2.config import Drqv2Config
from cclf.algorithms.drqv2.presets import DEFAULTS, METHODS, SIZES, task_defaults

if TYPE_CHECKING:
    import torch

    from cclf.algorithms.drqv2.drqv2 import DrQv2
    from cclf.config import Config
    from cclf.types import EnvSpec


class DrQv2Algorithm(OffPolicyBase[Drqv2Config]):
    name = "drqv2"
    settings_type = Drqv2Config
    methods = METHODS
    defaults = DEFAULTS
    sizes = SIZES

    def task_defaults(self, task: str) -> Defaults:
        return task_defaults(task)

    def make_algorithm(
        self, config: Config[Drqv2Config], spec: EnvSpec, device: torch.device
    ) -> DrQv2:
        from cclf.algorithms.drqv2.drqv2 import DrQv2
        from cclf.training.cuda_graphs import select_compiler

        compiler = select_compiler(device, config.run.compile)
        return DrQv2(config, spec.action_dim, device, compiler)


ALGORITHM = DrQv2Algorithm()
