"""Every number of a run, in frozen dataclasses. Standard library only: reading the configuration
must never import torch.

Here is what every run has. The settings of a base algorithm are in its package,
`cclf.algorithms.NAME.config`.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Protocol

from cclf import plugins
from cclf.errors import ConfigError, did_you_mean
from cclf.plugins import validate_import_name
from cclf.validation import (
    METHOD_RULES,
    Fraction,
    PositiveInt,
    Range,
    Rule,
    Seed,
    StepCount,
    ZeroOrMore,
    names,
    validate_fields,
)

Precision = Literal["fp32", "tf32", "bf16"]
CURIOSITIES = ("belief", "shuffled", "even")  # `cclf.curiosity` has their implementation
AUGMENTATIONS = ("random-crop", "centre-crop", "none", "crop-pad-crop", "shift", "noise")
IMPORTED_OPTIONS = (
    "encoder",
    "curiosity",
    "augmentation",
)  # their values may be MODULE:NAME of the user's code
CURIOSITY_ENTRY_POINTS = "cclf.curiosities"  # entry points of other packages' measures
# What an environment is to a learner: pixels with continuous or discrete actions, or grids stepped
# as one.
TaskKind = Literal["continuous", "discrete", "grid"]
ObservationType = Literal["pixels", "state"]


@dataclass(frozen=True)
class EnvConfig:
    """What the agent sees and does."""

    always_hashed: ClassVar[frozenset[str]] = names(
        """
        frame_pixels crop_pixels frame_stack action_repeat
        """
    )

    observe: ObservationType = "pixels"
    """pixels: frames, rendered where the environment gives none. state: the numbers that it gives
    as its observation (`gym/` tasks by SAC)."""
    frame_pixels: PositiveInt = 100
    """Side of the square frame that the environment renders and the replay stores."""
    crop_pixels: PositiveInt = 84
    """Side of the crops that the networks see."""
    frame_stack: PositiveInt = 3
    """Consecutive frames in one observation."""
    action_repeat: PositiveInt = 4
    """Environment steps per agent step."""

    def __post_init__(self) -> None:
        validate_fields(self)
        if self.crop_pixels > self.frame_pixels:
            raise ConfigError(
                f"crop_pixels={self.crop_pixels} conflicts with frame_pixels={self.frame_pixels}: "
                "a crop cannot be larger than its frame; lower crop_pixels"
            )


@dataclass(frozen=True)
class MethodConfig:
    """Which views are made of an observation, and which of the four pieces curiosity drives."""

    always_hashed: ClassVar[frozenset[str]] = names(
        """
        augmentation views selection contrastive prioritisation regularisation reward
        priority_momentum bonus_temperature bonus_decay_per_env_step contrastive_reduction
        bonus_maxima negatives
        """
    )

    augmentation: str = "random-crop"
    """How views are made: random-crop, centre-crop, crop-pad-crop, shift, noise or none. On Atari
    crop-pad-crop is CURL's (84 to 80 pixels, padded to 88, back to 84) and shift is DrQ's (padded to
    92, back to 84). noise is for state: Gaussian, on every number. none duplicates the observation,
    as on MiniGrid: its two views are the same. Or an augmentation of your own, for SAC and DrQ-v2 on
    pixels: MODULE:FUNCTION, which gets the crops or shifts (N, C, H, W) and a torch.Generator and
    returns images of the same shape and type. Runs the module's code."""
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
    priority_momentum: Fraction = 0.99
    """Share of the old priority that stays, Eq. (6)."""
    bonus_temperature: ZeroOrMore = 0.2
    """Scale of the intrinsic reward before it decays, Eq. (9)."""
    bonus_decay_per_env_step: ZeroOrMore = 2e-5
    """How fast the intrinsic reward decays, exponentially, Eq. (9)."""
    contrastive_reduction: Literal["sum", "weighted-mean"] = "weighted-mean"
    """Eq. (8): the paper sums over the batch, the released code divides by the sum of the
    weights."""
    bonus_maxima: Literal["of-curiosity", "of-paid-bonus", "one"] = "of-paid-bonus"
    """r_max in Eq. (9): maxima so far of reward and curiosity (paper), or maxima from 1e-5 of
    reward and of the bonus already scaled and decayed, used before this batch enters them
    (released code), or 1, the bound of both on MiniGrid."""
    negatives: Literal["all", "distinct"] = "all"
    """Keys a belief competes with: the whole batch as in the paper, or each distinct observation
    once."""
    curiosity: str = "belief"
    """How curiosity is measured. belief: the paper's. Two controls: shuffled, its permutation over
    the batch, and even, its batch mean. Or a measure of your own: MODULE:NAME of a
    `cclf.curiosity.CuriosityMeasure`, or the name under which a package adds it; see
    docs/extending.md. Runs the module's code."""

    @property
    def num_loss_views(self) -> int:
        """Views that enter the losses."""
        return self.views if self.selection == "all" else 2

    @property
    def has_custom_augmentation(self) -> bool:
        return ":" in self.augmentation

    @property
    def needs_curiosity(self) -> bool:
        return (
            self.selection == "curiosity"
            or self.prioritisation
            or self.regularisation
            or self.reward
        )

    @property
    def num_augmented_views(self) -> int:
        """Views made of each observation; with a single learned view the contrastive loss needs one
        more, its key."""
        return max(self.views, 2) if self.contrastive else self.views

    def __post_init__(self) -> None:
        validate_fields(self)
        _validate_curiosity(self.curiosity)
        _validate_augmentation(self.augmentation)
        pieces = [
            name for name in ("prioritisation", "regularisation", "reward") if getattr(self, name)
        ]
        if self.selection == "curiosity":
            pieces.insert(0, "selection=curiosity")
        if pieces and not self.contrastive:
            raise ConfigError(
                f"contrastive=False conflicts with {pieces[0]}: curiosity is the error of a belief "
                "that only the contrastive loss "
                f"trains; turn contrastive on or {pieces[0]} off"
            )
        if self.augmentation == "centre-crop" and (self.views > 1 or self.contrastive):
            other = "contrastive=True" if self.contrastive else f"views={self.views}"
            raise ConfigError(
                f"augmentation=centre-crop conflicts with {other}: all centre crops are the same; "
                "use random-crop"
            )
        if self.selection != "all" and self.views < 3:
            raise ConfigError(
                f"selection={self.selection} conflicts with views={self.views}: there is nothing to "
                "choose from; use views>=3"
            )
        if self.augmentation == "none" and self.views != 1:
            raise ConfigError(
                f"augmentation=none conflicts with views={self.views}: duplicates are all the same; "
                "use views=1"
            )
        if pieces and self.views < 2 and self.augmentation != "none":
            raise ConfigError(
                f"{pieces[0]} conflicts with views={self.views} and "
                f"augmentation={self.augmentation}: curiosity compares two "
                "views; use views>=2"
            )
        if pieces and self.selection == "all" and self.views != 2 and self.augmentation != "none":
            raise ConfigError(
                f"{pieces[0]} conflicts with selection=all and views={self.views}: without a "
                "selection the pair is two views; "
                "use views=2"
            )


