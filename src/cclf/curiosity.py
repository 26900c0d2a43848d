"""What may stand in the place of curiosity: the paper's own, controls that take something away from
it, and candidates that measure something else.

Curiosity is used four times: to choose a view (5), to weight losses (7), (8), to draw from replay
(6) and to pay a bonus (9). A `Measure` says how beliefs come about and what each use makes of
them. `MEASURES` names them as `MethodConfig.curiosity` does; a base algorithm knows none of them.

Letters as in `cclf.equations`: B batch, K views, D features; c is curiosity, 1 - belief. No
measure has a state: what needs a scale takes that of its batch.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from cclf import equations

RANK_SPREAD = 0.5  # kappa: weights of views by rank lie within 1/2 -+ kappa / 2
RANK_SHARE = 0.5  # eta: the share of a priority that its rank decides
LARGEST_SCORE = 2.0  # standard deviations above the mean that a bonus by rank counts
POSITIVE_SHARE = 0.1  # tau+: of the other keys, the share thought to show the same
TEMPERATURE = 0.1  # t: of the debiased estimate, over cosines; at 0.5 beliefs hardly differ
ROUNDING = 1e-3  # logits of copies of one observation may differ by this much
NEIGHBOURS = 12


# How beliefs (K-1, B) come about, from queries (B, D), keys (K-1, B, D) and W (D, D). `same` is
# for a belief over distinct keys; the others decide by themselves which keys count.


def belief(query: Tensor, keys: Tensor, bilinear: Tensor, same: Tensor | None) -> Tensor:
    """The paper's, Eq. (3).

    >>> belief(torch.eye(2), torch.eye(2)[None], torch.eye(2) * torch.log(torch.tensor(3.0)), None)
    tensor([[0.7500, 0.7500]])
    """
    return equations.belief(query, keys, bilinear, same)


def debiased_belief(
    query: Tensor,
    keys: Tensor,
    bilinear: Tensor,
    same: Tensor | None,  # noqa: ARG001 (copies are among the false negatives it takes off)
) -> Tensor:
    """Eq. (3) without the share of negatives that are none: the debiased estimate of Chuang et al.
    (2020). With N = B - 1 negatives, s the cosine of W^T q and k, each less its batch mean, and
    p = exp(s_own / t):

        G = max((sum over others exp(s / t) - tau N p) / (1 - tau), N exp(-1 / t))
        belief = p / (p + G)

    Three keys, of which the last two are copies: s is 1 for copies and -1 for others, and each copy
    has G = (e^10 + e^-10 - 0.2 e^10) / 0.9, where it would be e^10 + e^-10 without the debiasing.

    >>> same = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    >>> debiased_belief(same, same[None], torch.eye(2), None)
    tensor([[1.0000, 0.5294, 0.5294]])
    """
    # W begins with positive numbers alone: without centring, every cosine would be about the same
    sides = (query @ bilinear, keys)
    left, right = (F.normalize(z - z.mean(-2, keepdim=True), dim=-1) for z in sides)
    cosines = left @ right.mT
    shares = (cosines / TEMPERATURE).exp()  # (K-1, B, B)
    own = shares.diagonal(dim1=-2, dim2=-1)
    others = query.shape[0] - 1
    rest = shares.sum(-1) - own - POSITIVE_SHARE * others * own
    least = torch.full_like(own, -1.0 / TEMPERATURE).exp() * others
    return own / (own + torch.maximum(rest / (1.0 - POSITIVE_SHARE), least))


def cancelled_belief(
    query: Tensor,
    keys: Tensor,
    bilinear: Tensor,
    same: Tensor | None,  # noqa: ARG001 (copies are as similar as the own key, so they are left out)
) -> Tensor:
    """Eq. (3) without keys at least as similar as the own: copies, and what is taken for one.

    >>> same = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    >>> cancelled_belief(same, same[None], torch.eye(2), None)
    tensor([[0.5761, 0.7311, 0.7311]])
    """
    logits = equations.similarity_logits(query, keys, bilinear)
    own = logits.diagonal(dim1=-2, dim2=-1)[..., None]
    number = torch.arange(logits.shape[-1], device=logits.device)
    others = number[:, None] != number
    kept = logits.masked_fill((logits >= own - ROUNDING) & others, -torch.inf)
    return equations.log_belief(kept).exp()


# What becomes of them before any use. `order` (B,) is a permutation of the batch.


def as_they_are(beliefs: Tensor, order: Tensor | None) -> Tensor:  # noqa: ARG001
    return beliefs


def shuffled(beliefs: Tensor, order: Tensor | None) -> Tensor:
    """A control: sample b gets all beliefs of sample order[b]. The same numbers, and each says
    nothing of its sample.

    >>> shuffled(torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]), torch.tensor([2, 0, 1]))
    tensor([[0.3000, 0.1000, 0.2000],
            [0.6000, 0.4000, 0.5000]])
    """
    assert order is not None, "curiosity=shuffled needs `order`, a permutation of the batch"
    return beliefs[:, order]


def even(beliefs: Tensor, order: Tensor | None) -> Tensor:  # noqa: ARG001
    """A control: every belief becomes the batch mean of the least beliefs, so that curiosity keeps
    its level and loses its spread. No view is preferred: the first after the anchor is chosen.

    >>> even(torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.1, 0.7]]), None)
    tensor([[0.1667, 0.1667, 0.1667],
            [0.1667, 0.1667, 0.1667]])
    """
    return beliefs.amin(0).mean().expand(beliefs.shape)


# What the uses make of curiosity (B,).


def unchanged(curiosity: Tensor) -> Tensor:
    return curiosity


def ones(curiosity: Tensor) -> Tensor:
    return torch.ones_like(curiosity)


def rank(curiosity: Tensor) -> Tensor:
    """u in [0, 1]: the share of the other samples that arouse less; a tie counts half.

    >>> rank(torch.tensor([0.9, 0.2, 0.9, 0.1, 0.5]))
    tensor([0.8750, 0.2500, 0.8750, 0.0000, 0.5000])
    """
    pairs = curiosity[:, None] - curiosity
    wins = (pairs > 0).to(curiosity.dtype) + 0.5 * (pairs == 0).to(curiosity.dtype)
    return (wins.sum(1) - 0.5) / max(1, len(curiosity) - 1)  # a sample ties with itself


def rank_weight(curiosity: Tensor) -> Tensor:
    """Of the second view in (7): 1/2 + kappa (u - 1/2).

    >>> rank_weight(torch.tensor([0.0, 0.99, 0.995]))
    tensor([0.2500, 0.5000, 0.7500])
    """
    return 0.5 + RANK_SPREAD * (rank(curiosity) - 0.5)


def rank_priority(curiosity: Tensor) -> Tensor:
    """In place of c in (6): 1 - eta + eta u.

    >>> rank_priority(torch.tensor([0.0, 0.99, 0.995]))
    tensor([0.5000, 0.7500, 1.0000])
    """
    return 1.0 - RANK_SHARE + RANK_SHARE * rank(curiosity)


# For what the bonus (9) pays (B,), by curiosity (B,) and the features of the anchors (B, D).


def pay_curiosity(curiosity: Tensor, query: Tensor) -> Tensor:  # noqa: ARG001
    return curiosity


def pay_above_mean(curiosity: Tensor, query: Tensor) -> Tensor:  # noqa: ARG001
    """clip((c - mu) / sigma, 0, 2), by mean and standard deviation of the batch.

    >>> pay_above_mean(torch.tensor([0.5, 0.5, 0.5, 0.9]), torch.zeros(4, 1))
    tensor([0.0000, 0.0000, 0.0000, 1.7321])
    """
    above = curiosity - curiosity.mean()
    return (above / (above**2).mean().sqrt().clamp_min(1e-6)).clamp(0.0, LARGEST_SCORE)


def pay_distance(curiosity: Tensor, query: Tensor) -> Tensor:  # noqa: ARG001
    """log(1 + d) over its batch mean, d the mean distance to the 12 nearest others in the space of
    the belief: a particle estimate of entropy (Liu and Abbeel, 2021), which rises with rarity.

    Three alike and one at distance 4: with three neighbours each, d is (4/3, 4/3, 4/3, 4).

    >>> pay_distance(torch.zeros(4), torch.tensor([[0.0], [0.0], [0.0], [4.0]]))
    tensor([0.8164, 0.8164, 0.8164, 1.5508])
    """
    # differences and not products: copies lie at distance 0, without rounding
    exact = "donot_use_mm_for_euclid_dist"
    distances = torch.cdist(query, query, compute_mode=exact)
    nearest = distances.topk(min(NEIGHBOURS + 1, len(query)), largest=False).values
    # the nearest of all is the sample itself
    score = torch.log1p(nearest.sum(1) / max(1, nearest.shape[1] - 1))
    return score / score.mean().clamp_min(1e-6)


def draw_order(batch: int, generator: torch.Generator) -> Tensor:
    """A permutation (B,). Numbers are sorted and not drawn in order: a CUDA graph can hold that.

    >>> draw_order(4, torch.Generator().manual_seed(1)).sort().values
    tensor([0, 1, 2, 3])
    """
    return torch.rand(batch, generator=generator, device=generator.device).argsort()


class Measure(NamedTuple):
    """The paper's curiosity unless told otherwise."""

    beliefs: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor] = belief
    arranged: Callable[[Tensor, Tensor | None], Tensor] = as_they_are
    weight: Callable[[Tensor], Tensor] = unchanged  # of the second view, Eq. (7)
    contrast: Callable[[Tensor], Tensor] = unchanged  # of a sample in Eq. (8)
    priority: Callable[[Tensor], Tensor] = unchanged  # Eq. (6)
    pay: Callable[[Tensor, Tensor], Tensor] = pay_curiosity  # Eq. (9)
    needs_order: bool = False


MEASURES = {
    "belief": Measure(),
    "shuffled": Measure(arranged=shuffled, needs_order=True),
    "even": Measure(arranged=even),
    "ranks": Measure(weight=rank_weight, contrast=ones, priority=rank_priority, pay=pay_above_mean),
    "debiased": Measure(debiased_belief, contrast=ones),
    "cancelled": Measure(cancelled_belief, contrast=ones),
    "particles": Measure(pay=pay_distance),
}
