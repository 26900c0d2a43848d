"""The framework without a base algorithm, with simple encoders and synthetic views."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cclf import equations
from cclf.config import MethodConfig
from cclf.data.augmentations import Views, crop
from cclf.framework import Appraisal, Framework
from golden_inputs import ACTION_REPEAT, DTYPES, GOLDEN, fixed_uniform, largest_error

VIEWS, BATCH = 4, 3
STEPS = torch.tensor(0.0)
ZERO = torch.zeros(BATCH)


def make_framework(
    feature_dim: int = BATCH, num_loss_views: int = 2, **overrides: Any
) -> Framework:
    """CCLF with W = 1, so that a logit is the inner product of query and key."""
    views = {"views": num_loss_views} if overrides.get("selection") == "all" else {}
    framework = Framework(feature_dim, MethodConfig(**overrides | views))
    framework.bilinear.data.copy_(torch.eye(feature_dim))
    return framework


def plain(**overrides: Any) -> Framework:
    off = {"selection": "all", "prioritisation": False, "regularisation": False, "reward": False}
    return make_framework(**off | overrides)


def vector_views(strength: list[list[float]]) -> Views:
    """Views that are their own features. Sample b is `strength` times the b-th unit vector, so its
    logits in view v are strength[0][b] * strength[v][b] for its own key and 0 for the others: a
    smaller strength gives a lower belief."""
    images = torch.stack([torch.diag(torch.tensor(row)) for row in strength])
    return Views(images, torch.zeros(len(strength), BATCH, 2, dtype=torch.int64))


def belief_at(logit: float) -> float:
    """Of a sample with this logit for its own key and 0 for the B - 1 others."""
    return float(torch.tensor(logit).exp() / (torch.tensor(logit).exp() + BATCH - 1))


def identity(images: Tensor) -> Tensor:
    return images


def refuse(images: Tensor) -> Tensor:
    raise AssertionError(
        f"an encoder was called on {tuple(images.shape)} though nothing needs curiosity"
    )


# Anchor 1 throughout; the weakest of views 1..3 is view 2, 3, 1 for o and 1, 1, 3 for o'.
NOW = vector_views([[1.0, 1.0, 1.0], [3.0, 2.0, 0.5], [0.5, 4.0, 3.0], [2.0, 1.0, 4.0]])
NEXT = vector_views([[1.0, 1.0, 1.0], [0.1, -1.0, 6.0], [5.0, 3.0, 2.0], [4.0, 2.0, 1.0]])


def appraise(
    framework: Framework,
    views: Views = NOW,
    next_views: Views = NEXT,
    reward: Tensor = ZERO,
    **encoders: Any,
) -> Appraisal:
    encoders = {"encode_query": identity, "encode_key": identity} | encoders
    return framework.appraise(views, next_views, reward, STEPS, **encoders)


def test_curiosity_selects_the_view_least_believed_to_learn_from_and_as_key() -> None:
    appraisal = appraise(make_framework())
    assert appraisal.selected_view.tolist() == [2, 3, 1]
    assert appraisal.next_selected_view.tolist() == [1, 1, 3]
    expected = [1.0 - belief_at(strength) for strength in (0.5, 1.0, 0.5)]
    torch.testing.assert_close(appraisal.curiosity, torch.tensor(expected))
    next_expected = [1.0 - belief_at(strength) for strength in (0.1, -1.0, 1.0)]
    torch.testing.assert_close(appraisal.next_curiosity, torch.tensor(next_expected))
    samples = torch.arange(BATCH)
    assert torch.equal(appraisal.views[0], NOW.inputs[0])
    assert torch.equal(appraisal.views[1], NOW.inputs[[2, 3, 1], samples])
    assert torch.equal(appraisal.key_view, appraisal.views[1])
    assert torch.equal(appraisal.next_views[0], NEXT.inputs[0])
    assert torch.equal(appraisal.next_views[1], NEXT.inputs[[1, 1, 3], samples])


def test_least_overlap_selects_by_corners_alone() -> None:
    # 4x4 crops of 8x8 frames, anchors at (0, 0).
    # Sample 0: views at (1, 1), (2, 2), (0, 1) share 9, 4, 12 pixels: view 2.
    # Sample 1: (0, 0), (3, 0), (3, 3) share 16, 4, 1: view 3.
    # Sample 2: (4, 0), (3, 3), (2, 0) share 0, 1, 8: view 1; larger crops would share least with
    # (3, 3).
    frames = torch.randint(256, (BATCH, 3, 8, 8), dtype=torch.uint8)
    anchor = [[0, 0], [0, 0], [0, 0]]
    others = [[[1, 1], [0, 0], [4, 0]], [[2, 2], [3, 0], [3, 3]], [[0, 1], [3, 3], [2, 0]]]
    views = crop(frames, torch.tensor([anchor, *others]), 4)
    framework = plain(selection="overlap")
    appraisal = appraise(framework, views, views, encode_query=refuse, encode_key=refuse)
    assert appraisal.selected_view.tolist() == [2, 3, 1]
    for name in ("views", "next_views"):
        assert torch.equal(getattr(appraisal, name)[0], views.inputs[0])
        for sample, chosen in enumerate([2, 3, 1]):
            assert torch.equal(getattr(appraisal, name)[1, sample], views.inputs[chosen, sample])
    assert torch.equal(appraisal.key_view, appraisal.views[1])


def test_overlap_counts_from_the_anchor_and_not_from_the_frame() -> None:
    origins = torch.tensor([[[4, 4]] * BATCH, [[4, 3]] * BATCH, [[0, 0]] * BATCH, [[4, 4]] * BATCH])
    views = crop(torch.zeros(BATCH, 3, 8, 8), origins, 4)
    assert appraise(plain(selection="overlap"), views, views).selected_view.tolist() == [2, 2, 2]


@pytest.mark.parametrize(("learned", "drawn"), [(1, 1), (1, 2), (2, 2), (4, 4)])
def test_all_takes_the_first_views_evenly_and_the_second_as_key(learned: int, drawn: int) -> None:
    views, next_views = (
        Views(NOW.inputs[:drawn], NOW.crop_corners[:drawn]),
        Views(NEXT.inputs[:drawn], NEXT.crop_corners[:drawn]),
    )
    appraisal = appraise(
        plain(num_loss_views=learned), views, next_views, encode_query=refuse, encode_key=refuse
    )
    assert torch.equal(appraisal.views, NOW.inputs[:learned])
    assert torch.equal(appraisal.next_views, NEXT.inputs[:learned])
    assert torch.equal(appraisal.weights, torch.full((learned, BATCH), 1.0 / learned))
    assert torch.equal(appraisal.next_weights, appraisal.weights)
    assert torch.equal(appraisal.key_view, NOW.inputs[min(1, drawn - 1)])


def test_without_selection_curiosity_is_about_the_second_view() -> None:
    appraisal = appraise(
        make_framework(selection="all"),
        *(Views(v.inputs[:2], v.crop_corners[:2]) for v in (NOW, NEXT)),
    )
    assert appraisal.selected_view.tolist() == [1, 1, 1]
    torch.testing.assert_close(
        appraisal.curiosity, torch.tensor([1.0 - belief_at(x) for x in (3.0, 2.0, 0.5)])
    )
    torch.testing.assert_close(
        appraisal.next_curiosity, torch.tensor([1.0 - belief_at(x) for x in (0.1, -1.0, 6.0)])
    )


@pytest.mark.parametrize("selection", ["all", "overlap"])
def test_encoders_are_never_called_when_nothing_needs_curiosity(selection: str) -> None:
    views = Views(
        torch.rand(2, BATCH, 3, 4, 4), torch.zeros(2, BATCH, 2, dtype=torch.int64), crop_pixels=4
    )
    appraisal = appraise(
        plain(selection=selection), views, views, encode_query=refuse, encode_key=refuse
    )
    assert torch.equal(appraisal.curiosity, ZERO)
    assert torch.equal(appraisal.bonus, ZERO)


def test_the_anchor_goes_to_the_query_encoder_and_the_others_to_the_key_encoder() -> None:
    seen: dict[str, list[Tensor]] = {"query": [], "key": []}

    def spy(name: str):
        return lambda images: seen[name].append(images) or images

    appraise(make_framework(), encode_query=spy("query"), encode_key=spy("key"))
    for views, query, key in zip((NOW, NEXT), seen["query"], seen["key"], strict=True):
        assert torch.equal(query, views.inputs[0])
        assert torch.equal(key, views.inputs[1:].flatten(0, 1))


@pytest.mark.parametrize("regularisation", [False, True])
def test_weights_of_each_sample_sum_to_one(regularisation: bool) -> None:
    appraisal = appraise(make_framework(regularisation=regularisation))
    for weights in (appraisal.weights, appraisal.next_weights):
        torch.testing.assert_close(weights.sum(0), torch.ones(BATCH))
    if regularisation:
        assert torch.equal(appraisal.weights[1], appraisal.curiosity)
        assert torch.equal(appraisal.next_weights[1], appraisal.next_curiosity)
    else:
        assert (appraisal.weights == 0.5).all()


def test_bonus_is_zero_and_the_maxima_are_constant_without_reward() -> None:
    framework = make_framework(reward=False)
    appraisal = appraise(framework, reward=torch.tensor([1.0, 2.0, 3.0]))
    assert torch.equal(appraisal.bonus, ZERO)
    assert framework.reward_max == framework.bonus_max == torch.tensor(1e-5)
    assert (appraisal.curiosity > 0.0).all()


def force_beliefs(monkeypatch: pytest.MonkeyPatch, *beliefs: Tensor) -> None:
    """Set the beliefs about the second views of o and of o', in this order."""
    turns = iter(beliefs)
    monkeypatch.setattr(equations, "belief", lambda *_: next(turns)[None])


