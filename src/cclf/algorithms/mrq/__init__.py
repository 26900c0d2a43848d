"""MR.Q (Fujimoto et al., 2025) and DR.Q (Lyu et al., 2026): pixels or state, continuous or discrete
actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cclf.algorithms.base import BaseAlgorithm, Defaults, ReplaySize
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
    from cclf.training.agent import Agent
    from cclf.training.evaluation import EvaluationWorkers
    from cclf.types import EnvFactory, EnvSpec, Learner


class MrqAlgorithm(BaseAlgorithm[MrqConfig]):
    name = "mrq"
    supported_tasks = ("continuous", "discrete")
    settings_type = MrqConfig
    methods = METHODS
    defaults = DEFAULTS
    observation_defaults = OBSERVATION_DEFAULTS
    sizes = SIZES
    uses_gpu = True
    uses_replay = True

    def task_defaults(self, task: str) -> Defaults:
        return task_defaults(task)

    def make_learner(
        self, config: Config[MrqConfig], device: torch.device, make_env: EnvFactory
    ) -> Learner:
        from cclf.algorithms.common.off_policy import OffPolicyLearner, make_replay
        from cclf.training.seeding import Generators, derive

        env = make_env(config, derive(config.seed, "env"))
        replay = make_replay(config, env.spec, device)
        algorithm = self.make_algorithm(config, env.spec, device)
        generators = Generators(config.seed, device, replay.device)
        return OffPolicyLearner(config, env, algorithm, replay, generators, algorithm.before_update)

    def make_algorithm(self, config: Config[MrqConfig], spec: EnvSpec, device: torch.device) -> MrQ:
        from cclf.algorithms.mrq.mrq import MrQ

        return MrQ(config, spec, device)

    def make_agent(
        self,
        config: Config[MrqConfig],
        device: torch.device,
        make_env: EnvFactory,
        evaluation_workers: EvaluationWorkers | None = None,  # noqa: ARG002
    ) -> Agent:
        import torch

        from cclf.algorithms.common.agent import make_agent

        env = make_env(config, 0)
        if env.spec.num_actions is not None:
            device = torch.device("cpu")  # as for every algorithm with discrete actions
        policy = self.make_algorithm(config, env.spec, device)
        return make_agent(config, device, make_env, env, policy)

    def evaluates_asynchronously(
        self,
        config: Config[MrqConfig],
        device: torch.device,
        evaluation_workers: EvaluationWorkers | None,  # noqa: ARG002
    ) -> bool:
        from cclf.algorithms.common import agent

        return agent.num_eval_workers(config, device) > 0 or agent.evaluates_between_steps(device)

    def replay_size(self, config: Config[MrqConfig], spec: EnvSpec) -> ReplaySize:
        from cclf.algorithms.common.off_policy import replay_size

        return replay_size(config, spec)


ALGORITHM = MrqAlgorithm()
