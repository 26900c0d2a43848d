"""The Triton kernel of `gather_packed`: some rows of one view."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from cclf.kernels.gather_packed import FRAMES

ROWS = 16  # that a program takes


@triton.jit
def _take(
    images, rows, columns, words, per_run, count, height, width,
    run_stride, image_stride, frame_stride, row_stride, column_stride,
    FRAMES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0).to(tl.int64)
    run, sample = number // per_run, number % count
    y, x = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    wanted = (y < height)[:, None] & (x < width)[None, :]
    from_y = tl.load(rows + number * height + y, mask=y < height, other=0)
    from_x = tl.load(columns + number * width + x, mask=x < width, other=0)
    source = images + run * run_stride + sample * image_stride
    source += from_y[:, None] * row_stride + from_x[None, :] * column_stride
    word = tl.zeros((ROWS, COLUMNS), tl.int32)
    for frame in tl.static_range(FRAMES):
        pixels = tl.load(source + frame * frame_stride, mask=wanted, other=0)
        word |= pixels.to(tl.int32) << 8 * frame
    tl.store(words + (number * height + y[:, None]) * width + x[None, :], word, mask=wanted)


def gather_packed(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    (runs, views, count, height), width = rows.shape, columns.shape[3]
    words = torch.empty((*rows.shape, width), dtype=torch.int32, device=images.device)
    _take[(runs * views * count, triton.cdiv(height, ROWS))](
        images,
        rows.contiguous(),
        columns.contiguous(),
        words,
        views * count,
        count,
        height,
        width,
        *images.stride(),
        FRAMES=FRAMES,
        ROWS=ROWS,
        COLUMNS=triton.next_power_of_2(width),
    )
    return words
