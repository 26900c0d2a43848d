"""Every number of a run, in frozen dataclasses. Standard library only: reading the configuration must never import torch.

Values here are the paper's (Appendix B, tables for SAC). Where the paper and the released code disagree, the field says so in
its comment; `cclf.presets.PROFILES` holds the two readings, and docs/deviations.md the reasons.
"""

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from cclf import fields
from cclf.fields import Count, CountOrZero, Positive, Range, Share, ShareBelowOne, Size, ZeroOrMore

Precision = Literal["fp32", "tf32", "bf16"]


class ConfigError(ValueError):
    """Bad input from the user: shown as one line, exit code 2."""


class WorkerError(ValueError):
    """An environment failed for good in its process: shown as one line and, below it, the details; exit code 1."""

    def __init__(self, line: str, details: str = ""):
        super().__init__(line)
        self.details = details


def _check_fields(config: Any) -> None:
    """Every field holds a value of its type and range: what a command line gives, and what a file says."""
    for name, kind in fields.types_of(config.__class__).items():
        wrong = fields.complaint(getattr(config, name), kind)
        if wrong:
            raise ConfigError(f"{name}={getattr(config, name)} {wrong}")


@dataclass(frozen=True)
class EnvConfig:
    """What the agent sees and does."""

    frame_pixels: Size = 100
    """Side of the square frame that the environment renders and the replay stores."""
    crop_pixels: Size = 84
    """Side of the crops that the networks see."""
    frame_stack: Size = 3
    """Consecutive frames in one observation."""
    action_repeat: Size = 4
    """Environment steps per agent step."""

    def __post_init__(self) -> None:
        _check_fields(self)
        if self.crop_pixels > self.frame_pixels:
            raise ConfigError(
                f"crop_pixels={self.crop_pixels} clashes with frame_pixels={self.frame_pixels}: "
                "a crop cannot be larger than its frame; lower crop_pixels"
            )


@dataclass(frozen=True)
class MethodConfig:
    """Which views are made of an observation, and which of the four pieces curiosity drives."""

    augmentation: Literal["random-crop", "centre-crop", "none", "crop-pad-crop", "shift"] = "random-crop"
    """"none" duplicates the observation, as on MiniGrid: its two views are the same. On Atari "crop-pad-crop" is CURL's (84 to 80
    pixels, padded to 88, back to 84), "shift" is DrQ's (padded to 92, back to 84)."""
    views: Annotated[int, Range(1, 64)] = 5
    """Augmented views of each observation, the paper's [K, M] with K = M."""
    selection: Literal["all", "overlap", "curiosity"] = "curiosity"
    """Which views enter the losses: all, or the anchor and the one chosen by Eq. (4) or Eq. (5)."""
    contrastive: bool = True
    """Train encoder and belief by the contrastive loss, Eq. (8)."""
    prioritisation: bool = True
    """Replay by curiosity, Eq. (6)."""
    regularisation: bool = True
    """Weight Q loss, target and contrastive loss by curiosity, Eq. (7) and (8)."""
    reward: bool = True
    """Pay curiosity as an intrinsic reward, Eq. (9)."""
    priority_momentum: Share = 0.99
    bonus_temperature: ZeroOrMore = 0.2
    bonus_decay_per_env_step: ZeroOrMore = 2e-5
    contrastive_reduction: Literal["sum", "weighted-mean"] = "weighted-mean"
    """Eq. (8): the paper sums over the batch, the released code divides by the sum of the weights."""
    bonus_maxima: Literal["of-curiosity", "of-paid-bonus", "one"] = "of-paid-bonus"
    """r_max in Eq. (9): maxima so far of reward and curiosity (paper), or maxima from 1e-5 of reward and of the bonus already
    scaled and decayed, used before this batch enters them (released code), or 1, the bound of both on MiniGrid."""
    negatives: Literal["all", "distinct"] = "all"
    """Keys a belief competes with: the whole batch as in the paper, or each distinct observation once."""

    @property
    def learned_views(self) -> int:
        """Views that enter the losses."""
        return self.views if self.selection == "all" else 2

    @property
    def drawn_views(self) -> int:
        """Views made of each observation; with a single learned view the contrastive loss needs one more, its key."""
        return max(self.views, 2) if self.contrastive else self.views

    def __post_init__(self) -> None:
        _check_fields(self)
        pieces = [name for name in ("prioritisation", "regularisation", "reward") if getattr(self, name)]
        if self.selection == "curiosity":
            pieces.insert(0, "selection=curiosity")
        if pieces and not self.contrastive:
            raise ConfigError(
                f"contrastive=False clashes with {pieces[0]}: curiosity is the error of a belief that only the contrastive loss "
                f"trains; turn contrastive on or {pieces[0]} off"
            )
        if self.augmentation == "centre-crop" and (self.views > 1 or self.contrastive):
            other = "contrastive=True" if self.contrastive else f"views={self.views}"
            raise ConfigError(f"augmentation=centre-crop clashes with {other}: all centre crops are the same; use random-crop")
        if self.selection != "all" and self.views < 3:
            raise ConfigError(
                f"selection={self.selection} clashes with views={self.views}: there is nothing to choose from; use views>=3"
            )
        if self.augmentation == "none" and self.views != 1:
            raise ConfigError(f"augmentation=none clashes with views={self.views}: duplicates are all the same; use views=1")
        if pieces and self.views < 2 and self.augmentation != "none":
            raise ConfigError(
                f"{pieces[0]} clashes with views={self.views} and augmentation={self.augmentation}: curiosity compares two "
                "views; use views>=2"
            )
        if pieces and self.selection == "all" and self.views != 2 and self.augmentation != "none":
            raise ConfigError(
                f"{pieces[0]} clashes with selection=all and views={self.views}: without a selection the pair is two views; "
                "use views=2"
            )