# lambda = 0.5, no decay, two batches: c = (0.2, 0.8) with r = (3, 1), then c = (0.4, 0.1) with r = (4, 2).
# of-paid-bonus: the maxima begin at 1e-5 each and are used before a batch enters them. Ratio 1, bonus
# 0.5 c = (0.1, 0.4), then r_max = 3, b_max = 0.4; ratio 7.5, bonus 3.75 c = (1.5, 0.375), then 4 and 1.5.
# of-curiosity: the maxima hold the batch before they are used, and the second is of curiosity itself.
# Ratio 3/0.8 = 3.75, bonus 1.875 c = (0.375, 1.5); r_max = 4, c_max stays 0.8, ratio 5, bonus 2.5 c.
# one: bonus 0.5 c.
@pytest.mark.parametrize(
    ("rule", "bonuses", "maxima"),
    [
        ("of-paid-bonus", [[0.1, 0.4], [1.5, 0.375]], [[3.0, 0.4], [4.0, 1.5]]),
        ("of-curiosity", [[0.375, 1.5], [1.0, 0.25]], [[3.0, 0.8], [4.0, 0.8]]),
        ("one", [[0.1, 0.4], [0.2, 0.05]], [[1.0, 1.0], [1.0, 1.0]]),
    ],
)
def test_bonus_and_maxima_by_hand(
    rule: str,
    bonuses: list[list[float]],
    maxima: list[list[float]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {"bonus_temperature": 0.5, "bonus_decay_per_env_step": 0.0, "bonus_maxima": rule}
    framework = make_framework(1, selection="all", **options)
    batches = (([0.2, 0.8], [3.0, 1.0]), ([0.4, 0.1], [4.0, 2.0]))
    views = Views(torch.zeros(2, 2, 1), torch.zeros(2, 2, 2, dtype=torch.int64))
    for (curiosity, reward), bonus, after in zip(batches, bonuses, maxima, strict=True):
        beliefs = 1.0 - torch.tensor(curiosity)
        force_beliefs(monkeypatch, beliefs, beliefs)
        appraisal = framework.appraise(
            views, views, torch.tensor(reward), STEPS, identity, identity
        )
        torch.testing.assert_close(appraisal.bonus, torch.tensor(bonus))
        found = torch.stack([framework.reward_max, framework.bonus_max])
        torch.testing.assert_close(found, torch.tensor(after))


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("case", range(3))
def test_bonus_and_maxima_agree_with_the_released_code(
    precision: str, case: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded, dtype = GOLDEN[precision]["equations"]["intrinsic"][case], DTYPES[precision]
    tolerance = {"float32": 1e-5, "float64": 1e-8}[precision]
    framework = make_framework(1, selection="all").to(dtype)
    framework.reward_max.fill_(recorded["reward_ex_max"])
    framework.bonus_max.fill_(recorded["reward_in_max"])
    force_beliefs(
        monkeypatch,
        *(
            fixed_uniform(f"equations.{name}", (8,)).to(dtype)
            for name in ("obs_belief", "next_obs_belief")
        ),
    )
    views = Views(torch.zeros(2, 8, 1, dtype=dtype), torch.zeros(2, 8, 2, dtype=torch.int64))
    reward = (1.5 * fixed_uniform("equations.reward", (8,))).to(dtype)
    steps = torch.tensor(float(recorded["step"] * ACTION_REPEAT), dtype=torch.float64)
    appraisal = framework.appraise(views, views, reward, steps, identity, identity)
    assert appraisal.bonus.dtype == dtype
    assert largest_error(appraisal.bonus, recorded["intrinsic"]) < tolerance
    assert largest_error(framework.reward_max, recorded["reward_ex_max_after"]) < tolerance
    assert largest_error(framework.bonus_max, recorded["reward_in_max_after"]) < tolerance


def test_metrics_of_a_batch_of_one_are_numbers() -> None:
    """The standard deviation of one sample is undefined, but its metric must be finite."""
    framework = Framework(2)
    views = Views(torch.rand(5, 1, 2))
    appraisal = framework.appraise(
        views, views, torch.ones(1), torch.tensor(0.0), nn.Identity(), nn.Identity()
    )
    assert all(value.isfinite() for value in framework.metrics(appraisal, 5).values())


def test_priority_is_equation_6_of_the_appraisal() -> None:
    framework, previous = make_framework(priority_momentum=0.75), torch.tensor([1.0, 0.5, 0.0])
    appraisal = appraise(framework)
    expected = 0.75 * previous + 0.125 * (appraisal.curiosity + appraisal.next_curiosity)
    torch.testing.assert_close(framework.priority(previous, appraisal), expected)
    assert make_framework(prioritisation=False).priority(previous, appraisal) is None


@pytest.mark.parametrize("reduction", ["sum", "weighted-mean"])
def test_contrastive_loss_weighs_by_curiosity_only_under_regularisation(reduction: str) -> None:
    query, key, curiosity = (
        torch.randn(BATCH, BATCH),
        torch.randn(BATCH, BATCH),
        torch.tensor([0.1, 0.9, 0.4]),
    )
    log_loss = torch.nn.functional.cross_entropy(
        query @ key.T, torch.arange(BATCH), reduction="none"
    )
    weighted, even = (
        make_framework(contrastive_reduction=reduction, regularisation=on).contrastive_loss(
            query, key, curiosity
        )
        for on in (True, False)
    )
    divisor, batch = (curiosity.sum(), BATCH) if reduction == "weighted-mean" else (1.0, 1)
    torch.testing.assert_close(weighted, (curiosity * log_loss).sum() / divisor)
    torch.testing.assert_close(even, log_loss.sum() / batch)


def test_distinct_negatives_leave_copies_of_an_observation_out_of_the_belief() -> None:
    # Samples 0 and 1 are copies. Among all keys their logits are (1, 1, 0) and no belief passes
    # 1/2; among distinct keys they are (1, 0): e/(e + 1).
    twins = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    views = Views(twins.expand(2, -1, -1), first_duplicate=torch.tensor([0, 0, 2]))
    among_all, distinct = (
        1.0
        - appraise(make_framework(2, selection="all", negatives=negatives), views, views).curiosity
        for negatives in ("all", "distinct")
    )
    e = torch.tensor(1.0).exp()
    torch.testing.assert_close(
        among_all, torch.stack([e / (2 * e + 1), e / (2 * e + 1), e / (e + 2)])
    )
    torch.testing.assert_close(distinct, torch.full((3,), float(e / (e + 1))))


def test_matches_are_the_probabilities_of_each_key() -> None:
    framework = make_framework()
    matches = framework.match_probabilities(NOW, identity, identity)
    assert matches.shape == (3, BATCH, BATCH)
    torch.testing.assert_close(matches.sum(2), torch.ones(3, BATCH))
    chosen = appraise(framework)
    beliefs = matches.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(1.0 - beliefs.min(0).values, chosen.curiosity)
    # Sample 0 in view 1: logit 3 for its own key, 0 for the two others.
    e3 = torch.tensor(3.0).exp()
    torch.testing.assert_close(matches[0, 0], torch.stack([e3, e3 / e3, e3 / e3]) / (e3 + 2))
    twins = Views(
        torch.eye(3)[[0, 0, 1]].expand(2, -1, -1), first_duplicate=torch.tensor([0, 0, 2])
    )
    distinct = make_framework(3, selection="all", negatives="distinct").match_probabilities(
        twins, identity, identity
    )[0]
    assert distinct[:, 1].tolist() == [0.0, 0.0, 0.0], "a copy is not a possible match"


def test_contrastive_loss_has_gradients_for_the_query_and_w_but_not_for_the_key() -> None:
    framework = make_framework()
    query, key = (torch.randn(BATCH, BATCH, requires_grad=True) for _ in range(2))
    framework.contrastive_loss(query, key, torch.ones(BATCH)).backward()
    assert query.grad is not None
    assert query.grad.abs().sum() > 0.0
    assert framework.bilinear.grad is not None
    assert framework.bilinear.grad.abs().sum() > 0.0
    assert key.grad is None


def test_initial_w_is_uniform_between_0_and_1_and_the_state_contains_the_maxima() -> None:
    torch.manual_seed(0)
    framework = Framework(50)
    assert framework.bilinear.shape == (50, 50)
    assert 0.0 <= framework.bilinear.min() < 0.01 < 0.99 < framework.bilinear.max() < 1.0
    assert abs(framework.bilinear.mean() - 0.5) < 0.03
    assert set(framework.state_dict()) == {"bilinear", "reward_max", "bonus_max"}


def test_custom_algorithm_of_the_documentation_learns() -> None:
    page = Path(__file__).parents[1] / "docs" / "extending.md"
    assert page.exists(), f"{page} is missing: it must hold the example of a foreign base algorithm"
    _, marker, rest = page.read_text().partition("<!-- test: foreign-algorithm -->")
    assert marker, f"{page} has no marker <!-- test: foreign-algorithm --> before its example"
    example = re.search(r"^```python\n(.*?)^```", rest, re.DOTALL | re.MULTILINE)
    assert example, f"no ```python block follows the marker in {page}"
    made: dict[str, Any] = {"__name__": "foreign_algorithm"}
    exec(compile(example.group(1), str(page), "exec"), made)

    # Readers copy this code, so it must be correct: no bootstrap after a termination, and a target
    # that follows.
    ended, rewards = made["done"] == 1.0, made["reward"] + made["appraisal"].bonus
    assert 0 < ended.sum() < len(ended)
    assert torch.equal(made["y"][ended], rewards[ended])
    assert not torch.isclose(made["y"], rewards)[~ended].any()
    # A target moved by 5 % of each step is near the network that learns, but not the same.
    pairs = zip(made["online"].parameters(), made["target"].parameters(), strict=True)
    distances = [float((fast - slow).detach().abs().max()) for fast, slow in pairs]
    assert all(0.0 < distance < 0.05 for distance in distances)
