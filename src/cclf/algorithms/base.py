"""The interface of a base algorithm: the class that `sac`, `drqv2`, `rainbow`, `a2c` and the
packages of others subclass (docs/extending.md).

This module and the `__init__` of each algorithm hold names, settings and methods. They import
neither torch nor numpy, so that a command line can be read without them; methods that need torch
import it when they are called.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from cclf.config import Config, MethodConfig, Precision, RunConfig, TaskKind
from cclf.errors import ConfigError
from cclf.validation import Rule, always_inactive

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from cclf.inspection.records import About, Gallery
    from cclf.training.agent import Agent
    from cclf.training.evaluation_workers import EvaluationWorkers
    from cclf.types import EnvFactory, EnvSpec, ExportedPolicy, Learner, StateDict

Overrides = dict[str, Any]
DEFAULT_PROFILE = "released"
PAPER_CROP_PIXELS = 84  # a side of the views that the published encoders see
COLOURS, PACKED_CHANNELS = 3, 16  # of a pixel, and of one as the kernels of bfloat16 read it

# The four pieces of the paper, and what stands in for each when it is off: without selection the
# pair is two random views.
PIECES = ("selection", "prioritisation", "regularisation", "reward")
_PIECE_DISABLED: dict[str, Overrides] = {
    "selection": {"selection": "all", "views": 2},
    "prioritisation": {"prioritisation": False},
    "regularisation": {"regularisation": False},
    "reward": {"reward": False},
}


@dataclass(frozen=True)
class Method:
    name: str
    summary: str
    overrides: Overrides
    """Difference from the base algorithm's defaults, in `MethodConfig`."""
    settings: Overrides = field(default_factory=dict)
    """The same in the base algorithm's own settings."""


@dataclass(frozen=True)
class Defaults:
    """What is set before a task, a method and a command line have their say."""

    env: Overrides = field(default_factory=dict)
    method: Overrides = field(default_factory=dict)
    settings: Overrides = field(default_factory=dict)
    run: Overrides = field(default_factory=dict)


# For a base algorithm without views and curiosity: everything of CCLF is off.
CCLF_DISABLED = Defaults(
    method={
        "augmentation": "none",
        "views": 1,
        "selection": "all",
        "contrastive": False,
        "prioritisation": False,
        "regularisation": False,
        "reward": False,
    }
)


def cclf_inactive_rules(learner: str) -> dict[str, Rule]:
    """Beside `CCLF_DISABLED`: none of its options acts, so whoever sets one is told so."""
    return {
        option.name: always_inactive(f"{learner}, which has nothing of CCLF")
        for option in fields(MethodConfig)
    }


class Benchmark(NamedTuple):
    """What `cclf bench NAME` measures of one algorithm."""

    options: type[Any]  # a frozen dataclass: the options of the command
    # (options, make_env) -> a report, by method
    run: Callable[[Any, EnvFactory], dict[str, Any]]
    figure: str  # the entry of a method's report that is shown
    unit: str


class ReplaySize(NamedTuple):
    """The most that the replay of a run can hold."""

    transitions: int
    num_bytes: int


class BaseAlgorithm(ABC):
    """One base algorithm: its names, settings and methods, and how its parts are made.

    A subclass sets the attributes without a default, implements `make_learner`, and `make_algorithm`
    or `make_agent`. Everything else has a default.
    """

    name: ClassVar[str]
    supported_tasks: ClassVar[tuple[TaskKind, ...]]
    settings_type: ClassVar[type[Any]]
    """Its own settings: a frozen dataclass that is a `cclf.config.Settings`."""
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

    def task_defaults(self, task: str) -> Defaults:  # noqa: ARG002
        """Defaults for one task, by its name."""
        return Defaults()

    def profile_label(self, profile: str, settings: Mapping[str, Any]) -> str:  # noqa: ARG002
        """The name that tables give to the profile of a run."""
        return profile

    @abstractmethod
    def make_learner(self, config: Config, device: torch.device, make_env: EnvFactory) -> Learner:
        """The learner of one run, with its training environment."""

    def make_learners(
        self,
        configs: Sequence[Config],
        device: torch.device,
        make_env: EnvFactory,
        resume_steps: Sequence[int | None],
    ) -> Sequence[Learner]:
        """Learners of runs that differ in task and seed alone and share one batched update.

        `resume_steps` are the agent steps that each run resumes from: only runs at the same step can
        share an update. Called with several configs only where `batches_runs` is set.
        """
        del resume_steps
        return [self.make_learner(config, device, make_env) for config in configs]

    def make_algorithm(self, config: Config, spec: EnvSpec, device: torch.device) -> Any:
        """Networks, optimizers and update of a run, without environment and replay."""
        del config, spec, device
        raise ConfigError(f"the base algorithm {self.name} does not implement make_algorithm")

    def make_agent(
        self,
        config: Config,
        device: torch.device,
        make_env: EnvFactory,
        evaluation_workers: EvaluationWorkers | None = None,  # noqa: ARG002
    ) -> Agent:
        """A policy with evaluation environments of its own. By default it is `make_algorithm` in one
        environment of this process."""
        from cclf.training.agent import make_default_agent

        env = make_env(config, 0, True)
        policy = self.make_algorithm(config, env.spec, device)
        return make_default_agent(env, policy, config.env.frame_stack, device)

    def make_evaluation_workers(
        self,
        config: Config,  # noqa: ARG002
        device: torch.device,  # noqa: ARG002
        make_env: EnvFactory,  # noqa: ARG002
        num_runs: int,  # noqa: ARG002
    ) -> EvaluationWorkers | None:
        """Processes that run the evaluation episodes of all runs; None where there are none."""
        return None

    def evaluates_asynchronously(
        self,
        config: Config,  # noqa: ARG002
        device: torch.device,  # noqa: ARG002
        evaluation_workers: EvaluationWorkers | None,
    ) -> bool:
        """Whether training goes on during an evaluation."""
        return evaluation_workers is not None

    def replay_size(self, config: Config, spec: EnvSpec) -> ReplaySize:  # noqa: ARG002
        """The most that the replay of this run can hold."""
        return ReplaySize(0, 0)

    def export_policy(
        self,
        policy: Any,
        config: Config,
        make_env: EnvFactory,
        seed: int,
        num_steps: int,
    ) -> ExportedPolicy:
        """The policy as a module for other programs, with its answers on a rollout of `num_steps`."""
        del policy, config, make_env, seed, num_steps
        raise ConfigError(f"{self.name} has no export: the base algorithm does not offer that")

    def inspect(
        self,
        about: About,
        config: Config,
        learner: StateDict,
        samples: int,
        env_steps: Tensor,
        make_env: EnvFactory,
    ) -> Gallery:
        """What `cclf inspect` shows of a run; `learner` is the learner's state in its checkpoint."""
        del about, config, learner, samples, env_steps, make_env
        raise ConfigError(f"{self.name} has no inspect: the base algorithm does not offer that")

    def benchmark(self) -> Benchmark | None:
        """What `cclf bench NAME` measures; None where there is no such benchmark."""
        return None


