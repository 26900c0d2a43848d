"""Names of runs in tables. Runs of one method with different settings are variants, named by the
settings that differ: `cclf` and `cclf, learning_rate=0.0003`."""

import json
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from cclf import presets
from cclf.algorithms.base import BaseAlgorithm
from cclf.algorithms.registry import find_algorithm
from cclf.analysis.runs import RunKey, group_by
from cclf.errors import ConfigError
from cclf.storage.safe_loading import DATA_ERRORS, data_error_context

Json = Mapping[str, Any]
MAX_SETTINGS = 4  # in a name; further ones are abbreviated
_UNCOMPARED = {"env.observe", "algorithm.replay_device", "algorithm.precision", "algorithm.encoder"}


def run_key(config: Json) -> RunKey:
    """The name of a run in tables, without variants. The base algorithm names the profile; a
    precision below float32, an observation other than pixels, and a custom encoder are added to
    it."""
    base, settings = _find_base(config), config["algorithm"]
    profile = str(config["profile"])
    profile = profile if base is None else base.profile_label(profile, settings)
    precision = settings.get("precision", "fp32")
    suffixes = (
        precision if precision != "auto" else "fp32",  # "auto" if it failed before it began
        config.get("env", {}).get("observe", "pixels"),  # older runs do not have it
        settings.get("encoder", ""),
    )
    defaults = ("fp32", "pixels", "")
    added = [f"-{own}" for own, default in zip(suffixes, defaults, strict=True) if own != default]
    name = f"{profile}{''.join(added)}"
    return RunKey(str(config["task"]), str(config["method_name"]), name, int(config["seed"]))


def _find_base(config: Json) -> BaseAlgorithm | None:
    """The base algorithm of a run; None if this installation does not have it. Runs of version 0.1
    did not record it."""
    try:
        return (
            find_algorithm(str(config["base"]))
            if "base" in config
            else presets.select_algorithm(str(config["task"]), make_env=False)
        )
    except ConfigError:
        return None


def run_keys(configs: Mapping[Path, Json], compared: Collection[Path]) -> dict[Path, RunKey]:
    """The names of runs by folder. Settings that differ between runs of one method on one task are
    added to the method if they differ from the presets. Only the folders in `compared` are searched
    for such settings."""
    keys: dict[Path, RunKey] = {}
    groups: dict[RunKey, list[dict[str, object]]] = {}
    for folder, config in configs.items():
        with data_error_context(f"cannot read the run in {folder}"):
            keys[folder] = run_key(config)
            if folder in compared:
                group = keys[folder]._replace(seed=0)
                groups.setdefault(group, []).append(_settings(config))
    varied: dict[tuple[str, str], set[str]] = {}
    for group, runs in groups.items():
        varied.setdefault(group[1:3], set()).update(_varied_settings(runs))
    for folder, key in keys.items():
        if names := varied.get(key[1:3]):
            with data_error_context(f"cannot read the run in {folder}"):
                keys[folder] = key._replace(method=_variant(key, configs[folder], names))
    return keys


def _varied_settings(runs: Sequence[Mapping[str, object]]) -> set[str]:
    """The names of settings in which runs differ, of those that all of them have: different
    versions of the program have different fields, and different algorithms different settings."""
    by_base = group_by(runs, lambda run: run.get("base"))
    varied = {"base"} if len(set(by_base) - {None}) > 1 else set()
    for group in by_base.values():
        shared = set.intersection(*map(set, group))
        varied |= {name for name in shared if any(run[name] != group[0][name] for run in group)}
    return varied


def _settings(config: Json) -> dict[str, object]:
    """The settings that decide what a run learns, by name."""
    flat = {
        f"{group}.{name}": value
        for group in ("env", "method", "algorithm")
        for name, value in config[group].items()
        if f"{group}.{name}" not in _UNCOMPARED
    }
    return flat | ({"base": config["base"]} if "base" in config else {})


def _variant(key: RunKey, config: Json, varied: Collection[str]) -> str:
    own, preset = _settings(config), _preset(config)
    parts = [
        f"{name.rpartition('.')[2]}={own[name]}"
        for name in sorted(varied)
        if name in own and (name not in preset or own[name] != preset[name])
    ]
    if len(parts) > MAX_SETTINGS:
        digest = zlib.crc32(", ".join(parts).encode())
        parts = [*parts[: MAX_SETTINGS - 1], f"… ({digest:08x})"]
    return ", ".join([key.method, *parts])


def _preset(config: Json) -> dict[str, object]:
    """The settings of the same task, method and profile without further options; empty if this
    installation does not have them."""
    try:
        usual_base = presets.select_algorithm(config["task"], make_env=False).name
        preset = presets.resolve(
            config["task"],
            config["method_name"],
            profile=config["profile"],
            base_name=config.get("base"),
            observe=config["env"].get("observe", "pixels"),
            make_env=False,
        )
        return _settings(json.loads(json.dumps(preset.to_dict()))) | {"base": usual_base}
    except DATA_ERRORS:
        return {}
