"""What may stand in the place of curiosity: controls that keep its numbers and take something from
them, and candidates worked out by hand. The paper's own is in test_equations and test_framework."""

import ast
import math
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch
from torch import Tensor
from torch.func import vmap

import cclf
from cclf import curiosity
from cclf.algorithms.base import CANDIDATES, CONTROLS
from cclf.algorithms.registry import algorithms, make_learner
from cclf.config import MethodConfig
from cclf.curiosity import CURIOSITY_MEASURES
from cclf.data.augmentations import Views
from cclf.framework import Appraisal, Framework
from cclf.validation import MEASURES_WITHOUT_CONTRASTIVE_WEIGHT
from tiny_runs import CPU, tiny_config

VIEWS, BATCH, FEATURES = 4, 6, 3
ORDER = torch.tensor([3, 0, 5, 1, 2, 4])
STEPS = torch.tensor(0.0, dtype=torch.float64)
REWARD = torch.rand(BATCH, dtype=torch.float64)
BELIEF = Framework(FEATURES).double()


def views_of(seed: int) -> Views:
    numbers = torch.Generator().manual_seed(seed)
    return Views(torch.randn(VIEWS, BATCH, FEATURES, generator=numbers, dtype=torch.float64))


def framework_of(measure: str, **overrides: Any) -> Framework:
    """With W of `BELIEF`, so that what two of them differ in is the measure alone."""
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
    for name in ("curiosity", "next_curiosity", "chosen", "next_chosen", "bonus"):
        assert torch.equal(getattr(others, name), getattr(own, name)[ORDER]), name
        assert not torch.equal(getattr(others, name), getattr(own, name)), name
    for name in ("weights", "next_weights"):
        assert torch.equal(getattr(others, name), getattr(own, name)[:, ORDER])
    before = torch.ones(BATCH, dtype=torch.float64)
    assert torch.equal(mixed.priority(before, others), plain.priority(before, own)[ORDER])
    # what is learned from stays where it was: only which view of it was chosen may be another
    assert torch.equal(others.views[0], own.views[0])
    for sample, view in enumerate(others.chosen):
        assert torch.equal(others.views[1, sample], views_of(1).inputs[view, sample])


def test_the_contrastive_loss_is_weighted_by_the_shuffled_one() -> None:
    mixed = framework_of("shuffled")
    weights = appraised(mixed, ORDER).curiosity
    query, key = views_of(3).inputs[:2]
    own = [mixed.contrastive_loss(query, key, one) for one in torch.eye(BATCH).double()]
    expected = (weights * torch.stack(own)).sum() / weights.sum()
    close(mixed.contrastive_loss(query, key, weights), expected)


def test_even_curiosity_is_constant_with_the_mean_of_the_papers() -> None:
    own, level = appraised(framework_of("belief")), appraised(framework_of("even"))
    for name in ("curiosity", "next_curiosity"):
        close(getattr(level, name), getattr(own, name).mean().expand(BATCH))
    assert level.bonus.unique().numel() == 1
    assert level.chosen.tolist() == level.next_chosen.tolist() == [1] * BATCH
    assert torch.equal(level.views, views_of(1).inputs[:2])


def test_shuffling_without_an_order_says_what_is_missing() -> None:
    with pytest.raises(AssertionError, match="needs `order`"):
        appraised(framework_of("shuffled"))


@pytest.mark.parametrize("measure", [name for name in CURIOSITY_MEASURES if name != "shuffled"])
def test_no_other_measure_asks_for_an_order_or_reads_one(measure: str) -> None:
    framework = framework_of(measure)
    stream = torch.Generator().manual_seed(1)
    before = stream.get_state()
    assert framework.draw_order(BATCH, stream) is None
    assert torch.equal(stream.get_state(), before), "no other method's numbers may move"
    with_order, without = appraised(framework_of(measure), ORDER), appraised(framework)
    assert all(torch.equal(*pair) for pair in zip(with_order, without, strict=True))


def test_an_order_is_drawn_where_a_use_of_curiosity_reads_it_alone() -> None:
    stream = torch.Generator().manual_seed(1)
    drawn = [framework_of("shuffled").draw_order(BATCH, stream) for _ in range(2)]
    assert all(sorted(order.tolist()) == list(range(BATCH)) for order in drawn)
    assert not torch.equal(*drawn)
    off = {"selection": "all", "prioritisation": False, "regularisation": False, "reward": False}
    assert framework_of("shuffled", views=2, **off).draw_order(BATCH, stream) is None


