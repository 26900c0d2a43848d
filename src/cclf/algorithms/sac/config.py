"""The settings of SAC: from pixels the paper's (Appendix B). Where the released code disagrees, the
field says so."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from cclf.algorithms.base import (
    default_precision,
    validate_augmentation,
    validate_bf16,
)
from cclf.config import AlgorithmSettings, Config, ObservationType, Precision
from cclf.errors import ConfigError
from cclf.plugins import validate_import_name
from cclf.validation import (
    GRID_ONLY,
    Fraction,
    FractionBelowOne,
    Positive,
    PositiveInt,
    Range,
    Rule,
    StepCount,
    Values,
    all_of,
    any_of,
    excludes_value,
    names,
    requires,
    requires_value,
    validate_fields,
)


def _crops_differ(values: Values) -> str:
    """Whether there is more than one place for a crop."""
    frame, crop = values["frame_pixels"], values["crop_pixels"]
    return (
        "" if frame > crop else f"crop_pixels={crop} and frame_pixels={frame}, which leave one crop"
    )


_of_pixels = excludes_value("observe", "state")
_random_crops = any_of(
    excludes_value("augmentation", "centre-crop"), requires_value("collection_view", "random-crop")
)
RULES: dict[str, Rule] = {  # when options act; one without a rule always does
    "negatives": GRID_ONLY,
    "contrastive_learning_rate": requires("contrastive"),
    "contrastive_encoder_steps": requires("contrastive"),
    "collection_view": all_of(_of_pixels, _crops_differ),
    "last_crop_offset": all_of(_of_pixels, _crops_differ, _random_crops),
    **dict.fromkeys(("frame_pixels", "crop_pixels", "encoder", "precision"), _of_pixels),
    **dict.fromkeys(
        ("conv_layers", "conv_filters"), all_of(_of_pixels, requires_value("encoder", ""))
    ),
    "noise_scale": requires_value("augmentation", "noise"),
}


@dataclass(frozen=True)
class SacConfig(AlgorithmSettings):
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

    batch_size: PositiveInt = 512
    """Transitions in each update."""
    warmup_agent_steps: StepCount = 1_000
    """Uniform random actions, no update."""
    replay_capacity_transitions: StepCount = 100_000
    """Transitions that the replay keeps; the oldest leave first."""
    replay_device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where its frames are kept; auto: on the GPU where they fit."""
    discount: Fraction = 0.99
    """Of rewards to come, per agent step."""
    learning_rate: Positive = 1e-3
    """Encoder, actor and critic."""
    contrastive_learning_rate: Positive = 1e-3
    """Encoder and bilinear weight in the contrastive step: `learning_rate` in the paper, 1e-3
    throughout in the released code."""
    contrastive_encoder_steps: Literal[1, 2] = 2
    """Adam steps of the encoder per contrastive backward: the released code moves it with two
    optimisers of separate moments."""
    temperature_learning_rate: Positive = 1e-4
    """Of the entropy temperature."""
    temperature_beta1: FractionBelowOne = 0.5
    """Adam's first beta for the entropy temperature."""
    initial_temperature: Positive = 0.1
    """The entropy temperature at the start; it is learned."""
    q_ema_rate: Fraction = 0.01
    """Share of the critic that enters its target each time."""
    encoder_ema_rate: Fraction = 0.05
    """Share of the encoder that enters its target each time."""
    target_every_updates: StepCount = 2
    """Updates between two steps of the targets."""
    actor_every_updates: StepCount = 2
    """Updates between two of actor and temperature."""
    encoder: str = ""
    """An image encoder of your own in the place of the convolutions below: MODULE:FUNCTION, which
    makes a torch.nn.Module of (channels, pixels); see docs/extending.md. Runs the module's code."""
    conv_layers: PositiveInt = 4
    """Convolutions of the encoder."""
    conv_filters: PositiveInt = 32
    """Channels of each convolution."""
    feature_dim: PositiveInt = 50
    """Numbers that the encoder makes of an observation."""
    hidden_dim: PositiveInt = 1024
    """Width of the hidden layers of actor and critic; of state also of the layer in the place of
    the convolutions."""
    log_std_min: Annotated[float, Range(-50, 20)] = -10.0
    """Least logarithm of the policy's standard deviation."""
    log_std_max: Annotated[float, Range(-50, 20)] = 2.0
    """Largest logarithm of the policy's standard deviation."""
    precision: Literal["auto", "fp32", "tf32", "bf16"] = "auto"
    """Of the encoder's convolutions and its large linear layer; all else is float32. tf32 and bf16
    need a GPU. auto: on a GPU bf16 where views have the published size, else fp32."""
    encoder_tanh: bool = False
    """Tanh after the encoder's LayerNorm: in the paper's text, not in the released code."""
    last_crop_offset: bool = False
    """Draw the last crop position too: the released code never does."""
    collection_view: Literal["random-crop", "centre-crop"] = "centre-crop"
    """What the policy sees while collecting: g(o) in the paper's algorithm box, the centre crop in
    the released code."""
    noise_scale: Positive = 0.01
    """Of augmentation=noise, in standard deviations of each number of the state over the batch."""

    def __post_init__(self) -> None:
        validate_fields(self)
        if not self.log_std_min < self.log_std_max:
            raise ConfigError(
                f"log_std_min={self.log_std_min} conflicts with log_std_max={self.log_std_max}: it "
                "must be below it"
            )

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
        if self.encoder:
            validate_import_name("encoder", self.encoder, "my_encoders:my_encoder")
        validate_bf16(config)
        pixels, convolves = config.env.crop_pixels, observe == "pixels" and not self.encoder
        if convolves and (pixels - 3) // 2 + 1 - 2 * (self.conv_layers - 1) < 1:
            raise ConfigError(
                f"conv_layers={self.conv_layers} conflicts with crop_pixels={pixels}: "
                "each 3x3 layer takes two pixels and none are left; lower conv_layers"
            )

    def preferred_gpu_precision(self, config: Config) -> Precision:
        return default_precision(config)

    def updates_at(self, agent_steps: int) -> int:
        return max(0, agent_steps - self.warmup_agent_steps)
