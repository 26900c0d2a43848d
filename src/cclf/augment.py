"""Views of an observation: square crops. Corners are drawn apart from cropping, so that random numbers are inputs everywhere."""

from typing import NamedTuple

import torch
from torch import Tensor


class Views(NamedTuple):
    images: Tensor  # (K, B, C, h, w)
    origins: Tensor | None = None  # (K, B, 2)  top-left corners (y, x), where views are crops; selection by overlap needs them
    crop_pixels: int | None = None  # side of the crops
    same: Tensor | None = None  # (B,)  first sample with the same observation, for a belief over distinct keys


def draw_origins(
    views: int, batch: int, frame_pixels: int, crop_pixels: int, last_offset: bool, generator: torch.Generator
) -> Tensor:
    """Corners for random crops, (K, B, 2). The released code never draws the last position: `last_offset=False`."""
    positions = max(1, frame_pixels - crop_pixels + (1 if last_offset else 0))
    return torch.randint(positions, (views, batch, 2), generator=generator, device=generator.device)


def centre_origins(views: int, batch: int, frame_pixels: int, crop_pixels: int, device: torch.device) -> Tensor:
    return torch.full((views, batch, 2), (frame_pixels - crop_pixels) // 2, dtype=torch.int64, device=device)


def crop(images: Tensor, origins: Tensor, pixels: int) -> Views:
    """Cut K crops of `pixels` x `pixels` out of each image (B, C, H, W), at the corners (K, B, 2)."""
    windows = images.unfold(2, pixels, 1).unfold(3, pixels, 1)  # a view: (B, C, H - h + 1, W - w + 1, h, w)
    sample = torch.arange(images.shape[0], device=images.device)
    return Views(windows[sample, :, origins[..., 0], origins[..., 1]], origins, pixels)
