"""The configuration of a run, in frozen dataclasses. It imports only the standard library, so that a
command line can be read without torch.

The settings of each base algorithm are in `cclf.algorithms.NAME.config`.
"""

import dataclasses
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, Self

from cclf import plugins
from cclf.errors import ConfigError, did_you_mean
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

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # the one of Python 3.11 has no default
else:
    from typing import TypeVar

Precision = Literal["fp32", "tf32", "bf16"]
PrecisionOption = Literal["auto", "fp32", "tf32", "bf16"]
# Implemented in cclf.curiosity. The last three have a state that the base algorithm must train.
CURIOSITIES = ("belief", "shuffled", "even", "absolute", "rnd", "forward")
TRAINED_CURIOSITIES = ("absolute", "rnd", "forward")
PREDICTED_CURIOSITIES = ("rnd", "forward")  # which need no contrastive loss
CURIOSITY_CONTROLS = ("shuffled", "even")
AUGMENTATIONS = ("random-crop", "centre-crop", "none", "crop-pad-crop", "shift", "noise")
# Options whose value may be MODULE:NAME of the user's code.
IMPORTED_OPTIONS = ("encoder", "curiosity", "augmentation")
CURIOSITY_ENTRY_POINTS = "cclf.curiosities"  # the group of other packages' measures
# The kinds of tasks: pixels or state with continuous or discrete actions, and grids that are stepped
# as one vectorized environment.
TaskKind = Literal["continuous", "discrete", "grid"]
ObservationType = Literal["pixels", "state"]
# The four pieces of the paper.
PIECES = ("selection", "prioritisation", "regularisation", "reward")


