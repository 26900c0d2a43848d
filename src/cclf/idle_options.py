"""Options that cannot act in a run. Each field says when it acts; one that is set and does not act is refused by name.

A field without a rule acts in every run of its base algorithm. `tests/test_idle_options.py` holds the rules to the truth: it
changes every field of every base and method, and demands that the change is refused or that the run changes.
"""

from collections.abc import Callable, Mapping
from typing import Any

from cclf.config import A2cConfig, Config, ConfigError, RainbowConfig, SacConfig

Values = Mapping[str, Any]
Rule = Callable[[Values], str]  # from all values of a run to what the option clashes with; empty where it acts


def _with(switch: str) -> Rule:
    return lambda values: "" if values[switch] else f"{switch}=False"


def _without(switch: str) -> Rule:
    return lambda values: f"{switch}=True" if values[switch] else ""


def _where(name: str, value: Any) -> Rule:
    return lambda values: "" if values[name] == value else f"{name}={values[name]}"


def _unless(name: str, value: Any) -> Rule:
    return lambda values: f"{name}={value}" if values[name] == value else ""


def _never(reason: str) -> Rule:
    return lambda _: reason


def _all(*rules: Rule) -> Rule:
    """Acts where all say so; the first clash is named."""
    return lambda values: next(filter(None, (rule(values) for rule in rules)), "")


def _any(*rules: Rule) -> Rule:
    """Acts where one of them says so."""
    return lambda values: " and ".join(clashes) if all(clashes := [rule(values) for rule in rules]) else ""


_METHOD: dict[str, Rule] = {
    "bonus_temperature": _with("reward"),
    "bonus_decay_per_env_step": _with("reward"),
    "bonus_maxima": _with("reward"),
    "priority_momentum": _with("prioritisation"),
    "contrastive_reduction": _with("contrastive"),
    "negatives": _with("contrastive"),
}
_DISTINCT = _never("pixels, of which no two observations are the same: it is made for grids")


def _crops_differ(values: Values) -> str:
    """Whether there is more than one place for a crop."""
    frame, crop = values["frame_pixels"], values["crop_pixels"]
    return "" if frame > crop else f"crop_pixels={crop} and frame_pixels={frame}, which leave one crop"


_SAC: dict[str, Rule] = {
    "negatives": _DISTINCT,
    "contrastive_learning_rate": _with("contrastive"),
    "contrastive_encoder_steps": _with("contrastive"),
    "collection_view": _crops_differ,
    "last_crop_offset": _all(
        _crops_differ, _any(_where("augmentation", "random-crop"), _where("collection_view", "random-crop"))
    ),
}

_NO_PIXELS = _never("A2C on grids, which sees what the task shows: 7x7 cells, one at a time")
_A2C: dict[str, Rule] = {
    "frame_pixels": _NO_PIXELS,
    "crop_pixels": _NO_PIXELS,
    "frame_stack": _NO_PIXELS,
    "contrastive_coefficient": _with("contrastive"),
    "contrastive_hidden_dim": _with("contrastive"),
    "key_ema_rate": _with("contrastive"),
    "re3_coefficient": _with("re3"),
    "re3_window_observations": _with("re3"),
    "re3_running_mean_slip": _with("re3"),
}

_td_priorities = _all(_without("prioritisation"), _where("base_replay", "td-error"))
_uneven_replay = _any(_with("prioritisation"), _all(_where("base_replay", "td-error"), _unless("priority_exponent", 0.0)))
_importance_weights = _all(_with("importance_sampling"), _uneven_replay)
_sees_views = _any(_with("contrastive"), _where("q_observations", "views"))


def _coefficients_differ(values: Values) -> str:
    same = values["cclf_coefficient"] == values["curl_coefficient"]
    return f"cclf_coefficient={values['cclf_coefficient']}, which curl_coefficient equals" if same else ""


_RAINBOW: dict[str, Rule] = {
    "negatives": _DISTINCT,
    "augmentation": _sees_views,
    "q_observations": _unless("augmentation", "none"),
    "intensity_scale": _all(_unless("augmentation", "none"), _sees_views),
    "base_replay": _without("prioritisation"),
    "priority_exponent": _td_priorities,
    "importance_sampling": _uneven_replay,
    "importance_beta": _importance_weights,
    "importance_beta_agent_steps": _all(_importance_weights, _unless("importance_beta", 1.0)),
    "warmup_policy": _all(
        lambda values: "" if values["epsilon_decay_agent_steps"] == 0 else "epsilon that starts at 1, which is uniform already",
        _unless("epsilon_train", 1.0),
    ),
    "epsilon_decay_agent_steps": _unless("epsilon_train", 1.0),
    "noisy_sigma": _with("noisy"),
    "atoms": _with("distributional"),
    "value_max": _with("distributional"),
    "key_ema_rate": _with("contrastive"),
    "logit_scale": _with("contrastive"),
    "contrastive_hidden_dim": _with("contrastive"),
    "contrastive_dim": _with("contrastive"),
    "contrastive_list": _all(_with("contrastive"), _coefficients_differ),
    "cclf_coefficient": _all(_with("contrastive"), _where("contrastive_list", "cclf")),
    "curl_coefficient": _all(_with("contrastive"), _where("contrastive_list", "curl")),
    "contrastive_joins_td": _all(
        _with("contrastive"), _any(_all(_td_priorities, _unless("priority_exponent", 0.0)), _importance_weights)
    ),
}
_OF_BASE: dict[type, dict[str, Rule]] = {SacConfig: _SAC, A2cConfig: _A2C, RainbowConfig: _RAINBOW}


def _of_task(task: str) -> dict[str, Rule]:
    """A grid world and `toy/catch` take one step per action, whatever they are told."""
    repeats = not task.startswith("minigrid/") and task != "toy/catch"
    return {} if repeats else {"action_repeat": _never(f"{task}, which repeats no action")}


def clash(config: Config, option: str) -> str:
    """What keeps this field from acting in this run; empty where it acts."""
    values = {name.rpartition(".")[2]: value for name, value in config.learning_values().items()}
    rules = _METHOD | _OF_BASE[type(config.algorithm)] | _of_task(config.task)
    return rules[option](values) if option in rules else ""


def refuse_idle_options(chosen: Config, defaults: Config) -> None:
    """An option that was set but cannot act is a mistake about the method, and better named than obeyed."""
    given = defaults.learning_values()
    for name, value in chosen.learning_values().items():
        option = name.rpartition(".")[2]
        reason = clash(chosen, option) if value != given[name] else ""
        if reason:
            raise ConfigError(f"{option}={value} clashes with {reason}: it would do nothing; leave it out")
