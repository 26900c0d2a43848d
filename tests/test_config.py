"""Configs: validation, run names, and that reading one imports neither torch nor numpy."""

import dataclasses
import json
import math
from dataclasses import replace
from types import NoneType, UnionType
from typing import Annotated, Literal, Union, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cclf import presets, validation
from cclf.algorithms.a2c.config import A2cConfig
from cclf.algorithms.rainbow.config import RainbowConfig
from cclf.algorithms.registry import algorithms
from cclf.algorithms.sac.config import SacConfig
from cclf.config import Config, EnvConfig, MethodConfig, RunConfig
from cclf.errors import ConfigError

PLAIN = {"selection": "all", "prioritisation": False, "regularisation": False, "reward": False}


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"contrastive": False}, ["contrastive=False", "selection=curiosity"]),
        (
            {**PLAIN, "views": 2, "contrastive": False, "prioritisation": True},
            ["contrastive=False", "prioritisation"],
        ),
        (
            {**PLAIN, "views": 2, "contrastive": False, "regularisation": True},
            ["contrastive=False", "regularisation"],
        ),
        (
            {**PLAIN, "views": 2, "contrastive": False, "reward": True},
            ["contrastive=False", "reward"],
        ),
        (
            {**PLAIN, "augmentation": "centre-crop", "views": 1},
            ["augmentation=centre-crop", "contrastive=True"],
        ),
        (
            {**PLAIN, "augmentation": "centre-crop", "views": 2, "contrastive": False},
            ["augmentation=centre-crop", "views=2"],
        ),
        ({**PLAIN, "augmentation": "none", "views": 2}, ["augmentation=none", "views=2"]),
        ({"views": 2}, ["selection=curiosity", "views=2"]),
        ({**PLAIN, "selection": "overlap", "views": 2}, ["selection=overlap", "views=2"]),
        ({**PLAIN, "views": 1, "reward": True}, ["reward", "views=1"]),
        ({**PLAIN, "views": 5, "regularisation": True}, ["regularisation", "views=5"]),
        ({**PLAIN, "views": 5, "prioritisation": True}, ["prioritisation", "selection=all"]),
    ],
)
def test_pieces_that_have_no_effect_are_refused_by_both_names(values, names):
    with pytest.raises(ConfigError) as caught:
        MethodConfig(**values)
    for name in (*names, "conflicts with"):
        assert name in str(caught.value)


def _rainbow(name="cclf", **changes):
    config = presets.resolve("atari/Pong", name)
    return replace(
        config,
        **{group: replace(getattr(config, group), **fields) for group, fields in changes.items()},
    )


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: EnvConfig(frame_pixels=64, crop_pixels=84), ["crop_pixels=84", "frame_pixels=64"]),
        (lambda: SacConfig(log_std_min=3.0), ["log_std_min=3.0", "log_std_max=2.0"]),
        (
            lambda: Config(
                "toy/reach", "cclf", SacConfig(), env=EnvConfig(frame_pixels=20, crop_pixels=14)
            ),
            ["conv_layers=4", "crop_pixels=14"],
        ),
        (
            lambda: Config("toy/reach", "cclf", SacConfig(conv_layers=40)),
            ["conv_layers=40", "crop_pixels=84"],
        ),
        (
            lambda: replace(
                presets.resolve("dmc/cheetah-run"),
                method=presets.resolve("minigrid/Empty-16x16").method,
            ),
            ["augmentation=none", "SAC"],
        ),
        (
            lambda: RainbowConfig(learn_start_agent_steps=20),
            ["learn_start_agent_steps=20", "n_steps=20"],
        ),
        (lambda: _rainbow(env={"frame_pixels": 100}), ["crop_pixels=84", "frame_pixels=100"]),
        (
            lambda: _rainbow(env={"frame_pixels": 24, "crop_pixels": 24}),
            ["data-efficient", "frame_pixels=24"],
        ),
        (
            lambda: _rainbow(algorithm={"q_observations": "original"}),
            ["q_observations=original", "prioritisation"],
        ),
        (
            lambda: _rainbow("rainbow", algorithm={"intensity_scale": 0.1}),
            ["intensity_scale=0.1", "augmentation=none"],
        ),
        (
            lambda: _rainbow("curl", method={"augmentation": "none"}),
            ["augmentation=none", "contrastive=True"],
        ),
        (
            lambda: _rainbow("curl", method={"augmentation": "random-crop"}),
            ["augmentation=random-crop", "Rainbow"],
        ),
        (
            lambda: replace(
                presets.resolve("minigrid/Empty-16x16"),
                method=presets.resolve("dmc/cheetah-run").method,
            ),
            ["prioritisation=True", "A2C"],
        ),
    ],
)
def test_options_of_two_groups_that_conflict_are_both_named(make, names):
    with pytest.raises(ConfigError) as caught:
        make()
    for name in (*names, "conflicts with"):
        assert name in str(caught.value)


