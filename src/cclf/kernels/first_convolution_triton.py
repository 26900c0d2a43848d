"""The Triton kernels of `first_convolution`, which pack uint8 frames and multiply the pixels at each filter
tap by the weights, and of `paired_convolutions.relu_bias_backward`, which masks a gradient and sums it
in one pass."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from cclf.data.augmentations import LazyCrops
from cclf.kernels.first_convolution import CHANNELS, FEW_CHANNELS, TAPS

PIXELS = 256  # output pixels per program of `_forward`
GRADIENT_PIXELS = 128  # output pixels that `_gradients` reads at a time
PROGRAMS = 264  # programs of `_gradients` per row of taps: two per multiprocessor of an H200
RELU_PIXELS = 64  # pixels that `_mask_and_sum` reads at a time
RELU_PROGRAMS = 1056  # programs of `_mask_and_sum`: eight per multiprocessor of an H200
ROW_PIXELS = 4  # pixels read for 3 taps: times 16 channels, a matrix of 64 rows (a power of two)


@triton.jit
def _forward(
    images, image_index, corners, weight, bias, result, height, columns,
    SIDE: tl.constexpr, OUT: tl.constexpr, PIXELS: tl.constexpr, TAPS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    row, column = pixel // (SIDE + 1), pixel % (SIDE + 1)
    valid = (row < SIDE) & (column < SIDE)
    y, x = tl.load(corners + 2 * n), tl.load(corners + 2 * n + 1)
    channel, out = tl.arange(0, CHANNELS), tl.arange(0, OUT)
    frame = images + (tl.load(image_index + n) * 4 * height + y) * columns * 8
    pointers = frame + (2 * row * columns + column)[:, None] * 8
    plane = height * columns * 8
    pointers += (channel // 8 * plane + channel % 8)[None, :]
    total = tl.zeros((PIXELS, OUT), tl.float32)
    for tap in tl.static_range(TAPS):
        target = x + tap % 3
        offset = target % 2 * 2 * plane + ((tap // 3) * columns + target // 2) * 8
        values = tl.load(pointers + offset, mask=valid[:, None], other=0.0)
        factors = tl.load(weight + (tap * CHANNELS + channel)[:, None] * OUT + out[None, :])
        total = tl.dot(values, factors.to(values.dtype), total)
    total = tl.where(valid[:, None], tl.maximum(total + tl.load(bias + out)[None, :], 0.0), 0.0)
    position = (n * SIDE * (SIDE + 1) + pixel)[:, None] * OUT + out[None, :]
    tl.store(result + position, total.to(result.dtype.element_ty), mask=(row < SIDE)[:, None])


@triton.jit
def _gradients(
    images, image_index, corners, gradient, result, weight_parts, bias_parts, count, height, columns,
    SIDE: tl.constexpr, OUT: tl.constexpr, PIXELS: tl.constexpr, TAPS: tl.constexpr, CHANNELS: tl.constexpr,
    ROW_PIXELS: tl.constexpr,
):  # fmt: skip
    """Each program sums over every n-th image for one row of taps, where n is the number of programs. The
    caller adds the partial sums, in a fixed order."""
    program, tap_row = tl.program_id(0), tl.program_id(1)
    out, line = tl.arange(0, OUT), tl.arange(0, ROW_PIXELS * CHANNELS)
    used = line < 3 * CHANNELS
    plane = height * columns * 8
    channel = line % CHANNELS
    offset = tap_row * columns * 8 + channel // 8 * plane + channel % 8
    total = tl.zeros((ROW_PIXELS * CHANNELS, OUT), tl.float32)
    bias_total = tl.zeros((OUT,), tl.float32)
    for n in range(program, count, tl.num_programs(0)):
        y, x = tl.load(corners + 2 * n), tl.load(corners + 2 * n + 1)
        frame = images + (tl.load(image_index + n) * 4 * height + y) * columns * 8
        target = x + line // CHANNELS
        first_tap = frame + offset + target % 2 * 2 * plane + target // 2 * 8
        for start in range(0, SIDE * (SIDE + 1), PIXELS):
            pixel = start + tl.arange(0, PIXELS)
            row, column = pixel // (SIDE + 1), pixel % (SIDE + 1)
            valid = (row < SIDE) & (column < SIDE)
            position = (n * SIDE * (SIDE + 1) + pixel)[:, None] * OUT + out[None, :]
            active = tl.load(result + position, mask=valid[:, None], other=0.0) > 0.0
            masked = tl.where(
                active, tl.load(gradient + position, mask=valid[:, None], other=0.0), 0.0
            )
            pointers = first_tap[None, :] + (2 * row * columns + column)[:, None] * 8
            values = tl.load(pointers, mask=valid[:, None] & used[None, :], other=0.0)
            total = tl.dot(tl.trans(values), masked.to(values.dtype), total)
            bias_total += tl.sum(masked.to(tl.float32), axis=0)
    position = (program * TAPS + 3 * tap_row) * CHANNELS + line
    tl.store(weight_parts + position[:, None] * OUT + out[None, :], total, mask=used[:, None])
    if tap_row == 0:
        tl.store(bias_parts + program * OUT + out, bias_total)


def _sizes(crops: LazyCrops, out: int) -> dict[str, int]:
    side = (crops.pixels - 3) // 2 + 1
    return {"SIDE": side, "OUT": out, "TAPS": TAPS, "CHANNELS": CHANNELS}


def forward(crops: LazyCrops, weight: Tensor, bias: Tensor) -> Tensor:
    images, sizes = crops.images, _sizes(crops, weight.shape[2])
    count, side = len(crops.image_index), sizes["SIDE"]
    result = torch.empty(
        (count, side, side + 1, weight.shape[2]), dtype=images.dtype, device=images.device
    )
    grid = (triton.cdiv(side * (side + 1), PIXELS), count)
    _forward[grid](
        images,
        crops.image_index,
        crops.corners,
        weight,
        bias,
        result,
        *images.shape[3:5],
        **sizes,
        PIXELS=PIXELS,
    )
    return result


def gradients(crops: LazyCrops, gradient: Tensor, result: Tensor) -> tuple[Tensor, Tensor]:
    images, out = crops.images, gradient.shape[-1]
    weight_parts = images.new_empty((PROGRAMS, TAPS, CHANNELS, out), dtype=torch.float32)
    bias_parts = images.new_empty((PROGRAMS, out), dtype=torch.float32)
    arguments = (
        images,
        crops.image_index,
        crops.corners,
        gradient,
        result,
        weight_parts,
        bias_parts,
        len(crops.image_index),
    )
    sizes = _sizes(crops, out) | {"PIXELS": GRADIENT_PIXELS, "ROW_PIXELS": ROW_PIXELS}
    _gradients[(PROGRAMS, TAPS // 3)](*arguments, *images.shape[3:5], **sizes)
    return weight_parts.sum(0), bias_parts.sum(0)


@triton.jit
def _pack(
    images, result, stride, channels, height, width, columns,
    BORDER: tl.constexpr, EDGE: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
    FEW: tl.constexpr,
):  # fmt: skip
    """Write one row of one packed frame. Columns are read in order, so that loads are contiguous. The
    last columns, whose taps reach beyond the frame, and the border are written separately. With FEW, the
    second eight numbers of a pixel are the ninth channel at eight taps."""
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


@triton.jit
def _mask_and_sum(
    gradient, outputs, masked, parts, count,
    CHANNELS: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    """Each program masks and sums every n-th block of pixels, where n is the number of programs. The
    caller adds the partial sums, in a fixed order."""
    program, channel = tl.program_id(0).to(tl.int64), tl.arange(0, CHANNELS)
    total = tl.zeros((CHANNELS,), tl.float32)
    for start in range(program * PIXELS, count, tl.num_programs(0) * PIXELS):
        pixel = start + tl.arange(0, PIXELS)
        position = pixel[:, None] * CHANNELS + channel[None, :]
        valid = (pixel < count)[:, None]
        active = tl.load(outputs + position, mask=valid, other=0.0) > 0.0
        masked_values = tl.where(active, tl.load(gradient + position, mask=valid, other=0.0), 0.0)
        tl.store(masked + position, masked_values, mask=valid)
        total += tl.sum(masked_values.to(tl.float32), axis=0)
    tl.store(parts + program * CHANNELS + channel, total)


def relu_bias_backward(gradient: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
    last = torch.channels_last
    gradient, outputs = (x.contiguous(memory_format=last) for x in (gradient, outputs))
    masked, channels = torch.empty_like(gradient, memory_format=last), gradient.shape[1]
    parts = gradient.new_empty((RELU_PROGRAMS, channels), dtype=torch.float32)
    count = gradient.numel() // channels
    _mask_and_sum[(RELU_PROGRAMS,)](
        gradient, outputs, masked, parts, count, CHANNELS=channels, PIXELS=RELU_PIXELS
    )
    return masked, parts.sum(0)
