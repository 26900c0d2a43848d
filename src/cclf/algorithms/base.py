"""The interface of a base algorithm: the class `BaseAlgorithm`, which `sac`, `drqv2`, `rainbow`, `a2c`
and the algorithms of other packages subclass (docs/extending.md), and what their presets are made of.

This module and the `__init__` of each algorithm import neither torch nor numpy, so that a command line
can be read without them. Methods that need torch import it when they are called.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple

from cclf.config import (
    PIECES,
    AlgorithmSettings,
    Config,
    MethodConfig,
    Precision,
    RunConfig,
    TaskKind,
)
from cclf.errors import ConfigError
from cclf.validation import Rule, always_inactive

if TYPE_CHECKING:
    import torch
    from _typeshed import DataclassInstance
    from torch import Tensor
    from typing_extensions import TypeVar

    from cclf.inspection.probe import Batches
    from cclf.inspection.records import About, Gallery
    from cclf.training.agent import Agent
    from cclf.training.evaluation import EvaluationWorkers
    from cclf.types import EnvFactory, EnvSpec, ExportedPolicy, Learner, StateDict

    # A plain `BaseAlgorithm` is any of them, with settings that are not known.
    S = TypeVar("S", bound=AlgorithmSettings, default=Any)
else:
    from typing import TypeVar

    S = TypeVar("S", bound=AlgorithmSettings)

Overrides = dict[str, Any]  # values by field name
DEFAULT_PROFILE = "released"
PAPER_CROP_PIXELS = 84  # side of the views that the published encoders see
RGB_CHANNELS = 3
PACKED_CHANNELS = 16  # of one pixel in the kernels of bfloat16


@dataclass(frozen=True)
class Method:
    """A method of an algorithm: the values that differ from the algorithm's defaults."""

    name: str
    summary: str
    overrides: Overrides
    """Values of `MethodConfig`."""
    settings: Overrides = field(default_factory=dict)
    """Values of the algorithm's own settings."""


@dataclass(frozen=True)
class Defaults:
    """Values that replace the defaults of each part of a config."""

    env: Overrides = field(default_factory=dict)
    method: Overrides = field(default_factory=dict)
    settings: Overrides = field(default_factory=dict)
    run: Overrides = field(default_factory=dict)


class Benchmark(NamedTuple):
    """What `cclf bench NAME` measures of one algorithm."""

    options: type[DataclassInstance]  # the options of the command
    run: Callable[[Any, EnvFactory], dict[str, Any]]  # (options, make_env) -> a report, by method
    figure: str  # the entry of a method's report that the table shows
    unit: str


class ReplaySize(NamedTuple):
    """The most that the replay of a run can hold."""

    transitions: int
    num_bytes: int