@dataclass(frozen=True)
class SacConfig:
    """Soft actor-critic from pixels."""

    batch_size: Size = 512
    warmup_agent_steps: Count = 1_000
    """Uniform random actions, no update."""
    replay_capacity_transitions: Count = 100_000
    replay_device: Literal["auto", "cpu", "cuda"] = "auto"
    discount: Share = 0.99
    learning_rate: Positive = 1e-3
    """Encoder, actor and critic."""
    contrastive_learning_rate: Positive = 1e-3
    """Encoder and bilinear weight in the contrastive step: `learning_rate` in the paper, 1e-3 throughout in the released code."""
    contrastive_encoder_steps: Literal[1, 2] = 2
    """Adam steps of the encoder per contrastive backward: the released code moves it with two optimisers of separate moments."""
    temperature_learning_rate: Positive = 1e-4
    temperature_beta1: ShareBelowOne = 0.5
    initial_temperature: Positive = 0.1
    q_ema_rate: Share = 0.01
    encoder_ema_rate: Share = 0.05
    target_every_updates: Count = 2
    actor_every_updates: Count = 2
    conv_layers: Size = 4
    conv_filters: Size = 32
    feature_dim: Size = 50
    hidden_dim: Size = 1024
    log_std_min: Annotated[float, Range(-50, 20)] = -10.0
    log_std_max: Annotated[float, Range(-50, 20)] = 2.0
    precision: Precision = "fp32"
    """Of the encoder's convolutions and its large linear layer; all else is float32. tf32 and bf16 need a GPU."""
    encoder_tanh: bool = False
    """Tanh after the encoder's LayerNorm: in the paper's text, not in the released code."""
    last_crop_offset: bool = False
    """Draw the last crop position too: the released code never does."""
    collection_view: Literal["random-crop", "centre-crop"] = "centre-crop"
    """What the policy sees while collecting: g(o) in the paper's algorithm box, the centre crop in the released code."""

    def __post_init__(self) -> None:
        _check_fields(self)
        if not self.log_std_min < self.log_std_max:
            raise ConfigError(f"log_std_min={self.log_std_min} clashes with log_std_max={self.log_std_max}: it must be below it")


