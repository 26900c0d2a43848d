"""The Triton kernel of `first_convolution.pack`: uint8 planes to packed frames."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from cclf.kernels.first_convolution import CHANNELS, FEW_CHANNELS


@triton.jit
def _pack(
    images, result, stride, channels, height, width, columns,
    BORDER: tl.constexpr, EDGE: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
    FEW: tl.constexpr,
):  # fmt: skip
    """Write one row of one packed frame. Columns are read in order, so that loads are contiguous. The
    last columns, whose taps reach beyond the frame, and the border are written separately. FEW: the
    second eight numbers are the ninth channel under eight taps."""
    n, y = tl.program_id(1).to(tl.int64), tl.program_id(0)
    number = tl.arange(0, CHANNELS)
    tap = tl.where(number < 8, 0, number - 8) if FEW else 0 * number
    channel = tl.minimum(number, 8) if FEW else number
    dy, dx = tap // 3, (tap % 3)[None, :]
    source_y = tl.minimum(tl.maximum(y + dy - BORDER, 0), height - 1)
    row = (images + n * stride + channel * (height * width) + source_y * width)[None, :]
    exists = ((channel < channels) & (y + dy < height + 2 * BORDER))[None, :]
    plane = (height + 2 * BORDER) * columns * 8
    row_start = result + (4 * n * (height + 2 * BORDER) + y) * columns * 8
    row_start += (number // 8 * plane + number % 8)[None, :]
    x = tl.arange(0, COLUMNS)[:, None]
    inside = x < width - 2
    values = tl.load(row + dx + x, mask=inside & exists, other=0)
    target = x + BORDER
    pointer = row_start + target % 2 * 2 * plane + target // 2 * 8
    tl.store(pointer, values.to(result.dtype.element_ty), mask=inside)
    edge = tl.arange(0, EDGE)[:, None]
    x = edge + width - 2
    on_right = exists & (edge < BORDER + 2) & (x + dx < width + BORDER)
    right = tl.load(row + tl.minimum(x + dx, width - 1), mask=on_right, other=0)
    target = x + BORDER
    pointer = row_start + target % 2 * 2 * plane + target // 2 * 8
    tl.store(pointer, right.to(result.dtype.element_ty), mask=edge < BORDER + 2)
    if BORDER > 0:
        x = edge - BORDER
        left = tl.load(row + tl.maximum(x + dx, 0), mask=exists & (edge < BORDER), other=0)
        pointer = row_start + edge % 2 * 2 * plane + edge // 2 * 8
        tl.store(pointer, left.to(result.dtype.element_ty), mask=edge < BORDER)


def pack(images: Sequence[Tensor], dtype: torch.dtype, border: int) -> Tensor:
    channels, height, width = images[0].shape[1:]
    count = sum(map(len, images))
    columns = (width + 2 * border + 1) // 2
    shape = (count, 2, 2, height + 2 * border, columns, CHANNELS // 2)
    result = torch.empty(shape, dtype=dtype, device=images[0].device)
    done = 0
    for batch in images:
        # the images may be slices of longer stacks, so only the first stride may be larger
        assert batch.stride()[1:] == (height * width, width, 1), (
            "the planes of a frame must be contiguous"
        )
        sizes = {"EDGE": triton.next_power_of_2(border + 2), "CHANNELS": CHANNELS}
        _pack[(height + 2 * border, len(batch))](
            batch,
            result[done:],
            batch.stride(0),
            channels,
            height,
            width,
            columns,
            BORDER=border,
            COLUMNS=triton.next_power_of_2(width),
            FEW=channels <= FEW_CHANNELS,
            **sizes,
        )
        done += len(batch)
    return result
