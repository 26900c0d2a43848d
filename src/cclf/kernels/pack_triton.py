"""The Triton kernel of `first_convolution.pack`: planes of bytes to pixels of 16 channels, in planes
of eight and of even or odd columns."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from cclf.kernels.first_convolution import CHANNELS


@triton.jit
def _pack(
    images, result, stride, planes, height, width, columns,
    BORDER: tl.constexpr, EDGE: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """One row of one packed frame. Columns are read in their order, so that neighbours come
    together; the border is written apart."""
    n, y = tl.program_id(1).to(tl.int64), tl.program_id(0)
    source_y = tl.minimum(tl.maximum(y - BORDER, 0), height - 1)
    channel, x = tl.arange(0, CHANNELS), tl.arange(0, COLUMNS)
    row = images + n * stride + source_y * width + channel * (height * width)
    inside = (x < width)[:, None]
    known = (channel < planes)[None, :]
    values = tl.load(row[None, :] + x[:, None], mask=inside & known, other=0)
    line = result + (4 * n * (height + 2 * BORDER) + y) * columns * 8
    plane = (height + 2 * BORDER) * columns * 8
    line += (channel // 8 * plane + channel % 8)[None, :]
    to = x[:, None] + BORDER
    tl.store(
        line + to % 2 * 2 * plane + to // 2 * 8, values.to(result.dtype.element_ty), mask=inside
    )
    if BORDER > 0:
        edge = tl.arange(0, EDGE)[:, None]
        left = tl.load(row[None, :] + 0 * edge, mask=known & (edge < BORDER), other=0)
        at = line + edge % 2 * 2 * plane + edge // 2 * 8
        tl.store(at, left.to(result.dtype.element_ty), mask=edge < BORDER)
        right = tl.load(row[None, :] + 0 * edge + width - 1, mask=known & (edge < BORDER), other=0)
        to = edge + width + BORDER
        at = line + to % 2 * 2 * plane + to // 2 * 8
        tl.store(at, right.to(result.dtype.element_ty), mask=edge < BORDER)


def pack(images: Sequence[Tensor], dtype: torch.dtype, border: int) -> Tensor:
    planes, height, width = images[0].shape[1:]
    count = sum(map(len, images))
    columns = (width + 2 * border + 1) // 2
    shape = (count, 2, 2, height + 2 * border, columns, CHANNELS // 2)
    result = torch.empty(shape, dtype=dtype, device=images[0].device)
    done = 0
    for batch in images:
        # planes of one image lie one after the other; images may lie apart, as parts of longer
        # stacks
        assert batch.stride()[1:] == (height * width, width, 1), "frames lie plane by plane"
        sizes = {"EDGE": triton.next_power_of_2(max(border, 1)), "CHANNELS": CHANNELS}
        _pack[(height + 2 * border, len(batch))](
            batch,
            result[done:],
            batch.stride(0),
            planes,
            height,
            width,
            columns,
            BORDER=border,
            COLUMNS=triton.next_power_of_2(width),
            **sizes,
        )
        done += len(batch)
    return result
