"""Networks for A2C on MiniGrid: the encoder of RE3's study, and the heads on it."""

import numpy as np
import torch
from torch import Tensor, nn

# Where the 2x2 windows of a 7x7x3 grid observation lie in its 147 numbers: (9 pooling cells, 4
# windows in each, 12 values).
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
# The same for the second convolution: which of the 3x3 pooled cells lie under each of its 2x2
# outputs.
_CELLS = np.array(
    [[(i + u) * 3 + j + v for u in range(2) for v in range(2)] for i in range(2) for j in range(2)]
)


def grid_windows(observation: np.ndarray) -> np.ndarray:
    """Grid observations (B, 7, 7, 3) as windows of the first convolution, (B, 9, 4, 12) float32;
    raw integers, as published."""
    return observation.reshape(len(observation), 147).take(GRID_WINDOWS, axis=1).astype(np.float32)


class GridEncoder(nn.Module):
    """The MiniGrid encoder of RE3's A2C: 2x2 convolutions 3-16-32-64, a 2x2 max-pool after the
    first, ReLU; 64 features.

    A 7x7 image is so small that calling convolutions costs more than computing them, so each layer
    is one matrix product over windows. Weights keep that layout; `tests/algorithms/test_networks.py`
    compares with `nn.Conv2d`.
    """

    cells: Tensor

    def __init__(self) -> None:
        super().__init__()
        # for PyTorch's own initialisation
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
        # max before ReLU: the same, on a quarter of the values
        x = torch.relu(x.max(1).values).view(batch, 9, 16)
        x = x.index_select(1, self.cells).view(-1, 64)
        x = torch.relu(torch.addmm(self.biases[1], x, self.weights[1].T)).view(batch, 128)
        return torch.relu(torch.addmm(self.biases[2], x, self.weights[2].T))


def unit_norm_linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer whose rows are normal vectors of length one, with zero bias."""
    layer = nn.Linear(inputs, outputs)
    with torch.no_grad():
        layer.weight.normal_(0.0, 1.0)
        layer.weight.div_(layer.weight.norm(dim=1, keepdim=True))
        layer.bias.zero_()
    return layer


class GridPolicy(nn.Module):
    """Actor and critic for MiniGrid on one encoder: 64-64-tanh-actions and 64-64-tanh-1."""

    def __init__(self, num_actions: int):
        super().__init__()
        self.encoder = GridEncoder()
        self.actor = nn.Sequential(
            unit_norm_linear(64, 64), nn.Tanh(), unit_norm_linear(64, num_actions)
        )
        self.critic = nn.Sequential(unit_norm_linear(64, 64), nn.Tanh(), unit_norm_linear(64, 1))


class ContrastiveHead(nn.Module):
    """From an encoder's features to those the belief compares: the head of CURL's Rainbow, two
    linear layers with LayerNorm."""

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
