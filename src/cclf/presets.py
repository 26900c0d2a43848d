"""Makes the config of a run from the names of its task, method, profile and size.

`resolve` applies, in this order: the defaults of the base algorithm, of the suite and the task, of the
type of observations, of the profile, the method and the size. The command line then changes options.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from cclf.algorithms.base import (
    AUGMENTATION_OF_STATE,
    DEFAULT_PROFILE,
    BaseAlgorithm,
    Defaults,
    Method,
    Overrides,
)
from cclf.algorithms.registry import algorithms, default_algorithm, find_algorithm
from cclf.config import Config, EnvConfig, MethodConfig, ObservationType, RunConfig
from cclf.envs.registry import find_task, repeats_actions, suite_of, task_kind, validate_observation
from cclf.errors import ConfigError, did_you_mean

GROUPS = ("env", "method", "algorithm", "run")  # the parts of a config, each a dataclass


def select_algorithm(
    task_name: str,
    base_name: str | None = None,
    make_env: bool = True,
    observe: ObservationType = "pixels",
) -> BaseAlgorithm:
    """The base algorithm of this name, or the default for the task and what is observed. Raises
    ConfigError if it does not support the task.

    `make_env`: see `task_kind`. Without it `gym/` tasks count as continuous, as in version 0.1.
    """
    kind = task_kind(task_name, make_env)
    if base_name is None:
        return default_algorithm(kind, observe)
    base = find_algorithm(base_name)
    if kind not in base.supported_tasks:
        able = [each.name for each in algorithms().values() if kind in each.supported_tasks]
        raise ConfigError(
            f"--base {base_name} conflicts with {task_name}, which is {kind}: use one of "
            f"{', '.join(able)}"
        )
    return base


def find_method(name: str, base: BaseAlgorithm) -> Method:
    if name in base.methods:
        return base.methods[name]
    others = [each.name for each in algorithms().values() if name in each.methods]
    hint = did_you_mean(name, base.methods)
    if others:
        hint = f": it is a method of {others[0]}, and this task is learned with {base.name}"
        if len(base.methods) <= 3:
            hint += f", which has {', '.join(base.methods)}"
    raise ConfigError(f"unknown method {name!r}{hint} (see: cclf methods)")


def _find(what: str, name: str, known: Mapping[str, Defaults]) -> Defaults:
    if name not in known:
        raise ConfigError(
            f"unknown {what} {name!r}{did_you_mean(name, known)}: use one of {', '.join(known)}"
        )
    return known[name]


def resolve(
    task_name: str,
    method_name: str | None = None,
    *,
    seed: int = 1,
    profile: str = DEFAULT_PROFILE,
    base_name: str | None = None,
    size: str | None = None,
    observe: ObservationType = "pixels",
    make_env: bool = True,
) -> Config[Any]:
    """The config of a run before the options of a command line change it. Without `method_name` the
    algorithm's default method is used. The type of the settings is known only at run time."""
    base = select_algorithm(task_name, base_name, make_env, observe)
    task, suite = find_task(task_name), suite_of(task_name)
    validate_observation(task.name, observe)
    method = base.default_method if method_name is None else find_method(method_name, base)
    defaults, for_task = base.defaults, base.task_defaults(task.name)
    for_profile = _find("profile", profile, base.profiles)
    for_observation = base.observation_defaults.get(observe, Defaults())
    method_fields = defaults.method | for_task.method | for_profile.method | method.overrides
    if observe == "state":
        of_pixels = method_fields.get("augmentation", MethodConfig.augmentation)
        method_fields["augmentation"] = AUGMENTATION_OF_STATE.get(of_pixels, of_pixels)
    settings = defaults.settings | for_task.settings | for_observation.settings
    settings |= for_profile.settings | method.settings
    config = Config(
        task=task.name,
        method_name=method.name,
        seed=seed,
        profile=profile,
        env=replace(env_config(task_name, base), observe=observe, **for_observation.env),
        method=MethodConfig(**method_fields),
        algorithm=base.settings_type(**settings),
        run=RunConfig(**defaults.run | suite.run | task.run | for_task.run),
    )
    return config if size is None else _apply_size(config, size, base)


def _apply_size(config: Config, size: str, base: BaseAlgorithm) -> Config:
    """The same run with smaller frames, networks and batches. Raises ConfigError if one of them would
    become larger."""
    if not base.sizes:
        raise ConfigError(
            f"--size {size} conflicts with {base.name}, which has one size: remove it"
        )
    smaller = _find("size", size, base.sizes)
    current = vars(config.env) | vars(config.algorithm)
    for name, value in (smaller.env | smaller.settings).items():
        if value > current[name] and not config.why_inactive(name):
            raise ConfigError(
                f"--size {size} conflicts with {config.task}, which is smaller already: {name} is "
                f"{current[name]}, not {value}; remove it"
            )
    return replace(config, env=replace(config.env, **smaller.env)).with_settings(**smaller.settings)


