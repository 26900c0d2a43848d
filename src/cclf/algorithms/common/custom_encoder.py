"""A custom image encoder in place of the published convolutions: found by its name, checked once."""

import copy

import torch
from torch import Tensor, nn

from cclf.algorithms.common.pixel_encoder import materialize_crops
from cclf.data.augmentations import LazyCrops
from cclf.errors import ConfigError, short_error
from cclf.plugins import import_function


class CustomEncoder(nn.Module):
    """A user's module with its own initial weights: uint8 pixels to features (N, D). The module gets
    x / 255 - `pixel_offset`."""

    def __init__(self, module: nn.Module, out_dim: int, pixel_offset: float):
        super().__init__()
        self.module, self.out_dim, self.pixel_offset = module, out_dim, pixel_offset

    def forward(self, images: Tensor | LazyCrops) -> Tensor:
        """Features of images (N, C, h, w), or of lazy crops."""
        dtype = next(self.module.parameters()).dtype
        inputs = _normalize(materialize_crops(images), self.pixel_offset, dtype)
        features: Tensor = self.module(inputs)
        return features.to(dtype)  # the module may compute in a lower precision

    def encode_with_frozen(self, crops: LazyCrops, num_learned: int) -> tuple[Tensor, Tensor]:
        """See `ConvEncoder.encode_with_frozen`."""
        first = self(crops.select(slice(num_learned)))
        with torch.no_grad():
            return first, self(crops.select(slice(num_learned, None)))


def _normalize(pixels: Tensor, pixel_offset: float, dtype: torch.dtype) -> Tensor:
    return pixels.to(dtype, memory_format=torch.contiguous_format) / 255.0 - pixel_offset


def make_custom_encoder(
    name: str, channels: int, pixels: int, pixel_offset: float = 0.0
) -> CustomEncoder:
    """The encoder that the function `name` (MODULE:FUNCTION) makes; ConfigError if it cannot be
    trained."""
    make = import_function("encoder", name)
    shape = (2, channels, pixels, pixels)
    images = torch.randint(256, shape, generator=torch.Generator().manual_seed(0))
    try:
        module = make(channels, pixels)
        problem, out_dim = _check_encoder(module, _normalize(images, pixel_offset, torch.float32))
    except Exception as error:  # the user's code may raise anything
        called = f"encoder={name} of {channels} channels and {pixels} pixels"
        raise ConfigError(f"{called} failed: {short_error(error)}") from error
    if problem:
        raise ConfigError(f"encoder={name} {problem}")
    return CustomEncoder(module, out_dim, pixel_offset)


def _check_encoder(module: nn.Module, images: Tensor) -> tuple[str, int]:
    """What is wrong with the module, as a sentence without its subject, and its number of
    features."""
    if not isinstance(module, nn.Module):
        return f"returns no torch.nn.Module but {type(module).__name__}", 0
    other = {parameter.dtype for parameter in module.parameters()} - {torch.float32}
    if other:
        return f"has parameters of {other.pop()}: they must be torch.float32", 0
    features = module(images)
    problem = _output_error(features, images) or _unused_parameters(module, features)
    if problem:
        return problem, 0
    alone = torch.cat([module(image[None]) for image in images])
    scale = float(features.detach().abs().max())
    if not torch.allclose(features, alone, rtol=1e-3, atol=1e-4 * scale):
        return (
            "gives an image other features a second time, or in another batch: remove dropout and "
            "batch normalization (nn.GroupNorm can be used)"
        ), 0
    copy.deepcopy(module)  # as for a target network
    return "", features.shape[1]


def _output_error(features: Tensor, images: Tensor) -> str:
    shape = tuple(getattr(features, "shape", ()))
    count = len(images)
    if not isinstance(features, Tensor) or len(shape) != 2 or shape[0] != count or not shape[1]:
        got = f"shape {shape}" if isinstance(features, Tensor) else type(features).__name__
        return (
            f"returns {got} for images of shape {tuple(images.shape)}: it must return ({count}, D), "
            "a vector for each image; end it with nn.Flatten(), for example"
        )
    if not features.isfinite().all():
        return "returns non-finite values for random pixels"
    return ""


def _unused_parameters(module: nn.Module, features: Tensor) -> str:
    learned = {name: each for name, each in module.named_parameters() if each.requires_grad}
    if not learned or not features.requires_grad:
        return "cannot learn: its features must depend on a parameter with requires_grad"
    gradients = torch.autograd.grad(features.sum(), list(learned.values()), allow_unused=True)
    unused = [name for name, each in zip(learned, gradients, strict=True) if each is None]
    if unused:
        return (
            f"has the parameter {unused[0]}, which its features do not depend on: remove it, or "
            "freeze it (requires_grad_(False))"
        )
    return ""
