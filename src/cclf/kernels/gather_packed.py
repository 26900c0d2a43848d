"""Gather views of Rainbow's stacked frames, for S runs at once, as packed frames: the four frames of a
pixel in one int32, the oldest in the lowest byte.

The GPU kernels that read the views handle a 32-bit number as fast as a byte. In addition, a compiler
would write the index of every pixel of the reference (`augmentations.gather_pixels`) to memory as
an int64, while the Triton kernel reads and writes pixels only.
"""

import torch
from torch import Tensor

from cclf.data import augmentations
from cclf.kernels import VmapInfo, merge_vmap_dims, use_triton

FRAMES = 4  # in one packed pixel


def gather_packed(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Images (B, 4, H, W) at rows (K, B, h) and columns (K, B, w): packed frames (K, B, h, w)."""
    packed: Tensor = gather_packed_runs(images[None], rows[None], columns[None])
    return packed.squeeze(0)


def unpack_frames(images: Tensor) -> Tensor:
    """Packed frames (..., H, W) as bytes (..., 4, H, W) in the same memory; bytes (..., F, H, W) are
    returned unchanged."""
    if images.dtype != torch.int32:
        return images
    frames = images.view(torch.uint8).view(*images.shape, FRAMES)
    return frames.movedim(-1, -3)


@torch.library.custom_op("cclf::gather_packed", mutates_args=())
def gather_packed_runs(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """`gather_packed` of S runs: each argument and the result have a leading dimension S."""
    if use_triton(images):
        from cclf.kernels import tiled_convolution_triton

        return tiled_convolution_triton.gather_packed(images, rows, columns)
    runs = zip(images, rows, columns, strict=True)
    views = torch.stack([augmentations.gather_pixels(*run) for run in runs])
    return views.movedim(-3, -1).contiguous().view(torch.int32).squeeze(-1)


@gather_packed_runs.register_fake
def _(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    return images.new_empty((*rows.shape, columns.shape[3]), dtype=torch.int32)


@gather_packed_runs.register_vmap
def _(
    info: VmapInfo, dims: tuple[int, ...], images: Tensor, rows: Tensor, columns: Tensor
) -> tuple[Tensor, int]:
    runs = merge_vmap_dims((images, rows, columns), dims)
    return gather_packed_runs(*runs).unflatten(0, (info.batch_size, -1)), 0