KINDS = (EnvConfig, MethodConfig, SacConfig, A2cConfig, RainbowConfig, RunConfig)
FIELDS = [(kind, name) for kind in KINDS for name in validation.field_types(kind)]


def bad_values(kind) -> list[object]:
    """Values that a field of this type must refuse: beyond both bounds, NaN, and values of other
    types."""
    parts = get_args(kind) if get_origin(kind) in (Annotated, UnionType, Union) else (kind,)
    if NoneType in parts:
        return [value for value in bad_values(parts[0]) if value is not None]
    ranges = [part for part in parts if isinstance(part, validation.Range)]
    beyond = [
        end + step
        for each in ranges
        for end, step in ((each.minimum, -1), (each.maximum, 1))
        if math.isfinite(end)
    ]
    at_end = [end for each in ranges for end, out in zip(each[:2], each[2:], strict=True) if out]
    never = [None, [], {}, "1", float("nan"), float("inf"), -float("inf"), 10**30]
    if parts[0] is int:
        return [*never, *beyond, *at_end, True, 1.5]
    if parts[0] is float:
        return [*never[:-1], *beyond, *at_end, True]
    return [*(value for value in never if not (parts[0] is str and value == "1")), 7]


def test_every_field_refuses_values_of_other_types_and_ranges():
    for kind, name in FIELDS:
        for bad in bad_values(validation.field_types(kind)[name]):
            with pytest.raises(ConfigError, match=f"^{name}="):
                kind(**{name: bad})


def test_every_number_has_a_range():
    """A number without a range would accept values that make no sense."""
    for kind, name in FIELDS:
        if type(getattr(kind, name)) in (int, float):
            parts = get_args(validation.field_types(kind)[name])
            is_choice = get_origin(validation.field_types(kind)[name]) is Literal
            assert is_choice or any(isinstance(part, validation.Range) for part in parts), name


@pytest.mark.parametrize(
    ("name", "bad"), [("seed", -1), ("seed", 2**63), ("seed", 1.0), ("task", 3), ("profile", None)]
)
def test_config_refuses_invalid_names_and_seeds(name, bad):
    with pytest.raises(ConfigError, match=f"^{name}="):
        Config(**{"task": "toy/reach", "method_name": "cclf", "algorithm": SacConfig(), name: bad})


def test_config_refuses_settings_that_are_no_algorithm_settings():
    with pytest.raises(ConfigError, match=r"^algorithm=\{\} must be AlgorithmSettings"):
        Config("toy/reach", "cclf", algorithm={})


def test_a_window_of_re3_holds_at_least_one_update():
    with pytest.raises(ConfigError, match="re3_window_observations=127 conflicts with num_envs=16"):
        A2cConfig(re3=True, re3_window_observations=127)
    assert A2cConfig(re3=True, re3_window_observations=128)


ALL_NAMES = [(f"{suite}/{name}", method) for suite, name, base in
             (("dmc", "cheetah-run", "sac"), ("toy", "reach", "sac"), ("minigrid", "Empty-16x16", "a2c"),
              ("atari", "Pong", "rainbow"))
             for method in algorithms()[base].methods]  # fmt: skip


def test_config_round_trips_through_json():
    for task, method in ALL_NAMES:
        config = replace(
            presets.resolve(task, method, seed=7, profile="paper"),
            run=RunConfig(env_steps=123, device="cpu"),
        )
        again = presets.from_dict(json.loads(json.dumps(config.to_dict())))
        assert again == config
        assert again.run_name() == config.run_name()


