"""The methods of the paper on Rainbow, the two profiles, and defaults for tasks."""

from dataclasses import replace

from cclf.algorithms.base import (
    ABLATIONS,
    CONTROLS,
    Defaults,
    Method,
    Overrides,
    cclf_with_pieces,
    control_methods,
    index_by_name,
)

_ATARI_100K = """
    Alien Amidar Assault Asterix BankHeist BattleZone Boxing Breakout ChopperCommand CrazyClimber
    DemonAttack Freeway Frostbite Gopher Hero Jamesbond Kangaroo Krull KungFuMaster MsPacman Pong
    PrivateEye Qbert RoadRunner Seaquest UpNDown
"""
# The weight of the contrastive loss in each game, where CURL's Rainbow code (curl_rainbow at 40bf738)
# and the CCLF paper's table of settings disagree.
CURL_COEFFICIENTS = dict.fromkeys(_ATARI_100K.split(), 1.0) | dict.fromkeys(
    ("Pong", "Boxing", "PrivateEye", "Freeway"), 0.01
)
CCLF_COEFFICIENTS = dict.fromkeys(_ATARI_100K.split(), 1e-4) | dict.fromkeys(
    ("Alien", "BankHeist", "BattleZone", "Kangaroo", "KungFuMaster", "MsPacman"), 1.0
)

DEFAULTS = Defaults(
    env={"frame_pixels": 84, "crop_pixels": 84, "frame_stack": 4, "action_repeat": 4},
    method={
        "augmentation": "crop-pad-crop",
        "bonus_temperature": 2e-4,
        "bonus_maxima": "of-curiosity",
    },
)

_NO_PIECES = cclf_with_pieces()
_CCLF = Method("cclf", "CCLF with all four pieces", {})
# In CURL the Q loss uses the original frames, and the contrastive loss augmented views.
_NO_AUGMENTATION = _NO_PIECES | {"augmentation": "none", "views": 1, "contrastive": False}
_ONE_VIEW = _NO_PIECES | {"views": 1, "contrastive": False}
_IMPORTANCE_WEIGHTS: Overrides = {"importance_sampling": True}
_ORIGINAL_FRAMES: Overrides = _IMPORTANCE_WEIGHTS | {"q_observations": "original"}
_CURL: Overrides = _ORIGINAL_FRAMES | {"contrastive_list": "curl", "contrastive_joins_td": True}
# "Efficient DQN", on which DrQ's Atari agent is based, and that agent (Kostrikov et al., 2020; values of
# Dopamine's DrQ.gin).
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
# Overtrained Rainbow (Kielak, 2020; values of Dopamine's OTRainbow.gin): eight updates per agent step.
_OTRAINBOW: Overrides = _ORIGINAL_FRAMES | {
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


def _with_base_replay(method: Method) -> Method:
    """Add Rainbow's importance weights to a method that does not prioritize replay by curiosity: its
    replay is prioritized by TD error."""
    return replace(
        method, settings={} if method.overrides.get("prioritisation", True) else _IMPORTANCE_WEIGHTS
    )


METHODS = index_by_name(
    Method("rainbow", "data-efficient Rainbow", _NO_AUGMENTATION, _ORIGINAL_FRAMES),
    Method("rainbow-uniform", "data-efficient Rainbow with uniform replay", _NO_AUGMENTATION,
           {"q_observations": "original", "base_replay": "uniform"}),
    Method("rainbow-shift-1", "control: Rainbow learning Q from one augmented view", _ONE_VIEW, _IMPORTANCE_WEIGHTS),
    Method("rainbow-shift-2", "control: Rainbow learning Q from two augmented views",
           _NO_PIECES | {"contrastive": False}, _IMPORTANCE_WEIGHTS),
    Method("otrainbow", "overtrained Rainbow: eight updates per agent step", _NO_AUGMENTATION, _OTRAINBOW),
    Method("efficient-dqn", "DrQ's base agent: double dueling DQN on the original frames", _NO_AUGMENTATION, _EFFICIENT_DQN),
    Method("drq", "efficient-dqn on shifted frames of random intensity", _ONE_VIEW | {"augmentation": "shift"}, _DRQ),
    Method("drq-epsilon", "drq with epsilon 0.01 in training and 0.001 in evaluation", _ONE_VIEW | {"augmentation": "shift"},
           _DRQ | {"epsilon_train": 0.01, "epsilon_eval": 0.001}),
    Method("curl", "Rainbow with a contrastive loss on two augmented views", _NO_PIECES | {"views": 1}, _CURL),
    Method("curl-cclf-list", "control: CURL with the CCLF paper's coefficients", _NO_PIECES | {"views": 1},
           _CURL | {"contrastive_list": "cclf"}),
    _CCLF,
    Method("cclf-curl-list", "control: CCLF with CURL's coefficients", {}, {"contrastive_list": "curl"}),
    *(_with_base_replay(method) for method in ABLATIONS),
    *control_methods(_CCLF, *CONTROLS),
)  # fmt: skip

# CCLF on Rainbow was never released. The profile "released" combines CURL's Rainbow code with CCLF as in
# the released SAC code.
PROFILES = {
    "released": Defaults(
        settings={"warmup_policy": "noisy-net"}, method={"contrastive_reduction": "weighted-mean"}
    ),
    "paper": Defaults(
        settings={"warmup_policy": "uniform"}, method={"contrastive_reduction": "sum"}
    ),
}

_CATCH: Overrides = {
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
}

# In frames of 84 pixels the data-efficient network ignores the last nine rows and columns
# (`GameEncoder.visible_pixels`), which may matter in a Gymnasium environment. 100 is the smallest side
# at which both networks use all pixels. Rewards are not clipped: value_max=100 is the discounted sum of
# rewards of 1 at each step.
_GYM = Defaults(env={"frame_pixels": 100, "crop_pixels": 100}, settings={"value_max": 100.0})

# About half the frame size and half the hidden width; see docs/performance.md.
SIZES = {
    "small": Defaults(env={"frame_pixels": 50, "crop_pixels": 50}, settings={"hidden_dim": 128})
}


def task_defaults(task: str) -> Defaults:
    """Both contrastive coefficients of a game; a method selects one (`contrastive_list`)."""
    if task == "toy/catch":
        return Defaults(settings=_CATCH)
    if task.startswith("gym/"):
        return _GYM
    game = task.partition("/")[2]
    if game not in CCLF_COEFFICIENTS:
        return Defaults()
    return Defaults(
        settings={
            "curl_coefficient": CURL_COEFFICIENTS[game],
            "cclf_coefficient": CCLF_COEFFICIENTS[game],
        }
    )
