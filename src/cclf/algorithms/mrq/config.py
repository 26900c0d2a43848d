"""The settings of MR.Q, with the defaults of its authors' code (github.com/facebookresearch/MRQ)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from cclf.algorithms.base import cclf_inactive_rules
from cclf.algorithms.common.off_policy_base import ReplaySettings
from cclf.config import Config, ObservationType
from cclf.errors import ConfigError
from cclf.validation import (
    Fraction,
    Positive,
    PositiveInt,
    Range,
    Rule,
    StepCount,
    ZeroOrMore,
    always_inactive,
    excludes,
)

_needs_pixels = excludes("observe", "state")
RULES: dict[
    str, Rule
] = {  # when each option has an effect; an option without a rule always has one
    **cclf_inactive_rules("MR.Q"),
    "crop_pixels": always_inactive("MR.Q, which does not crop frames"),
    **dict.fromkeys(("frame_pixels", "shift_pixels", "conv_filters"), _needs_pixels),
    "infonce_temperature": excludes("infonce_coefficient", 0.0),
}


@dataclass(frozen=True)
class MrqConfig(ReplaySettings):
    """MR.Q and DR.Q: model-based representations, model-free values and policy."""

    base: ClassVar[str] = "mrq"
    supported_observations: ClassVar[tuple[ObservationType, ...]] = ("pixels", "state")
    rules: ClassVar[Mapping[str, Rule]] = RULES
    new_priority: ClassVar[Literal["one", "max"]] = "max"
    # A CUDA graph would not see changes of the reward scale and of decaying priorities.
    supports_cuda_graphs: ClassVar[bool] = False

    batch_size: PositiveInt = 256
    """Transitions in each value and policy update, and subsequences in each encoder update."""
    warmup_agent_steps: StepCount = 10_000
    """Agent steps at the start with uniform random actions and without updates."""
    replay_capacity_transitions: StepCount = 1_000_000
    """Transitions that the replay holds; the oldest are overwritten first."""
    n_steps: Annotated[int, Range(1, 100)] = 3
    """Number of rewards in the n-step return, before it bootstraps."""
    horizon_steps: Annotated[int, Range(1, 100)] = 5
    """Steps over which the encoder's model is unrolled in its loss."""
    target_every_updates: StepCount = 250
    """Updates between two copies of the networks to the target networks. Each copy is followed by the
    same number of encoder updates."""
    encoder_learning_rate: Positive = 1e-4
    """Learning rate of the encoder and its model."""
    learning_rate: Positive = 3e-4
    """Learning rate of value and policy."""
    encoder_weight_decay: ZeroOrMore = 1e-4
    """Weight decay of the encoder (AdamW)."""
    weight_decay: ZeroOrMore = 1e-4
    """Weight decay of value and policy (AdamW)."""
    max_gradient_norm: ZeroOrMore = 20.0
    """Gradients of the Q-functions are clipped to this norm; 0 turns clipping off."""
    dynamics_coefficient: ZeroOrMore = 1.0
    """Weight of the error of the predicted next features in the encoder loss."""
    reward_coefficient: ZeroOrMore = 0.1
    """Weight of the cross-entropy of the predicted reward in the encoder loss."""
    termination_coefficient: ZeroOrMore = 0.1
    """Weight of the error of the predicted termination in the encoder loss."""
    infonce_coefficient: ZeroOrMore = 0.0
    """Weight of the InfoNCE loss between predicted and true next features in the encoder loss."""
    infonce_temperature: Positive = 0.1
    """Temperature of the InfoNCE loss."""
    preactivation_coefficient: ZeroOrMore = 1e-5
    """Weight of the squared output of the policy network, before tanh or softmax, in its loss."""
    scale_rewards: bool = True
    """Divide the value target by the mean absolute reward of the replay."""
    priority_exponent: Fraction = 0.4
    """Exponent of the TD error in the replay priority; errors below 1 count as 1."""
    priority_decay: Annotated[float, Range(0, 1, exclusive_minimum=True)] = 1.0
    """A priority is multiplied by this for each transition that is added to the replay after it, down to
    a tenth of its value."""
    shift_pixels: Annotated[int, Range(1, 64)] = 4
    """Largest random shift of an image, in each direction; the border is replicated."""
    conv_filters: PositiveInt = 32
    """Channels of each convolution."""
    feature_dim: PositiveInt = 512
    """Size of the features z_s of a state and z_sa of a state and an action."""
    action_feature_dim: PositiveInt = 256
    """Size of the features of an action."""
    encoder_hidden_dim: PositiveInt = 512
    """Width of the hidden layers of the encoder."""
    hidden_dim: PositiveInt = 512
    """Width of the hidden layers of value and policy."""
    reward_bins: Annotated[int, Range(2, 10_000)] = 65
    """Bins of the predicted reward."""
    reward_bin_limit: Annotated[float, Range(0, 50, exclusive_minimum=True)] = 10.0
    """The bins span symexp(-limit) to symexp(limit)."""
    exploration_noise_std: ZeroOrMore = 0.2
    """Standard deviation of the noise on actions that are taken; half of it on discrete ones."""
    target_noise_std: ZeroOrMore = 0.2
    """Standard deviation of the noise on actions in the value target; half of it on discrete ones."""
    target_noise_clip: ZeroOrMore = 0.3
    """Largest noise on actions in the value target; half of it on discrete ones."""
    gumbel_temperature: Positive = 10.0
    """Temperature of the Gumbel-softmax that makes discrete actions differentiable."""

    def validate(self, config: Config) -> None:
        """Raise ConfigError if the settings conflict with the rest of a run."""
        env = config.env
        if env.observe == "pixels" and env.crop_pixels != env.frame_pixels:
            raise ConfigError(
                f"crop_pixels={env.crop_pixels} conflicts with frame_pixels={env.frame_pixels}: MR.Q "
                "sees whole frames; set both alike"
            )
        if env.observe == "pixels" and env.frame_pixels < 31:
            raise ConfigError(
                f"frame_pixels={env.frame_pixels} conflicts with the four convolutions of MR.Q, which "
                "leave no pixels: use 31 or more"
            )