class BaseAlgorithm(ABC, Generic[S]):
    """One base algorithm: its names, settings and methods, and how its parts are made.

    A subclass sets the attributes that have no default, and implements `make_learner` and either
    `make_algorithm` or `make_agent`. Everything else has a default.
    """

    name: ClassVar[str]
    supported_tasks: ClassVar[tuple[TaskKind, ...]]
    settings_type: type[S]
    """Its own settings: a frozen dataclass, a subclass of `cclf.config.AlgorithmSettings`."""
    methods: ClassVar[Mapping[str, Method]]
    profiles: ClassVar[Mapping[str, Defaults]] = {DEFAULT_PROFILE: Defaults()}
    """Presets for the points where the paper and the released code disagree."""
    defaults: ClassVar[Defaults] = Defaults()
    sizes: ClassVar[Mapping[str, Defaults]] = {}
    """Smaller frames, networks and batches by name, for machines without a GPU."""
    observation_defaults: ClassVar[Mapping[str, Defaults]] = {}
    """Defaults for observations other than pixels, by the value of `EnvConfig.observe`."""
    warmup_field: ClassVar[str] = "warmup_agent_steps"
    """The setting that holds the agent steps before the first update, where there is a replay."""
    uses_gpu: ClassVar[bool] = False
    uses_replay: ClassVar[bool] = False
    batches_runs: ClassVar[bool] = False
    """Whether runs of several tasks and seeds can share one batched update (`make_learners`)."""
    supports_inspection: ClassVar[bool] = False
    """Whether `inspect` is implemented."""

    @property
    def default_method(self) -> Method:
        """CCLF, or the first method of an algorithm without it."""
        return self.methods.get("cclf") or next(iter(self.methods.values()))

    def task_defaults(self, task: str) -> Defaults:
        """Defaults for one task, by its name."""
        return Defaults()

    def profile_label(self, profile: str, settings: Mapping[str, Any]) -> str:
        """The name that tables give to the profile of a run."""
        return profile

    @abstractmethod
    def make_learner(
        self, config: Config[S], device: torch.device, make_env: EnvFactory
    ) -> Learner:
        """The learner of one run, with its training environment."""

    def make_learners(
        self,
        configs: Sequence[Config[S]],
        device: torch.device,
        make_env: EnvFactory,
        resume_steps: Sequence[int | None],
    ) -> Sequence[Learner]:
        """Learners of runs that differ in task and seed alone and share one batched update.

        `resume_steps` are the agent steps that each run resumes from: only runs at the same step can
        share an update. Called with several configs only where `batches_runs` is set.
        """
        return [self.make_learner(config, device, make_env) for config in configs]

    def make_algorithm(self, config: Config[S], spec: EnvSpec, device: torch.device) -> Any:
        """Networks, optimizers and update of a run, without environment and replay."""
        raise ConfigError(f"the base algorithm {self.name} does not implement make_algorithm")

    def make_agent(
        self,
        config: Config[S],
        device: torch.device,
        make_env: EnvFactory,
        evaluation_workers: EvaluationWorkers | None = None,
    ) -> Agent:
        """A policy with evaluation environments of its own. By default it is `make_algorithm` in one
        environment of this process."""
        from cclf.training.agent import make_default_agent

        env = make_env(config, 0, True)
        policy = self.make_algorithm(config, env.spec, device)
        return make_default_agent(env, policy, config.env.frame_stack, device)

    def make_evaluation_workers(
        self,
        config: Config[S],
        device: torch.device,
        make_env: EnvFactory,
        num_runs: int,
    ) -> EvaluationWorkers | None:
        """Processes that run the evaluation episodes of all runs; None where there are none."""
        return None

    def evaluates_asynchronously(
        self,
        config: Config[S],
        device: torch.device,
        evaluation_workers: EvaluationWorkers | None,
    ) -> bool:
        """Whether training goes on during an evaluation."""
        return evaluation_workers is not None

    def replay_size(self, config: Config[S], spec: EnvSpec) -> ReplaySize:
        """The most that the replay of this run can hold."""
        return ReplaySize(0, 0)

    def export_policy(
        self, policy: Any, config: Config[S], make_env: EnvFactory, seed: int, num_steps: int
    ) -> ExportedPolicy:
        """The policy as a module for other programs, with its answers on a rollout of `num_steps`."""
        raise ConfigError(f"{self.name} has no export: it does not implement export_policy")

    def inspect(
        self,
        about: About,
        config: Config[S],
        learner: StateDict,
        samples: int,
        env_steps: Tensor,
        make_env: EnvFactory,
    ) -> Gallery:
        """What `cclf inspect` shows of a run; `learner` is the learner's state in its checkpoint."""
        raise ConfigError(f"{self.name} has no inspect: it does not implement inspect")

    def probe(
        self,
        config: Config[S],
        learner: StateDict,
        measures: Sequence[str],
        quantities: Sequence[str],
        num_batches: int,
        env_steps: Tensor,
        make_env: EnvFactory,
    ) -> tuple[Batches, Batches]:
        """Curiosity by measure, and quantities that it may follow by name, of batches of a run, for
        `cclf inspect --curiosity`; `learner` is the learner's state in its checkpoint."""
        del config, learner, measures, quantities, num_batches, env_steps, make_env
        raise ConfigError(
            f"--curiosity conflicts with {self.name}, which has no probe: use a run of a2c"
        )

    def benchmark(self) -> Benchmark | None:
        """What `cclf bench NAME` measures; None where there is no such benchmark."""
        return None


# --- parts of presets

# The values of `MethodConfig` that turn a piece off: without selection there are two random views.
_PIECE_DISABLED: dict[str, Overrides] = {
    "selection": {"selection": "all", "views": 2},
    "prioritisation": {"prioritisation": False},
    "regularisation": {"regularisation": False},
    "reward": {"reward": False},
}
# The augmentation of state vectors in place of each kind of crop.
AUGMENTATION_OF_STATE = {"random-crop": "noise", "centre-crop": "none"}
# The controls that replace curiosity (`MethodConfig.curiosity`), with the summary of their methods.
CONTROLS = {
    "shuffled": "control: {name} whose curiosity is permuted over the batch",
    "even": "control: {name} whose curiosity is its batch mean",
}