@dataclass(frozen=True)
class EnvConfig:
    """What the agent observes, and how often it acts."""

    always_hashed: ClassVar[frozenset[str]] = names(
        """
        frame_pixels crop_pixels frame_stack action_repeat
        """
    )

    observe: ObservationType = "pixels"
    """pixels: frames, rendered if the environment returns none. state: the vector of numbers that the
    environment returns (`gym/` tasks with SAC or MR.Q)."""
    observe_key: str = ""
    """The key of a Dict observation to learn from: an image, or with observe=state numbers (`gym/`
    tasks)."""
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
    """Which views are made of an observation, and which of the four pieces of CCLF are on: selection,
    prioritisation, regularisation and reward."""

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
    """Views that enter the losses. all: every view. overlap, curiosity: the anchor and the view that
    Eq. (4) or Eq. (5) selects."""
    contrastive: bool = True
    """Train the encoder and the belief with the contrastive loss, Eq. (8)."""
    prioritisation: bool = True
    """Sample the replay in proportion to curiosity, Eq. (6)."""
    regularisation: bool = True
    """Weight the Q loss, its target and the contrastive loss by curiosity, Eq. (7) and (8)."""
    reward: bool = True
    """Add curiosity to the reward as an intrinsic reward, Eq. (9)."""
    priority_momentum: Fraction = 0.99
    """Fraction of the old priority that an update keeps, Eq. (6)."""
    bonus_temperature: ZeroOrMore = 0.2
    """Scale of the intrinsic reward before it decays, Eq. (9)."""
    bonus_decay_per_env_step: ZeroOrMore = 2e-5
    """Exponential decay rate of the intrinsic reward, Eq. (9)."""
    contrastive_reduction: Literal["sum", "weighted-mean"] = "weighted-mean"
    """Reduction of Eq. (8) over the batch: the sum (paper), or the mean weighted by curiosity
    (released code)."""
    bonus_maxima: Literal["of-curiosity", "of-paid-bonus", "one"] = "of-paid-bonus"
    """The running maxima in Eq. (9). of-curiosity: of reward and curiosity (paper). of-paid-bonus: of
    reward and of the scaled and decayed bonus, starting at 1e-5 and without the current batch
    (released code). one: 1, the bound of both on MiniGrid."""
    negatives: Literal["all", "distinct"] = "all"
    """Keys in the denominator of a belief: all of the batch (paper), or each distinct observation
    once."""
    curiosity: str = "belief"
    """The measure of curiosity. belief: the paper's. shuffled, even: two controls, the same values
    permuted over the batch, or replaced by their mean over the batch. On A2C also absolute: the
    distance of the paper's query and key; rnd: the error of predicting the observation's features
    under a fixed random network; forward: the error of predicting the next observation's features
    from observation and action. MODULE:NAME: your own `cclf.curiosity.CuriosityMeasure`, whose
    module is imported; a package can also add one under a plain name (see docs/extending.md). The
    suffix -shuffled or -even selects this control of any other measure, e.g. rnd-shuffled."""

    @property
    def num_loss_views(self) -> int:
        """Views that enter the losses."""
        return self.views if self.selection == "all" else 2

    @property
    def num_augmented_views(self) -> int:
        """Views made of each observation. With a single view in the loss, the contrastive loss needs
        a second one as its key."""
        return max(self.views, 2) if self.contrastive else self.views

    @property
    def has_custom_augmentation(self) -> bool:
        return ":" in self.augmentation

    @property
    def active_pieces(self) -> list[str]:
        """Those of the four `PIECES` that are on."""
        on = (self.selection == "curiosity", self.prioritisation, self.regularisation, self.reward)
        return [name for name, is_on in zip(PIECES, on, strict=True) if is_on]

    @property
    def needs_curiosity(self) -> bool:
        return bool(self.active_pieces)

    def __post_init__(self) -> None:
        validate_fields(self)
        _validate_name(
            "augmentation", self.augmentation, AUGMENTATIONS, "my_augmentations:my_augmentation"
        )
        measure, control = split_control(self.curiosity)
        is_built_in = self.curiosity in CURIOSITIES or (control and measure in TRAINED_CURIOSITIES)
        if not is_built_in:  # a search for entry points takes 10 ms
            added = plugins.entry_point_names(CURIOSITY_ENTRY_POINTS)
            if not (control and measure in added):
                known = (*CURIOSITIES, *added)
                _validate_name("curiosity", self.curiosity, known, "my_curiosity:MyCuriosity")
        pieces = [
            "selection=curiosity" if name == "selection" else name for name in self.active_pieces
        ]
        if pieces and not self.contrastive and measure not in PREDICTED_CURIOSITIES:
            raise ConfigError(
                f"contrastive=False conflicts with {pieces[0]}: curiosity is the error of a belief "
                f"that only the contrastive loss trains; turn contrastive on or {pieces[0]} off"
            )
        if self.augmentation == "centre-crop" and (self.views > 1 or self.contrastive):
            other = "contrastive=True" if self.contrastive else f"views={self.views}"
            raise ConfigError(
                f"augmentation=centre-crop conflicts with {other}: all centre crops are the same; "
                "use random-crop"
            )
        if self.selection != "all" and self.views < 3:
            raise ConfigError(
                f"selection={self.selection} conflicts with views={self.views}: a selection needs at "
                "least 3 views; use views>=3"
            )
        if self.augmentation == "none" and self.views != 1:
            raise ConfigError(
                f"augmentation=none conflicts with views={self.views}: duplicates are all the same; "
                "use views=1"
            )
        if not pieces or self.augmentation == "none":
            return
        if self.views < 2:
            raise ConfigError(
                f"{pieces[0]} conflicts with views={self.views} and "
                f"augmentation={self.augmentation}: curiosity compares two views; use views>=2"
            )
        if self.selection == "all" and self.views != 2:
            raise ConfigError(
                f"{pieces[0]} conflicts with selection=all and views={self.views}: without a "
                "selection curiosity compares exactly two views; use views=2"
            )


def split_control(curiosity: str) -> tuple[str, str]:
    """Split the suffix of a control from the name of a measure. Without one the control is "".

    >>> split_control("rnd-shuffled"), split_control("rnd"), split_control("shuffled")
    (('rnd', 'shuffled'), ('rnd', ''), ('shuffled', ''))
    """
    measure, _, control = curiosity.rpartition("-")
    return (measure, control) if measure and control in CURIOSITY_CONTROLS else (curiosity, "")


def _validate_name(option: str, name: str, known: Sequence[str], example: str) -> None:
    """Raise ConfigError unless the name is known or has the form MODULE:NAME. Nothing is imported."""
    if ":" in name:
        plugins.validate_import_name(option, name, example)
    elif name not in known:
        raise ConfigError(
            f"{option}={name} is unknown{did_you_mean(name, known)}: use one of {', '.join(known)}, "
            "or MODULE:NAME of your own"
        )


