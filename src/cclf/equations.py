"""The paper on one page: Eq. (1)-(9) of Sun, Qian and Miao (IJCAI 2022) as pure functions.

Letters: B batch, V views that enter a loss, K views of one observation, D features. View 0 is the
anchor i*, which the paper fixes; j* is selected among the others.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def soft_value(q1: Tensor, q2: Tensor, log_prob: Tensor, temperature: Tensor) -> Tensor:
    """The bracket of Eq. (2): min(Q1, Q2) - alpha log pi, the soft value of one next view.

    >>> soft_value(torch.tensor([3.0]), torch.tensor([2.0]), torch.tensor([-4.0]), torch.tensor(0.1))
    tensor([2.4000])
    """
    return torch.min(q1, q2) - temperature * log_prob


def uniform_weights(views: int, like: Tensor) -> Tensor:
    """The weights 1/M of Eq. (1) and 1/K of Eq. (2), shape (V, B).

    >>> uniform_weights(2, torch.zeros(3))
    tensor([[0.5000, 0.5000, 0.5000],
            [0.5000, 0.5000, 0.5000]])
    """
    return torch.full((views, *like.shape), 1.0 / views, dtype=like.dtype, device=like.device)


def curiosity_weights(curiosity: Tensor) -> Tensor:
    """The weights (1 - c, c) of Eq. (7), shape (2, B): the second view has the larger weight if the
    agent is curious about the pair.

    >>> curiosity_weights(torch.tensor([0.0, 0.5, 1.0]))
    tensor([[1.0000, 0.5000, 0.0000],
            [0.0000, 0.5000, 1.0000]])
    """
    return torch.stack([1.0 - curiosity, curiosity])


def q_target(
    reward: Tensor,
    bonus: Tensor,
    continuation: Tensor,
    discount: float,
    next_values: Tensor,
    next_weights: Tensor,
) -> Tensor:
    """Eq. (2) with uniform weights, Eq. (7) with curiosity weights: y = r + bonus + c gamma sum_v
    w'_v T_v, shape (B,), with the continuation c and the values T_v and weights w'_v of the next views.

    >>> q_target(torch.tensor([1.0]), torch.tensor([0.5]), torch.tensor([1.0]), 0.9,
    ...          torch.tensor([[10.0], [20.0]]), torch.tensor([[0.75], [0.25]]))
    tensor([12.7500])
    """
    return reward + bonus + continuation * discount * (next_weights * next_values).sum(0)


def q_loss(q: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    """Eq. (1) with uniform weights, Eq. (7) with curiosity weights: sum_v mean_b w_vb (Q_vb - y_b)^2.
    `q` and `weights` are (V, B).

    >>> q_loss(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0.0, 0.0]), torch.tensor([[1.0, 0.5], [0.0, 0.5]]))
    tensor(5.5000)
    """
    return (weights * (q - target) ** 2).mean(1).sum()


def similarity_logits(query: Tensor, keys: Tensor, bilinear: Tensor) -> Tensor:
    """q^T W k for every query (B, D) and every key (..., B, D) of the batch, shape (..., B, B), with
    the positives on the diagonal.

    >>> similarity_logits(torch.eye(2), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.eye(2))
    tensor([[1., 3.],
            [2., 4.]])
    """
    return (query @ bilinear) @ keys.mT


def log_match_probabilities(logits: Tensor, first_duplicate: Tensor | None = None) -> Tensor:
    """The softmax of Eq. (3) before its diagonal is taken, (..., B, B): the log-probability that
    each query belongs to each key.

    Copies of one observation are negatives of each other, so that n copies have beliefs of at most
    1/n. `first_duplicate` (B,), the first sample with the same observation, gives a variant, not in
    the paper, that counts each distinct observation once.

    >>> log_match_probabilities(torch.tensor([[0.0, 0.0], [0.0, 1.0986]])).exp()
    tensor([[0.5000, 0.5000],
            [0.2500, 0.7500]])
    """
    if first_duplicate is not None:
        sample = torch.arange(len(first_duplicate), device=first_duplicate.device)
        logits = logits.masked_fill(first_duplicate != sample, -torch.inf)
    return F.log_softmax(logits, dim=-1)


def log_belief(logits: Tensor, first_duplicate: Tensor | None = None) -> Tensor:
    """log IB, shape (..., B): the log-probability that each query belongs to its own key among the
    keys of the batch.

    >>> log_belief(torch.zeros(4, 4)).exp()
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    >>> log_belief(torch.zeros(4, 4), first_duplicate=torch.tensor([0, 1, 0, 0])).exp()
    tensor([0.5000, 0.5000, 0.5000, 0.5000])
    """
    matches = log_match_probabilities(logits, first_duplicate)
    if first_duplicate is None:
        return matches.diagonal(dim1=-2, dim2=-1)
    return matches.gather(-1, first_duplicate[:, None].expand(*matches.shape[:-1], 1)).squeeze(-1)


def belief(
    query: Tensor, keys: Tensor, bilinear: Tensor, first_duplicate: Tensor | None = None
) -> Tensor:
    """IB of Eq. (3), shape (..., B): the probability, as the agent believes, that each query and its
    own key show the same observation.

    >>> belief(torch.eye(2), torch.eye(2), torch.eye(2) * torch.log(torch.tensor(3.0)))
    tensor([0.7500, 0.7500])
    """
    return log_belief(similarity_logits(query, keys, bilinear), first_duplicate).exp()


def curiosity(belief: Tensor) -> Tensor:
    """Eq. (3): c = 1 - IB, in [0, 1].

    >>> curiosity(torch.tensor([0.75, 1.0]))
    tensor([0.2500, 0.0000])
    """
    return 1.0 - belief


def squared_distance(query: Tensor, key: Tensor) -> Tensor:
    """d^2, shape (..., B): the mean squared difference of the features of queries (B, D) and keys
    (..., B, D).

    >>> squared_distance(torch.tensor([[1.0, 2.0]]), torch.tensor([[[1.0, 2.0]], [[0.0, 4.0]]]))
    tensor([[0.0000],
            [2.5000]])
    """
    return ((query - key) ** 2).mean(-1)


def absolute_belief(distance: Tensor, scale: Tensor) -> Tensor:
    """IB = exp(-d^2 / s), shape (..., B), of squared distances d^2 (..., B) and their running mean
    s (): a variant of Eq. (3), not in the paper, which does not depend on the other keys of the batch.

    If s is 0, every distance was 0, and so is every curiosity.

    >>> absolute_belief(torch.tensor([0.0, 0.6931, 1.3863]), torch.tensor(1.0))
    tensor([1.0000, 0.5000, 0.2500])
    >>> absolute_belief(torch.tensor([0.0]), torch.tensor(0.0))
    tensor([1.])
    """
    return torch.exp(-distance / scale.clamp_min(torch.finfo(scale.dtype).tiny))


def overlap(corners: Tensor, other_corners: Tensor, crop_pixels: int) -> Tensor:
    """Overlap of Eq. (4): the number of pixels that two crops of `crop_pixels` x `crop_pixels` share,
    given their top-left corners (..., 2).

    >>> overlap(torch.tensor([0, 0]), torch.tensor([1, 3]), 4)
    tensor(3)
    """
    return (crop_pixels - (corners - other_corners).abs()).clamp_min(0).prod(-1)


def select_least_overlap(overlaps: Tensor) -> Tensor:
    """Eq. (4): j* for each sample, from the overlaps (K-1, B) of the other views with the anchor; 0
    means view 1.

    >>> select_least_overlap(torch.tensor([[9, 2], [4, 6]]))
    tensor([1, 0])
    """
    return overlaps.argmin(0)


def select_most_curious(beliefs: Tensor) -> Tensor:
    """Eq. (5): j* for each sample, from the beliefs (K-1, B) in the other views; 0 means view 1.

    This is the smallest belief and not the largest c = 1 - IB, because c rounds to 1 for every tiny
    belief.

    >>> select_most_curious(torch.tensor([[0.3, 1e-9], [0.1, 1e-8]]))
    tensor([1, 0])
    """
    return beliefs.argmin(0)


def priority(
    previous: Tensor, curiosity: Tensor, next_curiosity: Tensor, momentum: float
) -> Tensor:
    """Eq. (6): w_s = beta w_(s-1) + (1 - beta) (c + c') / 2, the weight with which a transition is
    sampled.

    >>> priority(torch.tensor([1.0]), torch.tensor([0.2]), torch.tensor([0.4]), momentum=0.9)
    tensor([0.9300])
    """
    return momentum * previous + (1.0 - momentum) * (curiosity + next_curiosity) / 2.0


def contrastive_loss(
    logits: Tensor, weights: Tensor, reduction: str, first_duplicate: Tensor | None = None
) -> Tensor:
    """Eq. (8): the cross-entropy of matching each query with its own key, with sample b weighted by
    c_b. With weights of one it is CURL's loss.

    `reduction` is "sum", as in the paper, or "weighted-mean", sum(w l) / sum(w), as in the released
    code. If all weights are zero, the loss is 0.

    >>> logits = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    >>> contrastive_loss(logits, torch.tensor([1.0, 0.5]), "sum")
    tensor(1.0397)
    >>> contrastive_loss(logits, torch.tensor([1.0, 0.5]), "weighted-mean")
    tensor(0.6931)
    >>> float(contrastive_loss(logits, torch.tensor([0.0, 0.0]), "weighted-mean").abs())
    0.0
    """
    total = -(weights * log_belief(logits, first_duplicate)).sum()
    return (
        total
        if reduction == "sum"
        else total / weights.sum().clamp_min(torch.finfo(weights.dtype).tiny)
    )


def intrinsic_reward(
    curiosity: Tensor,
    next_curiosity: Tensor,
    env_steps: Tensor,
    temperature: float,
    decay_per_env_step: float,
    reward_max: Tensor,
    bonus_max: Tensor,
) -> Tensor:
    """Eq. (9): lambda exp(-eta t) (r^e_max / r^i_max) (c + c') / 2, shape (B,), with the temperature
    lambda, the decay eta, the reward_max r^e_max and the bonus_max r^i_max.

    >>> intrinsic_reward(torch.tensor([0.2]), torch.tensor([0.6]), torch.tensor(0.0), 0.5, 2e-5,
    ...                  torch.tensor(3.0), torch.tensor(2.0))
    tensor([0.3000])
    """
    scale = temperature * torch.exp(-decay_per_env_step * env_steps) * reward_max / bonus_max
    return scale * (curiosity + next_curiosity) / 2.0
