"""The settings of DrQ-v2: those of its authors' code (github.com/facebookresearch/drqv2)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from cclf.algorithms.base import (
    default_precision,
    validate_augmentation,
    validate_bf16,
)
from cclf.config import AlgorithmSettings, Config, Precision
from cclf.errors import ConfigError
from cclf.plugins import validate_import_name
from cclf.validation import (
    GRID_ONLY,
    Fraction,
    Positive,
    PositiveInt,
    Range,
    Rule,
    StepCount,
    ZeroOrMore,
    always_inactive,
    names,
    requires,
    requires_value,
    validate_fields,
)

RULES: dict[str, Rule] = {  # when options act; one without a rule always does
    "negatives": GRID_ONLY,
    "crop_pixels": always_inactive("DrQ-v2, which sees whole frames: set frame_pixels alone"),
    "contrastive_coefficient": requires("contrastive"),
    **dict.fromkeys(("conv_layers", "conv_filters"), requires_value("encoder", "")),
}


@dataclass(frozen=True)
class Drqv2Config(AlgorithmSettings):
    """DrQ-v2."""

    base: ClassVar[str] = "drqv2"
    rules: ClassVar[Mapping[str, Rule]] = RULES
    always_hashed: ClassVar[frozenset[str]] = names(
        """
        batch_size warmup_agent_steps update_every_agent_steps replay_capacity_transitions
        n_steps discount learning_rate contrastive_coefficient q_ema_rate shift_pixels
        conv_layers conv_filters feature_dim hidden_dim first_noise_std last_noise_std
        noise_agent_steps update_noise_clip precision
        """
    )

    batch_size: PositiveInt = 256
    """Transitions in each update."""
    warmup_agent_steps: StepCount = 2_000
    """Uniform random actions, no update."""
    update_every_agent_steps: StepCount = 2
    """Agent steps between two updates."""
    replay_capacity_transitions: StepCount = 1_000_000
    """Transitions that the replay keeps; the oldest leave first."""
    replay_device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where its frames are kept; auto: on the GPU where they fit."""
    n_steps: Annotated[int, Range(1, 100)] = 3
    """Rewards in a return before the value of what follows."""
    discount: Fraction = 0.99
    """Of rewards to come, per agent step."""
    learning_rate: Positive = 1e-4
    """Encoder, actor and critic."""
    contrastive_coefficient: ZeroOrMore = 1.0
    """Weight of the contrastive loss beside the Q loss."""
    q_ema_rate: Fraction = 0.01
    """Of the target: critic and its first layer. The encoder has no target."""
    shift_pixels: Annotated[int, Range(1, 64)] = 4
    """Pixels that a view may be shifted by, either way; the border is repeated."""
    encoder: str = ""
    """An image encoder of your own in the place of the convolutions below: MODULE:FUNCTION, which
    makes a torch.nn.Module of (channels, pixels); see docs/extending.md. Runs the module's code."""
    conv_layers: PositiveInt = 4
    """Convolutions of the encoder."""
    conv_filters: PositiveInt = 32
    """Channels of each convolution."""
    feature_dim: PositiveInt = 50
    """Numbers that actor and critic, each by a layer of its own, make of the encoder's output."""
    hidden_dim: PositiveInt = 1024
    """Width of the hidden layers of actor and critic."""
    first_noise_std: ZeroOrMore = 1.0
    """Standard deviation of the noise on actions at the start."""
    last_noise_std: ZeroOrMore = 0.1
    """Standard deviation of the noise on actions at its end."""
    noise_agent_steps: StepCount = 500_000
    """Over which the noise of actions goes from the first to the last."""
    update_noise_clip: ZeroOrMore = 0.3
    """Largest noise in an update; acting has no such bound."""
    precision: Literal["auto", "fp32", "tf32", "bf16"] = "auto"
    """Of the encoder's convolutions and its large linear layer; all else is float32. tf32 and bf16
    need a GPU. auto: on a GPU bf16 where views have the published size, else fp32."""

    def __post_init__(self) -> None:
        validate_fields(self)

    def validate(self, config: Config) -> None:
        """Raise ConfigError if the settings conflict with the rest of a run."""
        validate_augmentation(config.method, "DrQ-v2", augmentations=("shift",), custom=True)
        if self.encoder:
            validate_import_name("encoder", self.encoder, "my_encoders:my_encoder")
        validate_bf16(config)
        pixels = config.env.frame_pixels
        if config.env.crop_pixels != pixels:
            raise ConfigError(
                f"crop_pixels={config.env.crop_pixels} conflicts with frame_pixels={pixels}: DrQ-v2 "
                "sees whole frames; set both alike"
            )
        if not self.encoder and (pixels - 3) // 2 + 1 - 2 * (self.conv_layers - 1) < 1:
            raise ConfigError(
                f"conv_layers={self.conv_layers} conflicts with frame_pixels={pixels}: each 3x3 "
                "layer takes two pixels and none are left; lower conv_layers"
            )

    def preferred_gpu_precision(self, config: Config) -> Precision:
        return default_precision(config)

    def updates_at(self, agent_steps: int) -> int:
        """Updates come with the agent steps 0, k, 2 k, ... that are past the warm-up."""
        every = self.update_every_agent_steps
        return max(0, -(-agent_steps // every) - -(-self.warmup_agent_steps // every))
