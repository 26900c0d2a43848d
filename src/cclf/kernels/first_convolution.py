"""The encoder's first convolution (3x3, stride 2, bias, ReLU) on crops of whole frames, without
writing the crops.

Frames come packed: channels filled up to 16, in two planes of eight, as 16-bit numbers, and even
columns apart from odd ones. So what a convolution with stride 2 reads lies side by side, and five
crops of a frame are read from one packed copy. Of at most nine channels, as three frames of RGB have
them, the last seven numbers of a pixel would be of no use. They hold the ninth channel of its
neighbours, under the taps of a 3x3 filter after the first: so `fused_encoder` reads eight taps at once,
and what takes them for channels gives them weight zero. Results have one column more than the
convolution, zeros, so that their rows have even length. On a GPU with Triton the kernels of
`first_convolution_triton` compute it; the plain way here is their reference and what runs elsewhere.
"""

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.grad import conv2d_weight

from cclf.data.augmentations import LazyCrops, replicate_pad_indices
from cclf.kernels import use_triton

CHANNELS = 16  # of a packed pixel
FEW_CHANNELS = 9  # with no more, the ninth comes under eight taps
TAPS = 9


def pack(*images: Tensor, dtype: torch.dtype = torch.bfloat16, border: int = 0) -> Tensor:
    """Batches of uint8 frames (B, C, H, W) as one batch of packed frames (sum of B, 2 for even and
    odd columns, 2, H, half of W, 8); bfloat16 holds 0..255 exactly. A `border` of so many pixels
    repeats the outermost ones. Outside of that, taps find zero."""
    channels = images[0].shape[1]
    if channels > CHANNELS:
        raise ValueError(
            f"{channels} channels: a packed pixel has {CHANNELS}; use another --precision or a "
            "smaller --frame-stack"
        )
    if use_triton(images[0]):
        from cclf.kernels import pack_triton

        return pack_triton.pack(images, dtype, border)
    frames = torch.cat([batch.permute(0, 2, 3, 1).to(dtype) for batch in images])
    place = replicate_pad_indices(frames.shape[1], border, frames.device)
    odd = len(place) % 2
    full = F.pad(frames[:, place][:, :, place], (0, CHANNELS - channels, 0, odd))
    count, height, width = full.shape[:3]
    if channels <= FEW_CHANNELS:
        ninth = F.pad(full[..., FEW_CHANNELS - 1], (0, 2, 0, 2))
        places = [divmod(tap, 3) for tap in range(TAPS - 1)]
        under = [ninth[:, dy : dy + height, dx : dx + width] for dy, dx in places]
        full = torch.cat([full[..., : FEW_CHANNELS - 1], torch.stack(under, -1)], -1)
    apart = full.view(count, height, width // 2, 2, 2, CHANNELS // 2)
    return apart.permute(0, 3, 4, 1, 2, 5).contiguous()


def unpacked(frames: Tensor) -> Tensor:
    """Packed frames as (B, 16, H, W); an odd W is one more. With at most nine channels, the last
    seven are the ninth under other taps."""
    return frames.permute(0, 2, 5, 3, 4, 1).flatten(4).flatten(1, 2)


def prepare_weight(weight: Tensor) -> Tensor:
    """(O, C, 3, 3) for pixels in [0, 1] to (9, 16, O) for packed ones; differentiable."""
    out, channels = weight.shape[:2]
    taps = (weight / 255.0).permute(2, 3, 1, 0).reshape(TAPS, channels, out)
    return F.pad(taps, (0, 0, 0, CHANNELS - channels)).contiguous()


def forward(crops: LazyCrops, weight: Tensor, bias: Tensor) -> Tensor:
    """Crops of packed frames to (N, rows, columns + 1, O) in the frames' dtype; the last column is
    zero."""
    if use_triton(crops.images):
        from cclf.kernels import first_convolution_triton

        return first_convolution_triton.forward(crops, weight, bias)
    dtype = crops.images.dtype
    usual = weight.view(3, 3, CHANNELS, -1).permute(3, 2, 0, 1).to(dtype)
    x = F.conv2d(_cut(crops), usual, bias.to(dtype), stride=2)
    return F.pad(torch.relu(x).permute(0, 2, 3, 1), (0, 0, 0, 1)).contiguous()


def gradients(crops: LazyCrops, gradient: Tensor, result: Tensor) -> tuple[Tensor, Tensor]:
    """Of the prepared weight and the bias, in float32 or better, from the gradient of `result`, (N,
    rows, columns + 1, O)."""
    if use_triton(crops.images):
        from cclf.kernels import first_convolution_triton

        return first_convolution_triton.gradients(crops, gradient, result)
    reached = torch.where(result > 0, gradient, 0.0)[:, :, :-1].permute(0, 3, 1, 2)
    wide = torch.promote_types(gradient.dtype, torch.float32)
    usual = conv2d_weight(  # type: ignore[no-untyped-call]
        _cut(crops), (gradient.shape[-1], CHANNELS, 3, 3), reached, stride=2
    ).to(wide)
    return usual.permute(2, 3, 1, 0).reshape(TAPS, CHANNELS, -1), reached.sum((0, 2, 3), dtype=wide)


def _cut(crops: LazyCrops) -> Tensor:
    return crops._replace(images=unpacked(crops.images)).cut()
