"""Methods, tasks and profiles as values. A preset is a difference from the defaults of `cclf.config`, never a copy of them.

Resolution order, in one function: suite defaults, task table, profile, method, then whatever the command line changes.
"""

import dataclasses
import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from cclf.config import Config, ConfigError, EnvConfig, MethodConfig, RunConfig, SacConfig

Overrides = dict[str, Any]

# The four pieces of the paper, and what stands in for each when it is off: without selection the pair is two random crops.
PIECES = ("selection", "prioritisation", "regularisation", "reward")
_PIECE_OFF: dict[str, Overrides] = {
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
    """Difference from `MethodConfig`'s defaults, which are CCLF."""


def _with_pieces(*pieces: str) -> Overrides:
    """CCLF with only these pieces on."""
    overrides: Overrides = {}
    for piece in PIECES:
        if piece not in pieces:
            overrides |= _PIECE_OFF[piece]
    return overrides


_PLAIN = _with_pieces()
_PUBLISHED = (
    Method(
        "sac-pixel",
        "SAC on the centre crop, no augmentation",
        _PLAIN | {"augmentation": "centre-crop", "views": 1, "contrastive": False},
    ),
    Method("rad", "SAC on one random crop", _PLAIN | {"views": 1, "contrastive": False}),
    Method("curl", "one crop, and a second as the key of a contrastive loss", _PLAIN | {"views": 1}),
    Method("drq", "two crops, evenly averaged in loss and target, Eq. (1)(2)", _PLAIN | {"contrastive": False}),
    Method("curl+", "DrQ with the contrastive loss, [K, M] = [2, 2]", _PLAIN),
    Method("curl++", "the same with [K, M] = [5, 5], all five in the losses", _PLAIN | {"views": 5}),
    Method("select", "two of five crops by least pixel overlap, Eq. (4)", _PLAIN | {"views": 5, "selection": "overlap"}),
    Method("select+", "two of five crops by curiosity, Eq. (5)", _with_pieces("selection")),
    Method("cclf", "all four pieces", {}),
)
_ABLATIONS = tuple(
    Method("+".join(pieces), f"CCLF with only {' and '.join(pieces)}", _with_pieces(*pieces))
    for count in (1, 2, 3)
    for pieces in combinations(PIECES, count)
)
METHODS: dict[str, Method] = {method.name: method for method in (*_PUBLISHED, *_ABLATIONS)}


# Each disagreement between the paper and the released code is one field; see docs/deviations.md.
PROFILES: dict[str, dict[str, Overrides]] = {
    "released": {
        "algorithm": {
            "encoder_tanh": False,
            "contrastive_encoder_steps": 2,
            "contrastive_learning_rate": 1e-3,
            "last_crop_offset": False,
            "collection_view": "centre-crop",
        },
        "method": {"contrastive_reduction": "weighted-mean", "bonus_maxima": "of-paid-bonus"},
    },
    "paper": {
        "algorithm": {
            "encoder_tanh": True,
            "contrastive_encoder_steps": 1,
            "last_crop_offset": True,
            "collection_view": "random-crop",
        },
        "method": {"contrastive_reduction": "sum", "bonus_maxima": "of-curiosity"},
    },
}
DEFAULT_PROFILE = "released"


@dataclass(frozen=True)
class Task:
    name: str
    summary: str
    env: Overrides = field(default_factory=dict)
    algorithm: Overrides = field(default_factory=dict)
    run: Overrides = field(default_factory=dict)


_TOY_ENV: Overrides = {"frame_pixels": 20, "crop_pixels": 16, "frame_stack": 1, "action_repeat": 1}
_TOY_ALGORITHM: Overrides = {
    "batch_size": 64,
    "hidden_dim": 128,
    "warmup_agent_steps": 200,
    "replay_capacity_transitions": 10_000,
    "temperature_learning_rate": 1e-3,
}
_TOY_RUN: Overrides = {
    "env_steps": 3_000,
    "threads": 1,
    "eval_every_env_steps": 500,
    "eval_episodes": 20,
    "log_every_agent_steps": 50,
}

# What a suite sets for each of its tasks.
SUITES: dict[str, dict[str, Overrides]] = {
    "dmc": {"env": {}, "algorithm": {}, "run": {}},
    "gym": {"env": {"action_repeat": 1}, "algorithm": {}, "run": {}},
    "toy": {"env": _TOY_ENV, "algorithm": _TOY_ALGORITHM, "run": _TOY_RUN},
}
TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("dmc/finger-spin", "turn the spinner", env={"action_repeat": 2}),
        Task("dmc/cartpole-swingup", "swing the pole up and balance it", env={"action_repeat": 8}),
        Task("dmc/reacher-easy", "reach the target with a two-link arm"),
        Task("dmc/cheetah-run", "run", algorithm={"learning_rate": 2e-4}),
        Task("dmc/walker-walk", "walk", env={"action_repeat": 2}),
        Task("dmc/ball_in_cup-catch", "catch the ball in the cup"),
        Task("toy/reach", "move a dot onto another, 20x20 pixels; learned in a minute on a CPU"),
        Task(
            "toy/reach-1d",
            "the same along one line; learned in seconds on a CPU",
            run={"env_steps": 1_500, "eval_every_env_steps": 250},
        ),
    )
}
OPEN_SUITES = {
    "dmc": "dmc/<domain>-<task>: any other task of the DeepMind Control suite",
    "gym": "gym/<id>: any registered Gymnasium environment with continuous actions, from its pixels",
}


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


