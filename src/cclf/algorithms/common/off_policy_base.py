"""What SAC and DrQ-v2 have in common as base algorithms: settings, construction, export and
inspection.

This module imports neither torch nor numpy, like the `__init__` of each algorithm.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from cclf.algorithms.base import BaseAlgorithm, ReplaySize, default_precision, validate_bf16
from cclf.config import AlgorithmSettings, Config, Precision
from cclf.errors import ConfigError
from cclf.plugins import validate_import_name
from cclf.validation import Fraction, Positive, PositiveInt, StepCount

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from cclf.algorithms.common.pixel_actor_critic import PixelActorCritic
    from cclf.data.replay import Replay
    from cclf.inspection.records import About, Gallery
    from cclf.training.agent import Agent
    from cclf.training.evaluation import EvaluationWorkers
    from cclf.types import EnvFactory, EnvSpec, ExportedPolicy, Learner, StateDict


@dataclass(frozen=True)
class ReplaySettings(AlgorithmSettings):
    """The settings of an algorithm with one environment and a replay."""

    batch_size: PositiveInt = 512
    """Transitions in each update."""
    warmup_agent_steps: StepCount = 1_000
    """Agent steps at the start with uniform random actions and without updates."""
    replay_capacity_transitions: StepCount = 100_000
    """Transitions that the replay holds; the oldest are overwritten first."""
    replay_device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device that stores the frames of the replay; auto: the GPU if they fit there."""
    discount: Fraction = 0.99
    """Discount factor per agent step."""

    # An algorithm that has one of these options declares a field of its name.

    @property
    def n_steps(self) -> int:
        """Steps of a transition in the replay."""
        return 1

    @property
    def horizon_steps(self) -> int:
        """Steps of the subsequences that can be sampled from the replay; 0 for none."""
        return 0

    @property
    def new_priority(self) -> Literal["one", "max"]:
        """Priority of a new transition: 1, or the largest so far."""
        return "one"

    @property
    def priority_decay(self) -> float:
        """Factor on a priority for each frame that was added since."""
        return 1.0

    @property
    def update_every_agent_steps(self) -> int:
        """Agent steps from one update to the next."""
        return 1

    @property
    def updates_per_cycle(self) -> int:
        """The number of updates after which the sequence of GPU kernels repeats."""
        return 1

    @property
    def supports_cuda_graphs(self) -> bool:
        """Whether an update can run in a CUDA graph."""
        return True

    def updates_at(self, agent_steps: int) -> int:
        """Updates are made at the agent steps 0, k, 2 k, ... after the warm-up."""
        every = self.update_every_agent_steps
        return max(0, -(-agent_steps // every) - -(-self.warmup_agent_steps // every))


@dataclass(frozen=True)
class OffPolicySettings(ReplaySettings):
    """The settings of SAC and DrQ-v2."""

    learning_rate: Positive = 1e-3
    """Learning rate of encoder, actor and critic."""
    q_ema_rate: Fraction = 0.01
    """Step size of the exponential moving average that updates the target critic."""
    encoder: str = ""
    """Your own image encoder in place of the convolutions below: MODULE:FUNCTION, a function of
    (channels, pixels) that returns a torch.nn.Module; see docs/extending.md. Runs the module's code."""
    conv_layers: PositiveInt = 4
    """Number of convolutions in the encoder."""
    conv_filters: PositiveInt = 32
    """Output channels of each convolution."""
    feature_dim: PositiveInt = 50
    """Number of features of an observation."""
    hidden_dim: PositiveInt = 1024
    """Width of the hidden layers of actor and critic."""
    precision: Literal["auto", "fp32", "tf32", "bf16"] = "auto"
    """Precision of the encoder's convolutions and of its large linear layer; the rest is float32. tf32
    and bf16 need a GPU. auto: bf16 on a GPU for views of the published size, otherwise fp32."""

    def validate_encoder(self, config: Config) -> None:
        """Raise ConfigError if the encoder does not fit the views of this run."""
        if self.encoder:
            validate_import_name("encoder", self.encoder, "my_encoders:my_encoder")
        validate_bf16(config)
        pixels = config.env.crop_pixels
        side = (pixels - 3) // 2 + 1 - 2 * (self.conv_layers - 1)
        if config.env.observe == "pixels" and not self.encoder and side < 1:
            option = "frame_pixels" if pixels == config.env.frame_pixels else "crop_pixels"
            raise ConfigError(
                f"conv_layers={self.conv_layers} conflicts with {option}={pixels}: each 3x3 layer "
                "removes two pixels and none are left; lower conv_layers"
            )

    def preferred_gpu_precision(self, config: Config) -> Precision:
        return default_precision(config)


A = TypeVar("A", bound="PixelActorCritic[OffPolicySettings]")
S = TypeVar("S", bound=OffPolicySettings)


class OffPolicyBase(BaseAlgorithm[S], Generic[A, S]):
    """A base algorithm with continuous actions, one environment and a replay."""

    supported_tasks = ("continuous",)
    uses_gpu = True
    uses_replay = True
    supports_inspection = True

    @abstractmethod
    def make_algorithm(self, config: Config[S], spec: EnvSpec, device: torch.device) -> A: ...

    def make_learner(
        self, config: Config[S], device: torch.device, make_env: EnvFactory
    ) -> Learner:
        from cclf.algorithms.common.off_policy import OffPolicyLearner, make_replay
        from cclf.training.seeding import Generators, derive

        env = make_env(config, derive(config.seed, "env"))
        replay = make_replay(config, env.spec, device)
        algorithm = self.make_algorithm(config, env.spec, device)
        generators = Generators(config.seed, device, replay.device)
        return OffPolicyLearner(config, env, algorithm, replay, generators)

    def replay_size(self, config: Config[S], spec: EnvSpec) -> ReplaySize:
        from cclf.algorithms.common.off_policy import replay_size

        return replay_size(config, spec)

    def make_agent(
        self,
        config: Config[S],
        device: torch.device,
        make_env: EnvFactory,
        evaluation_workers: EvaluationWorkers | None = None,  # noqa: ARG002
    ) -> Agent:
        """The policy acts in this process; its environments may run in workers."""
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
        """The exported policy computes in float32, whatever the precision of training was."""
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
        return gallery(about, config, algorithm, replay, samples, env_steps)

    def load_for_inspection(
        self, config: Config[S], learner: StateDict, device: torch.device
    ) -> tuple[A, Replay]:
        """The algorithm, in float32, and the replay of a learner's state."""
        from cclf.algorithms.common.inspection import load_replay
        from cclf.storage.safe_loading import load_state
        from cclf.types import EnvSpec

        replay = load_replay(config, learner["replay"])
        action_dim = replay.actions.shape[1]
        spec = EnvSpec(tuple(replay.frames.shape[1:]), action_dim, config.env.action_repeat, None)
        algorithm = self.make_algorithm(_in_float32(config), spec, device)
        load_state(algorithm, learner["algorithm"], "learner/algorithm")
        return algorithm, replay


def _uncompiled(config: Config[S]) -> Config[S]:
    return replace(config, run=replace(config.run, compile=False))


def _in_float32(config: Config[S]) -> Config[S]:
    return _uncompiled(config).with_settings(precision="fp32")
