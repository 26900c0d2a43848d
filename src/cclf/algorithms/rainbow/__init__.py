"""Data-efficient Rainbow, the base algorithm of the paper on Atari 100K."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cclf.algorithms.base import BaseAlgorithm, Benchmark, Defaults, ReplaySize
from cclf.algorithms.rainbow.config import RainbowConfig
from cclf.algorithms.rainbow.presets import DEFAULTS, METHODS, PROFILES, SIZES, task_defaults

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from cclf.algorithms.rainbow.evaluation import RainbowPolicy
    from cclf.config import Config
    from cclf.inspection.records import About, Gallery
    from cclf.training.agent import Agent
    from cclf.training.evaluation import EvaluationWorkers
    from cclf.types import EnvFactory, EnvSpec, ExportedPolicy, Learner, StateDict


class RainbowAlgorithm(BaseAlgorithm[RainbowConfig]):
    name = "rainbow"
    supported_tasks = ("discrete",)
    settings_type = RainbowConfig
    methods = METHODS
    profiles = PROFILES
    defaults = DEFAULTS
    sizes = SIZES
    warmup_field = "learn_start_agent_steps"
    uses_gpu = True
    uses_replay = True
    batches_runs = True
    supports_inspection = True

    def task_defaults(self, task: str) -> Defaults:
        return task_defaults(task)

    def make_learner(
        self, config: Config[RainbowConfig], device: torch.device, make_env: EnvFactory
    ) -> Learner:
        return self.make_learners([config], device, make_env, [None])[0]

    def make_learners(
        self,
        configs: Sequence[Config[RainbowConfig]],
        device: torch.device,
        make_env: EnvFactory,
        resume_steps: Sequence[int | None],
    ) -> Sequence[Learner]:
        from cclf.algorithms.rainbow.learner import make_learners

        return make_learners(configs, device, make_env, resume_steps)

    def make_agent(
        self,
        config: Config[RainbowConfig],
        device: torch.device,  # noqa: ARG002 (it runs on the CPU)
        make_env: EnvFactory,
        evaluation_workers: EvaluationWorkers | None = None,
    ) -> Agent:
        from cclf.algorithms.rainbow.evaluation import make_agent

        return make_agent(config, make_env, evaluation_workers)

    def make_evaluation_workers(
        self,
        config: Config[RainbowConfig],
        device: torch.device,
        make_env: EnvFactory,
        num_runs: int,
    ) -> EvaluationWorkers | None:
        from cclf.algorithms.rainbow.evaluation import make_evaluation_workers

        return make_evaluation_workers(config, device, make_env, num_runs)

    def replay_size(self, config: Config[RainbowConfig], spec: EnvSpec) -> ReplaySize:  # noqa: ARG002
        from cclf.algorithms.rainbow.learner import replay_size

        return replay_size(config)

    def export_policy(
        self,
        policy: RainbowPolicy,
        config: Config[RainbowConfig],
        make_env: EnvFactory,
        seed: int,
        num_steps: int,
    ) -> ExportedPolicy:
        from cclf.algorithms.rainbow.evaluation import export_policy

        return export_policy(policy, config, make_env, seed, num_steps)

    def inspect(
        self,
        about: About,
        config: Config[RainbowConfig],
        learner: StateDict,
        samples: int,
        env_steps: Tensor,
        make_env: EnvFactory,  # noqa: ARG002 (replay holds the observations)
    ) -> Gallery:
        from cclf.algorithms.rainbow.inspect import inspect

        return inspect(about, config, learner, samples, env_steps)

    def benchmark(self) -> Benchmark:
        from cclf.algorithms.rainbow import bench

        return Benchmark(bench.Options, bench.bench, bench.REPORT_KEY, bench.UNIT)


ALGORITHM = RainbowAlgorithm()
