"""The Triton kernel of `paired_convolutions.relu_bias_backward`: mask and sum in one pass."""

import torch
import triton
import triton.language as tl
from torch import Tensor

PIXELS = 64  # read at a time
PROGRAMS = 1056  # eight per multiprocessor of an H200


@triton.jit
def _mask_and_sum(
    gradient, outputs, masked, parts, count,
    CHANNELS: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    """Each program masks and sums every n-th block of pixels. The caller adds the partial sums, in a
    fixed order."""
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
    parts = gradient.new_empty((PROGRAMS, channels), dtype=torch.float32)
    count = gradient.numel() // channels
    _mask_and_sum[(PROGRAMS,)](
        gradient, outputs, masked, parts, count, CHANNELS=channels, PIXELS=PIXELS
    )
    return masked, parts.sum(0)
