"""The encoder's convolutions in bfloat16 on tensor cores, two neighbouring pixels at a time.

A 3x3 convolution over 32 channels keeps a GPU's matrix units badly fed. Seen as pairs of pixels, an image of 32
channels is one of half the width and 64 channels, and the convolution one of 3x2 taps from 64 to 64 channels, whose
weight holds the old one twice, shifted by a pixel, and zeros: a third more arithmetic, in kernels that are faster by
more. The last pixel of an odd row is paired with one of no use, whose column is cut off at the end.

Pixels enter as the integers they are, exact in bfloat16; the first weight carries the 1/255.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


def reference(images: Tensor, layers: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """What is computed, plainly: (N, C, H, W) pixels 0..255 to flat features, channels last."""
    x = images.to(layers[0][0].dtype) / 255.0
    for i, (weight, bias) in enumerate(layers):
        x = torch.relu(F.conv2d(x, weight, bias, stride=2 if i == 0 else 1))
    return x.permute(0, 2, 3, 1).flatten(1)


def paired_convolutions(images: Tensor, layers: Sequence[tuple[Tensor, Tensor]], dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """`reference` in `dtype`, by pairs of pixels."""
    (first_weight, first_bias), *rest = layers
    out_width = (images.shape[-1] - 3) // 2 + 1
    if out_width % 2 == 0:
        raise ValueError(f"crops of {images.shape[-1]} pixels give rows of even length {out_width}: pairs are made for odd ones")
    # 9 channels become 16, which the matrix units want, and two columns are added so that rows have even length.
    padded = images.new_zeros((images.shape[0], 16, images.shape[2], images.shape[3] + 2), dtype=dtype)
    padded = padded.to(memory_format=torch.channels_last)
    padded[:, : images.shape[1], :, : images.shape[3]] = images.to(dtype)
    weight = F.pad(first_weight / 255.0, (0, 0, 0, 0, 0, 16 - images.shape[1])).to(dtype)
    x = torch.relu(F.conv2d(padded, weight.contiguous(memory_format=torch.channels_last), first_bias.to(dtype), stride=2))
    x = _pairs(x)
    for weight, bias in rest:
        x = torch.relu(F.conv2d(x, pair_weight(weight.to(dtype)), torch.cat([bias, bias]).to(dtype)))
    x = x.permute(0, 2, 3, 1)  # (N, rows, pairs, 64)
    rows, pairs = x.shape[1], x.shape[2]
    return x.reshape(len(x), rows, 2 * pairs, -1)[:, :, : 2 * pairs - 1].flatten(1)


def _pairs(x: Tensor) -> Tensor:
    """(N, C, H, W) channels last to (N, 2C, H, W/2): the same bytes, read two pixels at a time."""
    n, c, h, w = x.shape
    return x.permute(0, 2, 3, 1).reshape(n, h, w // 2, 2 * c).permute(0, 3, 1, 2)


def pair_weight(weight: Tensor) -> Tensor:
    """A 3x3 weight (O, C, 3, 3) as a 3x2 weight over pairs, (2 O, 2 C, 3, 2).

    Output pixel 2X + p sees input pixel 2(X + j) + q through tap 2j + q - p, where that lies in 0..2.
    """
    zero = torch.zeros_like(weight[..., 0])
    taps = [zero, weight[..., 0], weight[..., 1], weight[..., 2], zero]  # tap t stands at t + 1
    rows = []
    for p in range(2):
        columns = [torch.stack([taps[2 * j + q - p + 1] for j in range(2)], dim=-1) for q in range(2)]
        rows.append(torch.cat(columns, dim=1))
    return torch.cat(rows, dim=0).contiguous(memory_format=torch.channels_last)
