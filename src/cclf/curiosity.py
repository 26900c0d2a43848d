"""What may stand in the place of curiosity: the paper's own, controls that take something away from
it, and candidates that measure something else.

Curiosity is used four times: to choose a view (5), to weight losses (7), (8), to draw from replay
(6) and to pay a bonus (9). A `CuriosityMeasure` says how beliefs come about and what each use makes of
them. `CURIOSITY_MEASURES` names them as `MethodConfig.curiosity` does; a base algorithm knows none of them.

Letters as in `cclf.equations`: B batch, K views, D features; c is curiosity, 1 - belief. No
measure has a state: what needs a scale takes that of its batch.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from cclf import equations

RANK_WEIGHT_RANGE = 0.5  # kappa: weights of views by rank lie within 1/2 -+ kappa / 2
RANK_PRIORITY_FRACTION = 0.5  # eta: the share of a priority that its rank decides
MAX_ZSCORE = 2.0  # standard deviations above the mean that a bonus by rank counts
POSITIVE_PRIOR = 0.1  # tau+: of the other keys, the share thought to show the same
TEMPERATURE = 0.1  # t: of the debiased estimate, over cosines; at 0.5 beliefs hardly differ
LOGIT_TOLERANCE = 1e-3  # logits of copies of one observation may differ by this much
NUM_NEIGHBORS = 12


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
    rest = shares.sum(-1) - own - POSITIVE_PRIOR * others * own
    least = torch.full_like(own, -1.0 / TEMPERATURE).exp() * others
    return own / (own + torch.maximum(rest / (1.0 - POSITIVE_PRIOR), least))


def belief_without_duplicates(
    query: Tensor,
    keys: Tensor,
    bilinear: Tensor,
    same: Tensor | None,  # noqa: ARG001 (copies are as similar as the own key, so they are left out)
) -> Tensor:
    """Eq. (3) without keys at least as similar as the own: copies, and what is taken for one.

    >>> same = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    >>> belief_without_duplicates(same, same[None], torch.eye(2), None)
    tensor([[0.5761, 0.7311, 0.7311]])
    """
    logits = equations.similarity_logits(query, keys, bilinear)
    own = logits.diagonal(dim1=-2, dim2=-1)[..., None]
    number = torch.arange(logits.shape[-1], device=logits.device)
    others = number[:, None] != number
    kept = logits.masked_fill((logits >= own - LOGIT_TOLERANCE) & others, -torch.inf)
    return equations.log_belief(kept).exp()


# What becomes of them before any use. `order` (B,) is a permutation of the batch.


def unpermuted(beliefs: Tensor, order: Tensor | None) -> Tensor:  # noqa: ARG001
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


def batch_mean(beliefs: Tensor, order: Tensor | None) -> Tensor:  # noqa: ARG001
    """A control: every belief becomes the batch mean of the least beliefs, so that curiosity keeps
    its level and loses its spread. No view is preferred: the first after the anchor is chosen.

    >>> batch_mean(torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.1, 0.7]]), None)
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
    return 0.5 + RANK_WEIGHT_RANGE * (rank(curiosity) - 0.5)


def rank_priority(curiosity: Tensor) -> Tensor:
    """In place of c in (6): 1 - eta + eta u.

    >>> rank_priority(torch.tensor([0.0, 0.99, 0.995]))
    tensor([0.5000, 0.7500, 1.0000])
    """
    return 1.0 - RANK_PRIORITY_FRACTION + RANK_PRIORITY_FRACTION * rank(curiosity)


# For what the bonus (9) pays (B,), by curiosity (B,) and the features of the anchors (B, D).


def bonus_from_curiosity(curiosity: Tensor, query: Tensor) -> Tensor:  # noqa: ARG001
    return curiosity


def bonus_from_zscore(curiosity: Tensor, query: Tensor) -> Tensor:  # noqa: ARG001
    """clip((c - mu) / sigma, 0, 2), by mean and standard deviation of the batch.

    >>> bonus_from_zscore(torch.tensor([0.5, 0.5, 0.5, 0.9]), torch.zeros(4, 1))
    tensor([0.0000, 0.0000, 0.0000, 1.7321])
    """
    above = curiosity - curiosity.mean()
    return (above / (above**2).mean().sqrt().clamp_min(1e-6)).clamp(0.0, MAX_ZSCORE)


def bonus_from_knn_distance(curiosity: Tensor, query: Tensor) -> Tensor:  # noqa: ARG001
    """log(1 + d) over its batch mean, d the mean distance to the 12 nearest others in the space of
    the belief: a particle estimate of entropy (Liu and Abbeel, 2021), which rises with rarity.

    Three alike and one at distance 4: with three neighbours each, d is (4/3, 4/3, 4/3, 4).

    >>> bonus_from_knn_distance(torch.zeros(4), torch.tensor([[0.0], [0.0], [0.0], [4.0]]))
    tensor([0.8164, 0.8164, 0.8164, 1.5508])
    """
    # differences and not products: copies lie at distance 0, without rounding
    exact = "donot_use_mm_for_euclid_dist"
    distances = torch.cdist(query, query, compute_mode=exact)
    nearest = distances.topk(min(NUM_NEIGHBORS + 1, len(query)), largest=False).values
    # the nearest of all is the sample itself
    score = torch.log1p(nearest.sum(1) / max(1, nearest.shape[1] - 1))
    return score / score.mean().clamp_min(1e-6)


def sample_permutation(batch: int, generator: torch.Generator) -> Tensor:
    """A permutation (B,). Numbers are sorted and not drawn in order: a CUDA graph can hold that.

    >>> sample_permutation(4, torch.Generator().manual_seed(1)).sort().values
    tensor([0, 1, 2, 3])
    """
    return torch.rand(batch, generator=generator, device=generator.device).argsort()


class CuriosityMeasure(NamedTuple):
    """The paper's curiosity unless told otherwise."""

    beliefs: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor] = belief
    arranged: Callable[[Tensor, Tensor | None], Tensor] = unpermuted
    weight: Callable[[Tensor], Tensor] = unchanged  # of the second view, Eq. (7)
    contrast: Callable[[Tensor], Tensor] = unchanged  # of a sample in Eq. (8)
    priority: Callable[[Tensor], Tensor] = unchanged  # Eq. (6)
    pay: Callable[[Tensor, Tensor], Tensor] = bonus_from_curiosity  # Eq. (9)
    needs_permutation: bool = False


CURIOSITY_MEASURES = {
    "belief": CuriosityMeasure(),
    "shuffled": CuriosityMeasure(arranged=shuffled, needs_permutation=True),
    "even": CuriosityMeasure(arranged=batch_mean),
    "ranks": CuriosityMeasure(
        weight=rank_weight, contrast=ones, priority=rank_priority, pay=bonus_from_zscore
    ),
    "debiased": CuriosityMeasure(debiased_belief, contrast=ones),
    "cancelled": CuriosityMeasure(belief_without_duplicates, contrast=ones),
    "particles": CuriosityMeasure(pay=bonus_from_knn_distance),
}
