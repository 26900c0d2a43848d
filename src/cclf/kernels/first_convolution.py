"""The encoder's first convolution (3x3, stride 2, bias, ReLU) on crops of whole frames, without
materializing the crops.

Frames are packed: channels are padded to 16 and split into two planes of eight, as 16-bit numbers,
and even columns are stored separately from odd ones. A convolution with stride 2 then reads contiguous
memory, and all crops of a frame are read from one packed copy. With at most nine channels (three
RGB frames), the last seven numbers of a pixel would be padding. Instead they hold the ninth channel of
the neighboring pixels at taps 1 to 7 of a 3x3 filter whose tap 0 is this pixel, so that `fused_encoder`
reads eight taps of the ninth channel at once. Other kernels multiply these numbers by weight zero.

Results have one column more than the convolution, of zeros, so that rows have even length. On a GPU
with Triton the kernels of `first_convolution_triton` run; the PyTorch code here is their reference
and runs elsewhere.
"""

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.grad import conv2d_weight

from cclf.data.augmentations import LazyCrops, replicate_pad_indices
from cclf.kernels import use_triton

CHANNELS = 16  # numbers per packed pixel
FEW_CHANNELS = 9  # with at most this many, the ninth channel is stored for eight taps (see above)
TAPS = 9  # positions of a 3x3 filter


def pack(*images: Tensor, dtype: torch.dtype = torch.bfloat16, border: int = 0) -> Tensor:
    """Pack batches of uint8 frames (B, C, H, W) into one batch of packed frames (sum of B, 2 for even
    and odd columns, 2 planes, H, W / 2, 8). bfloat16 represents 0..255 exactly. `border` is the width of
    a replicated border; beyond it, pixels are zero."""
    channels = images[0].shape[1]
    if channels > CHANNELS:
        raise ValueError(
            f"{channels} channels: a packed pixel has {CHANNELS}; use another --precision or a "
            "smaller --frame-stack"
        )
    if use_triton(images[0]):
        from cclf.kernels import first_convolution_triton

        return first_convolution_triton.pack(images, dtype, border)
    frames = torch.cat([batch.permute(0, 2, 3, 1).to(dtype) for batch in images])
    index = replicate_pad_indices(frames.shape[1], border, frames.device)
    odd = len(index) % 2
    full = F.pad(frames[:, index][:, :, index], (0, CHANNELS - channels, 0, odd))
    count, height, width = full.shape[:3]
    if channels <= FEW_CHANNELS:
        ninth = F.pad(full[..., FEW_CHANNELS - 1], (0, 2, 0, 2))
        offsets = [divmod(tap, 3) for tap in range(TAPS - 1)]
        under_taps = [ninth[:, dy : dy + height, dx : dx + width] for dy, dx in offsets]
        full = torch.cat([full[..., : FEW_CHANNELS - 1], torch.stack(under_taps, -1)], -1)
    planes = full.view(count, height, width // 2, 2, 2, CHANNELS // 2)
    return planes.permute(0, 3, 4, 1, 2, 5).contiguous()


def unpacked(frames: Tensor) -> Tensor:
    """Packed frames as (B, 16, H, W), where an odd W is rounded up. With at most nine channels, the last
    seven channels hold the ninth channel at taps 1 to 7, as described above."""
    return frames.permute(0, 2, 5, 3, 4, 1).flatten(4).flatten(1, 2)


def prepare_weight(weight: Tensor) -> Tensor:
    """Weight (O, C, 3, 3) for pixels in [0, 1] as (9, 16, O) for packed frames; differentiable."""
    out, channels = weight.shape[:2]
    taps = (weight / 255.0).permute(2, 3, 1, 0).reshape(TAPS, channels, out)
    return F.pad(taps, (0, 0, 0, CHANNELS - channels)).contiguous()


def forward(crops: LazyCrops, weight: Tensor, bias: Tensor) -> Tensor:
    """Crops of packed frames to (N, rows, columns + 1, O) in the dtype of the frames; the last column
    is zero. `weight` is prepared, `bias` is (O,)."""
    if use_triton(crops.images):
        from cclf.kernels import first_convolution_triton

        return first_convolution_triton.forward(crops, weight, bias)
    dtype = crops.images.dtype
    conv_weight = weight.view(3, 3, CHANNELS, -1).permute(3, 2, 0, 1).to(dtype)
    x = F.conv2d(_unpacked_crops(crops), conv_weight, bias.to(dtype), stride=2)
    return F.pad(torch.relu(x).permute(0, 2, 3, 1), (0, 0, 0, 1)).contiguous()


def gradients(crops: LazyCrops, gradient: Tensor, result: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the prepared weight and the bias, in float32 or float64, from the gradient of
    `result`, (N, rows, columns + 1, O)."""
    if use_triton(crops.images):
        from cclf.kernels import first_convolution_triton

        return first_convolution_triton.gradients(crops, gradient, result)
    masked = torch.where(result > 0, gradient, 0.0)[:, :, :-1].permute(0, 3, 1, 2)
    wide = torch.promote_types(gradient.dtype, torch.float32)
    conv_gradient = conv2d_weight(  # type: ignore[no-untyped-call]
        _unpacked_crops(crops), (gradient.shape[-1], CHANNELS, 3, 3), masked, stride=2
    ).to(wide)
    weight_gradient = conv_gradient.permute(2, 3, 1, 0).reshape(TAPS, CHANNELS, -1)
    return weight_gradient, masked.sum((0, 2, 3), dtype=wide)


def _unpacked_crops(crops: LazyCrops) -> Tensor:
    """(N, 16, h, w)."""
    return crops._replace(images=unpacked(crops.images)).materialize()
