"""Every option has an effect or is refused: each field of each base algorithm and method is changed,
and the run must change too."""

import dataclasses
import hashlib
import re
from functools import cache
from typing import Annotated, Literal, get_args, get_origin

import numpy as np
import pytest
import torch

from cclf import presets, validation
from cclf.algorithms.registry import algorithms, make_agent, make_learner
from cclf.config import AUGMENTATIONS, CURIOSITIES, Config, EnvConfig, MethodConfig
from cclf.errors import ConfigError
from cclf.presets import reject_inactive_options
from cclf.validation import METHOD_RULES
from tiny_runs import CPU, flat, tiny_config

RAINBOW_SIZES = {
    "batch_size": 4,
    "hidden_dim": 8,
    "contrastive_hidden_dim": 8,
    "contrastive_dim": 4,
    "learn_start_agent_steps": 16,
    "replay_capacity_transitions": 100,
    "n_steps": 3,
    "learning_rate": 0.1,  # so that the target network soon prefers other actions
}
DECAY_AGENT_STEPS = 8  # only where exploration decays
TASKS = {
    "sac": "toy/reach-1d",
    "a2c": "minigrid/Empty-5x5",
    "rainbow": "toy/catch",
    "drqv2": "toy/reach-1d",
    "sac, state": "gym/Pendulum-v1",
}
AGENT_STEPS = {"sac": 26, "a2c": 48, "rainbow": 30, "drqv2": 26}
EVAL_EPISODES = {"sac": 1, "a2c": 2, "rainbow": 5, "drqv2": 1}
# Fields whose effect such a short run cannot show with another choice, or with twice or half of the
# value.
OTHER_VALUES = {
    "replay_capacity_transitions": 12,
    "target_every_agent_steps": 5,
    "warmup_agent_steps": 23,
    "learn_start_agent_steps": 20,
    "max_gradient_norm": 1e-4,
    "importance_beta_agent_steps": 7,
    "epsilon_train": 0.5,
    "epsilon_eval": 1.0,
    "epsilon_decay_agent_steps": 30,
    "intensity_scale": 0.3,
    "action_repeat": 2,
    "conv_layers": 3,
    "encoder": "own_encoders:small",
    "observe_key": "position",
    "views": 3,
    "priority_exponent": 0.9,
}


def the_config(base: str, method: str) -> Config:
    sizes, env = (
        (RAINBOW_SIZES, {"frame_pixels": 36, "crop_pixels": 36}) if base == "rainbow" else ({}, {})
    )
    if (
        base == "rainbow"
        and presets.resolve(TASKS[base], method).algorithm.epsilon_decay_agent_steps
    ):
        sizes = sizes | {"epsilon_decay_agent_steps": DECAY_AGENT_STEPS}
    name, _, observe = base.partition(", ")
    return tiny_config(
        TASKS[base],
        method,
        base=name,
        observe=observe or "pixels",
        env=env,
        algorithm=sizes,
        eval_episodes=EVAL_EPISODES[name],
    )


