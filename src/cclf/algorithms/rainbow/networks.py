"""Networks of Rainbow on Atari: convolutions, noisy dueling streams, and CURL's projection for
contrastive learning.

Each is written for one run. `cclf.algorithms.rainbow.batched` maps them over many runs, so a convolution
here is patches times a matrix: many runs then make one batched product, where convolutions would
become a slow grouped one.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cclf.algorithms.rainbow import equations
from cclf.kernels.gather_packed import FRAMES
from cclf.kernels.tiled_convolution import first_layer, patches

# (filters, side of the patch, stride) of each layer
CONVOLUTIONS = {
    "data-efficient": ((32, 5, 5), (64, 5, 5)),
    "nature": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),
}


def _uniform(*shape: int, bound: float) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))


class GameEncoder(nn.Module):
    """Stacks of uint8 frames (n, F, H, W) to flat features (n, D). Weights start as PyTorch's
    convolutions do. Where it `accepts_packed`, four frames may also come as words (n, H, W)."""

    def __init__(self, frame_stack: int, pixels: int, kind: str):
        super().__init__()
        self.layers = CONVOLUTIONS[kind]
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        channels, side = frame_stack, pixels
        for filters, patch, stride in self.layers:
            bound = 1.0 / math.sqrt(channels * patch * patch)
            self.weights.append(_uniform(filters, channels * patch * patch, bound=bound))
            self.biases.append(_uniform(filters, bound=bound))
            channels, side = filters, (side - patch) // stride + 1
        self.out_dim = channels * side * side
        for _, patch, stride in reversed(self.layers):
            side = (side - 1) * stride + patch
        self.visible_pixels = side
        """Rows and columns that reach a feature at all: 75 of 84 in the data-efficient network,
        whose strides leave a border."""

    def accepts_packed(self, images: Tensor) -> bool:
        """Whether words (`cclf.kernels.gather_packed`) are the fastest way to give it views of these
        frames (n, F, H, W)."""
        return self._tiled and images.is_cuda and images.shape[1] == FRAMES

    @property
    def _tiled(self) -> bool:
        """Whether patches lie side by side in the first two layers."""
        return all(side == stride for _, side, stride in self.layers[:2])

    def forward(self, images: Tensor) -> Tensor:
        x = self._first(images[..., : self.visible_pixels, : self.visible_pixels])
        (_, *weights), (_, *biases) = self.weights, self.biases
        for weight, bias, following in zip(weights, biases, (*self.layers[2:], None), strict=True):
            x = torch.relu(x @ weight.T + bias)
            if following is not None:
                x = patches(x, *following[1:])
        return x.flatten(1)

    def _first(self, images: Tensor) -> Tensor:
        """The first layer: patches of the second, (n, h, w, side * side * C)."""
        weight, bias = self.weights[0], self.biases[0]
        (_, side, stride), (_, next_side, next_stride) = self.layers[:2]
        words = images.dtype == torch.int32
        if words or (self._tiled and images.is_cuda and images.dtype == torch.uint8):
            made: Tensor = first_layer(images[None], weight[None], bias[None], side, next_side)
            return made.squeeze(0)
        x = patches(images.permute(0, 2, 3, 1), side, stride)
        # cheaper than scaling the pixels
        x = torch.relu(x.to(weight.dtype) @ (weight / 255.0).T + bias)
        return patches(x, next_side, next_stride)


class LayerNoise(NamedTuple):
    """f(normal numbers) for one noisy layer."""

    inputs: Tensor
    outputs: Tensor


HeadNoise = tuple[LayerNoise, ...]  # of each layer in `DuelingHead.layers`; empty for none


class NoisyLinear(nn.Module):
    """y = (mu_w + sigma_w * f(e_out) f(e_in)^T) x + mu_b + sigma_b * f(e_out); without noise, mu
    alone."""

    def __init__(self, inputs: int, outputs: int, sigma: float):
        super().__init__()
        bound = 1.0 / math.sqrt(inputs)
        self.weight_mean, self.bias_mean = (
            _uniform(outputs, inputs, bound=bound),
            _uniform(outputs, bound=bound),
        )
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), sigma / math.sqrt(inputs)))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), sigma / math.sqrt(outputs)))

    def forward(self, x: Tensor, noise: LayerNoise | None) -> Tensor:
        if noise is None:
            return x @ self.weight_mean.T + self.bias_mean
        weight = equations.noisy(
            self.weight_mean, self.weight_sigma, torch.outer(noise.outputs, noise.inputs)
        )
        return x @ weight.T + equations.noisy(self.bias_mean, self.bias_sigma, noise.outputs)


class DuelingHead(nn.Module):
    """Features (n, D) to (n, A, N): logits of N atoms for each action, or with N = 1 its Q
    value."""

    def __init__(
        self, inputs: int, hidden: int, num_actions: int, atoms: int, sigma: float, dueling: bool
    ):
        super().__init__()
        self.num_actions, self.atoms = num_actions, atoms
        self.layers = nn.ModuleList(
            [NoisyLinear(inputs, hidden, sigma), NoisyLinear(hidden, num_actions * atoms, sigma)]
        )
        if dueling:
            self.layers.extend(
                [NoisyLinear(inputs, hidden, sigma), NoisyLinear(hidden, atoms, sigma)]
            )

    def noise_shapes(self) -> list[tuple[int, int]]:
        return [layer.weight_mean.shape[::-1] for layer in self.layers]  # type: ignore[union-attr, index, misc]

    def forward(self, features: Tensor, noise: HeadNoise, valid: Tensor) -> Tensor:
        """`valid` (A,) is 1 for the game's own actions and 0 for those that other games of the
        stack have."""
        noises = noise or (None,) * len(self.layers)
        hidden = torch.relu(self.layers[0](features, noises[0]))
        advantage: Tensor = self.layers[1](hidden, noises[1]).view(-1, self.num_actions, self.atoms)
        if len(self.layers) == 2:
            return advantage
        value = self.layers[3](torch.relu(self.layers[2](features, noises[2])), noises[3])
        return equations.dueling(value, advantage, valid)


class Projection(nn.Module):
    """CURL's head on Atari: two layers, each followed by a LayerNorm that learns nothing; weights
    start uniform in [0, 1)."""

    def __init__(self, inputs: int, hidden: int, outputs: int):
        super().__init__()
        self.hidden_weight, self.hidden_bias = (
            nn.Parameter(torch.rand(hidden, inputs)),
            nn.Parameter(torch.zeros(hidden)),
        )
        self.weight, self.bias = (
            nn.Parameter(torch.rand(outputs, hidden)),
            nn.Parameter(torch.zeros(outputs)),
        )

    def forward(self, features: Tensor) -> Tensor:
        hidden = torch.relu(
            F.layer_norm(features @ self.hidden_weight.T + self.hidden_bias, self.hidden_bias.shape)
        )
        return F.layer_norm(hidden @ self.weight.T + self.bias, self.bias.shape)
