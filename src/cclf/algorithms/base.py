"""The interface of a base algorithm, the class `BaseAlgorithm`, and the building blocks of presets. All
algorithms of this package and of other packages are subclasses of it (docs/extending.md).

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

    # `BaseAlgorithm` without a type argument means any algorithm; its settings are then untyped.
    S = TypeVar("S", bound=AlgorithmSettings, default=Any)
else:
    from typing import TypeVar

    S = TypeVar("S", bound=AlgorithmSettings)

Overrides = dict[str, Any]  # values by field name
DEFAULT_PROFILE = "released"


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
    report_key: str  # key of the number in a method's report that the table shows
    unit: str  # of that number


class ReplaySize(NamedTuple):
    """The most that the replay of a run can hold."""

    transitions: int
    num_bytes: int


class BaseAlgorithm(ABC, Generic[S]):
    """One base algorithm: its name, settings and methods, and the functions that make its parts.

    A subclass must set the attributes below that have no value, and implement `make_learner` and
    either `make_algorithm` or `make_agent`. All other attributes and methods are optional.
    """

    name: ClassVar[str]
    supported_tasks: ClassVar[tuple[TaskKind, ...]]
    settings_type: type[S]
    """Class of the algorithm's settings: a frozen dataclass derived from `AlgorithmSettings`."""
    methods: ClassVar[Mapping[str, Method]]
    profiles: ClassVar[Mapping[str, Defaults]] = {DEFAULT_PROFILE: Defaults()}
    """Values of the settings in which the paper and the released code disagree, by profile name."""
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
        """The method `cclf`, or the first method if the algorithm has no method of this name."""
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
        """The policy as a module for other programs, and its outputs on a rollout of `num_steps`."""
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
        """Values for `cclf inspect --curiosity`: for each batch of a run, curiosity by name of the
        measure, and the quantities to correlate it with, by name. `learner` is the learner's state in
        its checkpoint."""
        raise ConfigError(
            f"--curiosity conflicts with {self.name}, which has no probe: use a run of a2c"
        )

    def benchmark(self) -> Benchmark | None:
        """What `cclf bench NAME` measures; None where there is no such benchmark."""
        return None


# --- parts of presets

# The values of `MethodConfig` that turn each of the four pieces of CCLF off. Without selection there are
# two random views.
_PIECE_DISABLED: dict[str, Overrides] = {
    "selection": {"selection": "all", "views": 2},
    "prioritisation": {"prioritisation": False},
    "regularisation": {"regularisation": False},
    "reward": {"reward": False},
}
# The augmentation that replaces each kind of crop where observations are state vectors.
AUGMENTATION_OF_STATE = {"random-crop": "noise", "centre-crop": "none"}
# The control experiments, which replace curiosity (`MethodConfig.curiosity`), and their summaries.
CONTROLS = {
    "shuffled": "control: {name} whose curiosity is permuted over the batch",
    "even": "control: {name} whose curiosity is its batch mean",
}


def cclf_with_pieces(*pieces: str) -> Overrides:
    """The values of `MethodConfig` for CCLF with only these pieces (`PIECES`) turned on."""
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
    """Rules for an algorithm whose method defaults are `CCLF_DISABLED`: no CCLF option has an effect."""
    return {
        option.name: always_inactive(f"{learner}, which does not use CCLF")
        for option in fields(MethodConfig)
    }


def control_methods(method: Method, *controls: str) -> tuple[Method, ...]:
    """One method `METHOD-CONTROL` for each of `controls` (`CONTROLS`)."""
    prefix = f"{method.overrides['curiosity']}-" if "curiosity" in method.overrides else ""
    return tuple(
        replace(
            method,
            name=f"{method.name}-{control}",
            summary=CONTROLS[control].format(name=method.name),
            overrides=method.overrides | {"curiosity": f"{prefix}{control}"},
        )
        for control in controls
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
    """Raise ConfigError if the algorithm does not support this augmentation or selection. With `custom`
    a user's augmentation (MODULE:FUNCTION) is allowed too."""
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


def reject_eval_workers(run: RunConfig, learner: str) -> None:
    """Raise ConfigError if `eval_workers` is set for an algorithm that evaluates in one vectorized
    environment."""
    if run.eval_workers:
        raise ConfigError(
            f"eval_workers={run.eval_workers} conflicts with {learner}, which steps its environments "
            "as one vectorized environment: remove --eval-workers"
        )
