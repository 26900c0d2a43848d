"""The settings of A2C on MiniGrid."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from cclf.algorithms.base import reject_eval_workers, validate_augmentation
from cclf.config import AlgorithmSettings, Config
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
)

_NO_PIXELS = always_inactive("A2C on grids, which observes the 7x7 cells of the current step")
RULES: dict[
    str, Rule
] = {  # when each option has an effect; an option without a rule always has one
    "frame_pixels": _NO_PIXELS,
    "crop_pixels": _NO_PIXELS,
    "frame_stack": _NO_PIXELS,
    "contrastive_coefficient": requires("contrastive"),
    "contrastive_hidden_dim": requires("contrastive"),
    "key_ema_rate": requires("contrastive"),
    "bonus_place": requires("reward"),
    "re3_coefficient": requires("re3"),
    "re3_window_observations": requires("re3"),
    "re3_running_mean_bug": requires("re3"),
}


@dataclass(frozen=True)
class A2cConfig(AlgorithmSettings):
    """Settings of A2C on MiniGrid, with the defaults of the RE3 paper."""

    base: ClassVar[str] = "a2c"
    trains_curiosity: ClassVar[bool] = True
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
    """Number of environments that are stepped together."""
    rollout_steps: PositiveInt = 8
    """Steps per environment between two updates."""
    discount: Fraction = 0.99
    """Discount factor per step."""
    gae_lambda: Fraction = 0.95
    """Lambda of the generalised advantage estimate."""
    learning_rate: Positive = 1e-3
    """Learning rate of RMSprop."""
    rmsprop_alpha: FractionBelowOne = 0.99
    """Decay rate of the mean squared gradient in RMSprop."""
    rmsprop_epsilon: Positive = 1e-8
    """Epsilon of RMSprop: 1e-8 in RE3's code. With the 0.05 of the CCLF paper no task is learned."""
    entropy_coefficient: ZeroOrMore = 0.01
    """Weight of the entropy bonus: 0.01 in RE3's code, 0.001 in the CCLF paper. Results depend on it, so
    there is a profile for each."""
    value_coefficient: ZeroOrMore = 0.5
    """Weight of the value loss."""
    max_gradient_norm: Positive = 0.5
    """Gradients are clipped to this norm."""
    contrastive_coefficient: ZeroOrMore = 1e-4
    """Weight of the contrastive loss."""
    contrastive_hidden_dim: PositiveInt = 128
    """Size of the queries and keys of the contrastive loss."""
    key_ema_rate: Fraction = 0.001
    """Rate at which the key network follows the query network, per update."""
    bonus_place: Literal["reward", "centred-reward", "advantage"] = "reward"
    """Where the bonus of Eq. (9) is added. reward: to the reward, as in the paper. centred-reward: to the
    reward, minus the bonus's running mean, because a bonus with a positive mean rewards long episodes.
    advantage: to the advantage, as RE3's bonus."""
    re3: bool = False
    """Add RE3's state-entropy bonus."""
    re3_coefficient: ZeroOrMore = 0.01
    """Weight of RE3's bonus in the advantage."""
    re3_window_observations: StepCount = 10_000
    """Number of latest observations among which RE3 searches for neighbors."""
    re3_running_mean_bug: bool = True
    """Reproduce a bug of the published running mean, which reduces the bonus of the first updates."""

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

    def validate(self, config: Config) -> None:
        """Raise ConfigError if a setting conflicts with the rest of the config."""
        if config.method.prioritisation:
            raise ConfigError(
                "prioritisation=True conflicts with A2C, which has no replay: turn prioritisation off"
            )
        if config.method.regularisation and not config.method.contrastive:
            raise ConfigError(
                "regularisation=True conflicts with contrastive=False: on grids both views are the "
                "same, and only the contrastive loss can be weighted; turn regularisation off"
            )
        reject_eval_workers(config.run, "A2C")
        validate_augmentation(
            config.method, "A2C on grids", augmentations=("none",), selections=("all",)
        )

    def updates_at(self, agent_steps: int) -> int:
        return -(-agent_steps // (self.num_envs * self.rollout_steps))
