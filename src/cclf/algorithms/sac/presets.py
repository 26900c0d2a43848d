"""The methods of the paper on SAC, the two profiles, and defaults for tasks."""

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

# The paper's [K, M] is `views`, with K = M.
_PLAIN = cclf_with_pieces()
_CCLF = Method("cclf", "CCLF with all four pieces", {})
METHODS = index_by_name(
    Method(
        "sac-pixel",
        "SAC on the centre crop, no augmentation",
        _PLAIN | {"augmentation": "centre-crop", "views": 1, "contrastive": False},
    ),
    Method("rad", "SAC on one random crop", _PLAIN | {"views": 1, "contrastive": False}),
    Method(
        "curl", "one crop, and a contrastive loss whose key is a second crop", _PLAIN | {"views": 1}
    ),
    Method(
        "drq",
        "two crops, evenly averaged in loss and target, Eq. (1)(2)",
        _PLAIN | {"contrastive": False},
    ),
    Method(
        "drq-5",
        "drq with five crops, [K, M] = [5, 5]",
        _PLAIN | {"views": 5, "contrastive": False},
    ),
    Method("curl+", "drq with the contrastive loss, [K, M] = [2, 2]", _PLAIN),
    Method("curl++", "curl+ with [K, M] = [5, 5], all five in the losses", _PLAIN | {"views": 5}),
    Method(
        "select",
        "two of five crops by least pixel overlap, Eq. (4)",
        _PLAIN | {"views": 5, "selection": "overlap"},
    ),
    Method("select+", "two of five crops by curiosity, Eq. (5)", cclf_with_pieces("selection")),
    _CCLF,
    *ABLATIONS,
    *control_methods(_CCLF, *CONTROLS),
)

# Each disagreement between the paper and the released code is one field; see docs/method.md.
PROFILES = {
    "released": Defaults(
        settings={
            "encoder_tanh": False,
            "contrastive_encoder_steps": 2,
            "contrastive_learning_rate": 1e-3,
            "last_crop_offset": False,
            "collection_view": "centre-crop",
        },
        method={"contrastive_reduction": "weighted-mean", "bonus_maxima": "of-paid-bonus"},
    ),
    "paper": Defaults(
        settings={
            "encoder_tanh": True,
            "contrastive_encoder_steps": 1,
            "last_crop_offset": True,
            "collection_view": "random-crop",
        },
        method={"contrastive_reduction": "sum", "bonus_maxima": "of-curiosity"},
    ),
}

_TOY: Overrides = {
    "batch_size": 64,
    "hidden_dim": 128,
    "warmup_agent_steps": 200,
    "replay_capacity_transitions": 10_000,
    "temperature_learning_rate": 1e-3,
}

# The usual settings of SAC on state vectors: narrow networks, no frame stack. The paper has no such
# experiments; docs/performance.md has measurements.
OBSERVATION_DEFAULTS = {
    "state": Defaults(
        env={"frame_stack": 1},
        settings={
            "batch_size": 256,
            "hidden_dim": 256,
            "temperature_learning_rate": 1e-3,
            "temperature_beta1": 0.9,
        },
    )
}

# Half the frame size, a quarter of the hidden width, an eighth of the batch size; see
# docs/performance.md.
SIZES = {
    "small": Defaults(
        env={"frame_pixels": 50, "crop_pixels": 42},
        settings={"batch_size": 64, "conv_filters": 16, "hidden_dim": 256},
    )
}


def task_defaults(task: str) -> Defaults:
    if task.startswith("toy/"):
        return Defaults(settings=_TOY)
    # In the paper the contrastive step has the same learning rate; the profile "released" overrides it.
    if task == "dmc/cheetah-run":
        return Defaults(settings={"learning_rate": 2e-4, "contrastive_learning_rate": 2e-4})
    return Defaults()