@dataclass(frozen=True)
class RunConfig:
    """How long a run trains, on which device, and what it writes. No option here changes what is
    learned, except `env_steps`, which says when to stop."""

    env_steps: StepCount = 100_000
    """The budget in environment steps (agent steps x action repeat)."""
    eval_every_env_steps: StepCount = 10_000
    """Environment steps between two evaluations."""
    eval_episodes: PositiveInt = 10
    """Episodes of each evaluation."""
    eval_workers: Annotated[int, Range(0, 256)] | None = None
    """Processes that run evaluation episodes while training goes on. With 0 the training process
    runs them: SAC and DrQ-v2 on a GPU between training steps, otherwise training waits. The default
    is 0 on a CPU, and on a GPU one for each episode, at most one for each core."""
    keep_replay: bool = True
    """Keep the replay of a finished run on disk, so that a larger --env-steps can resume the run and
    `cclf inspect` can read it. Most of the disk space of a run is its frames (Atari: 0.7 GB)."""
    final_eval_episodes: Annotated[int, Range(0, 100_000)] = 0
    """Episodes of one more evaluation at the end of the budget, written to final.csv; 0 for none."""
    log_every_agent_steps: StepCount = 100
    """Agent steps between two rows of train.csv."""
    device: str = "auto"
    """cpu, cuda, cuda:N, or auto: a GPU if there is one."""
    threads: Annotated[int, Range(0, 1024)] = 0
    """CPU threads of PyTorch. 0 is PyTorch's default on a CPU, and one thread with a GPU, where more
    threads slow it down."""
    video: bool = True
    """Write an mp4 of one episode of the last evaluation. If its packages are missing (pip extra
    `video`, on MiniGrid also `minigrid`), the run begins with a warning and has no video."""
    tensorboard: bool = True
    """Also log the rows of the tables to TensorBoard. If its package is missing (pip extra
    `tensorboard`), the run begins with a warning."""
    tracker: Literal["none", "trackio", "wandb"] = "none"
    """Log to an experiment tracker too: trackio (on this machine, without an account) or wandb
    (Weights & Biases, also with WANDB_MODE=offline). Each is a pip extra."""
    cuda_graphs: bool = True
    """On a GPU, launch the kernels of an update as one CUDA graph."""
    compile: bool = True
    """On a GPU, compile the update with torch.compile, which takes ten to twenty seconds at the
    start."""
    deterministic: bool = False
    """On a GPU, use deterministic kernels where PyTorch has them, which is slower. CPU runs are always
    deterministic."""

    def __post_init__(self) -> None:
        validate_fields(self)


@dataclass(frozen=True)
class AlgorithmSettings(ABC):
    """The settings of a base algorithm: a subclass of this class and a frozen dataclass whose fields
    are the options. It implements `updates_at`; everything else has a default."""

    base: ClassVar[str]
    """The name of the base algorithm."""
    rules: ClassVar[Mapping[str, Rule]] = {}
    """When an option has no effect, by its name; see `cclf.validation`."""
    supported_observations: ClassVar[tuple[ObservationType, ...]] = ("pixels",)
    trains_curiosity: ClassVar[bool] = False
    """Whether a curiosity with a state can be used, one of `TRAINED_CURIOSITIES`."""
    always_hashed: ClassVar[frozenset[str] | None] = None
    """Fields that enter the name of the run folder even at their default; None: all of them. A new
    option of a released algorithm is not listed, so that it renames no existing run folder."""

    def __post_init__(self) -> None:
        validate_fields(self)

    @abstractmethod
    def updates_at(self, agent_steps: int) -> int:
        """The total number of updates in the first `agent_steps` agent steps of a run."""

    def validate(self, config: "Config[Self]") -> None:  # noqa: B027 (no conflict is the default)
        """Raise ConfigError if the settings conflict with the rest of a run."""

    # The defaults of options that only some algorithms have, which declare a field of the same name.

    @property
    def precision(self) -> PrecisionOption:
        """Precision of matrix products."""
        return "fp32"

    @property
    def encoder(self) -> str:
        """MODULE:FUNCTION of the user's own encoder; empty for the algorithm's own."""
        return ""

    @property
    def replay_device(self) -> Literal["auto", "cpu", "cuda"]:
        """Where the replay keeps its frames."""
        return "auto"

    def preferred_gpu_precision(self, config: "Config[Self]") -> Precision:  # noqa: ARG002
        """What `precision=auto` is on a GPU."""
        return "fp32"


# `Config` without a type argument is the config of any algorithm. Type checkers then know only the
# settings that `AlgorithmSettings` declares.
if TYPE_CHECKING:
    S = TypeVar("S", bound=AlgorithmSettings, default=AlgorithmSettings, covariant=True)