@dataclass(frozen=True)
class A2cConfig:
    """Advantage actor-critic on MiniGrid, as the RE3 study ran it."""

    num_envs: Size = 16
    rollout_steps: Size = 8
    discount: Share = 0.99
    gae_lambda: Share = 0.95
    learning_rate: Positive = 1e-3
    rmsprop_alpha: ShareBelowOne = 0.99
    rmsprop_epsilon: Positive = 1e-8
    """The CCLF table says 0.05, with which nothing is learned; RE3's code has 1e-8."""
    entropy_coefficient: ZeroOrMore = 0.01
    """0.01 in RE3's code, 0.001 in the CCLF table: it decides the outcome, so it is what the two profiles differ in."""
    value_coefficient: ZeroOrMore = 0.5
    max_gradient_norm: Positive = 0.5
    contrastive_coefficient: ZeroOrMore = 1e-4
    contrastive_hidden_dim: Size = 128
    key_ema_rate: Share = 0.001
    re3: bool = False
    """Add RE3's state-entropy bonus."""
    re3_coefficient: ZeroOrMore = 0.01
    re3_window_observations: Count = 10_000
    re3_running_mean_slip: bool = True
    """Keep the slip in the published running mean, which damps the bonus of the first updates."""

    def __post_init__(self) -> None:
        _check_fields(self)
        batch_size = self.num_envs * self.rollout_steps
        if batch_size < 2:
            raise ConfigError("num_envs=1 clashes with rollout_steps=1: an update needs two transitions or more")
        if self.re3 and self.re3_window_observations < batch_size:
            raise ConfigError(
                f"re3_window_observations={self.re3_window_observations} clashes with num_envs={self.num_envs} and "
                f"rollout_steps={self.rollout_steps}: an update's observations must fit; use {batch_size} or more"
            )


@dataclass(frozen=True)
class RainbowConfig:
    """Data-efficient Rainbow on Atari (van Hasselt et al., 2019), as CURL's code runs it; see docs/atari.md."""

    batch_size: Size = 32
    learn_start_agent_steps: Count = 1_600
    """The first update follows this agent step."""
    warmup_policy: Literal["noisy-net", "uniform"] = "noisy-net"
    """Before the first update: the untrained network (CURL's code), or uniform random actions (the CCLF paper)."""
    updates_per_agent_step: Size = 1
    replay_capacity_transitions: Count = 100_000
    replay_device: Literal["auto", "cpu", "cuda"] = "auto"
    discount: Share = 0.99
    n_steps: Size = 20
    n_step_slip: bool = False
    """Keep CURL's slip: no bootstrap either where the step after the n-th ended the episode."""
    base_replay: Literal["td-error", "uniform"] = "td-error"
    """How replay is drawn where curiosity does not prioritise it."""
    priority_exponent: Share = 0.5
    """Of TD-error priorities; curiosity enters as it is."""
    importance_sampling: bool = False
    """Weigh each sample by (N P)^-beta over the largest of the batch: Rainbow's, beside its TD-error priorities."""
    importance_beta: Share = 0.4
    importance_beta_agent_steps: Count = 98_400
    """Agent steps after the start of learning in which beta rises to 1."""
    learning_rate: Positive = 1e-4
    adam_epsilon: Positive = 1.5e-4
    max_gradient_norm: Positive = 10.0
    target_every_agent_steps: Count = 2_000
    key_ema_rate: Share = 0.001
    """Of the momentum network that encodes keys."""
    convolutions: Literal["data-efficient", "nature"] = "data-efficient"
    hidden_dim: Size = 256
    distributional: bool = True
    """C51 with cross-entropy, or plain Q values with a Huber loss."""
    atoms: Annotated[int, Range(2, 10_000)] = 51
    value_max: Positive = 10.0
    """The support of C51 is [-value_max, value_max]."""
    noisy: bool = True
    noisy_sigma: ZeroOrMore = 0.1
    dueling: bool = True
    double_q: bool = True
    epsilon_train: Share = 0.0
    epsilon_decay_agent_steps: CountOrZero = 0
    """Agent steps after the start of learning in which epsilon falls from 1 to `epsilon_train`; 0 starts there."""
    epsilon_eval: Share = 0.001
    q_observations: Literal["views", "original"] = "views"
    """What the Q loss and its target see: the augmented views (CCLF, DrQ) or the frames as they are (Rainbow, CURL)."""
    intensity_scale: ZeroOrMore = 0.0
    """Multiply each view by 1 + scale * N, N standard normal within two deviations: DrQ has 0.05."""
    contrastive_list: Literal["cclf", "curl"] = "cclf"
    """Whose table of coefficients per game is used; the two papers disagree, see docs/atari.md."""
    cclf_coefficient: ZeroOrMore = 1e-4
    curl_coefficient: ZeroOrMore = 1.0
    contrastive_hidden_dim: Size = 256
    contrastive_dim: Size = 128
    logit_scale: Positive = 0.1
    """Inside the softmax of belief and contrastive loss."""
    precision: Literal["fp32", "tf32"] = "fp32"
    """Of matrix products; tf32 rounds their factors to 11 bits, sums in float32, and needs a GPU."""
    contrastive_joins_td: bool = False
    """CURL's code adds the contrastive loss to each sample's own: importance weights scale it, TD priorities contain it."""

    @property
    def contrastive_coefficient(self) -> float:
        return self.cclf_coefficient if self.contrastive_list == "cclf" else self.curl_coefficient

    def __post_init__(self) -> None:
        _check_fields(self)
        if self.learn_start_agent_steps <= self.n_steps:
            raise ConfigError(
                f"learn_start_agent_steps={self.learn_start_agent_steps} clashes with n_steps={self.n_steps}: "
                "no transition has its n steps yet; learn later"
            )


