"""Methods, tasks and profiles as values. A preset is a difference from the defaults of `cclf.config`, never a copy of them.

Resolution order, in one function: suite defaults, task table, profile, method, then whatever the command line changes.
"""

import dataclasses
import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from cclf.atari_games import ATARI_GAMES, CCLF_COEFFICIENTS, CURL_COEFFICIENTS, game_name
from cclf.config import A2cConfig, Config, ConfigError, EnvConfig, MethodConfig, RainbowConfig, RunConfig, SacConfig

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
    """Difference from CCLF on the same base algorithm, in `MethodConfig`."""
    algorithm: Overrides = field(default_factory=dict)
    """Difference in the base algorithm's own config."""


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
    Method("drq-5", "the same with five crops, [K, M] = [5, 5]", _PLAIN | {"views": 5, "contrastive": False}),
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
SAC_METHODS: dict[str, Method] = {method.name: method for method in (*_PUBLISHED, *_ABLATIONS)}

_NO_CURIOSITY: Overrides = {"contrastive": False, "regularisation": False, "reward": False}
_RE3: Overrides = {"re3": True}
A2C_METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("a2c", "advantage actor-critic", _NO_CURIOSITY),
        Method("re3", "A2C with RE3's state-entropy bonus", _NO_CURIOSITY, _RE3),
        Method("curl", "A2C with the contrastive loss alone, unweighted", {"regularisation": False, "reward": False}),
        Method("cclf", "A2C with curiosity-weighted contrastive loss and intrinsic reward", {}),
        Method("re3+cclf", "both", {}, _RE3),
        Method("cclf-distinct", "CCLF whose belief counts each distinct observation once", {"negatives": "distinct"}),
        Method("re3+cclf-distinct", "the same on RE3", {"negatives": "distinct"}, _RE3),
    )
}

# On Rainbow the contrastive loss may stand beside a Q loss that never sees an augmented frame: CURL's does.
_NOTHING = _PLAIN | {"augmentation": "none", "views": 1, "contrastive": False}
_ONE_VIEW = _PLAIN | {"views": 1, "contrastive": False}
_WEIGHED: Overrides = {"importance_sampling": True}
_ORIGINAL: Overrides = _WEIGHED | {"q_observations": "original"}
_CURL: Overrides = _ORIGINAL | {"contrastive_list": "curl", "contrastive_joins_td": True}
# DrQ's Atari agent and the "Efficient DQN" under it (Kostrikov et al., 2020; values of Dopamine's DrQ.gin).
_EFFICIENT_DQN: Overrides = {
    "n_steps": 10,
    "base_replay": "uniform",
    "target_every_agent_steps": 1,
    "convolutions": "nature",
    "hidden_dim": 512,
    "distributional": False,
    "noisy": False,
    "epsilon_train": 0.1,
    "epsilon_decay_agent_steps": 5_000,
    "epsilon_eval": 0.05,
    "q_observations": "original",
}
_DRQ: Overrides = _EFFICIENT_DQN | {"q_observations": "views", "intensity_scale": 0.05}
# Overtrained Rainbow (Kielak, 2020; values of Dopamine's OTRainbow.gin): eight updates a step.
_OTRAINBOW: Overrides = _ORIGINAL | {
    "n_steps": 3,
    "learn_start_agent_steps": 20_000,
    "warmup_policy": "uniform",
    "updates_per_agent_step": 8,
    "importance_beta": 0.5,
    "importance_beta_agent_steps": 10**9,  # it stays at 0.5
    "learning_rate": 6.25e-5,
    "target_every_agent_steps": 500,
    "convolutions": "nature",
    "hidden_dim": 512,
    "noisy": False,
    "dueling": False,
    "double_q": False,
    "epsilon_train": 0.01,
    "epsilon_decay_agent_steps": 50_000,
}


def _on_rainbow(method: Method) -> Method:
    """Curiosity's priorities carry no importance weights; without that piece replay is Rainbow's own, with them."""
    return dataclasses.replace(method, algorithm={} if method.overrides.get("prioritisation", True) else _WEIGHED)


RAINBOW_METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("rainbow", "data-efficient Rainbow", _NOTHING, _ORIGINAL),
        Method("rainbow-uniform", "the same with uniform replay", _NOTHING,
               {"q_observations": "original", "base_replay": "uniform"}),
        Method("rainbow-shift-1", "control: Rainbow learning Q from one augmented view", _ONE_VIEW, _WEIGHED),
        Method("rainbow-shift-2", "control: from two, evenly averaged", _PLAIN | {"contrastive": False}, _WEIGHED),
        Method("otrainbow", "overtrained Rainbow: eight updates a step", _NOTHING, _OTRAINBOW),
        Method("efficient-dqn", "DrQ's base agent: double dueling DQN on the original frames", _NOTHING, _EFFICIENT_DQN),
        Method("drq", "the same on shifted frames of random intensity", _ONE_VIEW | {"augmentation": "shift"}, _DRQ),
        Method("drq-epsilon", "DrQ with the epsilons of Rainbow's evaluations", _ONE_VIEW | {"augmentation": "shift"},
               _DRQ | {"epsilon_train": 0.01, "epsilon_eval": 0.001}),
        Method("curl", "Rainbow with a contrastive loss on two augmented views", _PLAIN | {"views": 1}, _CURL),
        Method("curl-cclf-list", "control: CURL with the CCLF paper's coefficients", _PLAIN | {"views": 1},
               _CURL | {"contrastive_list": "cclf"}),
        Method("cclf", "all four pieces", {}),
        Method("cclf-curl-list", "control: CCLF with CURL's coefficients", {}, {"contrastive_list": "curl"}),
        *(_on_rainbow(method) for method in _ABLATIONS),
    )
}  # fmt: skip
METHODS: dict[str, dict[str, Method]] = {"sac": SAC_METHODS, "a2c": A2C_METHODS, "rainbow": RAINBOW_METHODS}


