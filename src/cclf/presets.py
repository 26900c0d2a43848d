"""From names to the config of a run.

Resolution order, in one function: the base algorithm's defaults, those of the suite and the task,
what is observed, profile, method, size; then whatever the command line changes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from cclf.algorithms.base import (
    AUGMENTATION_OF_STATE,
    DEFAULT_PROFILE,
    PIECES,
    BaseAlgorithm,
    Defaults,
    Method,
    Overrides,
)
from cclf.algorithms.registry import algorithms, default_algorithm, find_algorithm
from cclf.config import Config, EnvConfig, MethodConfig, ObservationType, RunConfig
from cclf.envs.registry import find_task, repeats_actions, suite_of, task_kind, validate_observation
from cclf.errors import ConfigError, did_you_mean


def select_algorithm(
    task_name: str, base_name: str | None = None, look: bool = True
) -> BaseAlgorithm:
    """The base algorithm to learn a task with: the one that was asked for, or the task's own.

    `look`: see `task_kind`. Without it `gym/` tasks are continuous, as all were in version 0.1.
    """
    play = task_kind(task_name, look)
    if base_name is None:
        return default_algorithm(play)
    base = find_algorithm(base_name)
    if play not in base.supported_tasks:
        able = ", ".join(
            other.name for other in algorithms().values() if play in other.supported_tasks
        )
        raise ConfigError(
            f"--base {base_name} conflicts with {task_name}, which is {play}: use one of {able}"
        )
    return base


def find_method(name: str, base: BaseAlgorithm) -> Method:
    if name in base.methods:
        return base.methods[name]
    elsewhere = [
        other.name for other in algorithms().values() if other is not base and name in other.methods
    ]
    hint = did_you_mean(name, base.methods)
    if elsewhere:
        hint = f": it belongs to {elsewhere[0]}, this task is learned with {base.name}"
    raise ConfigError(f"unknown method {name!r}{hint} (see: cclf methods)")


def find_profile(name: str, base: BaseAlgorithm) -> Defaults:
    if name not in base.profiles:
        raise ConfigError(
            f"unknown profile {name!r}{did_you_mean(name, base.profiles)}: use one of "
            f"{', '.join(base.profiles)}"
        )
    return base.profiles[name]


def resolve(
    task_name: str,
    method_name: str | None = None,
    *,
    seed: int = 1,
    profile: str = DEFAULT_PROFILE,
    base_name: str | None = None,
    size: str | None = None,
    observe: ObservationType = "pixels",
    look: bool = True,
) -> Config:
    """The config of a run before the command line has its say; the base has a default method."""
    base = select_algorithm(task_name, base_name, look)
    task, suite = find_task(task_name), suite_of(task_name)
    validate_observation(task.name, observe)
    seen = base.observation_defaults.get(observe, Defaults())
    method = base.default_method if method_name is None else find_method(method_name, base)
    reading, own, defaults = (
        find_profile(profile, base),
        base.task_defaults(task.name),
        base.defaults,
    )
    views = defaults.method | own.method | reading.method | method.overrides
    if observe == "state":
        crops = views.get("augmentation", MethodConfig.augmentation)
        views["augmentation"] = AUGMENTATION_OF_STATE.get(crops, crops)
    config = Config(
        task=task.name,
        method_name=method.name,
        seed=seed,
        profile=profile,
        env=replace(env_config(task_name, base), observe=observe, **seen.env),
        method=MethodConfig(**views),
        algorithm=base.settings_type(
            **defaults.settings | own.settings | seen.settings | reading.settings | method.settings
        ),
        run=RunConfig(**defaults.run | suite.run | task.run | own.run),
    )
    return config if size is None else _apply_size(config, size, base)


def _apply_size(config: Config, size: str, base: BaseAlgorithm) -> Config:
    """The same run with smaller frames, networks and batches; refused where it is smaller
    already."""
    if not base.sizes:
        raise ConfigError(
            f"--size {size} conflicts with {base.name}, which has one size: remove it"
        )
    if size not in base.sizes:
        raise ConfigError(
            f"unknown size {size!r}{did_you_mean(size, base.sizes)}: use one of {', '.join(base.sizes)}"
        )
    smaller = base.sizes[size]
    for name, now, then in _changed_by(config, smaller):
        if then > now:
            raise ConfigError(
                f"--size {size} conflicts with {config.task}, which is smaller already: {name} is "
                f"{now}, not {then}; remove it"
            )
    return replace(
        config,
        env=replace(config.env, **smaller.env),
        algorithm=replace(config.algorithm, **smaller.settings),
    )


def _changed_by(config: Config, size: Defaults) -> list[tuple[str, Any, Any]]:
    """The acting fields that a size would change: name, value now, value then."""
    now = vars(config.env) | vars(config.algorithm)
    wanted = size.env | size.settings
    return [
        (name, now[name], then)
        for name, then in wanted.items()
        if now[name] != then and not config.why_inactive(name)
    ]


def sizes_below(config: Config) -> list[str]:
    """The sizes that would make this run smaller, and nothing of it larger."""
    changes = {
        name: _changed_by(config, size) for name, size in find_algorithm(config.base).sizes.items()
    }
    return [
        name
        for name, changed in changes.items()
        if changed and all(then < now for _, now, then in changed)
    ]


def env_config(task_name: str, base: BaseAlgorithm) -> EnvConfig:
    task = find_task(task_name)
    return EnvConfig(
        **base.defaults.env | suite_of(task_name).env | task.env | base.task_defaults(task.name).env
    )


def from_dict(values: dict[str, Any]) -> Config:
    """A config as `Config.to_dict` wrote it."""
    values = dict(values)
    base = find_algorithm(values.pop("base"))
    groups = {
        "env": EnvConfig,
        "method": MethodConfig,
        "algorithm": base.settings_type,
        "run": RunConfig,
    }
    return Config(
        **{key: groups[key](**value) if key in groups else value for key, value in values.items()}
    )


def with_changes(defaults: Config, changes: Mapping[str, Any]) -> Config:
    """A config with other values of some fields, each by its name. Refuses what a command line
    would."""
    groups = ("env", "method", "algorithm", "run")
    group_of = {each.name: group for group in groups for each in fields(getattr(defaults, group))}
    for name in changes:
        if name not in group_of:
            raise ConfigError(
                f"unknown option {name!r}{did_you_mean(name, group_of)} (see: cclf train "
                f"{defaults.task} --help)"
            )
    changed: dict[str, dict[str, Any]] = {group: {} for group in groups}
    for name, value in changes.items():
        changed[group_of[name]][name] = value
    config = replace(
        defaults,
        **{group: replace(getattr(defaults, group), **own) for group, own in changed.items()},
    )
    reject_inactive_options(config, defaults)
    return config


def resolve_precision(configs: Sequence[Config], out: Path, gpu: bool) -> list[Config]:
    """Each with a precision in the place of `auto`: the one for the device, unless the same command
    began in the other one, on another device or before `auto` was known: it goes on in that."""

    def begun(some: list[Config]) -> bool:
        return any((out / config.run_name()).exists() for config in some)

    chosen, other = ([config.resolve_precision(on) for config in configs] for on in (gpu, not gpu))
    return other if begun(other) and not begun(chosen) else chosen


def validate_names(config: Config) -> None:
    """Of a config that somebody wrote: they name a folder to be made. No environment is looked at,
    which could import code, so of some tasks it is not known here whether the base can play them."""
    task, base = find_task(config.task), find_algorithm(config.base)
    if not suite_of(task.name).inspect_env:
        select_algorithm(task.name, base.name)
    find_method(config.method_name, base)
    find_profile(config.profile, base)


def reject_inactive_options(chosen: Config, defaults: Config) -> None:
    """An option that was set but cannot act is a mistake about the method, and better named than
    obeyed."""
    if not chosen.run.keep_replay and not find_algorithm(chosen.base).uses_replay:
        raise ConfigError(
            f"keep_replay=False conflicts with {chosen.base}, which has no replay: remove it"
        )
    given = defaults.hashed_fields()
    for name, value in chosen.hashed_fields().items():
        option = name.rpartition(".")[2]
        if value == given[name]:
            continue
        reason = chosen.why_inactive(option)
        if option == "action_repeat" and not repeats_actions(chosen.task):
            reason = f"{chosen.task}, which repeats no action"
        if reason:
            raise ConfigError(
                f"{option}={value} conflicts with {reason}: it would do nothing; remove it"
            )


def method_config(method: Method, base: BaseAlgorithm) -> MethodConfig:
    """The pieces of a method on its base algorithm."""
    return MethodConfig(**base.defaults.method | method.overrides)


def differences_from_cclf(method: Method, base: BaseAlgorithm) -> Overrides:
    """What a preset changes, field by field, compared with CCLF on the same base algorithm.

    Where that has no CCLF, its first method takes the place.
    """
    other = base.default_method
    ours, theirs = vars(method_config(method, base)), vars(method_config(other, base))
    changed = {name: value for name, value in ours.items() if value != theirs[name]}
    # what the other sets and this one leaves alone
    preset = vars(base.settings_type(**base.defaults.settings))
    settings = {name: preset[name] for name in other.settings} | method.settings
    absent = object()
    return changed | {
        name: value for name, value in settings.items() if value != other.settings.get(name, absent)
    }


def active_pieces(method: Method, base: BaseAlgorithm) -> list[str]:
    """Which of the four pieces of the paper a method has."""
    config = method_config(method, base)
    on = {"selection": config.selection == "curiosity"} | {
        name: getattr(config, name) for name in PIECES[1:]
    }
    return [name for name in PIECES if on[name]]
