"""The settings of A2C on MiniGrid."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cclf.algorithms.base import validate_augmentation, validate_workers
from cclf.config import Config
from cclf.errors import ConfigError
from cclf.validation import (
    Fraction,
    FractionBelowOne,
    Positive,
    PositiveInt,
    Rule,
    StepCount,
    ZeroOrMore,
    always_inactive,
    names,
    requires,
    validate_fields,
    weights_contrastive_loss,
)

_NO_PIXELS = always_inactive(
    "A2C on grids, which sees what the task shows: 7x7 cells, one at a time"
)
RULES: dict[str, Rule] = {  # when options act; one without a rule always does
    "frame_pixels": _NO_PIXELS,
    "crop_pixels": _NO_PIXELS,
    "frame_stack": _NO_PIXELS,
    "regularisation": weights_contrastive_loss,  # its two views are the same: their weights do nothing
    "contrastive_coefficient": requires("contrastive"),
    "contrastive_hidden_dim": requires("contrastive"),
    "key_ema_rate": requires("contrastive"),
    "re3_coefficient": requires("re3"),
    "re3_window_observations": requires("re3"),
    "re3_running_mean_bug": requires("re3"),
}


@dataclass(frozen=True)
class A2cConfig:
    """Advantage actor-critic on MiniGrid, as the RE3 study ran it."""

    base: ClassVar[str] = "a2c"
    rules: ClassVar[Mapping[str, Rule]] = RULES
    always_hashed: ClassVar[frozenset[str]] = names(
        """
        num_envs rollout_steps discount gae_lambda learning_rate rmsprop_alpha
        rmsprop_epsilon entropy_coefficient value_coefficient max_gradient_norm
        contrastive_coefficient contrastive_hidden_dim key_ema_rate re3 re3_coefficient
        re3_window_observations re3_running_mean_bug
        """
    )

    num_envs: PositiveInt = 16
    """Environments that step together."""
    rollout_steps: PositiveInt = 8
    """Steps of each environment between two updates."""
    discount: Fraction = 0.99
    """Of rewards to come, per step."""
    gae_lambda: Fraction = 0.95
    """Lambda of the generalised advantage estimate."""
    learning_rate: Positive = 1e-3
    """Of RMSprop, for all parameters."""
    rmsprop_alpha: FractionBelowOne = 0.99
    """Share of the old mean square that RMSprop keeps."""
    rmsprop_epsilon: Positive = 1e-8
    """The CCLF table says 0.05, with which nothing is learned; RE3's code has 1e-8."""
    entropy_coefficient: ZeroOrMore = 0.01
    """0.01 in RE3's code, 0.001 in the CCLF table: it decides the outcome, so it is what the two
    profiles differ in."""
    value_coefficient: ZeroOrMore = 0.5
    """Weight of the value loss beside the policy's."""
    max_gradient_norm: Positive = 0.5
    """Larger gradients are scaled down to this norm."""
    contrastive_coefficient: ZeroOrMore = 1e-4
    """Weight of the contrastive loss beside the others."""
    contrastive_hidden_dim: PositiveInt = 128
    """Width of the features that queries and keys are compared by."""
    key_ema_rate: Fraction = 0.001
    """Share of the query network that enters the key network each update."""
    re3: bool = False
    """Add RE3's state-entropy bonus."""
    re3_coefficient: ZeroOrMore = 0.01
    """Weight of RE3's bonus in the advantage."""
    re3_window_observations: StepCount = 10_000
    """Observations that RE3 looks for neighbours in."""
    re3_running_mean_bug: bool = True
    """Keep the bug of the published running mean, which damps the bonus of the first updates."""

    def __post_init__(self) -> None:
        validate_fields(self)
        batch_size = self.num_envs * self.rollout_steps
        if batch_size < 2:
            raise ConfigError(
                "num_envs=1 conflicts with rollout_steps=1: an update needs two transitions or more"
            )
        if self.re3 and self.re3_window_observations < batch_size:
            raise ConfigError(
                f"re3_window_observations={self.re3_window_observations} conflicts with "
                f"num_envs={self.num_envs} and "
                f"rollout_steps={self.rollout_steps}: an update's observations must fit; use "
                f"{batch_size} or more"
            )

    def check(self, config: Config) -> None:
        """Refuse what does not go together with the rest of a run."""
        if config.method.prioritisation:
            raise ConfigError(
                "prioritisation=True conflicts with A2C: it keeps no replay to draw from; turn "
                "prioritisation off"
            )
        validate_workers(config.run, "A2C", ("eval_workers", "env_worker"))
        validate_augmentation(
            config.method, "A2C on grids", augmentations=("none",), selections=("all",)
        )

    def updates_at(self, agent_steps: int) -> int:
        return -(-agent_steps // (self.num_envs * self.rollout_steps))
