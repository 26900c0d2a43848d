"""The methods on DrQ-v2, and the settings of its authors for each task."""

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

DEFAULTS = Defaults(
    env={"frame_pixels": 84, "crop_pixels": 84, "frame_stack": 3, "action_repeat": 2},
    method={"augmentation": "shift"},
)

_PLAIN = cclf_with_pieces() | {"views": 1}
_CCLF = Method("drq-v2+cclf", "DrQ-v2 with all four pieces of CCLF", {})
METHODS = index_by_name(
    Method("drq-v2", "DrQ-v2 as published: one shifted view", _PLAIN | {"contrastive": False}),
    Method("drq-v2+curl", "DrQ-v2 with a contrastive loss, whose key is a second view", _PLAIN),
    _CCLF,
    *(
        replace(ablation, name=f"drq-v2+{ablation.name}", summary=f"DrQ-v2, {ablation.summary}")
        for ablation in ABLATIONS
    ),
    *control_methods(_CCLF, *CONTROLS),
)

# DrQ-v2's three classes of tasks.
EASY = (
    *("cartpole-balance", "cartpole-balance_sparse", "cartpole-swingup", "ball_in_cup-catch"),
    *("finger-spin", "hopper-stand", "pendulum-swingup", "walker-stand", "walker-walk"),
)
MEDIUM = (
    *("acrobot-swingup", "cartpole-swingup_sparse", "cheetah-run", "finger-turn_easy"),
    *("finger-turn_hard", "hopper-hop", "quadruped-walk", "quadruped-run", "reacher-easy"),
    *("reacher-hard", "walker-run"),
)
HARD = ("humanoid-stand", "humanoid-walk", "humanoid-run")
_CLASSES = (  # tasks, agent steps over which the noise decreases, and budget in environment steps
    (EASY, 100_000, 1_100_000),
    (MEDIUM, 500_000, 3_100_000),
    (HARD, 2_000_000, 30_100_000),
)

_TOY: Overrides = {
    "batch_size": 64,
    "hidden_dim": 128,
    "warmup_agent_steps": 200,
    "update_every_agent_steps": 1,
    "replay_capacity_transitions": 10_000,
    "learning_rate": 1e-3,
    "n_steps": 1,
    "shift_pixels": 1,
    "noise_agent_steps": 1_000,
}

# Half the frame size, a quarter of the hidden width and of the batch size; see docs/performance.md.
SIZES = {
    "small": Defaults(
        env={"frame_pixels": 42, "crop_pixels": 42},
        settings={"batch_size": 64, "conv_filters": 16, "hidden_dim": 256, "shift_pixels": 2},
    )
}


def task_defaults(task: str) -> Defaults:
    suite, _, name = task.partition("/")
    if suite == "toy":
        return Defaults(env={"crop_pixels": 20}, settings=_TOY)
    if suite == "gym":
        return Defaults(env={"action_repeat": 1})
    settings: Overrides = {}
    run: Overrides = {"env_steps": 3_100_000}  # as for medium tasks, if the task has no class
    for names, noise_agent_steps, env_steps in _CLASSES:
        if name in names:
            settings, run = {"noise_agent_steps": noise_agent_steps}, {"env_steps": env_steps}
    domain = name.partition("-")[0]
    if domain == "walker":
        settings |= {"batch_size": 512, "n_steps": 1}
    if domain == "humanoid":
        settings |= {"learning_rate": 8e-5, "feature_dim": 100}
    if name == "quadruped-run":
        settings |= {"replay_capacity_transitions": 100_000}
    # only for DeepMind Control, where the paper's tasks have action repeats of their own
    env = DEFAULTS.env if suite == "dmc" else {}
    return Defaults(env=env, settings=settings, run=run if suite == "dmc" else {})