def other_values(name: str, kind: object, value: object) -> list[object]:
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if name == "curiosity":
        return [measure for measure in CURIOSITIES if measure != value]
    if name == "augmentation":
        return [augmentation for augmentation in AUGMENTATIONS if augmentation != value]
    if get_origin(kind) is Literal:
        return [choice for choice in get_args(kind) if choice != value]
    if isinstance(value, bool):
        return [not value]
    if name in OTHER_VALUES and OTHER_VALUES[name] != value:
        return [OTHER_VALUES[name]]
    return [value // 2 or 2] if isinstance(value, int) else [value / 2 or 0.25]


def changes(base: str, method: str) -> list[tuple[str, str, object]]:
    """(group, field, value): every field that decides what is learned, with each value to try."""
    config = the_config(base, method)
    groups = {"env": EnvConfig, "method": MethodConfig, "algorithm": type(config.algorithm)}
    return [
        (group, name, value)
        for group, kind in groups.items()
        for name, of_type in validation.field_types(kind).items()
        # it sets where to compute; the other value is refused on a CPU
        if name not in ("replay_device", "precision")
        for value in other_values(name, of_type, getattr(getattr(config, group), name))
    ]


def changed(config: Config, group: str, name: str, value: object) -> Config:
    return dataclasses.replace(
        config, **{group: dataclasses.replace(getattr(config, group), **{name: value})}
    )


@cache
def state_after(config: Config) -> tuple[str, dict[str, torch.Tensor]]:
    """A hash of the state at the end of a short run of this config, and its networks."""
    torch.set_num_threads(1)
    learner = make_learner(config, CPU)
    agent_steps, seen = 0, hashlib.sha256()
    while agent_steps < AGENT_STEPS[config.base]:
        advance = learner.step(agent_steps * config.env.action_repeat)
        agent_steps += advance.agent_steps
        seen.update(repr(advance.finished_returns).encode())
    for name, leaf in sorted(flat(learner.state_dict()).items()):
        seen.update(name.encode())
        seen.update(np.asarray(leaf).tobytes() if hasattr(leaf, "shape") else repr(leaf).encode())
    learner.close()
    return seen.hexdigest(), learner.algorithm.networks.state_dict()


@cache
def evaluated(config: Config) -> list[float]:
    """The returns at the end of that run."""
    agent = make_agent(config, CPU)
    agent.policy.networks.load_state_dict(state_after(config)[1])
    returns = agent.evaluate(list(range(config.run.eval_episodes))).returns
    agent.close()
    return list(returns)


def same_run(one: Config, other: Config) -> bool:
    """Only runs with equal states are evaluated too, since most options change the state."""
    if state_after(one)[0] != state_after(other)[0]:
        return False
    return evaluated(one) == evaluated(other)


def refused(config: Config, group: str, name: str, value: object) -> str:
    try:
        asked = changed(config, group, name, value)
        reject_inactive_options(asked, config)
    except ConfigError as error:
        return str(error)
    return ""


def assert_options_have_an_effect_or_are_refused(base: str, method: str) -> None:
    config = the_config(base, method)
    idle, silent = [], []
    for group, name, value in changes(base, method):
        reason = refused(config, group, name, value)
        if reason:
            if name not in reason:
                silent.append(f"{name}={value}: {reason}")
        elif same_run(changed(config, group, name, value), config):
            idle.append(f"{name}={value}")
    assert not idle, f"accepted, and the run is the same: {idle}"
    assert not silent, f"refused without a name: {silent}"


# These change unused values only: a step counter without action repeats, maxima, disabled noise,
# and random numbers of a belief that no option uses.
HARMLESS = {"action_repeat", "bonus_maxima", "contrastive_dim", "noisy_sigma"}


def refused_needlessly(base: str, method: str) -> list[str]:
    """Options that a rule refuses as unused although the run changes with them."""
    config = the_config(base, method)
    found = []
    for group, name, value in changes(base, method):
        try:
            asked = changed(config, group, name, value)
        except ConfigError:
            continue  # there is no such run
        idle = name not in HARMLESS and refused(config, group, name, value)
        if idle and not same_run(asked, config):
            found.append(f"{name}={value}")
    return found


PAIRS = [
    (base, method)
    for base in TASKS
    for method in algorithms()[base.partition(",")[0]].methods
    if (base, method) != ("sac, state", "select")  # this option selects among crops
]
WITH_ALL_PIECES = [pair for pair in PAIRS if pair[1] in ("cclf", "drq-v2+cclf")]
IN_SLOW_LANE = ("rainbow", "sac, state")  # the longest runs, and those similar to others


@pytest.mark.quick("sac-cclf", "a2c-cclf")
@pytest.mark.parametrize(
    ("base", "method"), [pair for pair in WITH_ALL_PIECES if pair[0] not in IN_SLOW_LANE]
)
def test_every_option_of_cclf_has_an_effect_or_is_refused(base, method):
    assert_options_have_an_effect_or_are_refused(base, method)


@pytest.mark.slow("test_every_option_of_cclf_has_an_effect_or_is_refused")
@pytest.mark.parametrize(
    ("base", "method"),
    [pair for pair in PAIRS if pair not in WITH_ALL_PIECES or pair[0] in IN_SLOW_LANE],
)
def test_every_option_of_every_method_has_an_effect_or_is_refused(base, method):
    assert_options_have_an_effect_or_are_refused(base, method)


@pytest.mark.slow("test_refusal_names_both_options")
@pytest.mark.parametrize(("base", "method"), PAIRS)
def test_options_with_an_effect_are_accepted(base, method):
    assert refused_needlessly(base, method) == []


@pytest.mark.parametrize(
    ("task", "method", "group", "option", "value", "other"),
    [
        ("toy/reach", "drq", "method", "bonus_temperature", 0.5, "reward=False"),
        ("toy/reach", "select+", "method", "priority_momentum", 0.5, "prioritisation=False"),
        ("toy/reach", "rad", "algorithm", "contrastive_encoder_steps", 1, "contrastive=False"),
        ("dmc/cartpole-swingup", "cclf", "method", "negatives", "distinct", "pixels"),
        (
            "dmc/cartpole-swingup",
            "sac-pixel",
            "algorithm",
            "last_crop_offset",
            True,
            "augmentation=centre-crop",
        ),
        ("minigrid/DoorKey-6x6", "cclf", "algorithm", "re3_coefficient", 0.5, "re3=False"),
        ("minigrid/DoorKey-6x6", "a2c", "method", "negatives", "distinct", "contrastive=False"),
        ("minigrid/DoorKey-6x6", "curl", "method", "curiosity", "shuffled", "regularisation=False"),
        ("toy/reach", "drq", "method", "curiosity", "even", "selection=all"),
        ("minigrid/DoorKey-6x6", "cclf", "env", "action_repeat", 4, "minigrid/DoorKey-6x6"),
        ("minigrid/DoorKey-6x6", "cclf", "env", "frame_stack", 2, "A2C"),
        ("toy/catch", "cclf", "env", "action_repeat", 4, "toy/catch"),
        ("atari/Pong", "cclf", "algorithm", "base_replay", "uniform", "prioritisation=True"),
        ("atari/Pong", "cclf", "algorithm", "priority_exponent", 0.7, "prioritisation=True"),
        ("atari/Pong", "cclf", "algorithm", "contrastive_joins_td", True, "prioritisation=True"),
        ("atari/Pong", "cclf", "algorithm", "curl_coefficient", 0.5, "contrastive_list=cclf"),
        ("atari/Pong", "curl", "algorithm", "cclf_coefficient", 0.5, "contrastive_list=curl"),
        (
            "atari/Pong",
            "rainbow",
            "method",
            "augmentation",
            "shift",
            "contrastive=False and q_observations=original",
        ),
        (
            "atari/Pong",
            "efficient-dqn",
            "method",
            "augmentation",
            "shift",
            "q_observations=original",
        ),
        (
            "atari/Pong",
            "rainbow-uniform",
            "algorithm",
            "priority_exponent",
            0.7,
            "base_replay=uniform",
        ),
        (
            "atari/Pong",
            "rainbow-uniform",
            "algorithm",
            "importance_sampling",
            True,
            "base_replay=uniform",
        ),
        ("atari/Pong", "drq", "algorithm", "warmup_policy", "uniform", "epsilon"),
        ("atari/Pong", "drq", "algorithm", "double_q", False, "target_every_agent_steps=1"),
    ],
)
def test_refusal_names_both_options(task, method, group, option, value, other):
    defaults = presets.resolve(task, method)
    pattern = rf"^{option}={value} conflicts with .*{re.escape(other)}.*: it would do nothing"
    with pytest.raises(ConfigError, match=pattern):
        reject_inactive_options(changed(defaults, group, option, value), defaults)


def test_contrastive_list_has_an_effect_where_the_lists_differ():
    defaults = presets.resolve("atari/Pong", "cclf")
    assert not defaults.why_inactive("contrastive_list")
    reject_inactive_options(changed(defaults, "algorithm", "contrastive_list", "curl"), defaults)


def test_rules_name_options_that_exist():
    for base in algorithms().values():
        known = {
            name
            for kind in (EnvConfig, MethodConfig, base.settings_type)
            for name in validation.field_types(kind)
        }
        assert set(base.settings_type.rules) | set(METHOD_RULES) <= known
