"""Views of an observation: square crops, or shifts; of state, with noise. Corners are drawn apart:
random numbers are inputs everywhere."""

from typing import NamedTuple

import torch
from torch import Tensor


class LazyCrops(NamedTuple):
    """Crops that nobody has cut yet: row n is the square at `origins[n]` in image `sample[n]`.
    Choosing rows costs nothing."""

    images: Tensor  # (B, C, H, W)
    sample: Tensor  # (N,)
    origins: Tensor  # (N, 2)  top-left corners (y, x)
    pixels: int

    def rows(self, index: Tensor | slice) -> "LazyCrops":
        return self._replace(sample=self.sample[index], origins=self.origins[index])

    def cut(self) -> Tensor:
        """(N, C, h, w)."""
        # a view: (B, C, H - h + 1, W - w + 1, h, w)
        windows = self.images.unfold(2, self.pixels, 1).unfold(3, self.pixels, 1)
        return windows[self.sample, :, self.origins[:, 0], self.origins[:, 1]]


class LazyNoise(NamedTuple):
    """Vectors with noise that nobody has added yet: row n is vector `sample[n]` plus `noise[n]`."""

    vectors: Tensor  # (B, D)
    sample: Tensor  # (N,)
    noise: Tensor  # (N, D)

    def rows(self, index: Tensor | slice) -> "LazyNoise":
        return self._replace(sample=self.sample[index], noise=self.noise[index])

    def made(self) -> Tensor:
        """(N, D)."""
        return self.vectors[self.sample] + self.noise


class Views(NamedTuple):
    """K views of each observation of a batch."""

    # (K, B, ...)  what the encoders are given: pixels, or row numbers of features that are known
    # already
    inputs: Tensor
    # (K, B, 2)  top-left corners (y, x), where views are crops; selection by overlap needs them
    origins: Tensor | None = None
    crop_pixels: int | None = None  # side of the crops
    # (B,)  first sample with the same observation, for a belief over distinct keys
    same: Tensor | None = None
    query: Tensor | None = None  # (B, D)  features of the anchor, where they are known already


def sample_crop_corners(
    views: int,
    batch: int,
    frame_pixels: int,
    crop_pixels: int,
    last_offset: bool,
    generator: torch.Generator,
) -> Tensor:
    """Corners for random crops, (K, B, 2). The released code never draws the last position:
    `last_offset=False`."""
    positions = max(1, frame_pixels - crop_pixels + (1 if last_offset else 0))
    return torch.randint(positions, (views, batch, 2), generator=generator, device=generator.device)


def center_crop_corners(
    views: int, batch: int, frame_pixels: int, crop_pixels: int, device: torch.device
) -> Tensor:
    return torch.full(
        (views, batch, 2), (frame_pixels - crop_pixels) // 2, dtype=torch.int64, device=device
    )


def lazy_crops(images: Tensor, origins: Tensor, pixels: int) -> LazyCrops:
    """K crops of each image (B, C, H, W) at the corners (K, B, 2), to be cut later: row k B + b is
    view k of image b."""
    sample = torch.arange(images.shape[0], device=images.device)
    return LazyCrops(images, sample.repeat(origins.shape[0]), origins.flatten(0, 1), pixels)


def lazy_noise(vectors: Tensor, draws: Tensor, scale: float) -> LazyNoise:
    """K views of each vector (B, D), with standard normal draws (K, B, D); rows as in `lazy_crops`.

    The noise of each number is `scale` times its standard deviation over the batch, so that it
    means the same whatever the number's unit. No running statistics: nothing has to be saved, and
    the networks see the numbers as they are.
    """
    sample = torch.arange(len(vectors), device=vectors.device)
    spread = scale * vectors.std(0, correction=0)
    return LazyNoise(vectors, sample.repeat(draws.shape[0]), (draws * spread).flatten(0, 1))


def lazy_noise_pairs(vectors: Tensor, draws: Tensor, next_draws: Tensor, scale: float) -> LazyNoise:
    """The same of each o_t and of what followed it, out of `vectors` (2 B, D), rows as in
    `lazy_crop_pairs`."""
    spread = scale * vectors.std(0, correction=0)
    noise = torch.cat([draws, next_draws]).flatten(0, 1) * spread
    return LazyNoise(vectors, _rows_of_pairs(draws, vectors.device), noise)


