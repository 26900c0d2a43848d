"""Networks of SAC: the encoder of SAC-AE and CURL, a tanh-Gaussian actor, and twin Q-functions."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cclf.algorithms.common.observations import LazyViews
from cclf.algorithms.common.pixel_encoder import ConvEncoder, CustomEncoder, EncoderHead, mlp
from cclf.data.augmentations import LazyNoise


def initialize(module: nn.Module) -> None:
    """Orthogonal linear layers, delta-orthogonal convolutions (Xiao et al., 2018), zero biases."""
    if isinstance(module, nn.Linear):
        nn.init.orthogonal_(module.weight)
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Conv2d):
        centre = module.kernel_size[0] // 2
        nn.init.zeros_(module.weight)
        nn.init.orthogonal_(
            module.weight.data[:, :, centre, centre], gain=nn.init.calculate_gain("relu")
        )
        assert module.bias is not None, "convolutions here have a bias"
        nn.init.zeros_(module.bias)


class LinearStateEncoder(nn.Module):
    """A linear layer in place of the convolutions: states (B, D) to features (B, H)."""

    __call__: Callable[..., Tensor]

    def __init__(self, state_dim: int, out_dim: int):
        super().__init__()
        self.fc, self.out_dim = nn.Linear(state_dim, out_dim), out_dim

    def forward(self, states: Tensor | LazyNoise) -> Tensor:
        vectors = states.materialize() if isinstance(states, LazyNoise) else states
        return torch.relu(self.fc(vectors.to(self.fc.weight.dtype)))


ObservationEncoder = ConvEncoder | CustomEncoder | LinearStateEncoder


class Encoder(nn.Module):
    """Pixels or states to features (B, D)."""

    __call__: Callable[..., Tensor]

    def __init__(self, convolutions: ObservationEncoder, feature_dim: int, tanh: bool):
        super().__init__()
        self.convolutions = convolutions
        self.head = EncoderHead(convolutions.out_dim, feature_dim, tanh)

    def forward(self, observations: Tensor | LazyViews) -> Tensor:
        return self.head(self.convolutions(observations))


class SacCritic(nn.Module):
    """Twin Q-functions on one encoder."""

    def __init__(self, encoder: Encoder, feature_dim: int, action_dim: int, hidden_dim: int):
        super().__init__()
        self.encoder = encoder
        self.q1 = mlp(feature_dim + action_dim, hidden_dim, 1)
        self.q2 = mlp(feature_dim + action_dim, hidden_dim, 1)
        # A custom encoder keeps its own initial weights.
        custom = isinstance(encoder.convolutions, CustomEncoder)
        for part in (encoder.head if custom else encoder, self.q1, self.q2):
            part.apply(initialize)

    def q_values(self, z: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Q1 and Q2 of features (B, D) and actions (B, A), each (B,)."""
        inputs = torch.cat([z, action], dim=1)
        return self.q1(inputs).squeeze(1), self.q2(inputs).squeeze(1)


class PolicySample(NamedTuple):
    action: Tensor  # (B, A)
    log_prob: Tensor  # (B,)
    entropy: Tensor  # (B,)  of the Gaussian before the tanh


class SacActor(nn.Module):
    """Tanh-Gaussian policy with its own encoder head. Its inputs are features of the critic's
    convolutions, which its loss does not train."""

    __call__: Callable[..., Tensor]

    def __init__(
        self,
        head: EncoderHead,
        feature_dim: int,
        action_dim: int,
        hidden_dim: int,
        log_std_min: float,
        log_std_max: float,
    ):
        super().__init__()
        self.head = head
        self.trunk = mlp(feature_dim, hidden_dim, 2 * action_dim)
        self.log_std_min, self.log_std_max = log_std_min, log_std_max
        self.apply(initialize)

    def forward(self, conv_features: Tensor) -> Tensor:
        """The mean action (B, A) for features (B, H) of the convolutions."""
        mean, _ = self.trunk(self.head(conv_features)).chunk(2, dim=1)
        return torch.tanh(mean)

    def sample(self, features: Tensor, noise: Tensor) -> PolicySample:
        """A sampled action for features (B, D) of the head, with standard normal noise (B, A)."""
        mean, raw = self.trunk(features).chunk(2, dim=1)
        log_std = self.log_std_min + 0.5 * (self.log_std_max - self.log_std_min) * (
            torch.tanh(raw) + 1.0
        )
        action = torch.tanh(mean + noise * log_std.exp())
        gaussian = (-0.5 * noise**2 - log_std - 0.5 * math.log(2.0 * math.pi)).sum(1)
        # 1e-6 keeps the logarithm finite where the tanh saturates
        log_prob = gaussian - torch.log(torch.relu(1.0 - action**2) + 1e-6).sum(1)
        entropy = (log_std + 0.5 * (1.0 + math.log(2.0 * math.pi))).sum(1)
        return PolicySample(action, log_prob, entropy)
