"""The methods of MR.Q and the settings of its authors for each suite."""

from cclf.algorithms.base import CCLF_DISABLED, Defaults, Method, Overrides, index_by_name

DEFAULTS = Defaults(
    env={"frame_pixels": 84, "crop_pixels": 84, "frame_stack": 3, "action_repeat": 2},
    method=CCLF_DISABLED.method,
    run={"env_steps": 1_000_000, "eval_every_env_steps": 10_000},
)
OBSERVATION_DEFAULTS = {"state": Defaults(env={"frame_stack": 1})}

METHODS = index_by_name(
    Method("mr-q", "MR.Q as published (Fujimoto et al., 2025)", {}),
    Method(
        "dr-q",
        "DR.Q as published (Lyu et al., 2026): MR.Q with an InfoNCE loss and decaying priorities",
        {},
        {
            "infonce_coefficient": 0.1,
            "termination_coefficient": 0.0,
            "encoder_hidden_dim": 750,
            "encoder_learning_rate": 3e-4,
            "encoder_weight_decay": 0.01,
            "weight_decay": 0.01,
            "max_gradient_norm": 0.0,
            "preactivation_coefficient": 0.0,
            "scale_rewards": False,
            "priority_decay": 0.9999,
        },
    ),
)

_SMALL: Overrides = {
    "batch_size": 64,
    "warmup_agent_steps": 1_000,
    "feature_dim": 128,
    "action_feature_dim": 64,
    "encoder_hidden_dim": 128,
    "hidden_dim": 128,
}
SIZES = {
    "small": Defaults(
        env={"frame_pixels": 42, "crop_pixels": 42},
        settings=_SMALL | {"conv_filters": 16, "shift_pixels": 2},
    )
}


def task_defaults(task: str) -> Defaults:
    suite = task.partition("/")[0]
    if suite == "toy":
        return Defaults(
            env={"frame_pixels": 32, "crop_pixels": 32},
            settings=_SMALL | {"warmup_agent_steps": 200, "shift_pixels": 1},
        )
    if suite == "gym":
        return Defaults(env={"action_repeat": 1})
    return Defaults()
