"""Exploration of DrQ-v2: the schedule of the noise, and noisy actions."""

import torch
from torch import Tensor

ACTION_LIMIT = 1.0 - 1e-6  # actions stay this far inside [-1, 1]


def noise_std(agent_steps: Tensor, first: float, last: float, fade_agent_steps: int) -> Tensor:
    """Standard deviation of the noise on actions after `agent_steps`.

        σ(t) = σ_first + min(t / T, 1) (σ_last − σ_first)

    >>> noise_std(torch.tensor([0.0, 50.0, 100.0, 200.0]), first=1.0, last=0.1, fade_agent_steps=100)
    tensor([1.0000, 0.5500, 0.1000, 0.1000])
    """
    share = torch.clamp(agent_steps / fade_agent_steps, 0.0, 1.0)
    return (1.0 - share) * first + share * last


def noisy_action(
    mean: Tensor, noise: Tensor, std: Tensor, noise_clip: float | None = None
) -> Tensor:
    """The policy's mean plus clipped noise, clamped to [-1, 1] without effect on the gradient.

        a = clamp(μ + clip(σ ε, −c, c), −1, 1)        ∂a/∂μ = 1

    >>> noisy_action(torch.tensor([0.0, 0.5, 0.5]), torch.tensor([1.0, -1.0, 9.0]), torch.tensor(0.4), 0.25)
    tensor([0.2500, 0.2500, 0.7500])
    """
    offset = noise * std
    if noise_clip is not None:
        offset = offset.clamp(-noise_clip, noise_clip)
    action = mean + offset
    return action - action.detach() + action.detach().clamp(-ACTION_LIMIT, ACTION_LIMIT)
