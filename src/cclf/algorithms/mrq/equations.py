"""The equations of MR.Q (Fujimoto et al., 2025) that other algorithms here do not have."""

import torch
from torch import Tensor


def symexp_bins(count: int, limit: float, device: torch.device) -> Tensor:
    """The values of the reward bins, (count,).

        b = sign(x) (exp |x| - 1)        x equally spaced from -limit to limit

    >>> symexp_bins(3, 1.0, torch.device("cpu"))
    tensor([-1.7183,  0.0000,  1.7183])
    """
    x = torch.linspace(-limit, limit, count, device=device)
    return x.sign() * (x.abs().exp() - 1.0)


def two_hot(values: Tensor, bins: Tensor) -> Tensor:
    """Each value (...) as weights (..., bins) of the two bins around it, which average to the value.
    Values outside of the bins count as the outermost bin.

    >>> two_hot(torch.tensor([0.25, 9.0]), torch.tensor([-1.0, 0.0, 1.0]))
    tensor([[0.0000, 0.7500, 0.2500],
            [0.0000, 0.0000, 1.0000]])
    """
    values = values.clamp(bins[0], bins[-1])
    upper = torch.searchsorted(bins, values, right=True).clamp(1, len(bins) - 1)
    weight = (values - bins[upper - 1]) / (bins[upper] - bins[upper - 1])
    weights = values.new_zeros(*values.shape, len(bins))
    weights.scatter_(-1, upper[..., None] - 1, 1.0 - weight[..., None])
    return weights.scatter_(-1, upper[..., None], weight[..., None])


def reward_loss(logits: Tensor, reward: Tensor, bins: Tensor) -> Tensor:
    """The cross-entropy (B,) of predicted reward bins (B, bins) and the two-hot reward (B,)."""
    return -(two_hot(reward, bins) * logits.log_softmax(-1)).sum(-1)


def infonce_loss(predicted: Tensor, true: Tensor, temperature: float) -> Tensor:
    """For each sample the cross-entropy (B,) of recognizing its own next features (B, D) among those of
    the batch, by cosine similarity."""
    predicted, true = (x / x.norm(dim=1, keepdim=True).clamp_min(1e-12) for x in (predicted, true))
    return -(predicted @ true.T / temperature).log_softmax(1).diagonal()


def gumbel_softmax(logits: Tensor, gumbel: Tensor, temperature: float) -> Tensor:
    """A differentiable sample (B, A) of the categorical distribution with these logits, from Gumbel
    noise (B, A)."""
    return ((logits + gumbel) / temperature).softmax(-1)


def lap_priority(td_errors: Tensor, exponent: float) -> Tensor:
    """Replay priorities (B,) of absolute TD errors (2, B) of two Q-functions (LAP, Fujimoto et al.,
    2020).

        p = max(|delta_1|, |delta_2|, 1)^exponent

    >>> lap_priority(torch.tensor([[0.1, 4.0], [0.2, 2.0]]), 0.5)
    tensor([1., 2.])
    """
    return td_errors.amax(0).clamp_min(1.0) ** exponent
