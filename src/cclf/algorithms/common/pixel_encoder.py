"""Networks that SAC and DrQ-v2 share: convolutions, the layer after them, and an MLP."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from cclf.config import Precision
from cclf.data.augmentations import LazyCrops
from cclf.kernels import fused_encoder
from cclf.kernels.bf16_linear import bf16_linear
from cclf.kernels.fused_encoder import Layers
from cclf.kernels.paired_convolutions import (
    backward,
    paired_convolutions,
    paired_split,
    prepare,
    reference_convolutions,
    reference_split,
)
from cclf.training.cuda_graphs import Compiler

ConvFn = Callable[[Tensor | LazyCrops, Layers], Tensor]
SplitConvFn = Callable[[LazyCrops, Layers, int], tuple[Tensor, Tensor]]


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, outputs),
    )


class ConvEncoder(nn.Module):
    """3x3 convolutions, the first with stride 2, each with a ReLU: uint8 pixels to features (N, H),
    the feature map flattened with its channels last.

    `convolutions` computes them: `reference_convolutions` or, in bfloat16 with float32 sums,
    `paired_convolutions`. `split_convolutions` computes some of them without gradient.
    """

    __call__: Callable[..., Tensor]

    def __init__(
        self,
        channels: int,
        pixels: int,
        layers: int,
        filters: int,
        convolutions: "ConvFn | None" = None,
        pixel_offset: float = 0.0,
        split_convolutions: "SplitConvFn | None" = None,
    ):
        """The input of the first convolution is x / 255 - `pixel_offset`."""
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Conv2d(
                channels if i == 0 else filters, filters, kernel_size=3, stride=2 if i == 0 else 1
            )
            for i in range(layers)
        )
        side = (pixels - 3) // 2 + 1 - 2 * (layers - 1)
        self.out_dim = filters * side * side
        self.convolutions: ConvFn = convolutions or reference_convolutions
        self.split_convolutions: SplitConvFn = split_convolutions or reference_split
        self.pixel_offset = pixel_offset

    def forward(self, images: Tensor | LazyCrops) -> Tensor:
        """Features (N, H) of images (N, C, h, w), or of lazy crops."""
        return self.convolutions(images, self._weights_and_biases())

    def encode_with_frozen(self, crops: LazyCrops, num_learned: int) -> tuple[Tensor, Tensor]:
        """Features of the first `num_learned` crops, and those of the others without gradient."""
        return self.split_convolutions(crops, self._weights_and_biases(), num_learned)

    def _weights_and_biases(self) -> list[tuple[Tensor, Tensor]]:
        parameters = list(self.parameters())  # weight, bias, weight, bias, ...
        layers: list[tuple[Tensor, Tensor]]
        layers = list(zip(parameters[::2], parameters[1::2], strict=True))
        if self.pixel_offset:
            # Without padding W (x - c) + b = W x + (b - c sum W), so every kernel can compute it.
            weight, bias = layers[0]
            layers[0] = (weight, bias - self.pixel_offset * weight.sum((1, 2, 3)))
        return layers


def select_kernels(precision: Precision, compiler: Compiler) -> tuple[ConvFn, SplitConvFn]:
    """The functions that compute convolutions in this precision, with their parts compiled."""
    if precision != "bf16":
        return compiler(reference_convolutions), compiler(reference_split)
    weights, gradients = compiler(prepare), compiler(backward)
    fused = compiler(fused_encoder.prepare)
    return (
        partial(paired_convolutions, prepare=weights, backward=gradients, prepare_fused=fused),
        partial(paired_split, prepare=weights, backward=gradients, prepare_fused=fused),
    )


class EncoderHead(nn.Module):
    """The last layer of an encoder: fully connected, LayerNorm, and a tanh in the paper's text."""

    __call__: Callable[..., Tensor]

    def __init__(self, inputs: int, feature_dim: int, tanh: bool):
        super().__init__()
        self.fc = nn.Linear(inputs, feature_dim)
        self.norm = nn.LayerNorm(feature_dim)
        self.tanh = tanh

    def forward(self, conv_features: Tensor) -> Tensor:
        if conv_features.dtype == torch.bfloat16:
            z = self.norm(bf16_linear(conv_features, self.fc.weight, self.fc.bias))
        else:
            z = self.norm(self.fc(conv_features))
        return torch.tanh(z) if self.tanh else z
