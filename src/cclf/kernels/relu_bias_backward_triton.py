"""The Triton kernel of `paired_convolutions.relu_bias_backward`: one pass in place of two."""

import torch
import triton
import triton.language as tl
from torch import Tensor

PIXELS = 64  # read at a time
PROGRAMS = 1056  # that share the pixels: eight for each multiprocessor of an H200


@triton.jit
def _cut(
    gradient, outputs, cut, parts, count,
    CHANNELS: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    """Each program sums over its share of the pixels; the shares are added outside, in one
    order."""
    program, channel = tl.program_id(0).to(tl.int64), tl.arange(0, CHANNELS)
    total = tl.zeros((CHANNELS,), tl.float32)
    for start in range(program * PIXELS, count, tl.num_programs(0) * PIXELS):
        pixel = start + tl.arange(0, PIXELS)
        place = pixel[:, None] * CHANNELS + channel[None, :]
        known = (pixel < count)[:, None]
        reached = tl.load(outputs + place, mask=known, other=0.0) > 0.0
        slope = tl.where(reached, tl.load(gradient + place, mask=known, other=0.0), 0.0)
        tl.store(cut + place, slope, mask=known)
        total += tl.sum(slope.to(tl.float32), axis=0)
    tl.store(parts + program * CHANNELS + channel, total)


def relu_bias_backward(gradient: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
    last = torch.channels_last
    gradient, outputs = (x.contiguous(memory_format=last) for x in (gradient, outputs))
    cut, channels = torch.empty_like(gradient, memory_format=last), gradient.shape[1]
    parts = gradient.new_empty((PROGRAMS, channels), dtype=torch.float32)
    count = gradient.numel() // channels
    _cut[(PROGRAMS,)](gradient, outputs, cut, parts, count, CHANNELS=channels, PIXELS=PIXELS)
    return cut, parts.sum(0)
