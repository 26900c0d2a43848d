"""Networks of A2C on MiniGrid: the encoder of the RE3 paper, actor, critic and contrastive head."""

import numpy as np
import torch
from torch import Tensor, nn

# Indices of the 2x2 convolution windows in a flat grid observation (147,): (9 pooling cells, 4 windows
# per cell, 12 values per window).
GRID_WINDOWS = np.array(
    [
        [
            [
                ((2 * i + a + u) * 7 + (2 * j + b + v)) * 3 + c
                for u in range(2)
                for v in range(2)
                for c in range(3)
            ]
            for a in range(2)
            for b in range(2)
        ]
        for i in range(3)
        for j in range(3)
    ]
)
# Indices of the 2x2 windows of the second convolution in the 3x3 pooled cells: (4 outputs, 4 cells).
_CELLS = np.array(
    [[(i + u) * 3 + j + v for u in range(2) for v in range(2)] for i in range(2) for j in range(2)]
)


def grid_windows(observation: np.ndarray) -> np.ndarray:
    """Grid observations (B, 7, 7, 3) as windows of the first convolution, (B, 9, 4, 12) float32. The
    integers are not scaled, as published."""
    return observation.reshape(len(observation), 147).take(GRID_WINDOWS, axis=1).astype(np.float32)


class GridEncoder(nn.Module):
    """The MiniGrid encoder of the RE3 paper: 2x2 convolutions with 16, 32 and 64 filters and ReLU, a
    2x2 max-pooling after the first; 64 features.

    For a 7x7 image the overhead of a convolution call exceeds its computation, so each layer is one
    matrix product over windows, and weights have that layout. `tests/algorithms/test_networks.py`
    compares with `nn.Conv2d`.
    """

    cells: Tensor

    def __init__(self) -> None:
        super().__init__()
        # These layers only provide PyTorch's default initial weights.
        convolutions = [nn.Conv2d(3, 16, 2), nn.Conv2d(16, 32, 2), nn.Conv2d(32, 64, 2)]
        self.weights = nn.ParameterList(
            conv.weight.detach().permute(0, 2, 3, 1).flatten(1).clone() for conv in convolutions
        )
        self.biases = nn.ParameterList(
            conv.bias.detach().clone() for conv in convolutions if conv.bias is not None
        )
        self.register_buffer("cells", torch.from_numpy(_CELLS).flatten(), persistent=False)

    def forward(self, windows: Tensor) -> Tensor:
        """Windows (B, 9, 4, 12) to features (B, 64)."""
        batch = windows.shape[0]
        x = torch.addmm(self.biases[0], windows.view(-1, 12), self.weights[0].T).view(-1, 4, 16)
        # max-pooling before ReLU gives the same result on a quarter of the values
        x = torch.relu(x.max(1).values).view(batch, 9, 16)
        x = x.index_select(1, self.cells).view(-1, 64)
        x = torch.relu(torch.addmm(self.biases[1], x, self.weights[1].T)).view(batch, 128)
        return torch.relu(torch.addmm(self.biases[2], x, self.weights[2].T))


def unit_norm_linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer with zero bias whose weight rows are random unit vectors."""
    layer = nn.Linear(inputs, outputs)
    with torch.no_grad():
        layer.weight.normal_(0.0, 1.0)
        layer.weight.div_(layer.weight.norm(dim=1, keepdim=True))
        layer.bias.zero_()
    return layer


class GridPolicy(nn.Module):
    """Actor and critic with a shared encoder: each has one hidden layer of 64 units with tanh."""

    def __init__(self, num_actions: int):
        super().__init__()
        self.encoder = GridEncoder()
        self.actor = nn.Sequential(
            unit_norm_linear(64, 64), nn.Tanh(), unit_norm_linear(64, num_actions)
        )
        self.critic = nn.Sequential(unit_norm_linear(64, 64), nn.Tanh(), unit_norm_linear(64, 1))


class PolicyLogits(nn.Module):
    """The exported policy: action logits (B, A) for uint8 grids (B, 7, 7, 3)."""

    windows: Tensor

    def __init__(self, policy: GridPolicy):
        super().__init__()
        self.encoder, self.actor = policy.encoder, policy.actor
        self.register_buffer("windows", torch.from_numpy(GRID_WINDOWS).flatten(), persistent=False)

    def forward(self, grids: Tensor) -> Tensor:
        windows = grids.flatten(1).index_select(1, self.windows).to(torch.float32)
        logits: Tensor = self.actor(self.encoder(windows.view(-1, *GRID_WINDOWS.shape)))
        return logits


class ContrastiveHead(nn.Module):
    """Maps encoder features to the queries and keys of the contrastive loss, as CURL's Rainbow does:
    two linear layers with LayerNorm."""

    def __init__(self, inputs: int, hidden: int):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(inputs, hidden),
            nn.LayerNorm(hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.LayerNorm(hidden),
        )

    def forward(self, features: Tensor) -> Tensor:
        z: Tensor = self.layers(features)
        return z
