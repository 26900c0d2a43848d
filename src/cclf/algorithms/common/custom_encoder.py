"""An image encoder of the user's own in the place of the published convolutions. It is found by its
name, tried once, and then a module like any other."""

import copy

import torch
from torch import Tensor, nn

from cclf.algorithms.common.pixel_encoder import materialize_crops
from cclf.data.augmentations import LazyCrops
from cclf.errors import ConfigError, short_error
from cclf.plugins import import_function


class CustomEncoder(nn.Module):
    """uint8 pixels to features (N, D) by a module that begins as the user made it. It sees
    x / 255 - `centre`."""

    def __init__(self, module: nn.Module, out_dim: int, centre: float):
        super().__init__()
        self.module, self.out_dim, self.centre = module, out_dim, centre

    def forward(self, images: Tensor | LazyCrops) -> Tensor:
        """(N, C, h, w), or crops yet to be cut."""
        seen = _scaled(materialize_crops(images), self.centre, next(self.module.parameters()).dtype)
        features: Tensor = self.module(seen)
        return features.to(seen.dtype)  # it may compute in less inside

    def split(self, crops: LazyCrops, learned: int) -> tuple[Tensor, Tensor]:
        """As `ConvEncoder.split`."""
        first = self(crops.rows(slice(learned)))
        with torch.no_grad():
            return first, self(crops.rows(slice(learned, None)))


def _scaled(pixels: Tensor, centre: float, dtype: torch.dtype) -> Tensor:
    return pixels.to(dtype, memory_format=torch.contiguous_format) / 255.0 - centre


def make_custom_encoder(
    named: str, channels: int, pixels: int, centre: float = 0.0
) -> CustomEncoder:
    """What the function `named` (MODULE:FUNCTION) makes; refused where no run could learn by it."""
    make = import_function("encoder", named)
    shape = (2, channels, pixels, pixels)
    images = torch.randint(256, shape, generator=torch.Generator().manual_seed(0))
    try:
        module = make(channels, pixels)
        wrong, out_dim = _check_encoder(module, _scaled(images, centre, torch.float32))
    except Exception as error:  # whatever the code of another does
        called = f"encoder={named} of {channels} channels and {pixels} pixels"
        raise ConfigError(f"{called} failed: {short_error(error)}") from error
    if wrong:
        raise ConfigError(f"encoder={named} {wrong}")
    return CustomEncoder(module, out_dim, centre)


def _check_encoder(module: nn.Module, seen: Tensor) -> tuple[str, int]:
    """What is wrong with it, to be read after its name, and how many numbers it makes."""
    if not isinstance(module, nn.Module):
        return f"returns no torch.nn.Module but {type(module).__name__}", 0
    other = {parameter.dtype for parameter in module.parameters()} - {torch.float32}
    if other:
        return f"has parameters of {other.pop()}: they must be torch.float32", 0
    features = module(seen)
    wrong = _output_error(features, seen) or _unused_parameters(module, features)
    if wrong:
        return wrong, 0
    alone = torch.cat([module(image[None]) for image in seen])
    scale = float(features.detach().abs().max())
    if not torch.allclose(features, alone, rtol=1e-3, atol=1e-4 * scale):
        return (
            "gives an image other features a second time, or beside other images: leave out "
            "dropout and batch normalisation (nn.GroupNorm can be used)"
        ), 0
    copy.deepcopy(module)  # a target is made so
    return "", features.shape[1]


def _output_error(features: Tensor, seen: Tensor) -> str:
    shape = tuple(getattr(features, "shape", ()))
    if not isinstance(features, Tensor) or len(shape) != 2 or shape[0] != len(seen) or not shape[1]:
        got = f"shape {shape}" if isinstance(features, Tensor) else type(features).__name__
        return (
            f"makes {got} of images of shape {tuple(seen.shape)}: it must be ({len(seen)}, D), a "
            "row of numbers for each image; end it with nn.Flatten(), for example"
        )
    if not features.isfinite().all():
        return "makes numbers that are not finite of random pixels"
    return ""


def _unused_parameters(module: nn.Module, features: Tensor) -> str:
    learned = {name: each for name, each in module.named_parameters() if each.requires_grad}
    if not learned or not features.requires_grad:
        return "has nothing that learns: its features must depend on a parameter with requires_grad"
    found = torch.autograd.grad(features.sum(), list(learned.values()), allow_unused=True)
    idle = [name for name, gradient in zip(learned, found, strict=True) if gradient is None]
    if idle:
        return (
            f"has the parameter {idle[0]}, which its features do not depend on: remove it, or "
            "freeze it (requires_grad_(False))"
        )
    return ""