def changed(value):
    """Another value of the same kind that stays in range."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return type(value)(value * 0.5) if value > 1 or isinstance(value, float) else value + 1
    return 3 if value is None else value + "x"


def with_field(config, group, name, value):
    """Without validation: the run name must not depend on which combinations are valid."""
    part = dataclasses.replace(config)  # a copy
    inner = object.__new__(type(getattr(config, group)))
    for key, old in dataclasses.asdict(getattr(config, group)).items():
        object.__setattr__(inner, key, value if key == name else old)
    object.__setattr__(part, group, inner)
    return part


BASE = presets.resolve("dmc/cartpole-swingup", "cclf")
LEARNING = [
    (group, f.name)
    for group in ("env", "method", "algorithm")
    for f in dataclasses.fields(getattr(BASE, group))
]


def test_run_name_depends_on_every_field_that_affects_learning():
    for group, name in LEARNING:
        if name not in ("replay_device", "negatives", "noise_scale"):
            other = with_field(BASE, group, name, changed(getattr(getattr(BASE, group), name)))
            assert other.run_name() != BASE.run_name(), name


def test_run_name_ignores_options_without_effect():
    """Crops are never equal, so a belief over distinct keys is the same belief, and the run has the
    same name."""
    assert with_field(BASE, "method", "negatives", "distinct").run_name() == BASE.run_name()
    drq = presets.resolve("dmc/cartpole-swingup", "drq")
    assert with_field(drq, "method", "bonus_temperature", 0.7).run_name() == drq.run_name()
    assert with_field(BASE, "method", "bonus_temperature", 0.7).run_name() != BASE.run_name()
    assert with_field(BASE, "algorithm", "noise_scale", 0.7).run_name() == BASE.run_name()
    assert with_field(BASE, "algorithm", "replay_device", "cpu").run_name() == BASE.run_name()


def test_run_names_are_those_of_version_0_2():
    """A folder of version 0.2 is found again."""
    assert BASE.run_name() == "dmc/cartpole-swingup/cclf/seed-1-70bb76d7"
    doorkey = presets.resolve("minigrid/DoorKey-6x6", "re3+cclf", seed=7)
    assert doorkey.run_name() == "minigrid/DoorKey-6x6/re3+cclf/seed-7-273a788a"


def test_added_option_at_its_default_renames_no_run():
    @dataclasses.dataclass(frozen=True)
    class WithOption(type(BASE.algorithm)):
        added: int = 3

    settings = dataclasses.asdict(BASE.algorithm)
    for added, same in ((3, True), (4, False)):
        config = dataclasses.replace(BASE, algorithm=WithOption(**settings, added=added))
        assert (config.run_name() == BASE.run_name()) == same


def test_config_of_version_0_2_has_belief_and_pixels():
    for config in (BASE, presets.resolve("minigrid/DoorKey-6x6", "cclf")):
        written = config.to_dict()
        del written["method"]["curiosity"], written["env"]["observe"]
        assert presets.from_dict(written) == config
        assert config.method.curiosity == "belief"


def test_run_name_contains_task_method_and_seed():
    assert BASE.run_name().startswith("dmc/cartpole-swingup/cclf/seed-1-")
    names = {
        presets.resolve(t, m, seed=s).run_name()
        for t in ("toy/reach", "toy/reach-1d")
        for m in ("drq", "cclf")
        for s in (1, 2)
    }
    assert len(names) == 8
    assert (
        presets.resolve("toy/reach", profile="paper").run_name()
        != presets.resolve("toy/reach").run_name()
    )


def test_run_name_ignores_budget_device_and_logging():
    for field in dataclasses.fields(RunConfig):
        other = with_field(BASE, "run", field.name, changed(getattr(BASE.run, field.name)))
        assert other.run != BASE.run
        assert other.run_name() == BASE.run_name(), field.name


@given(env_steps=st.integers(1, 10**7), repeat=st.integers(1, 8), warmup=st.integers(1, 5_000))
def test_env_steps_convert_to_agent_steps_without_losing_one(env_steps, repeat, warmup):
    config = Config(
        "toy/reach",
        "cclf",
        env=EnvConfig(action_repeat=repeat),
        algorithm=SacConfig(warmup_agent_steps=warmup),
        run=RunConfig(env_steps=env_steps),
    )
    assert (
        (config.planned_agent_steps - 1) * repeat < env_steps <= config.planned_agent_steps * repeat
    )
    assert config.planned_updates == max(0, config.planned_agent_steps - warmup)
