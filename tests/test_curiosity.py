"""Curiosity measures without a state: the controls, and measures of other packages. The paper's measure
is tested in test_equations.py and test_framework.py, those with a state in
test_absolute_curiosity.py."""

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

import cclf
from cclf.algorithms.base import CONTROLS
from cclf.algorithms.registry import algorithms, make_learner
from cclf.config import (
    CURIOSITIES,
    CURIOSITY_CONTROLS,
    TRAINED_CURIOSITIES,
    MethodConfig,
)
from cclf.curiosity import CURIOSITY_MEASURES
from cclf.data.augmentations import Views
from cclf.framework import Appraisal, Framework
from tiny_runs import CPU, tiny_config

STATELESS = [name for name in CURIOSITY_MEASURES if name not in TRAINED_CURIOSITIES]
VIEWS, BATCH, FEATURES = 4, 6, 3
ORDER = torch.tensor([3, 0, 5, 1, 2, 4])
STEPS = torch.tensor(0.0, dtype=torch.float64)
REWARD = torch.rand(BATCH, dtype=torch.float64)
BELIEF = Framework(FEATURES).double()


def views_of(seed: int) -> Views:
    numbers = torch.Generator().manual_seed(seed)
    return Views(torch.randn(VIEWS, BATCH, FEATURES, generator=numbers, dtype=torch.float64))


def framework_of(measure: str, **overrides: Any) -> Framework:
    """A framework with the W of `BELIEF`, so that two of them differ in the measure only."""
    framework = Framework(FEATURES, MethodConfig(curiosity=measure, **overrides)).double()
    framework.load_state_dict(BELIEF.state_dict())
    return framework


def appraised(framework: Framework, order: Tensor | None = None) -> Appraisal:
    one = (views_of(1), views_of(2), REWARD, STEPS)
    return framework.appraise(*one, lambda seen: seen, lambda seen: seen, order)


def close(found: Tensor, expected: Any) -> None:
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=found.dtype))


# The controls


def test_shuffled_curiosity_is_the_same_numbers_in_another_order_in_every_use() -> None:
    plain, mixed = framework_of("belief"), framework_of("shuffled")
    own, others = appraised(plain), appraised(mixed, ORDER)
    for name in ("curiosity", "next_curiosity", "selected_view", "next_selected_view", "bonus"):
        assert torch.equal(getattr(others, name), getattr(own, name)[ORDER]), name
        assert not torch.equal(getattr(others, name), getattr(own, name)), name
    for name in ("weights", "next_weights"):
        assert torch.equal(getattr(others, name), getattr(own, name)[:, ORDER])
    before = torch.ones(BATCH, dtype=torch.float64)
    assert torch.equal(mixed.priority(before, others), plain.priority(before, own)[ORDER])
    # each sample stays in its row; only the selected view may differ
    assert torch.equal(others.views[0], own.views[0])
    for sample, view in enumerate(others.selected_view):
        assert torch.equal(others.views[1, sample], views_of(1).inputs[view, sample])


def test_even_curiosity_is_constant_with_the_mean_of_the_papers() -> None:
    own, level = appraised(framework_of("belief")), appraised(framework_of("even"))
    for name in ("curiosity", "next_curiosity"):
        close(getattr(level, name), getattr(own, name).mean().expand(BATCH))
    assert level.bonus.unique().numel() == 1
    assert level.selected_view.tolist() == level.next_selected_view.tolist() == [1] * BATCH
    assert torch.equal(level.views, views_of(1).inputs[:2])


@pytest.mark.parametrize("measure", [name for name in STATELESS if name != "shuffled"])
def test_other_measures_neither_request_nor_read_an_order(measure: str) -> None:
    framework = framework_of(measure)
    stream = torch.Generator().manual_seed(1)
    before = stream.get_state()
    assert framework.sample_permutation(BATCH, stream) is None
    assert torch.equal(stream.get_state(), before), "no other method's numbers may move"
    with_order, without = appraised(framework_of(measure), ORDER), appraised(framework)
    assert all(torch.equal(*pair) for pair in zip(with_order, without, strict=True))


