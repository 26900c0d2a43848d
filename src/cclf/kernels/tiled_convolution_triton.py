"""The Triton kernels of `tiled_convolution`: frame after frame, the pixels of many patches times
the weights."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from cclf.kernels.gather_packed import FRAMES
from cclf.kernels.tiled_convolution import result_shape

PLACES, GRADIENT_PLACES = 128, 32  # patches that a kernel makes or reads at a time
PROGRAMS = 1056  # that share the images of a gradient: eight for each multiprocessor of an H200


@triton.jit
def _corners(
    place, row_stride, column_stride, SIDE: tl.constexpr, TILE: tl.constexpr, ACROSS: tl.constexpr
):
    """Where the patch of each place begins: places go tile by tile, and within a tile row by
    row."""
    tile, inside = place // (TILE * TILE), place % (TILE * TILE)
    row, column = (tile // ACROSS) * TILE + inside // TILE, (tile % ACROSS) * TILE + inside % TILE
    return SIDE * (row * row_stride + column * column_stride)


@triton.jit
def _forward(
    images, weight, bias, result, count, weight_stride, bias_stride,
    run_stride, image_stride, frame_stride, row_stride, column_stride,
    FRAMES: tl.constexpr, SIDE: tl.constexpr, TILE: tl.constexpr, ACROSS: tl.constexpr, ALL: tl.constexpr, OUT: tl.constexpr,
    TAPS: tl.constexpr, PLACES: tl.constexpr, PRECISION: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """WORDS: the frames of a pixel are one word of four bytes."""
    number = tl.program_id(0).to(tl.int64)
    run, image = number // count, number % count
    place, tap, out = (
        tl.program_id(1) * PLACES + tl.arange(0, PLACES),
        tl.arange(0, TAPS),
        tl.arange(0, OUT),
    )
    corner = (
        images
        + run * run_stride
        + image * image_stride
        + _corners(place, row_stride, column_stride, SIDE, TILE, ACROSS)
    )
    under = corner[:, None] + ((tap // SIDE) * row_stride + (tap % SIDE) * column_stride)[None, :]
    factor = (
        weight + run * weight_stride + out[None, :] * (SIDE * SIDE * FRAMES) + tap[:, None] * FRAMES
    )
    kept, real = (place < ALL)[:, None], tap < SIDE * SIDE
    wanted = kept & real[None, :]
    total = tl.zeros((PLACES, OUT), tl.float32)
    if WORDS:
        words = tl.load(under.to(tl.pointer_type(tl.int32), bitcast=True), mask=wanted, other=0)
    for frame in tl.static_range(FRAMES):
        if WORDS:
            pixels = ((words >> 8 * frame) & 255).to(tl.float32)
        else:
            pixels = tl.load(under + frame * frame_stride, mask=wanted, other=0).to(tl.float32)
        factors = tl.load(factor + frame, mask=real[:, None], other=0.0)
        total = tl.dot(pixels, factors, total, input_precision=PRECISION)
    total = tl.maximum(
        total * (1.0 / 255.0) + tl.load(bias + run * bias_stride + out)[None, :], 0.0
    )
    tl.store(result + (number * ALL + place)[:, None] * OUT + out[None, :], total, mask=kept)


@triton.jit
def _gradients(
    images, gradient, result, parts, count, run_stride, image_stride, frame_stride, row_stride, column_stride,
    FRAMES: tl.constexpr, SIDE: tl.constexpr, TILE: tl.constexpr, ACROSS: tl.constexpr, ALL: tl.constexpr, OUT: tl.constexpr,
    TAPS: tl.constexpr, LINES: tl.constexpr, PLACES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Each program sums over its share of a run's images; the shares are added outside, in one
    order."""
    share, run = tl.program_id(0), tl.program_id(1).to(tl.int64)
    line, out = tl.arange(0, LINES), tl.arange(0, OUT)
    frame, tap = line // TAPS, line % TAPS
    real = (tap < SIDE * SIDE) & (frame < FRAMES)
    offset = frame * frame_stride + (tap // SIDE) * row_stride + (tap % SIDE) * column_stride
    total = tl.zeros((LINES, OUT), tl.float32)
    bias_total = tl.zeros((OUT,), tl.float32)
    for image in range(share, count, tl.num_programs(0)):
        first = images + run * run_stride + image * image_stride
        for start in range(0, ALL, PLACES):
            place = start + tl.arange(0, PLACES)
            wanted = (place < ALL)[:, None]
            found = ((run * count + image) * ALL + place)[:, None] * OUT + out[None, :]
            reached = tl.load(result + found, mask=wanted, other=0.0) > 0.0
            slope = tl.where(reached, tl.load(gradient + found, mask=wanted, other=0.0), 0.0)
            under = (
                first
                + _corners(place, row_stride, column_stride, SIDE, TILE, ACROSS)[:, None]
                + offset[None, :]
            )
            pixels = tl.load(under, mask=wanted & real[None, :], other=0).to(tl.float32)
            total = tl.dot(tl.trans(pixels), slope, total, input_precision=PRECISION)
            bias_total += tl.sum(slope, axis=0)
    width = SIDE * SIDE * FRAMES + 1
    row = parts + ((run * tl.num_programs(0) + share) * OUT + out) * width
    tl.store(
        row[None, :] + (tap * FRAMES + frame)[:, None], total * (1.0 / 255.0), mask=real[:, None]
    )
    tl.store(row + width - 1, bias_total)


def _sizes(images: Tensor, out: int, side: int, tile: int) -> dict[str, int]:
    frames, height, width = images.shape[2:]
    places = {"ACROSS": width // (side * tile), "ALL": (height // side) * (width // side)}
    return places | {
        "FRAMES": frames,
        "SIDE": side,
        "TILE": tile,
        "OUT": out,
        "TAPS": triton.next_power_of_2(side * side),
    }


def _precision() -> dict[str, str]:
    return {"PRECISION": "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"}


def forward(images: Tensor, weight: Tensor, bias: Tensor, side: int, tile: int) -> Tensor:
    (runs, count), out = images.shape[:2], weight.shape[1]
    result, sizes = (
        weight.new_empty(result_shape(images, out, side, tile)),
        _sizes(images, out, side, tile),
    )
    grid = (runs * count, triton.cdiv(sizes["ALL"], PLACES))
    strides = (weight.stride(0), bias.stride(0), *images.stride())
    sizes |= {"PLACES": PLACES, "WORDS": _in_words(images)}
    _forward[grid](images, weight, bias, result, count, *strides, **sizes, **_precision())
    return result


def _in_words(images: Tensor) -> bool:
    """Whether the frames of each pixel are a word, as `gather_packed` leaves them."""
    *others, frame, row, column = images.stride()
    aligned = all(step % FRAMES == 0 for step in (*others, row, column, images.data_ptr()))
    return images.shape[2] == FRAMES and frame == 1 and aligned


def gradients(images: Tensor, gradient: Tensor, result: Tensor, side: int, tile: int) -> Tensor:
    (runs, count, frames), out = images.shape[:3], gradient.shape[4] // tile**2
    shares = max(1, min(count, PROGRAMS // runs))
    parts = gradient.new_empty((runs, shares, out, side * side * frames + 1))
    sizes = _sizes(images, out, side, tile) | {"PLACES": GRADIENT_PLACES}
    sizes["LINES"] = triton.next_power_of_2(frames) * sizes["TAPS"]
    _gradients[(shares, runs)](
        images, gradient, result, parts, count, *images.stride(), **sizes, **_precision()
    )
    return parts.sum(1)
