"""The settings of DrQ-v2, with the values of github.com/facebookresearch/drqv2 as defaults."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from cclf.algorithms.base import validate_augmentation
from cclf.algorithms.common.off_policy_base import OffPolicySettings
from cclf.config import Config
from cclf.errors import ConfigError
from cclf.validation import (
    GRID_ONLY,
    Positive,
    PositiveInt,
    Range,
    Rule,
    StepCount,
    ZeroOrMore,
    always_inactive,
    names,
    requires,
)

# The conditions under which options have an effect. An option without a rule always has one.
RULES: dict[str, Rule] = {
    "negatives": GRID_ONLY,
    "crop_pixels": always_inactive("DrQ-v2, which does not crop frames"),
    "contrastive_coefficient": requires("contrastive"),
    **dict.fromkeys(("conv_layers", "conv_filters"), requires("encoder", "")),
}


@dataclass(frozen=True)
class Drqv2Config(OffPolicySettings):
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
    """Agent steps at the start with uniform random actions and without updates."""
    update_every_agent_steps: StepCount = 2
    """Agent steps between two updates."""
    replay_capacity_transitions: StepCount = 1_000_000
    """Transitions that the replay holds; the oldest are overwritten first."""
    n_steps: Annotated[int, Range(1, 100)] = 3
    """Rewards in an n-step return."""
    learning_rate: Positive = 1e-4
    """Learning rate of encoder, actor and critic."""
    contrastive_coefficient: ZeroOrMore = 1.0
    """Weight of the contrastive loss, which is added to the critic loss."""
    shift_pixels: Annotated[int, Range(1, 64)] = 4
    """Largest random shift of a view in each direction; border pixels are replicated."""
    first_noise_std: ZeroOrMore = 1.0
    """Initial standard deviation of the noise on actions."""
    last_noise_std: ZeroOrMore = 0.1
    """Final standard deviation of the noise on actions."""
    noise_agent_steps: StepCount = 500_000
    """Agent steps over which the standard deviation changes linearly from its initial to its final
    value."""
    update_noise_clip: ZeroOrMore = 0.3
    """Bound on the absolute noise on actions in updates; data collection does not clip its noise."""

    def validate(self, config: Config) -> None:
        """Raise ConfigError if the settings conflict with the rest of a run."""
        validate_augmentation(config.method, "DrQ-v2", augmentations=("shift",), custom=True)
        pixels = config.env.frame_pixels
        if config.env.crop_pixels != pixels:
            raise ConfigError(
                f"crop_pixels={config.env.crop_pixels} conflicts with frame_pixels={pixels}: views of "
                "DrQ-v2 are as large as frames; set both to the same value"
            )
        self.validate_encoder(config)
