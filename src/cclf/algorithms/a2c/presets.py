"""The methods on A2C (A2C, RE3, and CURL and CCLF on either), the two profiles, and defaults for tasks."""

from collections.abc import Mapping

from cclf.algorithms.base import (
    CONTROLS,
    Defaults,
    Method,
    Overrides,
    control_methods,
    index_by_name,
)

# A grid observation is duplicated, not augmented; on-policy learning has no replay to prioritise.
DEFAULTS = Defaults(
    method={
        "augmentation": "none",
        "views": 1,
        "selection": "all",
        "prioritisation": False,
        "bonus_temperature": 2e-4,
        "bonus_maxima": "one",
    }
)
_NO_CURIOSITY: Overrides = {"contrastive": False, "regularisation": False, "reward": False}
_UNWEIGHTED: Overrides = {"regularisation": False, "reward": False}
_RE3: Overrides = {"re3": True}
_CCLF = Method("cclf", "A2C with curiosity-weighted contrastive loss and intrinsic reward", {})
_RE3_CCLF = Method("re3+cclf", "cclf with RE3's state-entropy bonus", {}, _RE3)
# The bonus alone, for measures that learn their own predictions. It does not decay, because on these
# tasks the goal may be found late.
_PREDICTED: Overrides = {
    "contrastive": False,
    "regularisation": False,
    "bonus_temperature": 0.01,
    "bonus_decay_per_env_step": 0.0,
}
_CENTRED: Overrides = {"bonus_place": "centred-reward"}
_RND = "errors of random network distillation"
_FORWARD = "errors of predicting the next observation"
_WITH_PREDICTION = (
    Method("a2c+rnd", f"A2C with {_RND} as a bonus", _PREDICTED | {"curiosity": "rnd"}, _CENTRED),
    Method(
        "a2c+forward",
        f"A2C with {_FORWARD} as a bonus",
        _PREDICTED | {"curiosity": "forward"},
        _CENTRED,
    ),
    Method("cclf+rnd", f"CCLF whose curiosity is {_RND}", {"curiosity": "rnd"}),
    Method("cclf+forward", f"CCLF whose curiosity is {_FORWARD}", {"curiosity": "forward"}),
)
METHODS = index_by_name(
    Method("a2c", "advantage actor-critic", _NO_CURIOSITY),
    Method("re3", "A2C with RE3's state-entropy bonus", _NO_CURIOSITY, _RE3),
    Method("curl", "A2C with the contrastive loss alone, unweighted", _UNWEIGHTED),
    Method("re3+curl", "curl with RE3's state-entropy bonus", _UNWEIGHTED, _RE3),
    _CCLF,
    _RE3_CCLF,
    Method(
        "cclf-distinct",
        "CCLF whose belief counts each distinct observation once",
        {"negatives": "distinct"},
    ),
    Method(
        "re3+cclf-distinct",
        "cclf-distinct with RE3's state-entropy bonus",
        {"negatives": "distinct"},
        _RE3,
    ),
    *control_methods(_CCLF, *CONTROLS),
    *control_methods(_RE3_CCLF, *CONTROLS),
    *_WITH_PREDICTION,
    *(control for method in _WITH_PREDICTION for control in control_methods(method, "shuffled")),
)

# CCLF on A2C was never released. The profile "released" has the settings of RE3's code, on which the
# paper's experiments are based.
PROFILES = {
    "released": Defaults(settings={"entropy_coefficient": 0.01}),
    "paper": Defaults(settings={"entropy_coefficient": 0.001}),
}


def task_defaults(task: str) -> Defaults:
    coefficients = {"minigrid/Empty-16x16": 0.1, "minigrid/DoorKey-6x6": 0.005}
    return Defaults(
        settings={"re3_coefficient": coefficients[task]} if task in coefficients else {}
    )


def profile_label(profile: str, settings: Mapping[str, object]) -> str:
    """The entropy coefficient, which is all that the profiles differ in."""
    coefficient = settings.get("entropy_coefficient")
    return profile if coefficient is None else f"entropy-{coefficient:g}"
