"""Base classes of SAC, DrQ-v2 and MR.Q (`ReplaySettings`, `ReplayBase`), and of SAC and DrQ-v2 alone
(`OffPolicySettings`, `OffPolicyBase`): settings, construction, export and inspection.

This module imports neither torch nor numpy, like the `__init__` of each algorithm.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

from cclf.algorithms.base import BaseAlgorithm, ReplaySize
from cclf.config import AlgorithmSettings, Config, Precision
from cclf.errors import ConfigError
from cclf.plugins import validate_import_name
from cclf.validation import Fraction, Positive, PositiveInt, StepCount

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from cclf.algorithms.common.off_policy import ReplayAlgorithm
    from cclf.algorithms.common.pixel_actor_critic import PixelActorCritic
    from cclf.data.replay import Replay
    from cclf.inspection.records import About, Gallery
    from cclf.training.agent import Agent
    from cclf.training.evaluation import EvaluationWorkers
    from cclf.types import EnvFactory, EnvSpec, ExportedPolicy, Learner, StateDict

PAPER_CROP_PIXELS = 84  # side of the views that the published encoders see
RGB_CHANNELS = 3
PACKED_CHANNELS = 16  # most channels of a pixel that the bfloat16 kernels support


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
    new_priority: ClassVar[Literal["one", "max"]] = "one"
    """Priority of a new transition: 1, or the largest so far."""
    supports_cuda_graphs: ClassVar[bool] = True
    """Whether an update can run in a CUDA graph."""

    # These are no dataclass fields, because they have no annotation. An algorithm that supports one of
    # these options declares a field of the same name.
    n_steps = 1
    """Agent steps that a transition of the replay spans."""
    horizon_steps = 0
    """Steps of the subsequences that can be sampled from the replay; 0 for none."""
    priority_decay = 1.0
    """A priority is multiplied by this for each transition that is added to the replay after it."""
    update_every_agent_steps = 1
    """Agent steps from one update to the next."""

    @property
    def updates_per_cycle(self) -> int:
        """The number of updates after which the sequence of GPU kernels repeats."""
        return 1

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
        if config.env.observe != "pixels":
            return
        reason = self._bf16_conflict(config)
        if reason and self.precision == "bf16":
            raise ConfigError(f"precision=bf16 conflicts with {reason}; use tf32 or fp32")
        pixels = config.env.crop_pixels
        side = (pixels - 3) // 2 + 1 - 2 * (self.conv_layers - 1)
        if not self.encoder and side < 1:
            option = "frame_pixels" if pixels == config.env.frame_pixels else "crop_pixels"
            raise ConfigError(
                f"conv_layers={self.conv_layers} conflicts with {option}={pixels}: each 3x3 layer "
                "removes two pixels and none are left; lower conv_layers"
            )

    def _bf16_conflict(self, config: Config) -> str:
        """Why the kernels of bfloat16 cannot encode the pixels of this run; empty if they can."""
        stack, pixels = config.env.frame_stack, config.env.crop_pixels
        if self.encoder:
            return f"encoder={self.encoder}: the bfloat16 kernels need the published convolutions"
        if RGB_CHANNELS * stack > PACKED_CHANNELS:
            limit = PACKED_CHANNELS // RGB_CHANNELS
            return f"frame_stack={stack}: the bfloat16 kernels support at most {limit} frames"
        if ((pixels - 3) // 2 + 1) % 2 == 0:
            return (
                f"crop_pixels={pixels}: the bfloat16 kernels need rows of odd length after the first "
                "layer"
            )
        return ""

    def preferred_gpu_precision(self, config: Config) -> Precision:
        """bfloat16 for the published encoder and view size, for which its results were compared with
        float32 (docs/performance.md); float32 otherwise."""
        published = config.env.observe == "pixels" and config.env.crop_pixels == PAPER_CROP_PIXELS
        return "bf16" if published and not self._bf16_conflict(config) else "fp32"


R = TypeVar("R", bound=ReplaySettings)
S = TypeVar("S", bound=OffPolicySettings)


class ReplayBase(BaseAlgorithm[R]):
    """A base algorithm with one environment and a replay."""

    uses_gpu = True
    uses_replay = True

    @abstractmethod
    def make_algorithm(
        self, config: Config[R], spec: EnvSpec, device: torch.device
    ) -> ReplayAlgorithm: ...

    def replay_size(self, config: Config[R], spec: EnvSpec) -> ReplaySize:
        """Read from a replay on the meta device, which allocates no memory."""
        import torch

        from cclf.algorithms.common.off_policy import make_replay

        replay = make_replay(config, spec, torch.device("meta"))
        return ReplaySize(replay.capacity, replay.num_bytes)

    def make_learner(
        self, config: Config[R], device: torch.device, make_env: EnvFactory
    ) -> Learner:
        """The replay is on the GPU that computes the updates if it fits there."""
        from cclf.algorithms.common.off_policy import OffPolicyLearner, make_replay
        from cclf.training.devices import choose_replay_device
        from cclf.training.seeding import Generators, derive

        env = make_env(config, derive(config.seed, "env"))
        num_bytes = self.replay_size(config, env.spec).num_bytes
        replay_device = choose_replay_device(config.algorithm.replay_device, device, num_bytes)
        replay = make_replay(config, env.spec, replay_device)
        algorithm = self.make_algorithm(config, env.spec, device)
        generators = Generators(config.seed, device, replay.device)
        return OffPolicyLearner(config, env, algorithm, replay, generators)

    def make_agent(
        self,
        config: Config[R],
        device: torch.device,
        make_env: EnvFactory,
        evaluation_workers: EvaluationWorkers | None = None,  # noqa: ARG002
    ) -> Agent:
        """The policy runs in this process; evaluation environments may run in worker processes."""
        import torch

        from cclf.algorithms.common.off_policy import make_agent

        env = make_env(config, 0)
        if env.spec.num_actions is not None:
            device = torch.device("cpu")  # discrete policies are evaluated on the CPU
        policy = self.make_algorithm(_uncompiled(config), env.spec, device)
        return make_agent(config, device, make_env, env, policy)

    def evaluates_asynchronously(
        self,
        config: Config[R],
        device: torch.device,
        evaluation_workers: EvaluationWorkers | None,  # noqa: ARG002
    ) -> bool:
        from cclf.algorithms.common import off_policy

        workers = off_policy.num_eval_workers(config, device)
        return workers > 0 or off_policy.evaluates_between_steps(device)


class OffPolicyBase(ReplayBase[S]):
    """A base algorithm with continuous actions that is a `PixelActorCritic`."""

    supported_tasks = ("continuous",)
    supports_inspection = True

    @abstractmethod
    def make_algorithm(
        self, config: Config[S], spec: EnvSpec, device: torch.device
    ) -> PixelActorCritic[OffPolicySettings]: ...

    def export_policy(
        self,
        policy: PixelActorCritic[OffPolicySettings],
        config: Config[S],
        make_env: EnvFactory,
        seed: int,
        num_steps: int,
    ) -> ExportedPolicy:
        """The exported policy computes in float32, also if training used another precision."""
        import torch

        from cclf.algorithms.common.pixel_actor_critic import export_policy

        env = make_env(config, seed)
        exported = self.make_algorithm(_in_float32(config), env.spec, torch.device("cpu"))
        exported.networks.load_state_dict(policy.networks.state_dict())
        return export_policy(exported, env, config.env.frame_stack, seed, num_steps)

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
    ) -> tuple[PixelActorCritic[OffPolicySettings], Replay]:
        """The algorithm and the replay in a learner's saved state: the algorithm computes in float32, the
        replay is in main memory."""
        import torch

        from cclf.data.replay import Replay
        from cclf.storage.safe_loading import load_state
        from cclf.types import EnvSpec

        state, cpu = learner["replay"], torch.device("cpu")
        if not state["live"].any():
            raise ConfigError("the replay of this run is still empty: train it first")
        slots, action_dim = state["actions"].shape
        frame_shape, stack = tuple(state["frames"].shape[1:]), config.env.frame_stack
        n_steps, discount = config.algorithm.n_steps, config.algorithm.discount
        replay = Replay(slots, frame_shape, action_dim, stack, None, cpu, n_steps, discount)
        load_state(replay, state, "learner/replay")
        spec = EnvSpec(frame_shape, action_dim, config.env.action_repeat, None)
        algorithm = self.make_algorithm(_in_float32(config), spec, device)
        load_state(algorithm, learner["algorithm"], "learner/algorithm")
        return algorithm, replay


def _uncompiled(config: Config[R]) -> Config[R]:
    return replace(config, run=replace(config.run, compile=False))


def _in_float32(config: Config[S]) -> Config[S]:
    return _uncompiled(config).with_settings(precision="fp32")
