"""Networks of DrQ-v2 after the encoder: an actor and twin Q-functions, each with its own trunk."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from cclf.algorithms.common.pixel_encoder import EncoderHead, mlp


def initialize(module: nn.Module) -> None:
    """Orthogonal layers, convolutions with the gain of a ReLU, zero biases."""
    if isinstance(module, (nn.Linear, nn.Conv2d)):
        relu = isinstance(module, nn.Conv2d)
        nn.init.orthogonal_(module.weight, gain=nn.init.calculate_gain("relu") if relu else 1.0)
        assert module.bias is not None, "all layers here have a bias"
        nn.init.zeros_(module.bias)


class DrQv2Critic(nn.Module):
    """A trunk and two Q-functions, for features (B, H) of the encoder."""

    def __init__(self, inputs: int, feature_dim: int, action_dim: int, hidden_dim: int):
        super().__init__()
        self.trunk = EncoderHead(inputs, feature_dim, tanh=True)
        self.q1 = mlp(feature_dim + action_dim, hidden_dim, 1)
        self.q2 = mlp(feature_dim + action_dim, hidden_dim, 1)
        self.apply(initialize)

    def q_values(self, z: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Q1 and Q2 of the trunk's features (B, D) and actions (B, A), each (B,)."""
        inputs = torch.cat([z, action], dim=1)
        return self.q1(inputs).squeeze(1), self.q2(inputs).squeeze(1)


class DrQv2Actor(nn.Module):
    """A trunk and the mean action (B, A), for features (B, H) of the encoder."""

    __call__: Callable[..., Tensor]

    def __init__(self, inputs: int, feature_dim: int, action_dim: int, hidden_dim: int):
        super().__init__()
        self.trunk = EncoderHead(inputs, feature_dim, tanh=True)
        self.policy = mlp(feature_dim, hidden_dim, action_dim)
        self.apply(initialize)

    def forward(self, conv_features: Tensor) -> Tensor:
        return torch.tanh(self.policy(self.trunk(conv_features)))
