"""Soft actor-critic: the base algorithm of the paper on DeepMind Control, from pixels or from state."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cclf.algorithms.base import Defaults
from cclf.algorithms.common.off_policy_base import OffPolicyBase
from cclf.algorithms.sac.config import SacConfig
from cclf.algorithms.sac.presets import METHODS, OBSERVING, PROFILES, SIZES, of_task

if TYPE_CHECKING:
    import torch

    from cclf.algorithms.common.inspection import InspectionAdapter
    from cclf.algorithms.sac.sac import SAC
    from cclf.config import Config
    from cclf.types import EnvSpec, Learner, MakeEnv


class SacAlgorithm(OffPolicyBase["SAC", SacConfig]):
    name = "sac"
    settings_type = SacConfig
    methods = METHODS
    profiles = PROFILES
    sizes = SIZES
    observation_defaults = OBSERVING

    def task_defaults(self, task: str) -> Defaults:
        return of_task(task)

    def make_learner(self, config: Config, device: torch.device, make_env: MakeEnv) -> Learner:
        from cclf.algorithms.common.off_policy import (
            OffPolicyLearner,
            make_replay,
            uses_cuda_graphs,
        )
        from cclf.training.seeding import Generators, derive

        settings: SacConfig = config.algorithm
        env = make_env(config, derive(config.seed, "env"))
        replay = make_replay(config, env.spec, device)
        algorithm = self.make_algorithm(config, env.spec, device)
        generators = Generators(config.seed, device, replay.device)
        # Updates differ in whether they update the actor and the target networks.
        cycle = math.lcm(settings.actor_every_updates, settings.target_every_updates)
        return OffPolicyLearner(
            env,
            algorithm,
            replay,
            generators,
            settings.batch_size,
            settings.warmup_agent_steps,
            graph_cycle=cycle if uses_cuda_graphs(config, replay.device) else None,
        )

    def make_algorithm(self, config: Config, spec: EnvSpec, device: torch.device) -> SAC:
        from cclf.algorithms.sac.sac import SAC, make_kernels
        from cclf.training.cuda_graphs import compiled

        compiler = compiled if device.type == "cuda" and config.run.compile else None
        kernels = make_kernels(config.algorithm.precision, compiler)
        return SAC(config, spec.action_dim, device, kernels, spec.state_dim)

    def inspection_adapter(self, algorithm: SAC) -> InspectionAdapter:
        from cclf.algorithms.sac.inspect import inspection_adapter

        return inspection_adapter(algorithm)


ALGORITHM = SacAlgorithm()
