"""What SAC and DrQ-v2 have in common as base algorithms: agent, replay, export and inspection.

This module imports neither torch nor numpy, like the `__init__` of each algorithm.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from cclf.algorithms.base import BaseAlgorithm, ReplaySize
from cclf.config import AlgorithmSettings, Config
from cclf.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from cclf.algorithms.common.inspection import InspectionAdapter
    from cclf.algorithms.common.pixel_actor_critic import PixelActorCritic
    from cclf.data.replay import Replay
    from cclf.inspection.records import About, Gallery
    from cclf.training.agent import Agent
    from cclf.training.evaluation_workers import EvaluationWorkers
    from cclf.types import EnvFactory, EnvSpec, ExportedPolicy, StateDict


class OffPolicySettings(AlgorithmSettings):
    """The settings that all of these algorithms have. Each declares the fields itself, because their
    order is that of config.json."""

    @property
    @abstractmethod
    def batch_size(self) -> int: ...
    @property
    @abstractmethod
    def discount(self) -> float: ...
    @property
    @abstractmethod
    def replay_capacity_transitions(self) -> int: ...
    @property
    @abstractmethod
    def conv_layers(self) -> int: ...
    @property
    @abstractmethod
    def conv_filters(self) -> int: ...


A = TypeVar("A", bound="PixelActorCritic[Any]")
S = TypeVar("S", bound=OffPolicySettings)


class OffPolicyBase(BaseAlgorithm[S], Generic[A, S]):
    """A base algorithm with continuous actions, one environment and a replay."""

    supported_tasks = ("continuous",)
    uses_gpu = True
    uses_replay = True
    supports_inspection = True

    @abstractmethod
    def make_algorithm(self, config: Config[S], spec: EnvSpec, device: torch.device) -> A: ...

    @abstractmethod
    def inspection_adapter(self, algorithm: A) -> InspectionAdapter:
        """How `cclf inspect` computes views, features and TD errors."""

    def n_steps(self, config: Config[S]) -> int:  # noqa: ARG002
        """The number of steps of a transition in replay."""
        return 1

    def replay_size(self, config: Config[S], spec: EnvSpec) -> ReplaySize:
        from cclf.algorithms.common.off_policy import replay_size

        return replay_size(config, spec, self.n_steps(config))

    def make_agent(
        self,
        config: Config[S],
        device: torch.device,
        make_env: EnvFactory,
        evaluation_workers: EvaluationWorkers | None = None,  # noqa: ARG002
    ) -> Agent:
        """The policy acts in this process; its environments may have workers of their own."""
        from cclf.algorithms.common.agent import make_agent

        env = make_env(config, 0)
        policy = self.make_algorithm(_uncompiled(config), env.spec, device)
        return make_agent(config, device, make_env, env, policy)

    def evaluates_asynchronously(
        self,
        config: Config[S],
        device: torch.device,
        evaluation_workers: EvaluationWorkers | None,  # noqa: ARG002
    ) -> bool:
        from cclf.algorithms.common import agent

        return agent.num_eval_workers(config, device) > 0 or agent.evaluates_between_steps(device)

    def export_policy(
        self, policy: A, config: Config[S], make_env: EnvFactory, seed: int, num_steps: int
    ) -> ExportedPolicy:
        """The exported policy computes in float32, in whatever precision the run trained."""
        import torch

        from cclf.algorithms.common.export import export_policy

        env = make_env(config, seed)
        plain = self.make_algorithm(_in_float32(config), env.spec, torch.device("cpu"))
        plain.networks.load_state_dict(policy.networks.state_dict())
        return export_policy(plain, env, config.env.frame_stack, seed, num_steps)

    def inspect(
        self,
        about: About,
        config: Config[S],
        learner: StateDict,
        samples: int,
        env_steps: Tensor,
        make_env: EnvFactory,  # noqa: ARG002 (the replay holds the observations)
    ) -> Gallery:
        from cclf.algorithms.common.inspection import gallery

        if config.env.observe != "pixels":
            raise ConfigError(
                f"{config.task} was learned with observe={config.env.observe}: cclf inspect shows "
                "pictures of observations, and this run has none"
            )
        algorithm, replay = self.load_for_inspection(config, learner, env_steps.device)
        adapter = self.inspection_adapter(algorithm)
        return gallery(about, config, adapter, replay, samples, env_steps)

    def load_for_inspection(
        self, config: Config[S], learner: StateDict, device: torch.device
    ) -> tuple[A, Replay]:
        """The algorithm, in float32, and the replay of a learner's state."""
        from cclf.algorithms.common.inspection import load_replay
        from cclf.storage.safe_loading import load_state
        from cclf.types import EnvSpec

        replay = load_replay(config, learner["replay"], self.n_steps(config))
        action_dim = replay.actions.shape[1]
        spec = EnvSpec(tuple(replay.frames.shape[1:]), action_dim, config.env.action_repeat, None)
        algorithm = self.make_algorithm(_in_float32(config), spec, device)
        load_state(algorithm, learner["algorithm"], "learner/algorithm")
        return algorithm, replay


def _uncompiled(config: Config[S]) -> Config[S]:
    return replace(config, run=replace(config.run, compile=False))


def _in_float32(config: Config[S]) -> Config[S]:
    return _uncompiled(config).with_settings(precision="fp32")
