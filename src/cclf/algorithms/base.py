"""What a base algorithm offers to the rest of the package. Each package in `cclf.algorithms` fills one
`BaseAlgorithm` in, and packages of others may add theirs (docs/extending.md).

This is the light half: names, settings, methods. It imports neither torch nor numpy, so that a
command line can be read without them. The heavy half are modules of the package, imported when they
are needed (`Base.part`). Only `learner` must be there.

learner: how it learns and is evaluated. `cclf.build` asks for these functions:
    make_learner(config, device, make_env)       a `cclf.types.Learner`
    make_algorithm(config, spec, device)         what such a learner learns with
  The others only where the default does not fit:
    make_agent(config, device, make_env, runs, evaluators)
        Default: `make_algorithm`, evaluated by `cclf.training.agent.plain_agent`. A base that plays
        grids has its own, and then needs no `make_algorithm`. Give its `Agent` a `spec`, or
        `cclf.load(run).act` is refused.
    make_learners(configs, device, make_env, resume_points)
        Default: `make_learner` for each. For runs that learn as one.
    replay_size(config, spec)                    transitions and bytes; needed with `uses_replay`
    make_evaluators(config, device, make_env, runs)
        Default: none. Processes that play evaluation episodes.
    evaluates_asynchronously(config, device, runs, evaluators)
        Default: true if there are evaluators.
gallery: what `cclf inspect` shows.
export:  answers, a policy for other programs.
parity:  a fast precision against float32 at a trained run.
bench:   `cclf bench NAME`, and its options.
"""

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import combinations
from pathlib import PurePath
from typing import Any

from cclf.config import Config, MethodConfig, Precision, RunConfig, TaskKind
from cclf.errors import ConfigError
from cclf.validation import Rule, always_inactive

Overrides = dict[str, Any]
DEFAULT_PROFILE = "released"
PAPER_CROP_PIXELS = 84  # a side of the views that the published encoders see
COLOURS, PACKED_CHANNELS = 3, 16  # of a pixel, and of one as the kernels of bfloat16 read it
PARTS = ("learner", "gallery", "export", "parity", "bench")

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


@dataclass(frozen=True)
class BaseAlgorithm:
    name: str
    package: str
    """Where its parts are, e.g. `cclf.algorithms.sac`."""
    plays: tuple[TaskKind, ...]
    settings: Any
    """Its own settings, a frozen dataclass that is a `cclf.config.Settings`."""
    methods: Mapping[str, Method]
    profiles: Mapping[str, Defaults] = field(default_factory=lambda: {DEFAULT_PROFILE: Defaults()})
    """Readings of the points where the paper and released code disagree."""
    defaults: Defaults = field(default_factory=Defaults)
    task_defaults: Callable[[str], Defaults] = lambda _: Defaults()
    """What it sets for a task, by the task's name."""
    sizes: Mapping[str, Defaults] = field(default_factory=dict)
    """Smaller frames, networks and batches by name, for machines without a GPU."""
    observation_defaults: Mapping[str, Defaults] = field(default_factory=dict)
    """What it sets where something else than pixels is observed (`EnvConfig.observe`)."""
    warmup_field: str = "warmup_agent_steps"
    """The setting that says when learning begins, where it keeps a replay."""
    uses_gpu: bool = False
    uses_replay: bool = False
    batches_runs: bool = False
    """Runs of several tasks may learn in one call."""
    profile_label: Callable[[str, Mapping[str, Any]], str] = lambda profile, _: profile
    """A run's profile as tables name it, from its name and its settings."""

    @property
    def default_method(self) -> Method:
        """CCLF, and where it is without, the first."""
        return self.methods.get("cclf") or next(iter(self.methods.values()))

    def part(self, name: str) -> Any:
        """A module of the package, one of PARTS; refused in one line where it has none."""
        try:
            return importlib.import_module(f"{self.package}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{self.package}.{name}":
                raise
            raise ConfigError(
                f"{self.name} has no {name}: the base algorithm does not offer that"
            ) from error

    def has(self, name: str) -> bool:
        return importlib.util.find_spec(f"{self.package}.{name}") is not None


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
CANDIDATES = {
    "ranks": "{name} by ranks of curiosity, which keep half of every weight",
    "debiased": "{name} whose belief takes a share of false negatives off",
    "cancelled": "{name} whose belief leaves out keys as similar as the own",
    "particles": "{name} whose bonus pays distance to the nearest of the batch",
}


def methods_with_measure(method: Method, *measures: str) -> tuple[Method, ...]:
    """A method once more with each of these in the place of curiosity, named after it."""
    return tuple(
        replace(
            method,
            name=f"{method.name}-{measure}",
            summary=(CONTROLS | CANDIDATES)[measure].format(name=method.name),
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


def validate_encoder_name(encoder: str) -> None:
    """Refuse text that is no MODULE:FUNCTION."""
    module, colon, name = encoder.partition(":")
    if encoder and not (module and colon and name):
        raise ConfigError(f"encoder={encoder} must be MODULE:FUNCTION, e.g. my_encoders:my_encoder")
    path = PurePath(module)
    if path.suffix == ".py" or path.name != module:
        raise ConfigError(
            f"encoder={encoder} must name a module as `import` does, not the path of a file: e.g. "
            f"{path.stem}:{name}, with its folder in PYTHONPATH"
        )


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


def validate_workers(run: RunConfig, learner: str, names: tuple[str, ...]) -> None:
    """Refuse workers where environments are stepped as one."""
    for name in names:
        if getattr(run, name):
            raise ConfigError(
                f"{name}={getattr(run, name)} conflicts with {learner}, whose environments are "
                "stepped as one; leave it"
            )