# Each disagreement between the paper and the released code is one field; see docs/deviations.md. CCLF on A2C was never released:
# there "released" is RE3's code, on which it was built. Nor was CCLF on Rainbow: there it is CURL's Rainbow, with the pieces of
# the released SAC code.
PROFILES: dict[str, dict[str, dict[str, Overrides]]] = {
    "sac": {
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
    },
    "a2c": {
        "released": {"algorithm": {"entropy_coefficient": 0.01}, "method": {}},
        "paper": {"algorithm": {"entropy_coefficient": 0.001}, "method": {}},
    },
    "rainbow": {
        "released": {"algorithm": {"warmup_policy": "noisy-net"}, "method": {"contrastive_reduction": "weighted-mean"}},
        "paper": {"algorithm": {"warmup_policy": "uniform"}, "method": {"contrastive_reduction": "sum"}},
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
    base: str | None = None
    """Where it is not learned with its suite's base algorithm: then another suite of that base sets what it leaves open."""


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

_GRID_ENV: Overrides = {"frame_pixels": 7, "crop_pixels": 7, "frame_stack": 1, "action_repeat": 1}
_GRID_METHOD: Overrides = {
    "augmentation": "none",
    "views": 1,
    "selection": "all",
    "prioritisation": False,
    "bonus_temperature": 2e-4,
    "bonus_maxima": "one",
}
_GRID_RUN: Overrides = {"env_steps": 400_000, "eval_every_env_steps": 3_200, "eval_episodes": 100, "threads": 1}

_GAME_METHOD: Overrides = {"augmentation": "crop-pad-crop", "bonus_temperature": 2e-4, "bonus_maxima": "of-curiosity"}
_GAME_RUN: Overrides = {
    "env_steps": 400_000,
    "eval_every_env_steps": 40_000,
    "final_eval_episodes": 100,
    "log_every_agent_steps": 1_000,
    "video": False,
}
_CATCH = Task(
    "toy/catch",
    "move a paddle under a falling ball, 50x50 pixels; Rainbow learns it in a minute on a CPU",
    base="rainbow",
    env={"frame_pixels": 50, "crop_pixels": 50, "frame_stack": 2, "action_repeat": 1},
    algorithm={
        "learn_start_agent_steps": 200,
        "replay_capacity_transitions": 5_000,
        "n_steps": 4,
        "importance_beta_agent_steps": 1_800,
        "learning_rate": 1e-3,
        "target_every_agent_steps": 100,
        "hidden_dim": 64,
        "value_max": 3.0,
        "contrastive_hidden_dim": 64,
        "contrastive_dim": 32,
        "cclf_coefficient": 1.0,
    },
    run=_TOY_RUN | {"env_steps": 2_000},
)


@dataclass(frozen=True)
class Suite:
    """What a suite sets for each of its tasks."""

    base: str
    env: Overrides = field(default_factory=dict)
    method: Overrides = field(default_factory=dict)
    algorithm: Overrides = field(default_factory=dict)
    run: Overrides = field(default_factory=dict)


SUITES: dict[str, Suite] = {
    "dmc": Suite("sac"),
    "gym": Suite("sac", env={"action_repeat": 1}),
    "toy": Suite("sac", env=_TOY_ENV, algorithm=_TOY_ALGORITHM, run=_TOY_RUN),
    "minigrid": Suite("a2c", env=_GRID_ENV, method=_GRID_METHOD, run=_GRID_RUN | {"log_every_agent_steps": 3_200}),
    "atari": Suite("rainbow", env={"frame_pixels": 84, "frame_stack": 4}, method=_GAME_METHOD, run=_GAME_RUN),
}


def _atari(game: str) -> Task:
    """CURL's code and the CCLF paper have tables of contrastive coefficients that disagree; a method names the one it uses."""
    coefficients = {"curl_coefficient": CURL_COEFFICIENTS[game], "cclf_coefficient": CCLF_COEFFICIENTS[game]}
    return Task(f"atari/{game}", ATARI_GAMES[game], algorithm=coefficients)


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("dmc/finger-spin", "turn the spinner", env={"action_repeat": 2}),
        Task("dmc/cartpole-swingup", "swing the pole up and balance it", env={"action_repeat": 8}),
        Task("dmc/reacher-easy", "reach the target with a two-link arm"),
        Task("dmc/cheetah-run", "run", algorithm={"learning_rate": 2e-4}),
        Task("dmc/walker-walk", "walk", env={"action_repeat": 2}),
        Task("dmc/ball_in_cup-catch", "catch the ball in the cup"),
        Task("minigrid/Empty-16x16", "cross an empty room", algorithm={"re3_coefficient": 0.1}),
        Task("minigrid/DoorKey-6x6", "find the key, open the door, reach the goal", algorithm={"re3_coefficient": 0.005}),
        Task(
            "minigrid/DoorKey-8x8",
            "the same in a larger room",
            run={"env_steps": 2_400_000, "eval_every_env_steps": 19_200, "log_every_agent_steps": 19_200},
        ),
        Task("toy/reach", "move a dot onto another, 20x20 pixels; learned in a minute on a CPU"),
        Task(
            "toy/reach-1d",
            "the same along one line; learned in a minute on a CPU",
            run={"env_steps": 1_500, "eval_every_env_steps": 250},
        ),
        _CATCH,
        *(_atari(game) for game in ATARI_GAMES),
    )
}
OPEN_SUITES = {
    "dmc": "dmc/<domain>-<task>: any other task of the DeepMind Control suite",
    "gym": "gym/<id>: any registered Gymnasium environment with continuous actions, from its pixels",
    "atari": "atari/<game>: any other game of the Arcade Learning Environment, e.g. atari/SpaceInvaders",
    "minigrid": "minigrid/<name>: any other MiniGrid environment, e.g. minigrid/FourRooms",
}


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


