"""Four curiosity measures that were tried in place of the paper's, as an example of how to write one.

Letters as in `cclf.equations`: B batch, K views, D features; c is curiosity, 1 - belief.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from cclf import equations
from cclf.curiosity import CuriosityMeasure

RANK_WEIGHT_RANGE = 0.5  # kappa: the weights of views by rank lie within 1/2 -+ kappa / 2
RANK_PRIORITY_FRACTION = 0.5  # eta: the fraction of a priority that depends on the rank
MAX_ZSCORE = 2.0  # largest bonus by rank, in standard deviations above the mean
POSITIVE_PRIOR = 0.1  # tau+: the assumed fraction of the other keys that show the same observation
TEMPERATURE = 0.1  # t: of the debiased estimate, over cosines; at 0.5 beliefs hardly differ
LOGIT_TOLERANCE = 1e-3  # logits of copies of one observation may differ by this much
NUM_NEIGHBORS = 12


class Ranks(CuriosityMeasure):
    """Weights, priorities and bonus by the rank of curiosity in the batch. The contrastive loss is
    not weighted."""

    def view_weight(self, curiosity: Tensor) -> Tensor:
        """1/2 + kappa (u - 1/2), where u is the rank.

        >>> Ranks().view_weight(torch.tensor([0.0, 0.99, 0.995]))
        tensor([0.2500, 0.5000, 0.7500])
        """
        return 0.5 + RANK_WEIGHT_RANGE * (rank(curiosity) - 0.5)

    def contrastive_weight(self, curiosity: Tensor) -> Tensor:
        return torch.ones_like(curiosity)

    def priority(self, curiosity: Tensor) -> Tensor:
        """1 - eta + eta u, where u is the rank.

        >>> Ranks().priority(torch.tensor([0.0, 0.99, 0.995]))
        tensor([0.5000, 0.7500, 1.0000])
        """
        return 1.0 - RANK_PRIORITY_FRACTION + RANK_PRIORITY_FRACTION * rank(curiosity)

    def bonus_signal(self, curiosity: Tensor, query: Tensor) -> Tensor:
        """clip((c - mu) / sigma, 0, 2), with mean and standard deviation of the batch.

        >>> Ranks().bonus_signal(torch.tensor([0.5, 0.5, 0.5, 0.9]), torch.zeros(4, 1))
        tensor([0.0000, 0.0000, 0.0000, 1.7321])
        """
        above = curiosity - curiosity.mean()
        return (above / (above**2).mean().sqrt().clamp_min(1e-6)).clamp(0.0, MAX_ZSCORE)


class Debiased(CuriosityMeasure):
    """The belief by the debiased contrastive estimate of Chuang et al. (2020). The contrastive loss
    is not weighted."""

    def beliefs(
        self, query: Tensor, keys: Tensor, bilinear: Tensor, first_duplicate: Tensor | None
    ) -> Tensor:
        """With N = B - 1 negatives, s the cosine of W^T q and k, each minus its batch mean, and
        p = exp(s_own / t):

            G = max((sum over others exp(s / t) - tau N p) / (1 - tau), N exp(-1 / t))
            belief = p / (p + G)

        Of three keys the last two are copies: s is 1 for copies and -1 for others, and for each copy
        G = (e^10 + e^-10 - 0.2 e^10) / 0.9; without debiasing it would be e^10 + e^-10.

        >>> same = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
        >>> Debiased().beliefs(same, same[None], torch.eye(2), None)
        tensor([[1.0000, 0.5294, 0.5294]])
        """
        # All entries of W are positive at first: without centring, all cosines would be nearly equal.
        left, right = (
            F.normalize(z - z.mean(-2, keepdim=True), dim=-1) for z in (query @ bilinear, keys)
        )
        similarity = (left @ right.mT / TEMPERATURE).exp()  # (K-1, B, B)
        own = similarity.diagonal(dim1=-2, dim2=-1)
        others = query.shape[0] - 1
        rest = similarity.sum(-1) - own - POSITIVE_PRIOR * others * own
        minimum = torch.full_like(own, -1.0 / TEMPERATURE).exp() * others
        return own / (own + torch.maximum(rest / (1.0 - POSITIVE_PRIOR), minimum))

    def contrastive_weight(self, curiosity: Tensor) -> Tensor:
        return torch.ones_like(curiosity)


class Cancelled(CuriosityMeasure):
    """Eq. (3) without the other keys that are at least as similar as the key of the sample itself:
    copies of its observation, and those that the belief mistakes for copies. The contrastive loss
    is not weighted."""

    def beliefs(
        self, query: Tensor, keys: Tensor, bilinear: Tensor, first_duplicate: Tensor | None
    ) -> Tensor:
        """
        >>> same = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
        >>> Cancelled().beliefs(same, same[None], torch.eye(2), None)
        tensor([[0.5761, 0.7311, 0.7311]])
        """
        logits = equations.similarity_logits(query, keys, bilinear)
        own = logits.diagonal(dim1=-2, dim2=-1)[..., None]
        sample = torch.arange(logits.shape[-1], device=logits.device)
        copies = (logits >= own - LOGIT_TOLERANCE) & (sample[:, None] != sample)
        return equations.log_belief(logits.masked_fill(copies, -torch.inf)).exp()

    def contrastive_weight(self, curiosity: Tensor) -> Tensor:
        return torch.ones_like(curiosity)


class Particles(CuriosityMeasure):
    """The paper's curiosity with another bonus: a particle estimate of entropy (Liu and Abbeel,
    2021), which rises with rarity."""

    def bonus_signal(self, curiosity: Tensor, query: Tensor) -> Tensor:
        """log(1 + d) over its batch mean, where d is the mean distance to the 12 nearest neighbors
        in the features of the belief.

        Three are alike and one is at distance 4: with three neighbors each, d is (4/3, 4/3, 4/3, 4).

        >>> Particles().bonus_signal(torch.zeros(4), torch.tensor([[0.0], [0.0], [0.0], [4.0]]))
        tensor([0.8164, 0.8164, 0.8164, 1.5508])
        """
        # Without matrix products the distance of copies is exactly 0.
        exact = "donot_use_mm_for_euclid_dist"
        distances = torch.cdist(query, query, compute_mode=exact)
        nearest = distances.topk(min(NUM_NEIGHBORS + 1, len(query)), largest=False).values
        # The nearest neighbor of each sample is the sample itself, at distance 0.
        score = torch.log1p(nearest.sum(1) / max(1, nearest.shape[1] - 1))
        return score / score.mean().clamp_min(1e-6)


def rank(curiosity: Tensor) -> Tensor:
    """u in [0, 1]: the fraction of the other samples with less curiosity; a tie counts half.

    >>> rank(torch.tensor([0.9, 0.2, 0.9, 0.1, 0.5]))
    tensor([0.8750, 0.2500, 0.8750, 0.0000, 0.5000])
    """
    difference = curiosity[:, None] - curiosity
    wins = (difference > 0).to(curiosity.dtype) + 0.5 * (difference == 0).to(curiosity.dtype)
    return (wins.sum(1) - 0.5) / max(1, len(curiosity) - 1)  # a sample ties with itself
