"""The Triton kernels of `gather_packed`, in which each program gathers some rows of one view, and of
`tiled_convolution`, which multiply the pixels of many patches by the weights, one frame at a time."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from cclf.kernels.gather_packed import FRAMES
from cclf.kernels.tiled_convolution import result_shape

ROWS = 16  # rows of a view that one program gathers
POSITIONS = 128  # patches per program of `_forward`
GRADIENT_POSITIONS = 32  # patches that `_gradients` reads at a time
PROGRAMS = 1056  # programs of `_gradients`: eight per multiprocessor of an H200


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


@triton.jit
def _patch_offsets(
    position,
    row_stride,
    column_stride,
    SIDE: tl.constexpr,
    TILE: tl.constexpr,
    ACROSS: tl.constexpr,
):
    """Memory offset of the patch at each position. Positions are ordered by tile, and within a tile by
    row."""
    tile, in_tile = position // (TILE * TILE), position % (TILE * TILE)
    row, column = (tile // ACROSS) * TILE + in_tile // TILE, (tile % ACROSS) * TILE + in_tile % TILE
    return SIDE * (row * row_stride + column * column_stride)


@triton.jit
def _forward(
    images, weight, bias, result, count, weight_stride, bias_stride,
    run_stride, image_stride, frame_stride, row_stride, column_stride,
    FRAMES: tl.constexpr, SIDE: tl.constexpr, TILE: tl.constexpr, ACROSS: tl.constexpr, ALL: tl.constexpr, OUT: tl.constexpr,
    TAPS: tl.constexpr, POSITIONS: tl.constexpr, PRECISION: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """PACKED: the four frames of a pixel are read as one int32."""
    number = tl.program_id(0).to(tl.int64)
    run, image = number // count, number % count
    position = tl.program_id(1) * POSITIONS + tl.arange(0, POSITIONS)
    tap, out = tl.arange(0, TAPS), tl.arange(0, OUT)
    patch_start = (
        images
        + run * run_stride
        + image * image_stride
        + _patch_offsets(position, row_stride, column_stride, SIDE, TILE, ACROSS)
    )
    pointers = (
        patch_start[:, None] + ((tap // SIDE) * row_stride + (tap % SIDE) * column_stride)[None, :]
    )
    factor = (
        weight + run * weight_stride + out[None, :] * (SIDE * SIDE * FRAMES) + tap[:, None] * FRAMES
    )
    in_range, used = (position < ALL)[:, None], tap < SIDE * SIDE
    valid = in_range & used[None, :]
    total = tl.zeros((POSITIONS, OUT), tl.float32)
    if PACKED:
        packed = tl.load(pointers.to(tl.pointer_type(tl.int32), bitcast=True), mask=valid, other=0)
    for frame in tl.static_range(FRAMES):
        if PACKED:
            pixels = ((packed >> 8 * frame) & 255).to(tl.float32)
        else:
            pixels = tl.load(pointers + frame * frame_stride, mask=valid, other=0).to(tl.float32)
        factors = tl.load(factor + frame, mask=used[:, None], other=0.0)
        total = tl.dot(pixels, factors, total, input_precision=PRECISION)
    total = tl.maximum(
        total * (1.0 / 255.0) + tl.load(bias + run * bias_stride + out)[None, :], 0.0
    )
    tl.store(result + (number * ALL + position)[:, None] * OUT + out[None, :], total, mask=in_range)


@triton.jit
def _gradients(
    images, gradient, result, parts, count, run_stride, image_stride, frame_stride, row_stride, column_stride,
    FRAMES: tl.constexpr, SIDE: tl.constexpr, TILE: tl.constexpr, ACROSS: tl.constexpr, ALL: tl.constexpr, OUT: tl.constexpr,
    TAPS: tl.constexpr, TERMS: tl.constexpr, POSITIONS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Each program sums over every n-th image of a run, where n is the number of programs per run. The
    caller adds the partial sums, in a fixed order."""
    share, run = tl.program_id(0), tl.program_id(1).to(tl.int64)
    term, out = tl.arange(0, TERMS), tl.arange(0, OUT)
    frame, tap = term // TAPS, term % TAPS
    used = (tap < SIDE * SIDE) & (frame < FRAMES)
    offset = frame * frame_stride + (tap // SIDE) * row_stride + (tap % SIDE) * column_stride
    total = tl.zeros((TERMS, OUT), tl.float32)
    bias_total = tl.zeros((OUT,), tl.float32)
    for image in range(share, count, tl.num_programs(0)):
        first = images + run * run_stride + image * image_stride
        for start in range(0, ALL, POSITIONS):
            position = start + tl.arange(0, POSITIONS)
            valid = (position < ALL)[:, None]
            at_result = ((run * count + image) * ALL + position)[:, None] * OUT + out[None, :]
            active = tl.load(result + at_result, mask=valid, other=0.0) > 0.0
            masked = tl.where(active, tl.load(gradient + at_result, mask=valid, other=0.0), 0.0)
            pointers = (
                first
                + _patch_offsets(position, row_stride, column_stride, SIDE, TILE, ACROSS)[:, None]
                + offset[None, :]
            )
            pixels = tl.load(pointers, mask=valid & used[None, :], other=0).to(tl.float32)
            total = tl.dot(tl.trans(pixels), masked, total, input_precision=PRECISION)
            bias_total += tl.sum(masked, axis=0)
    width = SIDE * SIDE * FRAMES + 1
    row = parts + ((run * tl.num_programs(0) + share) * OUT + out) * width
    tl.store(
        row[None, :] + (tap * FRAMES + frame)[:, None], total * (1.0 / 255.0), mask=used[:, None]
    )
    tl.store(row + width - 1, bias_total)


def _sizes(images: Tensor, out: int, side: int, tile: int) -> dict[str, int | str]:
    """The constants that both kernels are compiled for."""
    frames, height, width = images.shape[2:]
    return {
        "ACROSS": width // (side * tile),
        "ALL": (height // side) * (width // side),
        "FRAMES": frames,
        "SIDE": side,
        "TILE": tile,
        "OUT": out,
        "TAPS": triton.next_power_of_2(side * side),
        "PRECISION": "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee",
    }


def forward(images: Tensor, weight: Tensor, bias: Tensor, side: int, tile: int) -> Tensor:
    (runs, count), out = images.shape[:2], weight.shape[1]
    result = weight.new_empty(result_shape(images, out, side, tile))
    sizes = _sizes(images, out, side, tile)
    grid = (runs * count, triton.cdiv(sizes["ALL"], POSITIONS))
    strides = (weight.stride(0), bias.stride(0), *images.stride())
    sizes |= {"POSITIONS": POSITIONS, "PACKED": _is_packed(images)}
    _forward[grid](images, weight, bias, result, count, *strides, **sizes)
    return result


def _is_packed(images: Tensor) -> bool:
    """Whether the four frames of a pixel are one aligned int32, as returned by `gather_packed`."""
    *others, frame, row, column = images.stride()
    aligned = all(step % FRAMES == 0 for step in (*others, row, column, images.data_ptr()))
    return images.shape[2] == FRAMES and frame == 1 and aligned


def gradients(images: Tensor, gradient: Tensor, result: Tensor, side: int, tile: int) -> Tensor:
    (runs, count, frames), out = images.shape[:3], gradient.shape[4] // tile**2
    shares = max(1, min(count, PROGRAMS // runs))
    parts = gradient.new_empty((runs, shares, out, side * side * frames + 1))
    sizes = _sizes(images, out, side, tile) | {"POSITIONS": GRADIENT_POSITIONS}
    sizes["TERMS"] = triton.next_power_of_2(frames) * sizes["TAPS"]
    _gradients[(shares, runs)](images, gradient, result, parts, count, *images.stride(), **sizes)
    return parts.sum(1)