def find_task(name: str) -> Task:
    suite, _, rest = name.partition("/")
    if suite == "atari" and rest:
        name = f"atari/{game_name(rest)}"  # pong is Pong: one game, one name
    if name in TASKS:
        return TASKS[name]
    if suite in OPEN_SUITES and rest:
        return Task(name, OPEN_SUITES[suite])
    raise ConfigError(f"unknown task {name!r}{nearest(name, TASKS)} (see: cclf tasks)")


def base_algorithm(task_name: str) -> str:
    """sac, a2c or rainbow: which base algorithm a task is learned with."""
    return find_task(task_name).base or SUITES[task_name.partition("/")[0]].base


def _suite(task: Task) -> Suite:
    """What the task's suite sets; for a toy learned with another algorithm than the toys', what that algorithm's suite sets."""
    own = SUITES[task.name.partition("/")[0]]
    return own if task.base is None else next(suite for suite in SUITES.values() if suite.base == task.base)


def find_method(name: str, base: str) -> Method:
    known = METHODS[base]
    if name in known:
        return known[name]
    elsewhere = [other for other in METHODS if other != base and name in METHODS[other]]
    hint = f": it belongs to {elsewhere[0]}, this task is learned with {base}" if elsewhere else nearest(name, known)
    raise ConfigError(f"unknown method {name!r}{hint} (see: cclf methods)")


def resolve(task_name: str, method_name: str = "cclf", *, seed: int = 1, profile: str = DEFAULT_PROFILE) -> Config:
    """The config of a run before the command line has its say."""
    base = base_algorithm(task_name)
    task, method = find_task(task_name), find_method(method_name, base)
    suite = _suite(task)
    profiles = PROFILES[base]
    if profile not in profiles:
        raise ConfigError(f"unknown profile {profile!r}{nearest(profile, profiles)}: use one of {', '.join(profiles)}")
    algorithm = suite.algorithm | task.algorithm | profiles[profile]["algorithm"] | method.algorithm
    if base == "sac" and "learning_rate" in algorithm:
        algorithm.setdefault("contrastive_learning_rate", algorithm["learning_rate"])
    return Config(
        task=task.name,
        method_name=method_name,
        seed=seed,
        profile=profile,
        env=EnvConfig(**suite.env | task.env),
        method=MethodConfig(**suite.method | profiles[profile]["method"] | method.overrides),
        algorithm={"sac": SacConfig, "a2c": A2cConfig, "rainbow": RainbowConfig}[base](**algorithm),
        run=RunConfig(**suite.run | task.run),
    )


def method_config(method: Method, base: str) -> MethodConfig:
    """The pieces of a method as its suite runs it."""
    suite = next(suite for suite in SUITES.values() if suite.base == base)
    return MethodConfig(**suite.method | method.overrides)


def differences_from_cclf(method: Method, base: str) -> Overrides:
    """What a preset changes, field by field, compared with CCLF on the same base algorithm."""
    ours, cclf = method_config(method, base), method_config(METHODS[base]["cclf"], base)
    pairs = {f.name: (getattr(ours, f.name), getattr(cclf, f.name)) for f in dataclasses.fields(MethodConfig)}
    return {name: mine for name, (mine, theirs) in pairs.items() if mine != theirs} | method.algorithm


def pieces_of(method: Method, base: str) -> list[str]:
    """Which of the four pieces of the paper a method has."""
    config = method_config(method, base)
    on = {"selection": config.selection == "curiosity"} | {name: getattr(config, name) for name in PIECES[1:]}
    return [name for name in PIECES if on[name]]