def _validate_curiosity(name: str) -> None:
    """Imports nothing: whether MODULE:NAME exists is known when it is used."""
    known = [*CURIOSITIES, *plugins.entry_point_names(CURIOSITY_ENTRY_POINTS)]
    if ":" in name:
        validate_import_name("curiosity", name, "my_curiosity:MyCuriosity")
    elif name not in known:
        raise ConfigError(
            f"curiosity={name} is unknown{did_you_mean(name, known)}: use one of {', '.join(known)}, "
            "or MODULE:NAME of your own"
        )


def _validate_augmentation(name: str) -> None:
    if ":" in name:
        validate_import_name("augmentation", name, "my_augmentations:my_augmentation")
    elif name not in AUGMENTATIONS:
        raise ConfigError(
            f"augmentation={name} is unknown{did_you_mean(name, AUGMENTATIONS)}: use one of "
            f"{', '.join(AUGMENTATIONS)}, or MODULE:FUNCTION of your own"
        )


@dataclass(frozen=True)
class RunConfig:
    """How long, where, and what is written. Nothing here changes what is learned, except
    `env_steps`, which says when to stop."""

    env_steps: StepCount = 100_000
    """The budget, in environment steps (agent steps x action repeat)."""
    eval_every_env_steps: StepCount = 10_000
    """Environment steps between two evaluations."""
    eval_episodes: PositiveInt = 10
    """Episodes of each evaluation."""
    eval_workers: Annotated[int, Range(0, 256)] | None = None
    """Processes that run evaluation episodes while training goes on. With 0 the training process
    runs them: SAC and DrQ-v2 on a GPU between training steps, otherwise training waits. By default
    one for each episode on a GPU, as far as there are cores, and 0 on a CPU."""
    keep_replay: bool = True
    """Leave the replay of a finished run on disk: a larger --env-steps goes on with it, and `cclf
    inspect` looks into it. Its frames are nearly all of a run's bytes (Atari: 0.7 GB)."""
    final_eval_episodes: Annotated[int, Range(0, 100_000)] = 0
    """Episodes of a last evaluation at the end of the budget, written to final.csv; 0 for none."""
    log_every_agent_steps: StepCount = 100
    """Agent steps between two rows of train.csv."""
    device: str = "auto"
    """cpu, cuda, cuda:N, or auto: the GPU when there is one."""
    threads: Annotated[int, Range(0, 1024)] = 0
    """CPU threads of PyTorch; 0 is one beside a GPU, where more get in the way, and PyTorch's
    default on a CPU."""
    video: bool = True
    """Write an mp4 of one episode of the last evaluation. Without its packages (pip extra `video`,
    on MiniGrid also `minigrid`) a warning says so before the first step, and the run goes on
    without."""
    tensorboard: bool = True
    """Mirror the tables in TensorBoard. Without its package (pip extra `tensorboard`) a warning
    says so, as for the video."""
    tracker: Literal["none", "trackio", "wandb"] = "none"
    """Show the run in a tracker too: trackio (on this machine, no account) or wandb (Weights &
    Biases; WANDB_MODE=offline works). Each is a pip extra."""
    cuda_graphs: bool = True
    """On a GPU, start the kernels of an update as one."""
    compile: bool = True
    """On a GPU, fuse the kernels of the encoder; costs ten to twenty seconds at the start."""
    deterministic: bool = False
    """On a GPU, kernels that give the same bits each time, wherever PyTorch has one; slower. CPU
    runs are always deterministic."""

    def __post_init__(self) -> None:
        validate_fields(self)