def env_config(task_name: str, base: BaseAlgorithm) -> EnvConfig:
    task = find_task(task_name)
    return EnvConfig(
        **base.defaults.env | suite_of(task_name).env | task.env | base.task_defaults(task.name).env
    )


def from_dict(values: dict[str, Any]) -> Config[Any]:
    """A config as `Config.to_dict` wrote it."""
    settings_type = find_algorithm(values["base"]).settings_type
    types: dict[str, Callable[..., Any]] = dict(
        zip(GROUPS, (EnvConfig, MethodConfig, settings_type, RunConfig), strict=True)
    )
    return Config(
        **{
            name: types[name](**value) if name in types else value
            for name, value in values.items()
            if name != "base"
        }
    )


def with_changes(defaults: Config, changes: Mapping[str, Any]) -> Config:
    """A config with other values of some fields, by their names. Raises ConfigError for what a command
    line would refuse."""
    groups = {group: vars(defaults)[group] for group in GROUPS}
    group_of = {each.name: group for group, part in groups.items() for each in fields(part)}
    for name in changes:
        if name not in group_of:
            raise ConfigError(
                f"unknown option {name!r}{did_you_mean(name, group_of)} (see: cclf train "
                f"{defaults.task} --help)"
            )
    changed = {
        group: replace(
            part, **{name: value for name, value in changes.items() if group_of[name] == group}
        )
        for group, part in groups.items()
    }
    config = replace(defaults, **changed)
    reject_inactive_options(config, defaults)
    return config


def resolve_precision(configs: Sequence[Config], out: Path, gpu: bool) -> list[Config]:
    """The configs with the device's precision in place of `auto`. If `out` has a run of only the other
    device's precision (begun there, or before `auto` existed), that precision, so that it resumes."""
    preferred, other = (
        [config.resolve_precision(on_gpu) for config in configs] for on_gpu in (gpu, not gpu)
    )
    has_preferred, has_other = (
        any((out / each.run_name()).exists() for each in candidates)
        for candidates in (preferred, other)
    )
    return other if has_other and not has_preferred else preferred


def validate_names(config: Config) -> None:
    """Raise ConfigError unless task, method and profile of a config from a file are known, because
    they become the path of a folder. No environment is made, which could import code, so a task whose
    kind only its environment knows is not compared with the algorithm."""
    task, base = find_task(config.task), find_algorithm(config.base)
    if not suite_of(task.name).inspect_env:
        select_algorithm(task.name, base.name)
    find_method(config.method_name, base)
    _find("profile", config.profile, base.profiles)


def reject_inactive_options(chosen: Config, defaults: Config) -> None:
    """Raise ConfigError if an option differs from its default but has no effect in this run, because
    the user expects one."""
    if not chosen.run.keep_replay and not find_algorithm(chosen.base).uses_replay:
        raise ConfigError(
            f"keep_replay=False conflicts with {chosen.base}, which has no replay: remove it"
        )
    before = defaults.hashed_fields()
    for name, value in chosen.hashed_fields().items():
        if value == before[name]:
            continue
        option = name.rpartition(".")[2]
        if option == "crop_pixels" and value == chosen.env.frame_pixels:
            continue  # algorithms that do not crop need both
        reason = chosen.why_inactive(option)
        if option == "action_repeat" and not repeats_actions(chosen.task):
            reason = f"{chosen.task}, which repeats no action"
        if option == "observe_key" and not suite_of(chosen.task).has_dict_observations:
            reason = f"{chosen.task}, which has no Dict observations"
        if reason:
            raise ConfigError(
                f"{option}={value} conflicts with {reason}: it would do nothing; remove it"
            )


def method_config(method: Method, base: BaseAlgorithm) -> MethodConfig:
    """The `MethodConfig` of a method on its base algorithm."""
    return MethodConfig(**base.defaults.method | method.overrides)


def differences_from_cclf(method: Method, base: BaseAlgorithm) -> Overrides:
    """The fields in which a method differs from CCLF on the same base algorithm, or from the first
    method of an algorithm without CCLF."""
    values, reference = (
        vars(method_config(each, base))
        | vars(base.settings_type(**base.defaults.settings | each.settings))
        for each in (method, base.default_method)
    )
    return {name: value for name, value in values.items() if value != reference[name]}
