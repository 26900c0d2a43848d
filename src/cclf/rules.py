"""When an option acts. A rule says of a run's values what keeps an option from acting; empty where
it acts."""

from collections.abc import Callable, Mapping
from typing import Any

Values = Mapping[str, Any]  # all that decides what a run learns, by the names of fields
Rule = Callable[[Values], str]


def requires(switch: str) -> Rule:
    return lambda values: "" if values[switch] else f"{switch}=False"


def requires_off(switch: str) -> Rule:
    return lambda values: f"{switch}=True" if values[switch] else ""


def requires_value(name: str, value: Any) -> Rule:
    return lambda values: "" if values[name] == value else f"{name}={values[name]}"


def excludes_value(name: str, value: Any) -> Rule:
    return lambda values: f"{name}={value}" if values[name] == value else ""


def always_inactive(reason: str) -> Rule:
    return lambda _: reason


def all_of(*rules: Rule) -> Rule:
    """Acts where all say so; the first conflict is named."""
    return lambda values: next(filter(None, (rule(values) for rule in rules)), "")


def any_of(*rules: Rule) -> Rule:
    """Acts where one of them says so."""
    return lambda values: (
        " and ".join(conflicts) if all(conflicts := [rule(values) for rule in rules]) else ""
    )


_USES = (
    requires_value("selection", "curiosity"),
    requires("prioritisation"),
    requires("regularisation"),
    requires("reward"),
)


def _curiosity(values: Values) -> str:
    """It acts where it is used; two of its choices leave some of the uses as they are."""
    of_choice = {"ranks": any_of(*_USES[1:]), "particles": requires("reward")}
    return of_choice.get(values["curiosity"], any_of(*_USES))(values)


# Choices of `curiosity` that keep it out of the contrastive loss.
MEASURES_WITHOUT_CONTRASTIVE_WEIGHT = ("ranks", "debiased", "cancelled")


def weights_contrastive_loss(values: Values) -> str:
    """Of `regularisation`, where the contrastive loss is all that it weights."""
    chosen = values["curiosity"]
    return f"curiosity={chosen}" if chosen in MEASURES_WITHOUT_CONTRASTIVE_WEIGHT else ""


# Of the options that every base algorithm shares.
METHOD_RULES: dict[str, Rule] = {
    "bonus_temperature": requires("reward"),
    "bonus_decay_per_env_step": requires("reward"),
    "bonus_maxima": requires("reward"),
    "priority_momentum": requires("prioritisation"),
    "contrastive_reduction": requires("contrastive"),
    "negatives": requires("contrastive"),
    "curiosity": _curiosity,
}
GRID_ONLY = always_inactive(
    "pixels, of which no two observations are the same: it is made for grids"
)
