"""Advantage actor-critic on MiniGrid, with or without RE3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cclf.algorithms.a2c.config import A2cConfig
from cclf.algorithms.a2c.presets import DEFAULTS, METHODS, PROFILES, profile_label, task_defaults
from cclf.algorithms.base import BaseAlgorithm, Defaults

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from cclf.algorithms.a2c.a2c import A2C
    from cclf.algorithms.a2c.rollout import RolloutLearner
    from cclf.config import Config
    from cclf.inspection.probe import Batches
    from cclf.inspection.records import About, Gallery
    from cclf.training.agent import Agent
    from cclf.training.evaluation import EvaluationWorkers
    from cclf.types import EnvFactory, ExportedPolicy, StateDict


class A2cAlgorithm(BaseAlgorithm[A2cConfig]):
    name = "a2c"
    supported_tasks = ("grid",)
    settings_type = A2cConfig
    methods = METHODS
    profiles = PROFILES
    defaults = DEFAULTS
    supports_inspection = True

    def task_defaults(self, task: str) -> Defaults:
        return task_defaults(task)

    def profile_label(self, profile: str, settings: Mapping[str, object]) -> str:
        return profile_label(profile, settings)

    def make_learner(
        self,
        config: Config[A2cConfig],
        device: torch.device,  # noqa: ARG002 (networks of this size are faster on the CPU)
        make_env: EnvFactory,
    ) -> RolloutLearner:
        from cclf.algorithms.a2c.rollout import make_learner

        return make_learner(config, make_env)

    def make_agent(
        self,
        config: Config[A2cConfig],
        device: torch.device,  # noqa: ARG002
        make_env: EnvFactory,
        evaluation_workers: EvaluationWorkers | None = None,  # noqa: ARG002
    ) -> Agent:
        from cclf.algorithms.a2c.rollout import make_agent

        return make_agent(config, make_env)

    def export_policy(
        self,
        policy: A2C,
        config: Config[A2cConfig],
        make_env: EnvFactory,
        seed: int,
        num_steps: int,
    ) -> ExportedPolicy:
        from cclf.algorithms.a2c.rollout import export_policy

        return export_policy(policy, make_env.vector(config, 1, seed), seed, num_steps)

    def inspect(
        self,
        about: About,
        config: Config[A2cConfig],
        learner: StateDict,
        samples: int,
        env_steps: Tensor,
        make_env: EnvFactory,
    ) -> Gallery:
        from cclf.algorithms.a2c.inspect import gallery
        from cclf.algorithms.a2c.rollout import load_learner

        resumed = load_learner(config, make_env, learner)
        return gallery(about, config, resumed, samples, env_steps.cpu())

    def probe(
        self,
        config: Config[A2cConfig],
        learner: StateDict,
        measures: Sequence[str],
        quantities: Sequence[str],
        num_batches: int,
        env_steps: Tensor,
        make_env: EnvFactory,
    ) -> tuple[Batches, Batches]:
        from cclf.algorithms.a2c.inspect import probe
        from cclf.algorithms.a2c.rollout import load_learner

        resumed = load_learner(config, make_env, learner)
        return probe(config, resumed, measures, quantities, num_batches, env_steps.cpu())


ALGORITHM = A2cAlgorithm()
