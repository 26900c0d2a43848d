"""The Triton kernels of `first_convolution`: matrix products of the pixels under the taps with the
weights."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from cclf.data.augment import Crops
from cclf.kernels.first_convolution import CHANNELS, TAPS

PIXELS, GRADIENT_PIXELS = 256, 128  # results that a kernel makes or reads at a time
PROGRAMS = 264  # that share the images of a weight gradient: two for each multiprocessor of an H200
TAPS_AT_ONCE = 4  # of a weight gradient: 4 taps of 16 channels fill the 64 rows of a matrix product


@triton.jit
def _forward(
    images, sample, origins, weight, bias, result, height, width,
    SIDE: tl.constexpr, OUT: tl.constexpr, PIXELS: tl.constexpr, TAPS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    row, column = pixel // (SIDE + 1), pixel % (SIDE + 1)
    wanted = (row < SIDE) & (column < SIDE)
    y, x = tl.load(origins + 2 * n), tl.load(origins + 2 * n + 1)
    channel, out = tl.arange(0, CHANNELS), tl.arange(0, OUT)
    corner = images + ((tl.load(sample + n) * height + y) * width + x) * CHANNELS
    under = corner + 2 * (row * width + column)[:, None] * CHANNELS + channel[None, :]
    total = tl.zeros((PIXELS, OUT), tl.float32)
    for tap in tl.static_range(TAPS):
        values = tl.load(
            under + ((tap // 3) * width + tap % 3) * CHANNELS, mask=wanted[:, None], other=0.0
        )
        factors = tl.load(weight + (tap * CHANNELS + channel)[:, None] * OUT + out[None, :])
        total = tl.dot(values, factors.to(values.dtype), total)
    total = tl.where(wanted[:, None], tl.maximum(total + tl.load(bias + out)[None, :], 0.0), 0.0)
    place = (n * SIDE * (SIDE + 1) + pixel)[:, None] * OUT + out[None, :]
    tl.store(result + place, total.to(result.dtype.element_ty), mask=(row < SIDE)[:, None])


@triton.jit
def _gradients(
    images, sample, origins, gradient, result, weight_parts, bias_parts, count, height, width,
    SIDE: tl.constexpr, OUT: tl.constexpr, PIXELS: tl.constexpr, TAPS: tl.constexpr, CHANNELS: tl.constexpr,
    TAPS_AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Each program sums over its share of the images, for four taps; the shares are added outside,
    in one order."""
    program, group = tl.program_id(0), tl.program_id(1)
    out, line = tl.arange(0, OUT), tl.arange(0, TAPS_AT_ONCE * CHANNELS)
    tap, channel = group * TAPS_AT_ONCE + line // CHANNELS, line % CHANNELS
    offset = ((tap // 3) * width + tap % 3) * CHANNELS + channel
    total = tl.zeros((TAPS_AT_ONCE * CHANNELS, OUT), tl.float32)
    bias_total = tl.zeros((OUT,), tl.float32)
    for n in range(program, count, tl.num_programs(0)):
        y, x = tl.load(origins + 2 * n), tl.load(origins + 2 * n + 1)
        corner = images + ((tl.load(sample + n) * height + y) * width + x) * CHANNELS
        for start in range(0, SIDE * (SIDE + 1), PIXELS):
            pixel = start + tl.arange(0, PIXELS)
            row, column = pixel // (SIDE + 1), pixel % (SIDE + 1)
            wanted = (row < SIDE) & (column < SIDE)
            place = (n * SIDE * (SIDE + 1) + pixel)[:, None] * OUT + out[None, :]
            reached = tl.load(result + place, mask=wanted[:, None], other=0.0) > 0.0
            slope = tl.where(
                reached, tl.load(gradient + place, mask=wanted[:, None], other=0.0), 0.0
            )
            under = corner + 2 * (row * width + column)[:, None] * CHANNELS + offset[None, :]
            values = tl.load(under, mask=wanted[:, None] & (tap < TAPS)[None, :], other=0.0)
            total = tl.dot(tl.trans(values), slope.to(values.dtype), total)
            bias_total += tl.sum(slope.to(tl.float32), axis=0)
    place = ((program * tl.num_programs(1) + group) * TAPS_AT_ONCE * CHANNELS + line)[
        :, None
    ] * OUT + out[None, :]
    tl.store(weight_parts + place, total)
    if group == 0:
        tl.store(bias_parts + program * OUT + out, bias_total)


def _sizes(crops: Crops, out: int) -> dict[str, int]:
    side = (crops.pixels - 3) // 2 + 1
    return {"SIDE": side, "OUT": out, "TAPS": TAPS, "CHANNELS": CHANNELS}


def forward(crops: Crops, weight: Tensor, bias: Tensor) -> Tensor:
    images, sizes = crops.images, _sizes(crops, weight.shape[2])
    count, side = len(crops.sample), sizes["SIDE"]
    result = torch.empty(
        (count, side, side + 1, weight.shape[2]), dtype=images.dtype, device=images.device
    )
    grid = (triton.cdiv(side * (side + 1), PIXELS), count)
    _forward[grid](
        images,
        crops.sample,
        crops.origins,
        weight,
        bias,
        result,
        *images.shape[1:3],
        **sizes,
        PIXELS=PIXELS,
    )
    return result


def gradients(crops: Crops, gradient: Tensor, result: Tensor) -> tuple[Tensor, Tensor]:
    images, out, groups = crops.images, gradient.shape[-1], triton.cdiv(TAPS, TAPS_AT_ONCE)
    weight_parts = images.new_empty(
        (PROGRAMS, groups * TAPS_AT_ONCE, CHANNELS, out), dtype=torch.float32
    )
    bias_parts = images.new_empty((PROGRAMS, out), dtype=torch.float32)
    arguments = (
        images,
        crops.sample,
        crops.origins,
        gradient,
        result,
        weight_parts,
        bias_parts,
        len(crops.sample),
    )
    sizes = _sizes(crops, out) | {"PIXELS": GRADIENT_PIXELS, "TAPS_AT_ONCE": TAPS_AT_ONCE}
    _gradients[(PROGRAMS, groups)](*arguments, *images.shape[1:3], **sizes)
    return weight_parts.sum(0)[:TAPS], bias_parts.sum(0)
