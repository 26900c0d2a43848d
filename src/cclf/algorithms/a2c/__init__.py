"""Advantage actor-critic on MiniGrid, with or without RE3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cclf.algorithms.a2c.config import A2cConfig
from cclf.algorithms.a2c.presets import DEFAULTS, METHODS, PROFILES, of_task, profile_label
from cclf.algorithms.base import BaseAlgorithm, Defaults

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from cclf.config import Config
    from cclf.inspection.records import About, Gallery
    from cclf.training.agent import Agent
    from cclf.training.evaluation_workers import EvaluationWorkers
    from cclf.types import EnvFactory, ExportedPolicy, Learner, StateDict


class A2cAlgorithm(BaseAlgorithm):
    name = "a2c"
    supported_tasks = ("grid",)
    settings_type = A2cConfig
    methods = METHODS
    profiles = PROFILES
    defaults = DEFAULTS
    supports_inspection = True

    def task_defaults(self, task: str) -> Defaults:
        return of_task(task)

    def profile_label(self, profile: str, settings: Mapping[str, Any]) -> str:
        return profile_label(profile, settings)

    def make_learner(self, config: Config, device: torch.device, make_env: EnvFactory) -> Learner:
        from cclf.algorithms.a2c.learner import make_learner

        return make_learner(config, device, make_env)

    def make_agent(
        self,
        config: Config,
        device: torch.device,
        make_env: EnvFactory,
        evaluation_workers: EvaluationWorkers | None = None,  # noqa: ARG002
    ) -> Agent:
        from cclf.algorithms.a2c.learner import make_agent

        return make_agent(config, device, make_env)

    def export_policy(
        self, policy: Any, config: Config, make_env: EnvFactory, seed: int, num_steps: int
    ) -> ExportedPolicy:
        from cclf.algorithms.a2c.export import export_policy

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
        from cclf.algorithms.a2c.inspect import gallery

        return gallery(about, config, learner, samples, env_steps, make_env)


ALGORITHM = A2cAlgorithm()
