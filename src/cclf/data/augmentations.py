"""Views of observations: random crops and shifts of pixels, noise on states.

All random numbers are inputs: the same numbers give the same views.
"""

from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor


class LazyCrops(NamedTuple):
    """Crops that are not computed yet: row n is the square at `corners[n]` of image
    `image_index[n]`. Selecting rows copies no pixels."""

    images: Tensor  # (B, C, H, W)
    image_index: Tensor  # (N,)
    corners: Tensor  # (N, 2)  top-left corners (y, x)
    pixels: int

    def select(self, index: Tensor | slice) -> "LazyCrops":
        return self._replace(image_index=self.image_index[index], corners=self.corners[index])

    def materialize(self) -> Tensor:
        """(N, C, h, w)."""
        # a view of the images: (B, C, H - h + 1, W - w + 1, h, w)
        windows = self.images.unfold(2, self.pixels, 1).unfold(3, self.pixels, 1)
        return windows[self.image_index, :, self.corners[:, 0], self.corners[:, 1]]


class LazyNoise(NamedTuple):
    """Noisy vectors that are not computed yet: row n is vector `vector_index[n]` plus
    `noise[n]`."""

    vectors: Tensor  # (B, D)
    vector_index: Tensor  # (N,)
    noise: Tensor  # (N, D)

    def select(self, index: Tensor | slice) -> "LazyNoise":
        return self._replace(vector_index=self.vector_index[index], noise=self.noise[index])

    def materialize(self) -> Tensor:
        """(N, D)."""
        return self.vectors[self.vector_index] + self.noise


class ViewIndex(NamedTuple):
    """Views that are given by their row numbers in another tensor, for example in a tensor of features
    that were computed before."""

    rows: Tensor  # int64


V = TypeVar("V", Tensor, ViewIndex)  # views themselves, or their indices


class Views(NamedTuple, Generic[V]):
    """K views of each observation of a batch."""

    inputs: V  # (K, B, ...)
    # (K, B, 2)  top-left corners (y, x) of crops, for selection by overlap
    crop_corners: Tensor | None = None
    crop_pixels: int | None = None  # side of the crops
    # (B,)  index of the first sample with the same observation, for a belief over distinct ones
    first_duplicate: Tensor | None = None
    query: Tensor | None = None  # (B, D)  features of the anchors, if they are computed already

    @property
    def shape(self) -> tuple[int, int]:
        """(K, B)."""
        inputs = self.inputs.rows if isinstance(self.inputs, ViewIndex) else self.inputs
        return inputs.shape[0], inputs.shape[1]


TensorViews = Views[Tensor]  # the inputs are images, or vectors of state


def sample_crop_corners(
    views: int,
    batch: int,
    frame_pixels: int,
    crop_pixels: int,
    last_offset: bool,
    generator: torch.Generator,
) -> Tensor:
    """Top-left corners of random crops, (K, B, 2). Without `last_offset` the last position is never
    sampled, as in the released code."""
    positions = max(1, frame_pixels - crop_pixels + (1 if last_offset else 0))
    return torch.randint(positions, (views, batch, 2), generator=generator, device=generator.device)


def center_crop_corners(
    views: int, batch: int, frame_pixels: int, crop_pixels: int, device: torch.device
) -> Tensor:
    return torch.full(
        (views, batch, 2), (frame_pixels - crop_pixels) // 2, dtype=torch.int64, device=device
    )


def lazy_crops(images: Tensor, corners: Tensor, pixels: int) -> LazyCrops:
    """K crops of each of G groups of B images (G B, C, H, W), at the corners (G K, B, 2). Row
    (g K + k) B + b is view k of image b of group g."""
    return LazyCrops(images, _image_of_each_row(images, corners), corners.flatten(0, 1), pixels)


def lazy_noise(vectors: Tensor, noise: Tensor, scale: float) -> LazyNoise:
    """K views of each of G groups of B vectors (G B, D), with standard normal noise (G K, B, D). Rows
    are ordered as in `lazy_crops`.

    The noise on each component is multiplied by `scale` times the component's standard deviation over
    all vectors, so that it does not depend on the component's unit.
    """
    std = scale * vectors.std(0, correction=0)
    return LazyNoise(vectors, _image_of_each_row(vectors, noise), noise.flatten(0, 1) * std)


