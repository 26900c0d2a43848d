"""The settings of SAC. The defaults are those of the paper on pixels (Appendix B); where the released code
differs, the docstring of the field says so."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from cclf.algorithms.base import validate_augmentation
from cclf.algorithms.common.off_policy_base import OffPolicySettings
from cclf.config import Config, ObservationType
from cclf.errors import ConfigError
from cclf.validation import (
    GRID_ONLY,
    Fraction,
    FractionBelowOne,
    Positive,
    Range,
    Rule,
    StepCount,
    Values,
    all_of,
    any_of,
    excludes,
    names,
    requires,
)


def _crops_differ(values: Values) -> str:
    """Rule: the option has an effect if there is more than one crop position."""
    frame, crop = values["frame_pixels"], values["crop_pixels"]
    return (
        ""
        if frame > crop
        else f"crop_pixels={crop} and frame_pixels={frame}, which allow one crop only"
    )


_needs_pixels = excludes("observe", "state")
_random_crops = any_of(
    excludes("augmentation", "centre-crop"), requires("collection_view", "random-crop")
)
# When each option has an effect; an option without a rule always has one.
RULES: dict[str, Rule] = {
    "negatives": GRID_ONLY,
    "contrastive_learning_rate": requires("contrastive"),
    "contrastive_encoder_steps": requires("contrastive"),
    "collection_view": all_of(_needs_pixels, _crops_differ),
    "last_crop_offset": all_of(_needs_pixels, _crops_differ, _random_crops),
    **dict.fromkeys(("frame_pixels", "crop_pixels", "encoder", "precision"), _needs_pixels),
    **dict.fromkeys(
        ("conv_layers", "conv_filters"), all_of(_needs_pixels, requires("encoder", ""))
    ),
    "noise_scale": requires("augmentation", "noise"),
}


@dataclass(frozen=True)
class SacConfig(OffPolicySettings):
    """Soft actor-critic from pixels or state."""

    base: ClassVar[str] = "sac"
    supported_observations: ClassVar[tuple[ObservationType, ...]] = ("pixels", "state")
    rules: ClassVar[Mapping[str, Rule]] = RULES
    always_hashed: ClassVar[frozenset[str]] = names(
        """
        batch_size warmup_agent_steps replay_capacity_transitions discount learning_rate
        contrastive_learning_rate contrastive_encoder_steps temperature_learning_rate
        temperature_beta1 initial_temperature q_ema_rate encoder_ema_rate
        target_every_updates actor_every_updates conv_layers conv_filters feature_dim
        hidden_dim log_std_min log_std_max precision encoder_tanh last_crop_offset
        collection_view noise_scale
        """
    )

    contrastive_learning_rate: Positive = 1e-3
    """Learning rate of encoder and bilinear weight in the contrastive step: `learning_rate` in the
    paper, 1e-3 for all tasks in the released code."""
    contrastive_encoder_steps: Literal[1, 2] = 2
    """Adam steps of the encoder per contrastive loss: 2 in the released code, where two optimizers update
    the encoder."""
    temperature_learning_rate: Positive = 1e-4
    """Learning rate of the entropy temperature."""
    temperature_beta1: FractionBelowOne = 0.5
    """Adam's first beta for the entropy temperature."""
    initial_temperature: Positive = 0.1
    """Initial value of the entropy temperature, which is learned."""
    encoder_ema_rate: Fraction = 0.05
    """Step size of the exponential moving average that updates the target encoder."""
    target_every_updates: StepCount = 2
    """Number of updates from one update of the target networks to the next."""
    actor_every_updates: StepCount = 2
    """Number of updates from one update of actor and temperature to the next."""
    log_std_min: Annotated[float, Range(-50, 20)] = -10.0
    """Smallest logarithm of the policy's standard deviation."""
    log_std_max: Annotated[float, Range(-50, 20)] = 2.0
    """Largest logarithm of the policy's standard deviation."""
    encoder_tanh: bool = False
    """Tanh after the encoder's LayerNorm: in the paper's text, not in the released code."""
    last_crop_offset: bool = False
    """Also sample the last crop position, which the released code never does."""
    collection_view: Literal["random-crop", "centre-crop"] = "centre-crop"
    """Input of the policy during data collection: a random crop in the paper's Algorithm 1, the centre
    crop in the released code."""
    noise_scale: Positive = 0.01
    """Scale of augmentation=noise, in standard deviations of each component of the state over the
    batch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.log_std_min < self.log_std_max:
            raise ConfigError(
                f"log_std_min={self.log_std_min} conflicts with log_std_max={self.log_std_max}: it "
                "must be below it"
            )

    @property
    def updates_per_cycle(self) -> int:
        """Updates differ in whether they update the actor and the target networks."""
        return math.lcm(self.actor_every_updates, self.target_every_updates)

    def validate(self, config: Config) -> None:
        """Raise ConfigError if the settings conflict with the rest of a run."""
        observe, method = config.env.observe, config.method
        learner = f"SAC on observe={observe}"
        if observe == "state":
            validate_augmentation(method, learner, ("noise", "none"), ("all", "curiosity"))
        else:
            validate_augmentation(method, learner, ("random-crop", "centre-crop"), custom=True)
        if method.augmentation == "none" and method.contrastive:
            raise ConfigError(
                "augmentation=none conflicts with contrastive=True: both of its views would be the "
                "same; use noise"
            )
        self.validate_encoder(config)