AlgorithmConfig = SacConfig | A2cConfig | RainbowConfig


@dataclass(frozen=True)
class RunConfig:
    """How long, where, and what is written. Nothing here changes what is learned, except `env_steps`, which says when to stop."""

    env_steps: Count = 100_000
    """The budget, in environment steps (agent steps x action repeat)."""
    eval_every_env_steps: Count = 10_000
    eval_episodes: Size = 10
    eval_workers: Annotated[int, Range(0, 256)] | None = None
    """Processes that play evaluation episodes while training goes on. With 0 this process plays them: SAC on a GPU between its
    turns, else training waits. Unless told: on a GPU one per episode as far as there are cores, on a CPU 0."""
    env_worker: bool = False
    """Keep the training environment in a process of its own: where a renderer crashes or hangs, another takes its place and the
    run goes on as if nothing had happened. Those of several runs in one process step at the same time."""
    final_eval_episodes: Annotated[int, Range(0, 100_000)] = 0
    """Episodes of a last evaluation at the end of the budget, written to final.csv; 0 for none."""
    log_every_agent_steps: Count = 100
    device: str = "auto"
    """cpu, cuda, cuda:N, or auto: the GPU when there is one."""
    threads: Annotated[int, Range(0, 1024)] = 0
    """CPU threads of PyTorch; 0 is one beside a GPU, where more get in the way, and PyTorch's default on a CPU."""
    video: bool = True
    """Write an mp4 of one episode of the last evaluation. Without its packages (pip extra `video`, on MiniGrid also `minigrid`) a
    warning says so before the first step, and the run goes on without."""
    tensorboard: bool = True
    """Mirror the tables in TensorBoard. Without its package (pip extra `tensorboard`) a warning says so, as for the video."""
    cuda_graphs: bool = True
    """On a GPU, start the kernels of an update as one."""
    compile: bool = True
    """On a GPU, fuse the kernels of the encoder; costs ten to twenty seconds at the start."""
    deterministic: bool = False
    """On a GPU, kernels that give the same bits each time, wherever PyTorch has one; slower. A CPU needs no telling."""

    def __post_init__(self) -> None:
        _check_fields(self)


