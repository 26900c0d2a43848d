"""Networks of Rainbow on Atari: convolutions, noisy dueling heads, and CURL's projection for
contrastive learning.

The modules compute one run. `batched.py` maps them over many runs with `torch.func.vmap`. Convolutions
are therefore written as products of patches and a weight matrix, which vmap turns into one batched
product; it would turn `conv2d` into a slow grouped convolution.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cclf.algorithms.rainbow import equations
from cclf.kernels.gather_packed import FRAMES
from cclf.kernels.tiled_convolution import first_layer, patches

# (filters, kernel size, stride) of each layer
CONVOLUTIONS = {
    "data-efficient": ((32, 5, 5), (64, 5, 5)),
    "nature": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),
}


def _uniform(*shape: int, bound: float) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))


class GameEncoder(nn.Module):
    """From stacks of uint8 frames (n, F, H, W) to flat features (n, D).

    Weights are initialized as in PyTorch's convolutions. If `accepts_packed` is true, the input may also
    be int32 words (n, H, W), each of which holds the pixels of four frames.
    """

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
        """Rows and columns that the features depend on: 75 of 84 in the data-efficient network, because
        the last ones do not fill a patch."""

    def accepts_packed(self, images: Tensor) -> bool:
        """Whether views of these frames (n, F, H, W) are encoded fastest as packed frames
        (`cclf.kernels.gather_packed`)."""
        return self._tiled and images.is_cuda and images.shape[1] == FRAMES

    @property
    def _tiled(self) -> bool:
        """Whether the patches of the first two layers do not overlap."""
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
        """The first layer, as patches of the second: (n, h, w, side * side * C)."""
        weight, bias = self.weights[0], self.biases[0]
        (_, side, stride), (_, next_side, next_stride) = self.layers[:2]
        packed = images.dtype == torch.int32
        if packed or (self._tiled and images.is_cuda and images.dtype == torch.uint8):
            result: Tensor = first_layer(images[None], weight[None], bias[None], side, next_side)
            return result.squeeze(0)
        x = patches(images.permute(0, 2, 3, 1), side, stride)
        # Scaling the weights is cheaper than scaling the pixels.
        x = torch.relu(x.to(weight.dtype) @ (weight / 255.0).T + bias)
        return patches(x, next_side, next_stride)


class LayerNoise(NamedTuple):
    """The noise of one noisy layer: `equations.noise_factor` of standard normal numbers."""

    inputs: Tensor
    outputs: Tensor


HeadNoise = tuple[LayerNoise, ...]  # of each layer in `DuelingHead.layers`; empty for no noise


class NoisyLinear(nn.Module):
    """y = (mu_w + sigma_w * f(e_out) f(e_in)^T) x + mu_b + sigma_b * f(e_out), where `LayerNoise` holds
    f(e_in) and f(e_out). Without noise, y = mu_w x + mu_b."""

    def __init__(self, inputs: int, outputs: int, sigma: float):
        super().__init__()
        bound = 1.0 / math.sqrt(inputs)
        self.weight_mean = _uniform(outputs, inputs, bound=bound)
        self.bias_mean = _uniform(outputs, bound=bound)
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), sigma / math.sqrt(inputs)))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), sigma / math.sqrt(outputs)))

    def forward(self, x: Tensor, noise: LayerNoise | None) -> Tensor:
        if noise is None:
            return x @ self.weight_mean.T + self.bias_mean
        weight_noise = torch.outer(noise.outputs, noise.inputs)
        weight = self.weight_mean + self.weight_sigma * weight_noise
        return x @ weight.T + (self.bias_mean + self.bias_sigma * noise.outputs)


class DuelingHead(nn.Module):
    """Features (n, D) to (n, A, N): logits of N atoms for each action, or Q values if N = 1."""

    def __init__(
        self, inputs: int, hidden: int, num_actions: int, atoms: int, sigma: float, dueling: bool
    ):
        super().__init__()
        self.num_actions, self.atoms = num_actions, atoms
        sizes = [(inputs, hidden), (hidden, num_actions * atoms)]
        if dueling:
            sizes += [(inputs, hidden), (hidden, atoms)]
        self.layers = nn.ModuleList([NoisyLinear(*size, sigma) for size in sizes])
        self.layer_sizes = sizes  # (inputs, outputs) of each

    def forward(self, features: Tensor, noise: HeadNoise, action_mask: Tensor) -> Tensor:
        """`action_mask` (A,) is 1 for the actions of the run's game and 0 for those that only other
        games of the batch have."""
        noises = noise or (None,) * len(self.layers)
        hidden = torch.relu(self.layers[0](features, noises[0]))
        advantage: Tensor = self.layers[1](hidden, noises[1]).view(-1, self.num_actions, self.atoms)
        if len(self.layers) == 2:
            return advantage
        value = self.layers[3](torch.relu(self.layers[2](features, noises[2])), noises[3])
        return equations.dueling(value, advantage, action_mask)


class Projection(nn.Module):
    """CURL's head on Atari: two layers, each followed by a LayerNorm without parameters. Initial weights
    are uniform in [0, 1)."""

    def __init__(self, inputs: int, hidden: int, outputs: int):
        super().__init__()
        self.hidden_weight = nn.Parameter(torch.rand(hidden, inputs))
        self.hidden_bias = nn.Parameter(torch.zeros(hidden))
        self.weight = nn.Parameter(torch.rand(outputs, hidden))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, features: Tensor) -> Tensor:
        hidden = torch.relu(
            F.layer_norm(features @ self.hidden_weight.T + self.hidden_bias, self.hidden_bias.shape)
        )
        return F.layer_norm(hidden @ self.weight.T + self.bias, self.bias.shape)


class RainbowNet(nn.Module):
    """The online network: encoder, head of Q values, and the projection of queries if there is a
    contrastive loss."""

    def __init__(
        self,
        projection: Projection | None,
        encoder: GameEncoder,
        head: DuelingHead,
        support: Tensor,
    ):
        """`support` (N,) holds the atoms of the return distribution; a single one for plain Q
        values."""
        super().__init__()
        # The order of these three matters to `FlatParameters.slice_in_online`: the momentum network
        # is a copy of the first two, the target network of the last two.
        self.projection, self.encoder, self.head = projection, encoder, head
        self.support: Tensor
        self.register_buffer("support", support, persistent=False)

    def forward(
        self, images: Tensor, noise: HeadNoise = (), action_mask: Tensor | None = None
    ) -> Tensor:
        """Q(s, a) (n, A) of stacks of frames (n, F, H, W). By default without noise and for all
        actions, which is the network that evaluation and exported policies use."""
        if action_mask is None:
            action_mask = torch.ones(self.head.num_actions).to(self.support)
        return self.q_values(self.head(self.encoder(images), noise, action_mask))

    def q_values(self, outputs: Tensor) -> Tensor:
        """From outputs (n, A, N) of the head to (n, A): the mean of each distribution."""
        return (
            (outputs.softmax(2) * self.support).sum(2)
            if self.support.shape[0] > 1
            else outputs[..., 0]
        )
