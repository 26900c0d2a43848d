"""Networks that base algorithms on pixels share: convolutions, the layer after them, and a small
network of linear layers."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cclf.config import Precision
from cclf.data.augmentations import LazyCrops
from cclf.kernels import fused_encoder
from cclf.kernels.bf16_linear import bf16_linear
from cclf.kernels.fused_encoder import Layers
from cclf.kernels.paired_convolutions import backward, paired_convolutions, paired_split, prepare

ConvFn = Callable[[Tensor | LazyCrops, Layers], Tensor]
SplitConvFn = Callable[[LazyCrops, Layers, int], tuple[Tensor, Tensor]]


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    layers = [
        nn.Linear(inputs, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, outputs),
    ]
    return nn.Sequential(*layers)


class ConvEncoder(nn.Module):
    """uint8 pixels to a flat feature map, channels last: 3x3 filters, the first with stride 2, ReLU
    after each.

    `kernel` computes them: plainly, or in bfloat16 with float32 sums, see
    `cclf.kernels.paired_convolutions`.
    """

    def __init__(
        self,
        channels: int,
        pixels: int,
        layers: int,
        filters: int,
        kernel: "ConvFn | None" = None,
        centre: float = 0.0,
        split_kernel: "SplitConvFn | None" = None,
    ):
        """Pixels enter as x / 255 - `centre`."""
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Conv2d(
                channels if i == 0 else filters, filters, kernel_size=3, stride=2 if i == 0 else 1
            )
            for i in range(layers)
        )
        side = (pixels - 3) // 2 + 1 - 2 * (layers - 1)
        self.out_dim = filters * side * side
        self.kernel: ConvFn = kernel or reference_convolutions
        self.split_kernel: SplitConvFn = split_kernel or reference_split
        self.centre = centre

    def forward(self, images: Tensor | LazyCrops) -> Tensor:
        """(N, C, h, w), or crops yet to be cut."""
        return self.kernel(images, self._layers())

    def split(self, crops: LazyCrops, learned: int) -> tuple[Tensor, Tensor]:
        """Features of the first `learned` crops, and those of the others without gradient."""
        return self.split_kernel(crops, self._layers(), learned)

    def _layers(self) -> list[tuple[Tensor, Tensor]]:
        parameters = list(self.parameters())  # weight, bias, weight, bias, ...
        layers: list[tuple[Tensor, Tensor]]
        layers = list(zip(parameters[::2], parameters[1::2], strict=True))
        if self.centre:
            # nothing is padded, so W (x - c) + b is W x + (b - c sum W): every kernel can do it
            weight, bias = layers[0]
            layers[0] = (weight, bias - self.centre * weight.sum((1, 2, 3)))
        return layers


def _fastest_layout(pixels: Tensor) -> torch.memory_format:
    """Channels last, but for true float32 on a GPU: without its matrix units cuDNN is a quarter
    faster on whole planes."""
    planes = pixels.is_cuda and not torch.backends.cudnn.allow_tf32
    return torch.contiguous_format if planes else torch.channels_last


def materialize_crops(images: Tensor | LazyCrops) -> Tensor:
    """(N, C, h, w) uint8."""
    return images.cut() if isinstance(images, LazyCrops) else images


def reference_convolutions(images: Tensor | LazyCrops, layers: Layers) -> Tensor:
    pixels = materialize_crops(images)
    x = pixels.to(layers[0][0].dtype, memory_format=_fastest_layout(pixels)) / 255.0
    for i, (weight, bias) in enumerate(layers):
        x = torch.relu(F.conv2d(x, weight, bias, stride=2 if i == 0 else 1))
    return x.permute(0, 2, 3, 1).flatten(1)


def reference_split(crops: LazyCrops, layers: Layers, learned: int) -> tuple[Tensor, Tensor]:
    first = reference_convolutions(crops.rows(slice(learned)), layers)
    with torch.no_grad():
        return first, reference_convolutions(crops.rows(slice(learned, None)), layers)


def select_kernels(precision: Precision, wrap: Callable[[Any], Any]) -> tuple[ConvFn, SplitConvFn]:
    """How convolutions are computed, with each part wrapped, by a compiler for example."""
    if precision != "bf16":
        return wrap(reference_convolutions), wrap(reference_split)
    parts = {"prepare": wrap(prepare), "backward": wrap(backward)}
    parts["prepare_fused"] = wrap(fused_encoder.prepare)
    return partial(paired_convolutions, **parts), partial(paired_split, **parts)


class EncoderHead(nn.Module):
    """The end of an encoder: fully connected, LayerNorm, and a tanh in the paper's reading."""

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