def cclf_with_pieces(*pieces: str) -> Overrides:
    """CCLF with only these pieces on."""
    disabled = [values for piece, values in _PIECE_DISABLED.items() if piece not in pieces]
    return {name: value for values in disabled for name, value in values.items()}


# The defaults of a base algorithm without views and curiosity.
CCLF_DISABLED = Defaults(
    method=cclf_with_pieces() | {"augmentation": "none", "views": 1, "contrastive": False}
)
ABLATIONS = tuple(
    Method("+".join(pieces), f"CCLF with only {' and '.join(pieces)}", cclf_with_pieces(*pieces))
    for count in (1, 2, 3)
    for pieces in combinations(PIECES, count)
)


def cclf_inactive_rules(learner: str) -> dict[str, Rule]:
    """The rules of settings whose defaults are `CCLF_DISABLED`: no option of CCLF has an effect."""
    return {
        option.name: always_inactive(f"{learner}, which has nothing of CCLF")
        for option in fields(MethodConfig)
    }


def methods_with_measure(method: Method, *measures: str) -> tuple[Method, ...]:
    """The method with each of these controls of its curiosity, named after both."""
    own = f"{method.overrides['curiosity']}-" if "curiosity" in method.overrides else ""
    return tuple(
        replace(
            method,
            name=f"{method.name}-{measure}",
            summary=CONTROLS[measure].format(name=method.name),
            overrides=method.overrides | {"curiosity": f"{own}{measure}"},
        )
        for measure in measures
    )


def index_by_name(*methods: Method) -> dict[str, Method]:
    return {method.name: method for method in methods}


# --- validation that several algorithms share


def validate_augmentation(
    method: MethodConfig,
    learner: str,
    augmentations: tuple[str, ...],
    selections: tuple[str, ...] = ("all", "overlap", "curiosity"),
    custom: bool = False,
) -> None:
    """Raise ConfigError if the algorithm does not have this augmentation or selection. With `custom`
    it can use an augmentation of the user's own."""
    if custom and method.has_custom_augmentation:
        augmentations = (method.augmentation,)
    for name, value, known in (
        ("augmentation", method.augmentation, augmentations),
        ("selection", method.selection, selections),
    ):
        if value not in known:
            raise ConfigError(
                f"{name}={value} conflicts with {learner}: use one of {', '.join(known)}"
            )


def _bf16_conflict(config: Config) -> str:
    """Why the kernels of bfloat16 cannot encode the pixels of this run; empty if they can."""
    if config.env.observe != "pixels":
        return ""
    encoder, stack, pixels = (
        config.algorithm.encoder,
        config.env.frame_stack,
        config.env.crop_pixels,
    )
    if encoder:
        return f"encoder={encoder}: its kernels are made for the published convolutions"
    if RGB_CHANNELS * stack > PACKED_CHANNELS:
        return f"frame_stack={stack}: its kernels hold {PACKED_CHANNELS // RGB_CHANNELS} frames"
    if ((pixels - 3) // 2 + 1) % 2 == 0:
        return f"crop_pixels={pixels}: its kernels need rows of odd length after the first layer"
    return ""


def validate_bf16(config: Config) -> None:
    """Raise ConfigError if the kernels of bfloat16 cannot encode what this run observes."""
    reason = _bf16_conflict(config)
    if reason and config.algorithm.precision == "bf16":
        raise ConfigError(f"precision=bf16 conflicts with {reason}; use tf32 or fp32")


def default_precision(config: Config) -> Precision:
    """bfloat16 for the published encoder and size of views, where it was compared with float32
    (docs/performance.md); float32 otherwise."""
    is_published = (
        config.env.observe == "pixels"
        and config.env.crop_pixels == PAPER_CROP_PIXELS
        and not _bf16_conflict(config)
    )
    return "bf16" if is_published else "fp32"


def reject_eval_workers(run: RunConfig, learner: str) -> None:
    """Raise ConfigError if evaluation workers are requested of an algorithm whose environments are
    one vectorized environment."""
    if run.eval_workers:
        raise ConfigError(
            f"eval_workers={run.eval_workers} conflicts with {learner}, which steps its environments "
            "as one vectorized environment: remove --eval-workers"
        )