def test_order_is_drawn_only_where_a_use_of_curiosity_reads_it() -> None:
    stream = torch.Generator().manual_seed(1)
    drawn = [framework_of("shuffled").sample_permutation(BATCH, stream) for _ in range(2)]
    assert all(sorted(order.tolist()) == list(range(BATCH)) for order in drawn)
    assert not torch.equal(*drawn)
    off = {"selection": "all", "prioritisation": False, "regularisation": False, "reward": False}
    assert framework_of("shuffled", views=2, **off).sample_permutation(BATCH, stream) is None


@pytest.mark.parametrize("task", ["toy/reach-1d", "minigrid/Empty-5x5", "toy/catch"])
def test_initial_state_of_a_control_equals_that_of_cclf(task: str) -> None:
    """Networks, replay and first random numbers are the same, so later differences are due to the
    measure."""
    learners = [
        make_learner(tiny_config(task, method), CPU) for method in ("cclf", "cclf-shuffled")
    ]
    one, other = (learner.algorithm.networks.state_dict() for learner in learners)
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    for learner in learners:
        learner.close()


@pytest.mark.parametrize("measure", STATELESS)
def test_every_measure_works_with_vmap_and_compiles_as_one_graph(measure: str) -> None:
    framework = framework_of(measure)
    now, following = ([views_of(seed).inputs for seed in pair] for pair in ((1, 3), (2, 4)))
    orders = [ORDER, ORDER.flip(0)]

    def bonus(seen: Tensor, next_seen: Tensor, order: Tensor) -> tuple[Tensor, ...]:
        appraisal = framework.appraise(
            Views(seen), Views(next_seen), REWARD, STEPS, lambda x: x, lambda x: x, order
        )
        return appraisal.weights, appraisal.curiosity, appraisal.selected_view

    framework.method = MethodConfig(curiosity=measure, reward=False)  # vmap cannot write maxima
    alone = [bonus(*each) for each in zip(now, following, orders, strict=True)]
    stacked = vmap(bonus)(*map(torch.stack, (now, following, orders)))
    graph = torch.compile(bonus, backend="eager", fullgraph=True)
    for number, own in enumerate(alone):
        for one, other in zip(own, stacked, strict=True):
            close(other[number], one)
    for one, other in zip(graph(now[0], following[0], ORDER), alone[0], strict=True):
        assert torch.equal(one, other)


# Names


def test_every_choice_of_the_option_is_a_measure() -> None:
    assert tuple(CURIOSITY_MEASURES) == CURIOSITIES
    assert MethodConfig.curiosity == "belief"
    assert set(CONTROLS) == set(STATELESS) - {"belief"} == set(CURIOSITY_CONTROLS)


@pytest.mark.parametrize(
    ("base", "own"),
    [("sac", "cclf"), ("drqv2", "drq-v2+cclf"), ("rainbow", "cclf"), ("a2c", "cclf")],
)
def test_controls_are_methods_that_differ_in_their_curiosity_alone(base: str, own: str) -> None:
    methods = algorithms()[base].methods
    for control in CONTROLS:
        method = methods[f"{own}-{control}"]
        assert method.overrides == methods[own].overrides | {"curiosity": control}
        assert method.settings == methods[own].settings


@pytest.mark.parametrize("base", algorithms())
def test_updates_do_not_name_a_measure(base: str) -> None:
    """Only the list of methods may name measures: an update must not depend on the name of its
    measure."""
    package = Path(cclf.__file__).parent / "algorithms" / base
    for path in package.glob("*.py"):
        if path.name == "presets.py":
            continue
        words = {
            node.value for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }  # fmt: skip
        # "forward" is also an action on MiniGrid
        assert not words & (set(CURIOSITY_MEASURES) - {"belief", "forward"}), path.name
        assert "MEASURES" not in path.read_text(), path.name