else:
    S = TypeVar("S", bound=AlgorithmSettings)


@dataclass(frozen=True)
class Config(Generic[S]):
    """A whole run. `cclf.presets.resolve` makes it from names; `to_dict` and `presets.from_dict` write
    it to disk and read it back."""

    task: str
    method_name: str
    algorithm: S
    """The settings of the base algorithm."""
    seed: Seed = 1
    profile: str = "released"
    env: EnvConfig = field(default_factory=EnvConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        validate_fields(self)
        supported = self.algorithm.supported_observations
        if self.env.observe not in supported:
            raise ConfigError(
                f"observe={self.env.observe} conflicts with {self.base}, which learns from "
                f"{' or '.join(supported)} alone; remove it"
            )
        curiosity = self.method.curiosity
        is_trained = split_control(curiosity)[0] in TRAINED_CURIOSITIES
        if is_trained and not self.algorithm.trains_curiosity:
            raise ConfigError(
                f"curiosity={curiosity} conflicts with {self.base}, which does not train it: use "
                "curiosity=belief, or a task of a2c"
            )
        self.algorithm.validate(self)

    @property
    def base(self) -> str:
        """The name of the base algorithm."""
        return self.algorithm.base

    @property
    def imported_names(self) -> dict[str, str]:
        """The MODULE:NAMEs that this run imports, by the option that gives them. A task has the form
        gym/MODULE:ID or gym/MODULE:FUNCTION."""
        given = {
            "task": self.task,
            "encoder": self.algorithm.encoder,
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
        return self.algorithm.updates_at(self.planned_agent_steps)

    @property
    def precision(self) -> Precision:
        """The precision of matrix products; `auto` is float32 until `resolve_precision` replaces it."""
        precision = self.algorithm.precision
        return "fp32" if precision == "auto" else precision

    def resolve_precision(self, gpu: bool) -> Self:
        """The config with a precision in place of `auto`: on a GPU the one that its algorithm prefers
        for this run, otherwise float32."""
        if self.algorithm.precision != "auto":
            return self
        precision = self.algorithm.preferred_gpu_precision(self) if gpu else "fp32"
        return self.with_settings(precision=precision)

    def with_settings(self, **changes: Any) -> Self:
        """The config with other values of some of the algorithm's settings."""
        settings = dataclasses.replace(self.algorithm, **changes)
        return dataclasses.replace(self, algorithm=settings)

    def to_dict(self) -> dict[str, Any]:
        return {"task": self.task, "base": self.base} | dataclasses.asdict(self)

    def hashed_fields(self, omit_defaults: bool = False) -> dict[str, Any]:
        """The values that decide what is learned, by `group.field`: a run resumes only if they are
        equal. `precision=auto` counts as float32. `omit_defaults` leaves out the fields at their
        default that are not listed in `always_hashed`."""
        values: dict[str, Any] = {
            "task": self.task,
            "base": self.base,
            "method_name": self.method_name,
            "seed": self.seed,
        }
        for group in ("env", "method", "algorithm"):
            options: EnvConfig | MethodConfig | AlgorithmSettings = vars(self)[group]
            listed = options.always_hashed
            for each in dataclasses.fields(options):
                value = vars(options)[each.name]
                may_omit = omit_defaults and listed is not None and each.name not in listed
                if not (may_omit and value == each.default):
                    values[f"{group}.{each.name}"] = value
        values.pop("algorithm.replay_device", None)
        if self.algorithm.precision == "auto" and "algorithm.precision" in values:
            values["algorithm.precision"] = self.precision
        return values

    def why_inactive(self, option: str) -> str:
        """Why an option has no effect in this run, to follow `conflicts with` in a message; empty if
        it has one."""
        rule = self.algorithm.rules.get(option) or METHOD_RULES.get(option)
        values = {name.rpartition(".")[2]: value for name, value in self.hashed_fields().items()}
        return rule(values) if rule else ""

    def run_name(self) -> str:
        """`suite/task/method/seed-3-1a2b3c4d`. The hash covers the values that have an effect in this
        run, but not the time."""
        effective = {
            name: value
            for name, value in self.hashed_fields(omit_defaults=True).items()
            if not self.why_inactive(name.rpartition(".")[2])
        }
        digest = hashlib.sha256(json.dumps(effective, sort_keys=True).encode()).hexdigest()[:8]
        return f"{self.task}/{self.method_name}/seed-{self.seed}-{digest}"