class Settings(Protocol):
    """What a base algorithm's settings, a frozen dataclass of its package, provide in addition to its
    hyperparameters. Optional: `observes`, a ClassVar[tuple[ObservationType, ...]], if it learns from
    more than pixels; `always_hashed`, see `Config.run_name`; a field `encoder` for a network given as
    MODULE:FUNCTION; `preferred_gpu_precision`, if the field `precision` may be `auto`."""

    base: ClassVar[str]
    rules: ClassVar[Mapping[str, Rule]]

    # refuses what does not go together with the rest of a run
    def check(self, config: "Config") -> None: ...
    def updates_at(self, agent_steps: int) -> int: ...  # how many were made by then


@dataclass(frozen=True)
class Config:
    """A whole run: `cclf.presets.resolve` makes it from names; `to_dict` and `presets.from_dict`
    carry it to disk and back."""

    task: str
    method_name: str
    algorithm: Any
    """The settings of its base algorithm, see `Settings`."""
    seed: Seed = 1
    profile: str = "released"
    env: EnvConfig = field(default_factory=EnvConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        validate_fields(self)
        able = getattr(self.algorithm, "observes", ("pixels",))
        if self.env.observe not in able:
            raise ConfigError(
                f"observe={self.env.observe} conflicts with {self.base}, which learns from "
                f"{' or '.join(able)} alone; remove it"
            )
        self.algorithm.check(self)

    @property
    def base(self) -> str:
        """The name of its base algorithm."""
        name: str = self.algorithm.base
        return name

    @property
    def imported_names(self) -> dict[str, str]:
        """Names in modules that this run imports, by the option that gives them: a task
        gym/MODULE:ID, an encoder, a curiosity or an augmentation MODULE:NAME."""
        given = {
            "task": self.task,
            "encoder": str(getattr(self.algorithm, "encoder", "")),
            "curiosity": self.method.curiosity,
            "augmentation": self.method.augmentation,
        }
        return {option: name for option, name in given.items() if ":" in name}

    @property
    def imported_modules(self) -> dict[str, str]:
        """The modules of `imported_names`."""
        return {
            option: name.removeprefix("gym/").partition(":")[0]
            for option, name in self.imported_names.items()
        }

    @property
    def planned_agent_steps(self) -> int:
        return -(-self.run.env_steps // self.env.action_repeat)

    @property
    def planned_updates(self) -> int:
        return self.updates_at(self.planned_agent_steps)

    def updates_at(self, agent_steps: int) -> int:
        updates: int = self.algorithm.updates_at(agent_steps)
        return updates

    def resolve_precision(self, gpu: bool) -> "Config":
        """With a precision in the place of `auto`: on a GPU the one that its base algorithm says is
        fast and good enough for this run, else float32."""
        if getattr(self.algorithm, "precision", None) != "auto":
            return self
        precision = self.algorithm.preferred_gpu_precision(self) if gpu else "fp32"
        return dataclasses.replace(
            self, algorithm=dataclasses.replace(self.algorithm, precision=precision)
        )

    def to_dict(self) -> dict[str, Any]:
        return {"task": self.task, "base": self.base} | dataclasses.asdict(self)

    def hashed_fields(self) -> dict[str, Any]:
        """The flat part of the config that decides what is learned: it names the run folder and
        guards a resume. A precision that is left open is float32 here."""
        flat = {
            "task": self.task,
            "base": self.base,
            "method_name": self.method_name,
            "seed": self.seed,
        }
        for group in ("env", "method", "algorithm"):
            flat |= {
                f"{group}.{key}": value
                for key, value in dataclasses.asdict(getattr(self, group)).items()
            }
        flat.pop("algorithm.replay_device", None)
        if flat.get("algorithm.precision") == "auto":
            flat["algorithm.precision"] = "fp32"
        return flat

    def _added_fields_at_default(self) -> set[str]:
        """Fields that the hash leaves out, so that a new one renames no run folder: those that a
        class does not list as `always_hashed`, at their default. A class of another package that
        has no such list is hashed whole."""
        groups = {name: getattr(self, name) for name in ("env", "method", "algorithm")}
        return {
            f"{name}.{field.name}"
            for name, settings in groups.items()
            for field in dataclasses.fields(settings)
            if field.name not in getattr(settings, "always_hashed", {field.name})
            and getattr(settings, field.name) == field.default
        }

    def why_inactive(self, option: str) -> str:
        """What keeps an option from acting in this run, to be read after `conflicts with`; empty
        where it acts."""
        rules = METHOD_RULES | dict(self.algorithm.rules)
        if option not in rules:
            return ""
        return rules[option](
            {name.rpartition(".")[2]: value for name, value in self.hashed_fields().items()}
        )

    def run_name(self) -> str:
        """`suite/task/method/seed-3-1a2b3c4d`: from what acts in this run alone, never from the
        clock."""
        added = self._added_fields_at_default()
        acting = {
            name: value
            for name, value in self.hashed_fields().items()
            if name not in added and not self.why_inactive(name.rpartition(".")[2])
        }
        digest = hashlib.sha256(json.dumps(acting, sort_keys=True).encode()).hexdigest()[:8]
        return f"{self.task}/{self.method_name}/seed-{self.seed}-{digest}"
