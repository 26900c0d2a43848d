"""Networks of MR.Q: encoders, a model of transitions, the MLP of the policy, and two Q-functions."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PIXEL_OFFSET = 0.5  # pixels enter the encoder as x / 255 - 0.5
CONV_STRIDES = (2, 2, 2, 1)  # of four 3x3 convolutions
NUM_CRITICS = 2


def initialize(module: nn.Module) -> None:
    """Xavier uniform weights with the gain of a ReLU, zero biases."""
    if isinstance(module, (nn.Linear, nn.Conv2d)):
        nn.init.xavier_uniform_(module.weight, nn.init.calculate_gain("relu"))
        assert module.bias is not None, "all layers here have a bias"
        nn.init.zeros_(module.bias)


def normalize(x: Tensor, activation: Callable[[Tensor], Tensor] = F.elu) -> Tensor:
    """Layer normalization without learned scale and shift, then the activation."""
    return activation(F.layer_norm(x, x.shape[-1:]))


class NormalizedMlp(nn.Module):
    """Three linear layers, the first two followed by `normalize`."""

    def __init__(
        self,
        inputs: int,
        hidden: int,
        outputs: int,
        activation: Callable[[Tensor], Tensor] = F.elu,
    ):
        super().__init__()
        sizes = (inputs, hidden, hidden, outputs)
        self.layers = nn.ModuleList(map(nn.Linear, sizes, sizes[1:]))
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        first, second, last = self.layers
        x = normalize(first(x), self.activation)
        output: Tensor = last(normalize(second(x), self.activation))
        return output


class PixelEncoder(nn.Module):
    """Features z_s (B, D) of stacks of uint8 frames (B, C, H, W)."""

    def __init__(self, channels: int, frame_pixels: int, filters: int, feature_dim: int):
        super().__init__()
        self.convolutions = nn.ModuleList()
        for stride in CONV_STRIDES:
            self.convolutions.append(nn.Conv2d(channels, filters, kernel_size=3, stride=stride))
            channels, frame_pixels = filters, (frame_pixels - 3) // stride + 1
        self.linear = nn.Linear(filters * frame_pixels**2, feature_dim)

    def forward(self, frames: Tensor) -> Tensor:
        x = frames / 255.0 - PIXEL_OFFSET
        for convolution in self.convolutions:
            x = F.elu(convolution(x))
        return normalize(self.linear(x.flatten(1)))


class MlpStateEncoder(nn.Module):
    """Features z_s (B, D) of state vectors (B, S)."""

    def __init__(self, state_dim: int, hidden_dim: int, feature_dim: int):
        super().__init__()
        self.mlp = NormalizedMlp(state_dim, hidden_dim, feature_dim)

    def forward(self, states: Tensor) -> Tensor:
        return normalize(self.mlp(states))


class Model(nn.Module):
    """The model of transitions: features z_sa of a state and an action, from which a linear layer
    predicts termination, the next z_s and the reward."""

    def __init__(
        self, feature_dim: int, action_dim: int, action_feature_dim: int, hidden_dim: int, bins: int
    ):
        super().__init__()
        self.action = nn.Linear(action_dim, action_feature_dim)
        self.joint = NormalizedMlp(feature_dim + action_feature_dim, hidden_dim, feature_dim)
        self.prediction = nn.Linear(feature_dim, 1 + feature_dim + bins)
        self.splits = [1, feature_dim, bins]

    def forward(self, z_s: Tensor, action: Tensor) -> Tensor:
        """z_sa (B, D)."""
        joint: Tensor = self.joint(torch.cat([z_s, F.elu(self.action(action))], dim=1))
        return joint

    def predict(self, z_s: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Termination (B,), the next z_s (B, D), and logits of the reward bins (B, bins)."""
        termination, next_z_s, reward = self.prediction(self(z_s, action)).split(self.splits, 1)
        return termination.squeeze(1), next_z_s, reward


class Critic(nn.Module):
    """Two Q-values (2, B) of z_sa (B, D)."""

    def __init__(self, feature_dim: int, hidden_dim: int):
        super().__init__()
        self.mlps = nn.ModuleList(
            NormalizedMlp(feature_dim, hidden_dim, hidden_dim) for _ in range(NUM_CRITICS)
        )
        self.heads = nn.ModuleList(nn.Linear(hidden_dim, 1) for _ in range(NUM_CRITICS))

    def forward(self, z_sa: Tensor) -> Tensor:
        critics = zip(self.mlps, self.heads, strict=True)
        return torch.stack([head(normalize(mlp(z_sa))).squeeze(1) for mlp, head in critics])