@pytest.mark.parametrize("task", ["toy/reach-1d", "minigrid/Empty-5x5", "toy/catch"])
def test_a_control_begins_as_cclf_does(task: str) -> None:
    """Networks, replay and first draws are the same: what differs later is the measure's doing."""
    learners = [
        make_learner(tiny_config(task, method), CPU) for method in ("cclf", "cclf-shuffled")
    ]
    one, other = (learner.algorithm.networks.state_dict() for learner in learners)
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    for learner in learners:
        learner.close()


# The candidates


def test_ranks_by_hand() -> None:
    # The largest of four has 3 of 3 below it, the two that tie 1 and each other for a half.
    c = torch.tensor([0.2, 0.7, 0.7, 0.9])
    close(curiosity.rank(c), [0.0, 0.5, 0.5, 1.0])
    close(curiosity.rank_weight(c), [0.25, 0.5, 0.5, 0.75])
    close(curiosity.rank_priority(c), [0.5, 0.75, 0.75, 1.0])
    # mean 0.625, variance (0.180625 + 2 0.005625 + 0.075625) / 4 = 0.066875
    sigma = math.sqrt(0.066875)
    close(
        curiosity.bonus_from_zscore(c, c[:, None]),
        [0.0, 0.075 / sigma, 0.075 / sigma, 0.275 / sigma],
    )
    close(curiosity.rank(torch.tensor([0.4])), [0.0])


def test_a_bonus_by_rank_counts_two_deviations_and_no_more() -> None:
    c = torch.tensor([0.0] * 99 + [1.0])
    assert curiosity.bonus_from_zscore(c, c[:, None]).max() == 2.0
    assert not curiosity.bonus_from_zscore(torch.full((5,), 0.3), c[:5, None]).any()


def test_ranks_reach_every_use_and_leave_the_contrastive_loss_unweighted() -> None:
    ranked, own = framework_of("ranks"), appraised(framework_of("belief"))
    appraisal = appraised(ranked)
    assert torch.equal(appraisal.curiosity, own.curiosity)
    assert torch.equal(appraisal.chosen, own.chosen)
    u, following = curiosity.rank(own.curiosity), curiosity.rank(own.next_curiosity)
    close(appraisal.weights, torch.stack([0.75 - 0.5 * u, 0.25 + 0.5 * u]))
    previous = torch.rand(BATCH, dtype=torch.float64)
    close(
        ranked.priority(previous, appraisal), 0.99 * previous + 0.01 * (0.5 + (u + following) / 4)
    )
    query, key = views_of(3).inputs[:2]
    every = [ranked.contrastive_loss(query, key, c) for c in (own.curiosity, torch.ones(BATCH))]
    close(*every)


def beliefs_of(measure: str, query: list[list[float]], keys: list[list[float]]) -> Tensor:
    features = (torch.tensor(query), torch.tensor([keys]))
    return CURIOSITY_MEASURES[measure].beliefs(*features, torch.eye(len(query[0])), None)[0]


def test_the_debiased_belief_by_hand() -> None:
    # Four keys around the origin, t = 1/10. The queries are turned by a right angle: each has
    # cosine 0 with its own key, so p = 1, and 1, 0, -1 with the others: e^10, 1 and e^-10. Of
    # three negatives a tenth is false: 0.3 p comes off.
    keys = [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]
    turned = [keys[1], keys[2], keys[3], keys[0]]
    rest = (math.exp(10) + 1.0 + math.exp(-10) - 0.3) / 0.9
    close(beliefs_of("debiased", turned, keys), [1.0 / (1.0 + rest)] * 4)
    # Unturned, 0.3 e^10 is more than all negatives together: the floor 3 e^-10 counts.
    own, floor = math.exp(10), 3.0 * math.exp(-10)
    close(beliefs_of("debiased", keys, keys), [own / (own + floor)] * 4)
    # Neither lengths nor a common part of all features change it.
    moved = [[5.0 + 3.0 * x, 7.0 + 3.0 * y] for x, y in keys]
    close(beliefs_of("debiased", turned, moved), [1.0 / (1.0 + rest)] * 4)


def test_copies_halve_the_papers_belief_and_cost_a_cancelled_one_nothing() -> None:
    """Of twelve, the last two are copies, with logits of 9 for themselves and each other."""
    features = 3.0 * torch.eye(12)
    features[11] = features[10]
    lists = (features.tolist(), features.tolist())
    paper, cancelled = (beliefs_of(name, *lists) for name in ("belief", "cancelled"))
    own = math.exp(9)
    close(paper, [own / (own + 11)] * 10 + [own / (2 * own + 10)] * 2)
    close(cancelled, [own / (own + 11)] * 10 + [own / (own + 10)] * 2)