def _image_of_each_row(images: Tensor, augmentation: Tensor) -> Tensor:
    """The index of its image for each of the rows (G K B,)."""
    views, batch = augmentation.shape[:2]
    groups = len(images) // batch
    index = torch.arange(len(images), device=images.device).view(groups, 1, batch)
    return index.expand(groups, views // groups, batch).flatten()


def full_frame_crops(images: Tensor) -> LazyCrops:
    """Square images (N, C, H, W) as crops of the whole image."""
    return lazy_crops(
        images, images.new_zeros((1, len(images), 2), dtype=torch.int64), images.shape[-1]
    )


def crop(images: Tensor, corners: Tensor, pixels: int) -> TensorViews:
    """K crops of `pixels` x `pixels` of each image (B, C, H, W), at the corners (K, B, 2)."""
    crops = lazy_crops(images, corners, pixels).materialize()
    return Views(crops.view(*corners.shape[:2], *crops.shape[1:]), corners, pixels)


def replicate_pad_indices(pixels: int, border: int, device: torch.device) -> Tensor:
    """The index of the source row (or column) for each row of a square frame with a replicated border.

        source[i] = clamp(i - border, 0, pixels - 1)        i = 0 ... pixels + 2 border - 1

    >>> replicate_pad_indices(3, 2, torch.device("cpu"))
    tensor([0, 0, 0, 1, 2, 2, 2])
    """
    return torch.arange(-border, pixels + border, device=device).clamp(0, pixels - 1)


SHIFT_PIXELS = 4


def crop_pad_crop_indices(uniform: Tensor, pixels: int, shown: int) -> Tensor:
    """The source index of each of the first `shown` pixels along an axis in CURL's augmentation on
    Atari: a random crop that is 4 pixels smaller, replication padding by 4 pixels, a random crop of
    the original size. Uniform numbers (..., 2) to indices (..., shown).

        out[i] = in[a + clamp(i + b - 4, 0, pixels - 5)]        a, b uniform in 0..4

    >>> crop_pad_crop_indices(torch.tensor([0.99, 0.0]), pixels=8, shown=8)  # a = 4, b = 0
    tensor([4, 4, 4, 4, 4, 5, 6, 7])
    """
    first, second = torch.split((uniform * (SHIFT_PIXELS + 1)).long(), 1, dim=-1)
    index = torch.arange(shown, device=uniform.device)
    return first + (index + second - SHIFT_PIXELS).clamp(0, pixels - SHIFT_PIXELS - 1)


def shift_indices(uniform: Tensor, pixels: int, shown: int) -> Tensor:
    """The same for DrQ's augmentation: replication padding by 4 pixels, a random crop of the original
    size. Uniform numbers (..., 1) to indices (..., shown).

        out[i] = in[clamp(i + a - 4, 0, pixels - 1)]        a uniform in 0..8

    >>> shift_indices(torch.tensor([0.0]), pixels=6, shown=6)
    tensor([0, 0, 0, 0, 0, 1])
    """
    offset = (uniform * (2 * SHIFT_PIXELS + 1)).long()
    return (torch.arange(shown, device=uniform.device) + offset - SHIFT_PIXELS).clamp(0, pixels - 1)


def gather_pixels(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The pixels of stacks of F frames (B, F, H, W) at the rows (K, B, h) and columns (K, B, w) of
    each view, (K, B, F, h, w)."""
    # (K, B, h w)  indices in the flat image
    index = (rows[..., None] * images.shape[3] + columns[:, :, None]).flatten(2)
    views, frames = len(rows), images.shape[1]
    pixels = (
        images.flatten(2)
        .expand(views, -1, -1, -1)
        .gather(3, index[:, :, None].expand(-1, -1, frames, -1))
    )
    return pixels.view(*pixels.shape[:3], rows.shape[2], columns.shape[2])