def cclf_with_pieces(*pieces: str) -> Overrides:
    """CCLF with only these pieces on."""
    overrides: Overrides = {}
    for piece in PIECES:
        if piece not in pieces:
            overrides |= _PIECE_DISABLED[piece]
    return overrides


# What stands in the place of crops where state is observed.
AUGMENTATION_OF_STATE = {"random-crop": "noise", "centre-crop": "none"}


ABLATIONS = tuple(
    Method("+".join(pieces), f"CCLF with only {' and '.join(pieces)}", cclf_with_pieces(*pieces))
    for count in (1, 2, 3)
    for pieces in combinations(PIECES, count)
)


# What may stand in the place of curiosity (`MethodConfig.curiosity`), and what a method with it is.
CONTROLS = {
    "shuffled": "control: {name} whose curiosity is permuted over the batch",
    "even": "control: {name} whose curiosity is its batch mean",
}


def methods_with_measure(method: Method, *measures: str) -> tuple[Method, ...]:
    """A method once more with each of these in the place of curiosity, named after it."""
    return tuple(
        replace(
            method,
            name=f"{method.name}-{measure}",
            summary=CONTROLS[measure].format(name=method.name),
            overrides=method.overrides | {"curiosity": measure},
        )
        for measure in measures
    )


def index_by_name(*methods: Method) -> dict[str, Method]:
    return {method.name: method for method in methods}


def validate_augmentation(
    method: MethodConfig,
    learner: str,
    augmentations: tuple[str, ...],
    selections: tuple[str, ...] = ("all", "overlap", "curiosity"),
) -> None:
    """Refuse an augmentation or a selection that this base algorithm does not have."""
    for name, known in (("augmentation", augmentations), ("selection", selections)):
        if getattr(method, name) not in known:
            chosen = f"{name}={getattr(method, name)}"
            raise ConfigError(f"{chosen} conflicts with {learner}: use one of {', '.join(known)}")


def validate_bf16(config: Config) -> None:
    """Refuse bfloat16 where its kernels are not made for what a run sees."""
    if config.algorithm.precision != "bf16" or config.env.observe != "pixels":
        return
    encoder, env, reason = config.algorithm.encoder, config.env, ""
    stack, pixels = env.frame_stack, env.crop_pixels
    if encoder:
        reason = f"encoder={encoder}: its kernels are made for the published convolutions"
    elif COLOURS * stack > PACKED_CHANNELS:
        reason = f"frame_stack={stack}: its kernels hold {PACKED_CHANNELS // COLOURS} frames"
    elif ((pixels - 3) // 2 + 1) % 2 == 0:
        reason = f"crop_pixels={pixels}: its kernels need rows of odd length after the first layer"
    if reason:
        raise ConfigError(f"precision=bf16 conflicts with {reason}; use tf32 or fp32")


def default_precision(config: Config) -> Precision:
    """bfloat16 where it was compared with float32: an encoder as published and views of its size
    (docs/performance.md)."""
    env, encoder = config.env, config.algorithm.encoder
    published = env.observe == "pixels" and env.crop_pixels == PAPER_CROP_PIXELS and not encoder
    return "bf16" if published and COLOURS * env.frame_stack <= PACKED_CHANNELS else "fp32"


def reject_eval_workers(run: RunConfig, learner: str) -> None:
    """Raise ConfigError if evaluation workers are requested of an algorithm that steps all its
    environments as one vectorized environment."""
    if run.eval_workers:
        raise ConfigError(
            f"eval_workers={run.eval_workers} conflicts with {learner}, which steps its environments "
            "as one vectorized environment: remove --eval-workers"
        )
