"""Views of Rainbow's frames, each by its own rows and columns, of S runs at once: the four frames
of a pixel as one word of four bytes, the oldest in the lowest.

For a GPU: what follows handles a word as fast as it would handle a byte. And a compiler makes the
plain way (`augmentations.gather_pixels`) write down the place of each pixel as a number of eight bytes,
where with Triton one kernel of `gather_packed_triton` reads and writes nothing but pixels.
"""

from typing import Any

import torch
from torch import Tensor

from cclf.data import augmentations
from cclf.kernels import merge_vmap_dims, use_triton

FRAMES = 4  # in a word


def gather_packed(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Images (B, 4, H, W) seen through rows (K, B, h) and columns (K, B, w): words (K, B, h, w)."""
    words: Tensor = of_runs(images[None], rows[None], columns[None])
    return words.squeeze(0)


def unpack_frames(images: Tensor) -> Tensor:
    """Images as bytes (..., F, H, W), of which four frames may be words (..., H, W): the same
    memory."""
    if images.dtype != torch.int32:
        return images
    frames = images.view(torch.uint8).view(*images.shape, FRAMES)
    return frames.movedim(-1, -3)


@torch.library.custom_op("cclf::gather_packed", mutates_args=())
def of_runs(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The same of S runs, each with S in front."""
    if use_triton(images):
        from cclf.kernels import gather_packed_triton

        return gather_packed_triton.gather_packed(images, rows, columns)
    runs = zip(images, rows, columns, strict=True)
    views = torch.stack([augmentations.gather_pixels(*run) for run in runs])
    return views.movedim(-3, -1).contiguous().view(torch.int32).squeeze(-1)


@of_runs.register_fake
def _(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    return images.new_empty((*rows.shape, columns.shape[3]), dtype=torch.int32)


@of_runs.register_vmap
def _(
    info: Any, dims: tuple[Any, ...], images: Tensor, rows: Tensor, columns: Tensor
) -> tuple[Tensor, int]:
    stacked = merge_vmap_dims((images, rows, columns), dims)
    return of_runs(*stacked).unflatten(0, (info.batch_size, -1)), 0
