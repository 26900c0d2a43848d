"""The settings of data-efficient Rainbow (van Hasselt et al., 2019) as in CURL's code; see
docs/algorithms.md."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from cclf.algorithms.base import validate_augmentation
from cclf.config import AlgorithmSettings, Config, Precision
from cclf.errors import ConfigError
from cclf.validation import (
    GRID_ONLY,
    Fraction,
    Positive,
    PositiveInt,
    Range,
    Rule,
    StepCount,
    StepCountOrZero,
    Values,
    ZeroOrMore,
    all_of,
    any_of,
    excludes,
    names,
    requires,
    validate_fields,
)

_td_priorities = all_of(excludes("prioritisation"), requires("base_replay", "td-error"))
_nonuniform_replay = any_of(
    requires("prioritisation"),
    all_of(requires("base_replay", "td-error"), excludes("priority_exponent", 0.0)),
)
_importance_weights = all_of(requires("importance_sampling"), _nonuniform_replay)
_learns_from_views = any_of(requires("contrastive"), requires("q_observations", "views"))


def _coefficients_differ(values: Values) -> str:
    value = values["cclf_coefficient"]
    return (
        f"curl_coefficient=cclf_coefficient={value}" if value == values["curl_coefficient"] else ""
    )


# When each option has an effect; an option without a rule always has one.
RULES: dict[str, Rule] = {
    "negatives": GRID_ONLY,
    "augmentation": _learns_from_views,
    "q_observations": excludes("augmentation", "none"),
    "intensity_scale": all_of(excludes("augmentation", "none"), _learns_from_views),
    "base_replay": excludes("prioritisation"),
    "priority_exponent": _td_priorities,
    "importance_sampling": _nonuniform_replay,
    "importance_beta": _importance_weights,
    "importance_beta_agent_steps": all_of(_importance_weights, excludes("importance_beta", 1.0)),
    "warmup_policy": all_of(
        lambda values: (
            ""
            if values["epsilon_decay_agent_steps"] == 0
            else "epsilon that starts at 1, which is uniform already"
        ),
        excludes("epsilon_train", 1.0),
    ),
    "epsilon_decay_agent_steps": excludes("epsilon_train", 1.0),
    # A target network that is updated after every update and has no noise selects the same actions as
    # the online network.
    "double_q": any_of(
        excludes("target_every_agent_steps", 1),
        excludes("updates_per_agent_step", 1),
        requires("noisy"),
    ),
    "noisy_sigma": requires("noisy"),
    "atoms": requires("distributional"),
    "value_max": requires("distributional"),
    "key_ema_rate": requires("contrastive"),
    "logit_scale": requires("contrastive"),
    "contrastive_hidden_dim": requires("contrastive"),
    "contrastive_dim": requires("contrastive"),
    "contrastive_list": all_of(requires("contrastive"), _coefficients_differ),
    "cclf_coefficient": all_of(requires("contrastive"), requires("contrastive_list", "cclf")),
    "curl_coefficient": all_of(requires("contrastive"), requires("contrastive_list", "curl")),
    "contrastive_joins_td": all_of(
        requires("contrastive"),
        any_of(all_of(_td_priorities, excludes("priority_exponent", 0.0)), _importance_weights),
    ),
}


@dataclass(frozen=True)
class RainbowConfig(AlgorithmSettings):
    """Data-efficient Rainbow on Atari (van Hasselt et al., 2019) as in CURL's code; see
    docs/algorithms.md."""

    base: ClassVar[str] = "rainbow"
    rules: ClassVar[Mapping[str, Rule]] = RULES
    always_hashed: ClassVar[frozenset[str]] = names(
        """
        batch_size learn_start_agent_steps warmup_policy updates_per_agent_step
        replay_capacity_transitions discount n_steps n_step_bug base_replay
        priority_exponent importance_sampling importance_beta importance_beta_agent_steps
        learning_rate adam_epsilon max_gradient_norm target_every_agent_steps key_ema_rate
        convolutions hidden_dim distributional atoms value_max noisy noisy_sigma dueling
        double_q epsilon_train epsilon_decay_agent_steps epsilon_eval q_observations
        intensity_scale contrastive_list cclf_coefficient curl_coefficient
        contrastive_hidden_dim contrastive_dim logit_scale precision contrastive_joins_td
        """
    )

    batch_size: PositiveInt = 32
    """Transitions in each update."""
    learn_start_agent_steps: StepCount = 1_600
    """The first update follows this agent step."""
    warmup_policy: Literal["noisy-net", "uniform"] = "noisy-net"
    """Policy before the first update: the untrained noisy network (CURL's code), or uniform random actions
    (the CCLF paper)."""
    updates_per_agent_step: PositiveInt = 1
    """Updates after each agent step."""
    replay_capacity_transitions: StepCount = 100_000
    """Transitions that the replay holds; the oldest are overwritten first."""
    replay_device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device that stores the frames of the replay; auto: the GPU if they fit there."""
    discount: Fraction = 0.99
    """Discount factor per agent step."""
    n_steps: PositiveInt = 20
    """Number of rewards in the n-step return, before it bootstraps."""
    n_step_bug: bool = False
    """Keep CURL's bug: no bootstrap if the step after the n-th ended the episode."""
    base_replay: Literal["td-error", "uniform"] = "td-error"
    """How replay is sampled if curiosity does not prioritise it."""
    priority_exponent: Fraction = 0.5
    """Exponent of TD-error priorities. Priorities by curiosity have no exponent."""
    importance_sampling: bool = False
    """Weight each sample's loss by (N P)^-beta, divided by the largest weight of the batch: Rainbow's
    correction of the bias of prioritized sampling."""
    importance_beta: Fraction = 0.4
    """Beta of the importance weights at the start of learning."""
    importance_beta_agent_steps: StepCount = 98_400
    """Agent steps after the start of learning in which beta rises to 1."""
    learning_rate: Positive = 1e-4
    """Learning rate of Adam, for all parameters."""
    adam_epsilon: Positive = 1.5e-4
    """Epsilon of Adam."""
    max_gradient_norm: Positive = 10.0
    """Gradients are clipped to this norm."""
    target_every_agent_steps: StepCount = 2_000
    """Agent steps between two updates of the target network."""
    key_ema_rate: Fraction = 0.001
    """Update rate of the momentum network, which encodes keys."""
    convolutions: Literal["data-efficient", "nature"] = "data-efficient"
    """The encoder: two layers (data-efficient Rainbow), or three (DQN in Nature)."""
    hidden_dim: PositiveInt = 256
    """Width of the hidden layers of the value heads."""
    distributional: bool = True
    """Learn C51's distribution with a cross-entropy loss; if off, Q values with a Huber loss."""
    atoms: Annotated[int, Range(2, 10_000)] = 51
    """Atoms of C51's distribution."""
    value_max: Positive = 10.0
    """The support of C51 is [-value_max, value_max]."""
    noisy: bool = True
    """Explore by noisy layers."""
    noisy_sigma: ZeroOrMore = 0.1
    """Initial scale of the noise of noisy layers."""
    dueling: bool = True
    """Split Q into value and advantage."""
    double_q: bool = True
    """Select the next action by the online network, and evaluate it by the target network."""
    epsilon_train: Fraction = 0.0
    """Share of random actions in training."""
    epsilon_decay_agent_steps: StepCountOrZero = 0
    """Agent steps after the start of learning in which epsilon decreases from 1 to `epsilon_train`; 0
    starts at `epsilon_train`."""
    epsilon_eval: Fraction = 0.001
    """Share of random actions in evaluation."""
    q_observations: Literal["views", "original"] = "views"
    """Observations of the Q loss and its target: the augmented views (CCLF, DrQ) or the original
    frames (Rainbow, CURL)."""
    intensity_scale: ZeroOrMore = 0.0
    """Multiply each view by 1 + scale * N, where N is standard normal, clipped to [-2, 2]: 0.05 in
    DrQ."""
    contrastive_list: Literal["cclf", "curl"] = "cclf"
    """Table that the weight of the contrastive loss in each game is taken from, `cclf_coefficient` or
    `curl_coefficient`; see docs/algorithms.md."""
    cclf_coefficient: ZeroOrMore = 1e-4
    """Weight of the contrastive loss in the table of the CCLF paper."""
    curl_coefficient: ZeroOrMore = 1.0
    """Weight of the contrastive loss in CURL's code."""
    contrastive_hidden_dim: PositiveInt = 256
    """Width of the hidden layer of the contrastive head."""
    contrastive_dim: PositiveInt = 128
    """Dimension of queries and keys."""
    logit_scale: Positive = 0.1
    """Factor of the logits of belief and contrastive loss."""
    precision: Literal["auto", "fp32", "tf32"] = "auto"
    """Precision of matrix products; tf32 rounds their factors to 11 bits, sums in float32, and needs a
    GPU. auto: tf32 on a GPU, fp32 on a CPU."""
    contrastive_joins_td: bool = False
    """Add the contrastive loss to the loss of each sample, as CURL's code does: importance weights
    scale it, and TD-error priorities include it."""

    @property
    def contrastive_coefficient(self) -> float:
        return self.cclf_coefficient if self.contrastive_list == "cclf" else self.curl_coefficient

    def __post_init__(self) -> None:
        validate_fields(self)
        if self.learn_start_agent_steps <= self.n_steps:
            raise ConfigError(
                f"learn_start_agent_steps={self.learn_start_agent_steps} conflicts with "
                f"n_steps={self.n_steps}: "
                "no transition has its n steps yet; increase learn_start_agent_steps"
            )

    def validate(self, config: Config) -> None:
        """Raise ConfigError if the settings conflict with the rest of a run."""
        validate_augmentation(
            config.method,
            "Rainbow",
            augmentations=("crop-pad-crop", "shift", "none"),
            selections=("all", "curiosity"),
        )
        if config.env.crop_pixels != config.env.frame_pixels:
            raise ConfigError(
                f"crop_pixels={config.env.crop_pixels} conflicts with "
                f"frame_pixels={config.env.frame_pixels}: "
                "Rainbow's augmentations keep the size of a frame"
            )
        min_pixels = {"data-efficient": 25, "nature": 36}[self.convolutions]
        if config.env.frame_pixels < min_pixels:
            raise ConfigError(
                f"convolutions={self.convolutions} conflicts with "
                f"frame_pixels={config.env.frame_pixels}: use {min_pixels} or more"
            )
        if config.method.augmentation == "none" and config.method.contrastive:
            raise ConfigError(
                "augmentation=none conflicts with contrastive=True: two views would be the same; use "
                "crop-pad-crop"
            )
        if config.method.augmentation == "none" and self.intensity_scale:
            raise ConfigError(
                f"intensity_scale={self.intensity_scale} conflicts with augmentation=none: there are no "
                "views to multiply"
            )
        if self.q_observations == "original" and config.method.views > 1:
            other = ", ".join(config.method.active_pieces) or f"views={config.method.views}"
            raise ConfigError(
                f"q_observations=original conflicts with {other}: Q would not learn from the "
                "views; use q_observations=views"
            )

    def preferred_gpu_precision(self, config: Config) -> Precision:  # noqa: ARG002 (of every run)
        return "tf32"

    def updates_at(self, agent_steps: int) -> int:
        return max(0, agent_steps - self.learn_start_agent_steps + 1) * self.updates_per_agent_step

    # What happens at each agent step; the first is step 1.

    def updates_in_step(self, step: int) -> int:
        """The number of updates of this step."""
        return self.updates_per_agent_step if step >= self.learn_start_agent_steps else 0

    def update_index(self, step: int, update: int = 0) -> int:
        """The index of an update, which determines its random numbers. The agent acts with the noise
        of the first update of the step."""
        return step * self.updates_per_agent_step + update

    def updates_target_at(self, step: int) -> bool:
        """Whether the online network is copied to the target network after this step."""
        return self.updates_in_step(step) > 0 and step % self.target_every_agent_steps == 0

    def beta_at(self, step: int) -> float:
        """The exponent of the importance weights, which increases to 1. The first update is already
        one step above the initial value."""
        steps = step - self.learn_start_agent_steps + 1
        progress = steps / self.importance_beta_agent_steps
        return min(1.0, self.importance_beta + (1.0 - self.importance_beta) * progress)

    def epsilon_at(self, step: int) -> float:
        """The probability of a random action."""
        if self.warmup_policy == "uniform" and step < self.learn_start_agent_steps:
            return 1.0
        decay = self.epsilon_decay_agent_steps
        steps_left = self.learn_start_agent_steps + decay - step
        remaining = min(1.0, max(0.0, steps_left / decay)) if decay else 0.0
        return self.epsilon_train + (1.0 - self.epsilon_train) * remaining
