"""Networks that SAC and DrQ-v2 share: the published convolutions, a custom encoder (imported by name and
checked once), the layer that follows either of them, and an MLP."""

import copy
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from cclf.algorithms.common.off_policy_base import OffPolicySettings
from cclf.config import Config, Precision
from cclf.data.augmentations import LazyCrops
from cclf.errors import ConfigError, short_error
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
from cclf.plugins import import_function
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

    `convolutions` is the function that computes the layers: `reference_convolutions` or, in bfloat16
    with float32 sums, `paired_convolutions`. `split_convolutions` does the same, but for some of the
    images without gradient.
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


class CustomEncoder(nn.Module):
    """A user's module: uint8 pixels to features (N, D). Its input is x / 255 - `pixel_offset`. The module
    initializes its own weights."""

    __call__: Callable[..., Tensor]

    def __init__(self, module: nn.Module, out_dim: int, pixel_offset: float):
        super().__init__()
        self.module, self.out_dim, self.pixel_offset = module, out_dim, pixel_offset

    def forward(self, images: Tensor | LazyCrops) -> Tensor:
        """Features of images (N, C, h, w), or of lazy crops."""
        dtype = next(self.module.parameters()).dtype
        pixels = images.materialize() if isinstance(images, LazyCrops) else images
        features: Tensor = self.module(_normalize(pixels, self.pixel_offset, dtype))
        return features.to(dtype)  # the module may compute in a lower precision

    def encode_with_frozen(self, crops: LazyCrops, num_learned: int) -> tuple[Tensor, Tensor]:
        """See `ConvEncoder.encode_with_frozen`."""
        first = self(crops.select(slice(num_learned)))
        with torch.no_grad():
            return first, self(crops.select(slice(num_learned, None)))


def _normalize(pixels: Tensor, pixel_offset: float, dtype: torch.dtype) -> Tensor:
    return pixels.to(dtype, memory_format=torch.contiguous_format) / 255.0 - pixel_offset


def make_pixel_encoder(
    config: Config[OffPolicySettings], compiler: Compiler, pixel_offset: float = 0.0
) -> ConvEncoder | CustomEncoder:
    """The published convolutions, compiled by `compiler`, or the run's custom encoder."""
    settings = config.algorithm
    channels, pixels = 3 * config.env.frame_stack, config.env.crop_pixels
    if settings.encoder:
        return make_custom_encoder(settings.encoder, channels, pixels, pixel_offset)
    convolutions, split = select_kernels(config.precision, compiler)
    sizes = (channels, pixels, settings.conv_layers, settings.conv_filters)
    return ConvEncoder(*sizes, convolutions, pixel_offset, split)


def make_custom_encoder(
    name: str, channels: int, pixels: int, pixel_offset: float = 0.0
) -> CustomEncoder:
    """The encoder that the function `name` (MODULE:FUNCTION) returns; ConfigError if it cannot be
    trained."""
    make = import_function("encoder", name)
    shape = (2, channels, pixels, pixels)
    images = torch.randint(256, shape, generator=torch.Generator().manual_seed(0))
    inputs = _normalize(images, pixel_offset, torch.float32)
    try:
        module = make(channels, pixels)
        out_dim = _check_encoder(f"encoder={name}", module, inputs)
        copy.deepcopy(module)  # a target network is made this way
    except ConfigError:
        raise
    except Exception as error:  # the user's code may raise anything
        called = f"encoder={name} of {channels} channels and {pixels} pixels"
        raise ConfigError(f"{called} failed: {short_error(error)}") from error
    return CustomEncoder(module, out_dim, pixel_offset)


def _check_encoder(encoder: str, module: object, images: Tensor) -> int:
    """The number of features of an image; ConfigError if the module cannot be trained."""
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{encoder} returns no torch.nn.Module but {type(module).__name__}")
    other = {parameter.dtype for parameter in module.parameters()} - {torch.float32}
    if other:
        raise ConfigError(f"{encoder} has parameters of {other.pop()}: they must be torch.float32")
    features: object = module(images)
    count, got = len(images), type(features).__name__
    if isinstance(features, Tensor):
        got = f"shape {tuple(features.shape)}"
    if not isinstance(features, Tensor) or features.shape[:-1] != (count,) or not features.numel():
        raise ConfigError(
            f"{encoder} returns {got} for images of shape {tuple(images.shape)}: it must return "
            f"({count}, D), a vector for each image; end it with nn.Flatten(), for example"
        )
    if not features.isfinite().all():
        raise ConfigError(f"{encoder} returns non-finite values for random pixels")
    learned = {name: each for name, each in module.named_parameters() if each.requires_grad}
    if not learned or not features.requires_grad:
        raise ConfigError(
            f"{encoder} cannot learn: its features must depend on a parameter with requires_grad"
        )
    gradients = torch.autograd.grad(features.sum(), list(learned.values()), allow_unused=True)
    unused = [name for name, each in zip(learned, gradients, strict=True) if each is None]
    if unused:
        raise ConfigError(
            f"{encoder} has the parameter {unused[0]}, which its features do not depend on: remove "
            "it, or freeze it (requires_grad_(False))"
        )
    separate = torch.cat([module(image[None]) for image in images])
    scale = float(features.detach().abs().max())
    if not torch.allclose(features, separate, rtol=1e-3, atol=1e-4 * scale):
        raise ConfigError(
            f"{encoder} returns different features for an image in another batch: remove dropout and "
            "batch normalization (nn.GroupNorm can be used)"
        )
    return int(features.shape[1])
