"""A custom augmentation of image views, which is imported by its name and checked once."""

from collections.abc import Callable

import torch
from torch import Tensor

from cclf.errors import ConfigError, short_error
from cclf.plugins import import_function

Augmentation = Callable[[Tensor, torch.Generator], Tensor]
"""Augmented views, of the shape and type of the uint8 crops (N, C, h, w) that it is given."""


def make_custom_augmentation(name: str, channels: int, pixels: int) -> Augmentation:
    """The function `name` (MODULE:FUNCTION); ConfigError if it cannot augment uint8 views of this
    shape."""
    augment: Augmentation = import_function("augmentation", name)
    shape = (4, channels, pixels, pixels)
    random = torch.Generator().manual_seed(0)
    images = torch.randint(256, shape, dtype=torch.uint8, generator=random)
    try:
        views, repeated = (augment(images.clone(), random.manual_seed(1)) for _ in range(2))
    except Exception as error:  # the user's code may raise anything
        called = f"augmentation={name} of images of shape {shape}"
        raise ConfigError(f"{called} failed: {short_error(error)}") from error
    if not isinstance(views, Tensor):
        raise ConfigError(f"augmentation={name} returns no torch.Tensor but {type(views).__name__}")
    if views.shape != images.shape or views.dtype != images.dtype:
        raise ConfigError(
            f"augmentation={name} returns {views.dtype} of shape {tuple(views.shape)} for "
            f"{images.dtype} of shape {shape}: it must return the same type and shape"
        )
    if not views.equal(repeated):
        raise ConfigError(
            f"augmentation={name} returns different images for the same state of its generator, so a "
            "run would not be reproducible: draw all its random numbers from the generator"
        )
    return augment
