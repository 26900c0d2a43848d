"""Eq. (1)-(9): by hand, by property, and against numbers of the released code in
golden/released_sac.json."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

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
    keys=tensors(3, BATCH, FEATURES),
    bilinear=tensors(FEATURES, FEATURES),
)
@pytest.mark.parametrize("same", [None, torch.tensor([0, 1, 0, 3, 1])])
def test_beliefs_in_several_views_at_once_are_those_in_each(
    query: Tensor, keys: Tensor, bilinear: Tensor, same: Tensor
) -> None:
    beliefs = equations.belief(query, keys, bilinear, same)
    close(beliefs, torch.stack([equations.belief(query, key, bilinear, same) for key in keys]))


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


def test_most_curious_distinguishes_beliefs_near_zero() -> None:
    beliefs = torch.tensor([[1e-10], [1e-12], [1e-11]])
    assert (equations.curiosity(beliefs) == 1.0).all()
    assert equations.select_most_curious(beliefs).tolist() == [1]


# --- Eq. (6): priority ---


def test_priority_by_hand() -> None:
    # beta = 0.75. First: 0.75*1 + 0.25*(0.2 + 0.6)/2 = 0.75 + 0.1 = 0.85.
    # Second: 0.75*0.4 + 0.25*(1 + 0)/2 = 0.3 + 0.125 = 0.425.
    close(
        equations.priority(double(1.0, 0.4), double(0.2, 1.0), double(0.6, 0.0), momentum=0.75),
        [0.85, 0.425],
    )


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


# --- Eq. (8): regularised contrastive loss ---


def test_contrastive_loss_by_hand() -> None:
    # Row softmaxes: logits (ln 3, 0) give 3/4 for key 0; logits (0, ln 4) give 4/5 for key 1.
    # Log-losses ln(4/3) and ln(5/4). Weights (0.5, 1): the sum is 0.5 ln(4/3) + ln(5/4); the
    # weighted mean divides it by 1.5.
    logits = torch.tensor([[math.log(3), 0.0], [0.0, math.log(4)]], dtype=torch.float64)
    total = 0.5 * math.log(4 / 3) + math.log(5 / 4)
    close(equations.contrastive_loss(logits, double(0.5, 1.0), "sum"), total)
    close(equations.contrastive_loss(logits, double(0.5, 1.0), "weighted-mean"), total / 1.5)


# --- Eq. (9): intrinsic reward ---


def test_intrinsic_reward_by_hand() -> None:
    # lambda = 0.2; eta t = 1e-4 * 6931.47... = ln 2, so the decay is 1/2; r^e_max / r^i_max = 6/1.5
    # = 4; (c + c')/2 = (0.3 + 0.5)/2 = 0.4. Together 0.2 * 0.5 * 4 * 0.4 = 0.16.
    steps = torch.tensor(math.log(2) * 1e4, dtype=torch.float64)
    bonus = equations.intrinsic_reward(
        double(0.3), double(0.5), steps, 0.2, 1e-4, double(6.0)[0], double(1.5)[0]
    )
    close(bonus, [0.16])


# --- numbers of the released code ---


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
    for place, weight in zip(places, new, strict=True):  # one by one: the last duplicate counts
        priorities[place] = weight
    assert largest_error(priorities, recorded["after"]) < TOLERANCE[precision]


def test_contrastive_loss_of_zero_curiosity_is_zero() -> None:
    logits = torch.randn(4, 4, dtype=torch.float64).requires_grad_()
    loss = equations.contrastive_loss(logits, torch.zeros(4, dtype=torch.float64), "weighted-mean")
    assert loss.item() == 0.0
    (gradient,) = torch.autograd.grad(loss, logits)
    assert torch.equal(gradient, torch.zeros_like(logits))


def test_adam_equals_that_of_pytorch():
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
