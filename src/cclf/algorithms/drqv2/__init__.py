"""DrQ-v2 (Yarats et al., 2021): a deterministic policy with noise, n-step returns and shifted
frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cclf.algorithms.base import Defaults
from cclf.algorithms.common.off_policy_base import OffPolicyBase
from cclf.algorithms.drqv2.config import Drqv2Config
from cclf.algorithms.drqv2.presets import DEFAULTS, METHODS, SIZES, of_task

if TYPE_CHECKING:
    import torch

    from cclf.algorithms.common.inspection import InspectionAdapter
    from cclf.algorithms.drqv2.drqv2 import DrQv2
    from cclf.config import Config
    from cclf.types import EnvSpec, Learner, MakeEnv


class DrQv2Algorithm(OffPolicyBase["DrQv2", Drqv2Config]):
    name = "drqv2"
    settings_type = Drqv2Config
    methods = METHODS
    defaults = DEFAULTS
    sizes = SIZES

    def task_defaults(self, task: str) -> Defaults:
        return of_task(task)

    def n_steps(self, config: Config) -> int:
        settings: Drqv2Config = config.algorithm
        return settings.n_steps

    def make_learner(self, config: Config, device: torch.device, make_env: MakeEnv) -> Learner:
        from cclf.algorithms.common.off_policy import (
            OffPolicyLearner,
            make_replay,
            uses_cuda_graphs,
        )
        from cclf.training.seeding import Generators, derive

        settings: Drqv2Config = config.algorithm
        env = make_env(config, derive(config.seed, "env"))
        replay = make_replay(config, env.spec, device, settings.n_steps)
        algorithm = self.make_algorithm(config, env.spec, device)
        generators = Generators(config.seed, device, replay.device)
        return OffPolicyLearner(
            env,
            algorithm,
            replay,
            generators,
            settings.batch_size,
            settings.warmup_agent_steps,
            graph_cycle=1 if uses_cuda_graphs(config, replay.device) else None,
            update_every_agent_steps=settings.update_every_agent_steps,
        )

    def make_algorithm(self, config: Config, spec: EnvSpec, device: torch.device) -> DrQv2:
        from cclf.algorithms.drqv2.drqv2 import DrQv2, make_kernels
        from cclf.training.cuda_graphs import compiled

        compiler = compiled if device.type == "cuda" and config.run.compile else None
        kernels = make_kernels(config.algorithm.precision, compiler)
        return DrQv2(config, spec.action_dim, device, kernels)

    def inspection_adapter(self, algorithm: DrQv2) -> InspectionAdapter:
        from cclf.algorithms.drqv2.inspect import inspection_adapter

        return inspection_adapter(algorithm)


ALGORITHM = DrQv2Algorithm()
