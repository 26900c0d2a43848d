"""Eq. (1)-(9): by hand, by property, and against the released code's figures. See
golden/released_sac.json for the latter."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor
from torch.nn import functional as F

from cclf import equations
from cclf.algorithms.rainbow import equations as rainbow_equations
from golden_inputs import (
    ACTION_REPEAT,
    DTYPES,
    GOLDEN,
    bilinear,
    fixed,
    fixed_uniform,
    initial_priorities,
    largest_error,
    summary,
)

BATCH, FEATURES, VIEWS = 5, 4, 3
TOLERANCE = {"float32": 1e-5, "float64": 1e-8}


def tensors(*shape: int, low: float = -10.0, high: float = 10.0) -> st.SearchStrategy[Tensor]:
    return hnp.arrays(np.float64, shape, elements=st.floats(low, high)).map(torch.from_numpy)


def unit(*shape: int) -> st.SearchStrategy[Tensor]:
    return tensors(*shape, low=0.0, high=1.0)


def close(ours: Tensor, expected: Tensor | float | list, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(
        ours, torch.as_tensor(expected, dtype=ours.dtype), rtol=tolerance, atol=tolerance
    )


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# --- Eq. (1) and (2): DrQ's loss and target ---


def test_drq_loss_by_hand() -> None:
    # M = 2 views of 2 samples, y = (1, 2).
    # Q_1 - y = (2-1, 0-2) = (1, -2), squares (1, 4); Q_2 - y = (4-1, 3-2) = (3, 1), squares (9, 1).
    # Over the views: (1+9)/2 = 5 and (4+1)/2 = 2.5; over the batch: (5 + 2.5)/2 = 3.75.
    q = torch.tensor([[2.0, 0.0], [4.0, 3.0]], dtype=torch.float64)
    target = double(1.0, 2.0)
    close(equations.q_loss(q, target, equations.uniform_weights(2, like=target)), 3.75)


def test_drq_target_by_hand() -> None:
    # K = 2 next views, alpha = 1/2, gamma = 0.9.
    # Sample 0: view 0 min(3, 5) - 0.5*(-2) = 4, view 1 min(2, 1) - 0.5*4 = -1; T = (4 - 1)/2 = 1.5;
    # y = 1 + 0.9*1.5 = 2.35. Sample 1 ended: y = r = -2, whatever the views say.
    q1 = torch.tensor([[3.0, 7.0], [2.0, 7.0]], dtype=torch.float64)
    q2 = torch.tensor([[5.0, 9.0], [1.0, 9.0]], dtype=torch.float64)
    log_prob = torch.tensor([[-2.0, 1.0], [4.0, 1.0]], dtype=torch.float64)
    values = equations.soft_value(q1, q2, log_prob, torch.tensor(0.5, dtype=torch.float64))
    close(values[:, 0], [4.0, -1.0])
    even = equations.uniform_weights(2, like=values[0])
    target = equations.q_target(
        double(1.0, -2.0), double(0.0, 0.0), double(1.0, 0.0), 0.9, values, even
    )
    close(target, [2.35, -2.0])


@given(q=tensors(BATCH), target=tensors(BATCH), views=st.integers(1, 6))
def test_copies_of_one_view_cost_what_one_view_costs(q: Tensor, target: Tensor, views: int) -> None:
    even = equations.uniform_weights(views, like=q)
    close(equations.q_loss(q.expand(views, -1), target, even), F.mse_loss(q, target))


@given(q=tensors(VIEWS, BATCH), target=tensors(BATCH))
def test_drq_loss_is_the_mean_of_the_one_view_losses(q: Tensor, target: Tensor) -> None:
    single = [F.mse_loss(q[view], target) for view in range(VIEWS)]
    close(
        equations.q_loss(q, target, equations.uniform_weights(VIEWS, like=target)),
        sum(single) / VIEWS,
    )


@given(
    value=tensors(BATCH), weights=unit(VIEWS, BATCH), reward=tensors(BATCH), bonus=tensors(BATCH)
)
def test_target_of_equal_values_ignores_the_weights_and_adds_the_bonus_undiscounted(
    value: Tensor, weights: Tensor, reward: Tensor, bonus: Tensor
) -> None:
    weights = (weights + 0.1) / (weights + 0.1).sum(0)
    target = equations.q_target(
        reward, bonus, torch.ones_like(reward), 0.99, value.expand(VIEWS, -1), weights
    )
    close(target, reward + bonus + 0.99 * value)


@given(values=tensors(VIEWS, BATCH), reward=tensors(BATCH), bonus=tensors(BATCH))
def test_target_of_a_terminated_transition_holds_no_bootstrap(
    values: Tensor, reward: Tensor, bonus: Tensor
) -> None:
    even = equations.uniform_weights(VIEWS, like=reward)
    assert torch.equal(
        equations.q_target(reward, bonus, torch.zeros(BATCH), 0.99, values, even), reward + bonus
    )


@given(
    q1=tensors(BATCH),
    q2=tensors(BATCH),
    log_prob=tensors(BATCH),
    temperature=tensors(low=0.0, high=5.0),
)
def test_soft_value_is_symmetric_in_the_twins_and_never_above_either(
    q1: Tensor, q2: Tensor, log_prob: Tensor, temperature: Tensor
) -> None:
    value = equations.soft_value(q1, q2, log_prob, temperature)
    assert torch.equal(value, equations.soft_value(q2, q1, log_prob, temperature))
    assert (value + temperature * log_prob <= torch.minimum(q1, q2) + 1e-9).all()


# --- Eq. (3): belief and curiosity ---


def test_curiosity_by_hand() -> None:
    # B = 2, D = 2, W = [[1, 2], [0, 1]], q = (1, 0), (0, 1); keys k_0 = (0, ln 2), k_1 = (ln 3, 0).
    # W k_0 = (2 ln 2, ln 2), W k_1 = (ln 3, 0).
    # Query 0: logits (2 ln 2, ln 3), exponentials (4, 3): IB = 4/7, c = 3/7.
    # Query 1: logits (ln 2, 0), exponentials (2, 1): its own key is the second, IB = 1/3, c = 2/3.
    # W transposed would give IB = 1/4 and 9/11, so the order q^T W k shows.
    bilinear = torch.tensor([[1.0, 2.0], [0.0, 1.0]], dtype=torch.float64)
    keys = torch.tensor([[0.0, math.log(2)], [math.log(3), 0.0]], dtype=torch.float64)
    belief = equations.belief(torch.eye(2, dtype=torch.float64), keys, bilinear)
    close(belief, [4 / 7, 1 / 3])
    close(equations.curiosity(belief), [3 / 7, 2 / 3])


@given(
    query=tensors(BATCH, FEATURES),
    keys=tensors(BATCH, FEATURES),
    bilinear=tensors(FEATURES, FEATURES),
)
def test_logits_are_the_bilinear_form_of_each_query_with_each_key(
    query: Tensor, keys: Tensor, bilinear: Tensor
) -> None:
    logits = equations.similarity_logits(query, keys, bilinear)
    expected = [
        [
            sum(q[i] * bilinear[i, j] * k[j] for i in range(FEATURES) for j in range(FEATURES))
            for k in keys
        ]
        for q in query
    ]
    close(logits, expected, 1e-7)


@given(
    query=tensors(BATCH, FEATURES),
    keys=tensors(BATCH, FEATURES),
    bilinear=tensors(FEATURES, FEATURES),
)
def test_belief_and_curiosity_lie_between_0_and_1_and_sum_to_1(
    query: Tensor, keys: Tensor, bilinear: Tensor
) -> None:
    belief = equations.belief(query, keys, bilinear)
    curiosity = equations.curiosity(belief)
    for share in (belief, curiosity):
        assert share.shape == (BATCH,)
        assert ((share >= 0.0) & (share <= 1.0)).all()
    close(belief + curiosity, torch.ones(BATCH))


@given(
    query=tensors(BATCH, FEATURES),
    keys=tensors(3, BATCH, FEATURES),
    bilinear=tensors(FEATURES, FEATURES),
)
@pytest.mark.parametrize("same", [None, torch.tensor([0, 1, 0, 3, 1])])
def test_beliefs_in_several_views_at_once_are_those_in_each(
    query: Tensor, keys: Tensor, bilinear: Tensor, same: Tensor
) -> None:
    beliefs = equations.belief(query, keys, bilinear, same)
    close(beliefs, torch.stack([equations.belief(query, key, bilinear, same) for key in keys]))


@given(
    query=tensors(BATCH, FEATURES),
    keys=tensors(BATCH, FEATURES, low=-1.0, high=1.0),
    shift=tensors(BATCH),
)
def test_belief_ignores_a_constant_added_to_a_row_of_logits(
    query: Tensor, keys: Tensor, shift: Tensor
) -> None:
    # One more feature: the query's is its row's shift, every key's is 1, so row b of the logits
    # grows by shift_b.
    wide_query = torch.cat([query, shift[:, None]], dim=1)
    wide_keys = torch.cat([keys, torch.ones(BATCH, 1)], dim=1)
    plain = equations.belief(query, keys, torch.eye(FEATURES, dtype=torch.float64))
    close(
        equations.belief(wide_query, wide_keys, torch.eye(FEATURES + 1, dtype=torch.float64)),
        plain,
        1e-7,
    )


def test_belief_among_equal_keys_is_one_over_the_batch() -> None:
    close(
        equations.belief(torch.ones(8, 3), torch.ones(8, 3), torch.ones(3, 3)),
        torch.full((8,), 1 / 8),
        1e-6,
    )


def test_belief_is_finite_for_huge_logits() -> None:
    features = 1e3 * torch.eye(2)
    assert torch.equal(equations.belief(features, features, torch.eye(2)), torch.ones(2))


@given(logits=tensors(BATCH, BATCH))
def test_belief_over_distinct_keys_counts_each_once(logits: Tensor) -> None:
    same = torch.tensor([0, 1, 0, 3, 1])  # samples 2 and 4 repeat 0 and 1: keys 0, 1 and 3 are left
    expected = logits[:, [0, 1, 3]].softmax(1)[torch.arange(BATCH), torch.tensor([0, 1, 0, 2, 1])]
    close(equations.log_belief(logits, same).exp(), expected)
    apart = torch.arange(BATCH)
    close(equations.log_belief(logits, apart), equations.log_belief(logits))


# --- Eq. (4) and (5): selection ---


def test_least_overlap_by_hand() -> None:
    # 4x4 crops; the anchor's corner is (0, 0) for both samples.
    # Sample 0: views at (1, 1), (0, 3), (4, 0) share 3*3 = 9, 4*1 = 4 and 0*4 = 0 pixels: the
    # third. Sample 1: views at (2, 3), (1, 0), (0, 0) share 2*1 = 2, 3*4 = 12 and 4*4 = 16 pixels:
    # the first.
    others = torch.tensor([[[1, 1], [2, 3]], [[0, 3], [1, 0]], [[4, 0], [0, 0]]])
    overlaps = equations.overlap(torch.zeros(1, 2, 2, dtype=torch.int64), others, 4)
    assert overlaps.tolist() == [[9, 2], [4, 12], [0, 16]]
    assert equations.select_least_overlap(overlaps).tolist() == [2, 0]


corners = st.tuples(st.integers(0, 20), st.integers(0, 20))


@given(one=corners, other=corners, size=st.integers(1, 16))
def test_overlap_counts_the_shared_pixels_and_is_symmetric(
    one: tuple[int, int], other: tuple[int, int], size: int
) -> None:
    def pixels(corner: tuple[int, int]) -> Tensor:
        canvas = torch.zeros(40, 40, dtype=torch.bool)
        canvas[corner[0] : corner[0] + size, corner[1] : corner[1] + size] = True
        return canvas

    shared = equations.overlap(torch.tensor(one), torch.tensor(other), size)
    assert shared == (pixels(one) & pixels(other)).sum()
    assert shared == equations.overlap(torch.tensor(other), torch.tensor(one), size)


def test_overlap_is_nothing_for_disjoint_crops_and_everything_for_the_same() -> None:
    origin = torch.tensor([3, 5])
    assert equations.overlap(origin, origin, 7) == 49
    # both sides apart: two negative widths must not multiply to a plus
    for other in ([10, 5], [3, 12], [3, 19], [17, 19]):
        assert equations.overlap(origin, torch.tensor(other), 7) == 0


def test_most_curious_by_hand() -> None:
    # Sample 0: c = 1 - (0.7, 0.2, 0.4) = (0.3, 0.8, 0.6): the second. Sample 1: c = (0.9, 0.5,
    # 0.95): the third.
    beliefs = torch.tensor([[0.7, 0.1], [0.2, 0.5], [0.4, 0.05]])
    assert equations.select_most_curious(beliefs).tolist() == [1, 2]


def test_most_curious_tells_beliefs_apart_whose_curiosity_rounds_to_one() -> None:
    beliefs = torch.tensor([[1e-10], [1e-12], [1e-11]])
    assert (equations.curiosity(beliefs) == 1.0).all()
    assert equations.select_most_curious(beliefs).tolist() == [1]


@given(beliefs=unit(VIEWS, BATCH))
def test_selection_picks_the_extreme_of_each_column(beliefs: Tensor) -> None:
    most_curious, least_overlapping = (
        equations.select_most_curious(beliefs),
        equations.select_least_overlap(beliefs),
    )
    curiosity = equations.curiosity(beliefs)
    assert torch.equal(curiosity.gather(0, most_curious[None])[0], curiosity.amax(0))
    assert torch.equal(beliefs.gather(0, least_overlapping[None])[0], beliefs.amin(0))


# --- Eq. (6): priority ---


def test_priority_by_hand() -> None:
    # beta = 0.75. First: 0.75*1 + 0.25*(0.2 + 0.6)/2 = 0.75 + 0.1 = 0.85.
    # Second: 0.75*0.4 + 0.25*(1 + 0)/2 = 0.3 + 0.125 = 0.425.
    close(
        equations.priority(double(1.0, 0.4), double(0.2, 1.0), double(0.6, 0.0), momentum=0.75),
        [0.85, 0.425],
    )


@given(
    previous=unit(BATCH),
    curiosity=unit(BATCH),
    next_curiosity=unit(BATCH),
    momentum=st.floats(0.0, 1.0),
)
def test_priority_stays_between_0_and_1_and_contracts_to_the_mean_curiosity(
    previous: Tensor, curiosity: Tensor, next_curiosity: Tensor, momentum: float
) -> None:
    fixed_point = (curiosity + next_curiosity) / 2.0
    after = equations.priority(previous, curiosity, next_curiosity, momentum)
    assert ((after >= 0.0) & (after <= 1.0 + 1e-12)).all()
    close(after - fixed_point, momentum * (previous - fixed_point))
    close(after, equations.priority(previous, next_curiosity, curiosity, momentum))


# --- Eq. (7): regularised Q loss and target ---


def test_regularised_loss_and_target_by_hand() -> None:
    # c = (0.25, 1), c' = (0.5, 0), gamma = 0.5, r = (1, 2), bonus = (0.5, 0), T = (8, 4) for view 0
    # and (0, -4) for view 1. y_0 = 1 + 0.5 + 0.5*(0.5*8 + 0.5*0) = 3.5; y_1 = 2 + 0.5*(1*4 +
    # 0*(-4)) = 4. Q = (4.5, 0) for view 0 and (1.5, 7) for view 1; squared errors (1, 16) and (4,
    # 9). loss = ( 0.75*1 + 0.25*4  +  0*16 + 1*9 ) / 2 = (1.75 + 9)/2 = 5.375.
    values = torch.tensor([[8.0, 4.0], [0.0, -4.0]], dtype=torch.float64)
    next_weights = equations.curiosity_weights(double(0.5, 0.0))
    target = equations.q_target(
        double(1.0, 2.0), double(0.5, 0.0), double(1.0, 1.0), 0.5, values, next_weights
    )
    close(target, [3.5, 4.0])
    q = torch.tensor([[4.5, 0.0], [1.5, 7.0]], dtype=torch.float64)
    close(equations.q_loss(q, target, equations.curiosity_weights(double(0.25, 1.0))), 5.375)


@given(curiosity=unit(BATCH), views=st.integers(1, 6))
def test_weights_of_the_views_sum_to_one(curiosity: Tensor, views: int) -> None:
    for weights in (
        equations.curiosity_weights(curiosity),
        equations.uniform_weights(views, like=curiosity),
    ):
        assert (weights >= 0.0).all()
        close(weights.sum(0), torch.ones(BATCH))


def test_even_curiosity_gives_even_weights() -> None:
    half = torch.full((BATCH,), 0.5)
    assert torch.equal(equations.curiosity_weights(half), equations.uniform_weights(2, like=half))


@given(q=tensors(2, BATCH), target=tensors(BATCH))
def test_no_curiosity_learns_from_the_anchor_alone_and_full_curiosity_from_the_other(
    q: Tensor, target: Tensor
) -> None:
    for view, curiosity in ((0, torch.zeros(BATCH)), (1, torch.ones(BATCH))):
        close(
            equations.q_loss(q, target, equations.curiosity_weights(curiosity)),
            F.mse_loss(q[view], target),
        )


# --- Eq. (8): regularised contrastive loss ---


def test_contrastive_loss_by_hand() -> None:
    # Row softmaxes: logits (ln 3, 0) give 3/4 for key 0; logits (0, ln 4) give 4/5 for key 1.
    # Log-losses ln(4/3) and ln(5/4). Weights (0.5, 1): the sum is 0.5 ln(4/3) + ln(5/4); the
    # weighted mean divides it by 1.5.
    logits = torch.tensor([[math.log(3), 0.0], [0.0, math.log(4)]], dtype=torch.float64)
    total = 0.5 * math.log(4 / 3) + math.log(5 / 4)
    close(equations.contrastive_loss(logits, double(0.5, 1.0), "sum"), total)
    close(equations.contrastive_loss(logits, double(0.5, 1.0), "weighted-mean"), total / 1.5)


@given(logits=tensors(BATCH, BATCH))
def test_contrastive_loss_of_equal_weights_is_cross_entropy_and_the_sum_is_batch_times_it(
    logits: Tensor,
) -> None:
    labels, ones = torch.arange(BATCH), torch.ones(BATCH, dtype=torch.float64)
    close(
        equations.contrastive_loss(logits, ones, "weighted-mean"), F.cross_entropy(logits, labels)
    )
    close(equations.contrastive_loss(logits, ones, "sum"), BATCH * F.cross_entropy(logits, labels))


@given(logits=tensors(BATCH, BATCH), weights=tensors(BATCH, low=0.01, high=1.0))
def test_contrastive_weighted_mean_is_cross_entropy_with_class_weights(
    logits: Tensor, weights: Tensor
) -> None:
    expected = F.cross_entropy(logits, torch.arange(BATCH), weight=weights)
    close(equations.contrastive_loss(logits, weights, "weighted-mean"), expected)


@given(
    query=tensors(BATCH, FEATURES, low=-2.0, high=2.0),
    keys=tensors(BATCH, FEATURES, low=-2.0, high=2.0),
)
def test_contrastive_loss_is_the_negative_logarithm_of_the_belief(
    query: Tensor, keys: Tensor
) -> None:
    eye = torch.eye(FEATURES, dtype=torch.float64)
    loss = equations.contrastive_loss(
        equations.similarity_logits(query, keys, eye), torch.ones(BATCH), "sum"
    )
    close(loss, -equations.belief(query, keys, eye).log().sum(), 1e-7)


# --- Eq. (9): intrinsic reward ---


def test_intrinsic_reward_by_hand() -> None:
    # lambda = 0.2; eta t = 1e-4 * 6931.47... = ln 2, so the decay is 1/2; r^e_max / r^i_max = 6/1.5
    # = 4; (c + c')/2 = (0.3 + 0.5)/2 = 0.4. Together 0.2 * 0.5 * 4 * 0.4 = 0.16.
    steps = torch.tensor(math.log(2) * 1e4, dtype=torch.float64)
    bonus = equations.intrinsic_reward(
        double(0.3), double(0.5), steps, 0.2, 1e-4, double(6.0)[0], double(1.5)[0]
    )
    close(bonus, [0.16])


def _bonus(
    curiosity: Tensor, steps: float = 0.0, reward_max: float = 2.0, bonus_max: float = 0.5
) -> Tensor:
    return equations.intrinsic_reward(
        curiosity,
        curiosity,
        double(steps)[0],
        0.2,
        2e-5,
        double(reward_max)[0],
        double(bonus_max)[0],
    )


@given(curiosity=unit(BATCH), factor=st.floats(0.0, 1.0))
def test_intrinsic_reward_is_linear_in_curiosity(curiosity: Tensor, factor: float) -> None:
    close(_bonus(factor * curiosity), factor * _bonus(curiosity))
    zero = torch.zeros(BATCH, dtype=torch.float64)
    apart = [
        equations.intrinsic_reward(*pair, double(7.0)[0], 0.2, 2e-5, double(2.0)[0], double(0.5)[0])
        for pair in ((curiosity, zero), (zero, curiosity))
    ]
    close(apart[0] + apart[1], _bonus(curiosity, steps=7.0))
    assert torch.equal(apart[0], apart[1])


@given(curiosity=unit(BATCH), steps=st.floats(0.0, 1e6), later=st.floats(0.0, 1e5))
def test_intrinsic_reward_decays_exponentially_with_environment_steps(
    curiosity: Tensor, steps: float, later: float
) -> None:
    close(_bonus(curiosity, steps + later), math.exp(-2e-5 * later) * _bonus(curiosity, steps))


@given(curiosity=unit(BATCH), reward_max=st.floats(1e-5, 1e3), bonus_max=st.floats(1e-5, 1e3))
def test_intrinsic_reward_scales_with_the_ratio_of_the_maxima(
    curiosity: Tensor, reward_max: float, bonus_max: float
) -> None:
    unscaled = _bonus(curiosity, reward_max=1.0, bonus_max=1.0)
    close(
        _bonus(curiosity, reward_max=reward_max, bonus_max=bonus_max),
        unscaled * reward_max / bonus_max,
    )


# --- the released code's figures ---


@pytest.mark.parametrize("precision", DTYPES)
def test_contrast_agrees_with_the_released_code(precision: str) -> None:
    recorded, dtype, tolerance = (
        GOLDEN[precision]["equations"]["contrast"],
        DTYPES[precision],
        TOLERANCE[precision],
    )
    query = fixed("equations.q", (8, 50), 0.5).to(dtype).requires_grad_()
    keys = fixed("equations.k", (8, 50), 0.5).to(dtype)
    weight = bilinear().to(dtype).requires_grad_()
    logits = equations.similarity_logits(query, keys, weight)
    belief = equations.belief(query, keys, weight)
    curiosity = equations.curiosity(belief).detach()
    loss = equations.contrastive_loss(logits, curiosity, "weighted-mean")
    gradients = torch.autograd.grad(loss, [query, weight])
    assert largest_error(logits - logits.amax(1, keepdim=True), recorded["logits"]) < tolerance
    assert largest_error(belief, recorded["beliefs"]) < tolerance
    assert largest_error(curiosity, recorded["class_weights"]) < tolerance
    assert largest_error(loss, recorded["weighted_loss"]) < tolerance
    unweighted = equations.contrastive_loss(logits, torch.ones(8, dtype=dtype), "weighted-mean")
    assert largest_error(unweighted, recorded["unweighted_loss"]) < tolerance
    for gradient, name in zip(gradients, ("gradient_q", "gradient_W"), strict=True):
        assert largest_error(summary(gradient), recorded[name]) < tolerance, name


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("case", range(3))
def test_intrinsic_reward_agrees_with_the_released_code(precision: str, case: int) -> None:
    recorded, dtype = GOLDEN[precision]["equations"]["intrinsic"][case], DTYPES[precision]
    curiosity, next_curiosity = (
        equations.curiosity(fixed_uniform(f"equations.{name}", (8,)).to(dtype))
        for name in ("obs_belief", "next_obs_belief")
    )
    bonus = equations.intrinsic_reward(
        curiosity,
        next_curiosity,
        torch.tensor(float(recorded["step"] * ACTION_REPEAT), dtype=torch.float64),
        0.2,
        2e-5,
        torch.tensor(recorded["reward_ex_max"], dtype=dtype),
        torch.tensor(recorded["reward_in_max"], dtype=dtype),
    )
    assert bonus.dtype == dtype
    assert largest_error(bonus, recorded["intrinsic"]) < TOLERANCE[precision]


@pytest.mark.parametrize("precision", DTYPES)
def test_priority_agrees_with_the_released_code(precision: str) -> None:
    recorded, dtype = GOLDEN[precision]["equations"]["priority"], DTYPES[precision]
    priorities, places = initial_priorities(), recorded["indices"]
    curiosity = equations.curiosity(fixed_uniform("equations.priority_belief", (8,)).to(dtype))
    new = equations.priority(priorities[places].to(dtype), curiosity, curiosity, momentum=0.99)
    for place, weight in zip(places, new, strict=True):  # in turn, so that the last duplicate wins
        priorities[place] = weight
    assert largest_error(priorities, recorded["after"]) < TOLERANCE[precision]


def test_no_curiosity_at_all_teaches_nothing_instead_of_dividing_by_zero() -> None:
    logits = torch.randn(4, 4, dtype=torch.float64).requires_grad_()
    loss = equations.contrastive_loss(logits, torch.zeros(4, dtype=torch.float64), "weighted-mean")
    assert loss.item() == 0.0
    (gradient,) = torch.autograd.grad(loss, logits)
    assert torch.equal(gradient, torch.zeros_like(logits))


def test_adam_is_pytorchs_own():
    torch.manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(2, 50, dtype=torch.float64))
    optimiser = torch.optim.Adam([parameter], lr=1e-3, eps=1.5e-4)
    ours, mean, square = (
        parameter.detach().clone(),
        torch.zeros(2, 50).double(),
        torch.zeros(2, 50).double(),
    )
    for step in range(1, 9):
        parameter.grad = torch.randn_like(parameter)
        optimiser.step()
        steps = torch.tensor(float(step), dtype=torch.float64)
        rainbow_equations.adam_step(
            ours, parameter.grad, mean, square, steps, learning_rate=1e-3, epsilon=1.5e-4
        )
        torch.testing.assert_close(ours, parameter.detach(), rtol=1e-12, atol=1e-12)
