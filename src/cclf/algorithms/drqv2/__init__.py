"""DrQ-v2 (Yarats et al., 2021): a deterministic policy with noise, n-step returns and shifted
frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cclf.algorithms.base import BaseAlgorithm, Defaults, ReplaySize
from cclf.algorithms.drqv2.config import Drqv2Config
from cclf.algorithms.drqv2.presets import DEFAULTS, METHODS, SIZES, of_task

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from cclf.config import Config
    from cclf.inspection.records import About, Gallery
    from cclf.training.agent import Agent
    from cclf.training.evaluation_workers import EvaluationWorkers
    from cclf.types import EnvFactory, EnvSpec, ExportedPolicy, Learner, StateDict


class DrQv2Algorithm(BaseAlgorithm):
    name = "drqv2"
    supported_tasks = ("continuous",)
    settings_type = Drqv2Config
    methods = METHODS
    defaults = DEFAULTS
    sizes = SIZES
    uses_gpu = True
    uses_replay = True
    supports_inspection = True

    def task_defaults(self, task: str) -> Defaults:
        return of_task(task)

    def make_learner(self, config: Config, device: torch.device, make_env: EnvFactory) -> Learner:
        from cclf.algorithms.drqv2.learner import make_learner

        return make_learner(config, device, make_env)

    def make_algorithm(self, config: Config, spec: EnvSpec, device: torch.device) -> Any:
        from cclf.algorithms.drqv2.learner import make_algorithm

        return make_algorithm(config, spec, device)

    def make_agent(
        self,
        config: Config,
        device: torch.device,
        make_env: EnvFactory,
        evaluation_workers: EvaluationWorkers | None = None,  # noqa: ARG002
    ) -> Agent:
        """The policy acts in this process; its environments may have workers of their own."""
        from cclf.algorithms.drqv2.learner import make_agent

        return make_agent(config, device, make_env)

    def evaluates_asynchronously(
        self,
        config: Config,
        device: torch.device,
        evaluation_workers: EvaluationWorkers | None,  # noqa: ARG002
    ) -> bool:
        from cclf.algorithms.common.pixel_learner import evaluates_asynchronously

        return evaluates_asynchronously(config, device)

    def replay_size(self, config: Config, spec: EnvSpec) -> ReplaySize:
        from cclf.algorithms.drqv2.learner import replay_size

        return ReplaySize(*replay_size(config, spec))

    def export_policy(
        self, policy: Any, config: Config, make_env: EnvFactory, seed: int, num_steps: int
    ) -> ExportedPolicy:
        from cclf.algorithms.drqv2.export import export_policy

        return export_policy(policy, config, make_env, seed, num_steps)

    def inspect(
        self,
        about: About,
        config: Config,
        learner: StateDict,
        samples: int,
        env_steps: Tensor,
        make_env: EnvFactory,
    ) -> Gallery:
        from cclf.algorithms.drqv2.inspect import gallery

        return gallery(about, config, learner, samples, env_steps, make_env)


ALGORITHM = DrQv2Algorithm()