def _rows_of_pairs(draws: Tensor, device: torch.device) -> Tensor:
    views, batch = draws.shape[:2]
    sample = torch.arange(2 * batch, device=device).view(2, 1, batch)
    return sample.expand(2, views, batch).flatten()


def lazy_crop_pairs(
    frames: Tensor, origins: Tensor, next_origins: Tensor, pixels: int
) -> LazyCrops:
    """K crops of each o_t and of what followed it, to be cut later, out of `frames` (2 B, ...): row
    v B + b is view v of o_t in sample b, K B further of its successor."""
    sample = _rows_of_pairs(origins, frames.device)
    return LazyCrops(frames, sample, torch.cat([origins, next_origins]).flatten(0, 1), pixels)


def full_frame_crops(images: Tensor) -> LazyCrops:
    """Square images as crops of themselves."""
    return lazy_crops(
        images, images.new_zeros((1, len(images), 2), dtype=torch.int64), images.shape[-1]
    )


def crop(images: Tensor, origins: Tensor, pixels: int) -> Views:
    """K crops of `pixels` x `pixels` out of each image (B, C, H, W), at the corners (K, B, 2)."""
    cut = lazy_crops(images, origins, pixels).cut()
    return Views(cut.view(*origins.shape[:2], *cut.shape[1:]), origins, pixels)


def replicate_pad_indices(pixels: int, border: int, device: torch.device) -> Tensor:
    """Where each row (or column) of a square frame with repeated borders comes from.

        p[i] = clamp(i - s, 0, pixels - 1)        i = 0 ... pixels + 2 s - 1

    >>> replicate_pad_indices(3, 2, torch.device("cpu"))
    tensor([0, 0, 0, 1, 2, 2, 2])
    """
    return torch.arange(-border, pixels + border, device=device).clamp(0, pixels - 1)


SHIFT_PIXELS = 4


def crop_pad_crop_pixels(uniform: Tensor, pixels: int, shown: int) -> Tensor:
    """Where each of the first `shown` pixels of an axis comes from, for CURL's augmentation on
    Atari: a random crop by 4 pixels, 4 replicated at either border, a random crop back. Uniform
    numbers (..., 2) to indices (..., shown).

        out[i] = in[a + clamp(i + b - 4, 0, pixels - 5)]        a, b uniform in 0..4

    >>> crop_pad_crop_pixels(torch.tensor([0.99, 0.0]), pixels=8, shown=8)  # a = 4, b = 0: everything four further
    tensor([4, 4, 4, 4, 4, 5, 6, 7])
    """
    first, second = torch.split((uniform * (SHIFT_PIXELS + 1)).long(), 1, dim=-1)
    place = torch.arange(shown, device=uniform.device)
    return first + (place + second - SHIFT_PIXELS).clamp(0, pixels - SHIFT_PIXELS - 1)


def shift_pixels(uniform: Tensor, pixels: int, shown: int) -> Tensor:
    """The same for DrQ's augmentation: 4 pixels replicated at either border, a random crop back.
    Uniform numbers (..., 1).

        out[i] = in[clamp(i + a - 4, 0, pixels - 1)]        a uniform in 0..8

    >>> shift_pixels(torch.tensor([0.0]), pixels=6, shown=6)
    tensor([0, 0, 0, 0, 0, 1])
    """
    offset = (uniform * (2 * SHIFT_PIXELS + 1)).long()
    return (torch.arange(shown, device=uniform.device) + offset - SHIFT_PIXELS).clamp(0, pixels - 1)


def gather_pixels(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Images (B, F, H, W) seen through the rows (K, B, h) and columns (K, B, w) of each view: (K,
    B, F, h, w)."""
    # (K, B, h w) of the flat image
    place = (rows[..., None] * images.shape[3] + columns[:, :, None]).flatten(2)
    views, frames = len(rows), images.shape[1]
    seen = (
        images.flatten(2)
        .expand(views, -1, -1, -1)
        .gather(3, place[:, :, None].expand(-1, -1, frames, -1))
    )
    return seen.view(*seen.shape[:3], rows.shape[2], columns.shape[2])