def test_the_cancelled_belief_by_hand() -> None:
    # Logits of query 0: own 1, others 2 and 0. The 2 is left out: e / (e + 1). Query 1: own 2,
    # others 1 and 0. Query 2: own 0, others 0 and 0, as similar as the own: nothing is left.
    query = [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    keys = [[1.0, 0.0], [2.0, 0.0], [0.0, 0.0]]
    e, e2 = math.e, math.exp(2)
    close(beliefs_of("cancelled", query, keys), [e / (e + 1), e2 / (e2 + e + 1), 1.0])


def test_the_bonus_of_particles_pays_distance_and_nothing_else_changes() -> None:
    own, appraisal = appraised(framework_of("belief")), appraised(framework_of("particles"))
    for name in ("curiosity", "next_curiosity", "weights", "chosen"):
        assert torch.equal(getattr(appraisal, name), getattr(own, name)), name
    scores = []
    for seed in (1, 2):
        z = views_of(seed).inputs[0]
        d = torch.stack([sum((a - b).norm() for b in z) / (BATCH - 1) for a in z])
        scores.append(torch.log(1 + d) / torch.log(1 + d).mean())
    close(appraisal.bonus / appraisal.bonus[0], sum(scores) / sum(scores)[0])


def test_particles_pay_the_rare_and_twelve_neighbours_count() -> None:
    features = torch.zeros(30, 2)
    features[0] = torch.tensor([3.0, 4.0])
    pay = curiosity.bonus_from_knn_distance(torch.zeros(30), features)
    assert (pay[1:] == 0.0).all()  # their twelve nearest are copies
    assert pay[0] == pytest.approx(30.0)  # all of a mean of 1
    assert not curiosity.bonus_from_knn_distance(torch.zeros(5), torch.ones(5, 2)).any()
    assert curiosity.bonus_from_knn_distance(torch.zeros(1), torch.ones(1, 2)).isfinite().all()


@pytest.mark.parametrize("measure", CURIOSITY_MEASURES)
def test_every_measure_maps_over_runs_and_is_one_graph(measure: str) -> None:
    framework = framework_of(measure)
    now, following = ([views_of(seed).inputs for seed in pair] for pair in ((1, 3), (2, 4)))
    orders = [ORDER, ORDER.flip(0)]

    def bonus(seen: Tensor, next_seen: Tensor, order: Tensor) -> tuple[Tensor, ...]:
        appraisal = framework.appraise(
            Views(seen), Views(next_seen), REWARD, STEPS, lambda x: x, lambda x: x, order
        )
        return appraisal.weights, appraisal.curiosity, appraisal.chosen

    framework.method = MethodConfig(curiosity=measure, reward=False)  # its maxima cannot be mapped
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
    choices = get_args(get_type_hints(MethodConfig)["curiosity"])
    assert set(choices) == set(CURIOSITY_MEASURES)
    assert next(f.default for f in fields(MethodConfig) if f.name == "curiosity") == "belief"
    assert set(CONTROLS | CANDIDATES) == set(CURIOSITY_MEASURES) - {"belief"}


def test_the_rules_know_which_measures_leave_the_contrastive_loss_alone() -> None:
    unweighted = {
        name for name, measure in CURIOSITY_MEASURES.items() if measure.contrast is curiosity.ones
    }
    assert unweighted == set(MEASURES_WITHOUT_CONTRASTIVE_WEIGHT)


@pytest.mark.parametrize("base", algorithms())
def test_methods_are_named_after_the_measure_they_change(base: str) -> None:
    methods, found = algorithms()[base].methods, set()
    for name, method in methods.items():
        measure = method.overrides.get("curiosity", "belief")
        if measure != "belief":
            own, _, last = name.rpartition("-")
            assert last == measure
            changed = method.overrides.items() - methods[own].overrides.items()
            assert {option for option, _ in changed} - {"bonus_temperature"} == {"curiosity"}
            assert method.settings == methods[own].settings
            found.add(measure)
    assert set(CONTROLS) <= found


@pytest.mark.parametrize("base", algorithms())
def test_no_base_names_a_measure_where_it_learns(base: str) -> None:
    """Only its list of methods may: an update that asks which one is running is no base."""
    room = Path(cclf.__file__).parent / "bases" / base
    for path in room.glob("*.py"):
        if path.name == "methods.py":
            continue
        words = {
            node.value for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }  # fmt: skip
        assert not words & (set(CURIOSITY_MEASURES) - {"belief"}), path.name
        assert "MEASURES" not in path.read_text(), path.name
