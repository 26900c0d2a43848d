"""The Triton kernel of `gather_packed`. Each program gathers some rows of one view."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from cclf.kernels.gather_packed import FRAMES

ROWS = 16  # per program


@triton.jit
def _gather(
    images, rows, columns, packed, per_run, count, height, width,
    run_stride, image_stride, frame_stride, row_stride, column_stride,
    FRAMES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0).to(tl.int64)
    run, sample = number // per_run, number % count
    y, x = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    valid = (y < height)[:, None] & (x < width)[None, :]
    from_y = tl.load(rows + number * height + y, mask=y < height, other=0)
    from_x = tl.load(columns + number * width + x, mask=x < width, other=0)
    source = images + run * run_stride + sample * image_stride
    source += from_y[:, None] * row_stride + from_x[None, :] * column_stride
    value = tl.zeros((ROWS, COLUMNS), tl.int32)
    for frame in tl.static_range(FRAMES):
        pixels = tl.load(source + frame * frame_stride, mask=valid, other=0)
        value |= pixels.to(tl.int32) << 8 * frame
    tl.store(packed + (number * height + y[:, None]) * width + x[None, :], value, mask=valid)


def gather_packed(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    (runs, views, count, height), width = rows.shape, columns.shape[3]
    packed = torch.empty((*rows.shape, width), dtype=torch.int32, device=images.device)
    _gather[(runs * views * count, triton.cdiv(height, ROWS))](
        images,
        rows.contiguous(),
        columns.contiguous(),
        packed,
        views * count,
        count,
        height,
        width,
        *images.stride(),
        FRAMES=FRAMES,
        ROWS=ROWS,
        COLUMNS=triton.next_power_of_2(width),
    )
    return packed