@dataclass(frozen=True)
class Config:
    """A whole run: `cclf.presets.resolve` makes it from names, `to_dict` and `from_dict` carry it to disk and back."""

    task: str
    method_name: str
    seed: Annotated[int, Range(0, 2**63 - 1)] = 1
    profile: str = "released"
    env: EnvConfig = field(default_factory=EnvConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    algorithm: AlgorithmConfig = field(default_factory=SacConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        _check_fields(self)
        if isinstance(self.algorithm, A2cConfig) and self.method.prioritisation:
            raise ConfigError("prioritisation=True clashes with A2C: it keeps no replay to draw from; turn prioritisation off")
        for name in ("eval_workers", "env_worker"):
            clashing = A2cConfig if name == "eval_workers" else (A2cConfig, RainbowConfig)
            if getattr(self.run, name) and isinstance(self.algorithm, clashing):
                learner = "A2C" if isinstance(self.algorithm, A2cConfig) else "Rainbow"
                raise ConfigError(
                    f"{name}={getattr(self.run, name)} clashes with {learner}, whose games are stepped as one; leave it"
                )
        learner, augmentations, selections = {
            SacConfig: ("SAC on pixels", ("random-crop", "centre-crop"), ("all", "overlap", "curiosity")),
            A2cConfig: ("A2C on grids", ("none",), ("all",)),
            RainbowConfig: ("Rainbow", ("crop-pad-crop", "shift", "none"), ("all", "curiosity")),
        }[type(self.algorithm)]
        for name, known in (("augmentation", augmentations), ("selection", selections)):
            if getattr(self.method, name) not in known:
                chosen = f"{name}={getattr(self.method, name)}"
                raise ConfigError(f"{chosen} clashes with {learner}: use one of {', '.join(known)}")
        if isinstance(self.algorithm, RainbowConfig):
            self._check_rainbow(self.algorithm)
        layers = self.algorithm.conv_layers if isinstance(self.algorithm, SacConfig) else 0
        if (self.env.crop_pixels - 3) // 2 + 1 - 2 * (layers - 1) < 1:
            raise ConfigError(
                f"conv_layers={layers} clashes with crop_pixels={self.env.crop_pixels}: "
                "each 3x3 layer takes two pixels and none are left; lower conv_layers"
            )

    def _check_rainbow(self, rainbow: RainbowConfig) -> None:
        if self.env.crop_pixels != self.env.frame_pixels:
            raise ConfigError(
                f"crop_pixels={self.env.crop_pixels} clashes with frame_pixels={self.env.frame_pixels}: "
                "Rainbow's augmentations keep the size of a frame"
            )
        least = {"data-efficient": 25, "nature": 36}[rainbow.convolutions]
        if self.env.frame_pixels < least:
            raise ConfigError(
                f"convolutions={rainbow.convolutions} clashes with frame_pixels={self.env.frame_pixels}: use {least} or more"
            )
        if self.method.augmentation == "none" and self.method.contrastive:
            raise ConfigError("augmentation=none clashes with contrastive=True: two views would be the same; use crop-pad-crop")
        if self.method.augmentation == "none" and rainbow.intensity_scale:
            raise ConfigError(f"intensity_scale={rainbow.intensity_scale} clashes with augmentation=none: it would do nothing")
        pieces = [name for name in ("prioritisation", "regularisation", "reward") if getattr(self.method, name)]
        pieces += ["selection"] if self.method.selection != "all" else []
        if rainbow.q_observations == "original" and (pieces or self.method.views > 1):
            other = pieces[0] if pieces else f"views={self.method.views}"
            raise ConfigError(
                f"q_observations=original clashes with {other}: Q would learn from none of the views; use q_observations=views"
            )

    @property
    def planned_agent_steps(self) -> int:
        return -(-self.run.env_steps // self.env.action_repeat)

    @property
    def planned_updates(self) -> int:
        return self.updates_at(self.planned_agent_steps)

    def updates_at(self, agent_steps: int) -> int:
        if isinstance(self.algorithm, A2cConfig):
            return -(-agent_steps // (self.algorithm.num_envs * self.algorithm.rollout_steps))
        if isinstance(self.algorithm, RainbowConfig):
            turns = max(0, agent_steps - self.algorithm.learn_start_agent_steps + 1)
            return turns * self.algorithm.updates_per_agent_step
        return max(0, agent_steps - self.algorithm.warmup_agent_steps)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> "Config":
        marks = {"rollout_steps": A2cConfig, "n_steps": RainbowConfig}  # fields that only these have
        algorithm = next((kind for mark, kind in marks.items() if mark in values["algorithm"]), SacConfig)
        groups = {"env": EnvConfig, "method": MethodConfig, "algorithm": algorithm, "run": RunConfig}
        return Config(**{key: groups[key](**value) if key in groups else value for key, value in values.items()})

    def learning_values(self) -> dict[str, Any]:
        """The flat part of the config that decides what is learned: it names the run folder and guards a resume."""
        flat = {"task": self.task, "method_name": self.method_name, "seed": self.seed}
        for group in ("env", "method", "algorithm"):
            flat |= {f"{group}.{key}": value for key, value in dataclasses.asdict(getattr(self, group)).items()}
        flat.pop("algorithm.replay_device", None)
        return flat

    def run_name(self) -> str:
        """`suite/task/method/seed-3-1a2b3c4d`: from the config alone, never from the clock."""
        digest = hashlib.sha256(json.dumps(self.learning_values(), sort_keys=True).encode()).hexdigest()[:8]
        return f"{self.task}/{self.method_name}/seed-{self.seed}-{digest}"