def find_method(name: str) -> Method:
    if name not in METHODS:
        raise ConfigError(f"unknown method {name!r}{nearest(name, METHODS)} (see: cclf methods)")
    return METHODS[name]


def find_task(name: str) -> Task:
    suite, _, rest = name.partition("/")
    if name in TASKS:
        return TASKS[name]
    if suite in OPEN_SUITES and rest:
        return Task(name, OPEN_SUITES[suite])
    raise ConfigError(f"unknown task {name!r}{nearest(name, TASKS)} (see: cclf tasks)")


def resolve(task_name: str, method_name: str = "cclf", *, seed: int = 1, profile: str = DEFAULT_PROFILE) -> Config:
    """The config of a run before the command line has its say."""
    task, method = find_task(task_name), find_method(method_name)
    if profile not in PROFILES:
        raise ConfigError(f"unknown profile {profile!r}{nearest(profile, PROFILES)}: use one of {', '.join(PROFILES)}")
    suite = SUITES[task_name.partition("/")[0]]
    algorithm = suite["algorithm"] | task.algorithm | PROFILES[profile]["algorithm"]
    if "contrastive_learning_rate" not in algorithm and "learning_rate" in algorithm:
        algorithm["contrastive_learning_rate"] = algorithm["learning_rate"]
    return Config(
        task=task_name,
        method_name=method_name,
        seed=seed,
        profile=profile,
        env=EnvConfig(**suite["env"] | task.env),
        method=MethodConfig(**PROFILES[profile]["method"] | method.overrides),
        algorithm=SacConfig(**algorithm),
        run=RunConfig(**suite["run"] | task.run),
    )


def differences_from_cclf(method: Method) -> Overrides:
    """What a preset changes, field by field, compared with CCLF."""
    ours, cclf = MethodConfig(**method.overrides), MethodConfig()
    pairs = {f.name: (getattr(ours, f.name), getattr(cclf, f.name)) for f in dataclasses.fields(MethodConfig)}
    return {name: mine for name, (mine, theirs) in pairs.items() if mine != theirs}


def pieces_of(method: Method) -> list[str]:
    """Which of the four pieces of the paper a method has."""
    config = MethodConfig(**method.overrides)
    on = {"selection": config.selection == "curiosity"} | {name: getattr(config, name) for name in PIECES[1:]}
    return [name for name in PIECES if on[name]]
