"""The encoder's convolutions in bfloat16 on tensor cores, two neighboring pixels at a time.

A 3x3 convolution with 32 channels underuses tensor cores. Viewed as pairs of pixels, an image with
32 channels has half the width and 64 channels, and the convolution has 3x2 taps from 64 to 64
channels. Its weight holds the 3x3 weight twice, shifted by a pixel, and zeros. This is a third more
arithmetic, but in total faster. Rows have odd length, so the last pixel of each row is paired with
padding. The padding stays in the features, and the following linear layer multiplies it by weight zero
(`cclf.kernels.bf16_linear`).

The first convolution reads packed frames at the corners of the crops, which are never materialized.
Bias and ReLU are fused into each convolution. Pixels enter as integers, which bfloat16 represents
exactly; the first weight includes the factor 1/255.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cclf.data.augmentations import LazyCrops, full_frame_crops
from cclf.kernels import first_convolution, fused_encoder, use_triton
from cclf.kernels.first_convolution import pack
from cclf.kernels.fused_encoder import Layers

Prepare = Callable[[Layers, torch.dtype], list[Tensor]]
Backward = Callable[[Tensor, Sequence[Tensor], Sequence[Tensor]], list[Tensor]]
PrepareFused = Callable[[Layers], fused_encoder.Weights]


def reference_convolutions(images: Tensor | LazyCrops, layers: Layers) -> Tensor:
    """The convolutions in plain PyTorch: pixels 0..255 of images (N, C, H, W) to features, flattened
    from (N, rows, columns, O)."""
    pixels = images.materialize() if isinstance(images, LazyCrops) else images
    # cuDNN in float32 without TF32 is a quarter faster with channels first.
    channels_first = pixels.is_cuda and not torch.backends.cudnn.allow_tf32
    layout = torch.contiguous_format if channels_first else torch.channels_last
    x = pixels.to(layers[0][0].dtype, memory_format=layout) / 255.0
    for i, (weight, bias) in enumerate(layers):
        x = torch.relu(F.conv2d(x, weight, bias, stride=2 if i == 0 else 1))
    return x.permute(0, 2, 3, 1).flatten(1)


def reference_split(crops: LazyCrops, layers: Layers, num_learned: int) -> tuple[Tensor, Tensor]:
    """Features of the first `num_learned` crops, with gradient, and of the others, without."""
    learned = reference_convolutions(crops.select(slice(num_learned)), layers)
    with torch.no_grad():
        return learned, reference_convolutions(crops.select(slice(num_learned, None)), layers)


def prepare(layers: Layers, dtype: torch.dtype) -> list[Tensor]:
    """Weights and biases in the layout of the kernels, in `dtype`; differentiable."""
    (first_weight, first_bias), *rest = layers
    # the first layer's kernel rounds its own weight
    prepared = [first_convolution.prepare_weight(first_weight), first_bias]
    for weight, bias in rest:
        prepared += [pixel_pair_weight(weight.to(dtype)), torch.cat([bias, bias]).to(dtype)]
    return prepared


def backward(
    gradient: Tensor, activations: Sequence[Tensor], weights: Sequence[Tensor]
) -> list[Tensor]:
    """Backward pass through all convolutions but the first: gradient of the first convolution's
    result, then of each paired weight and bias in order."""
    gradients: list[Tensor] = []
    for weight, inputs, outputs in zip(
        weights[::-1], activations[-2::-1], activations[:0:-1], strict=True
    ):
        gradient, bias_gradient = relu_bias_backward(gradient, outputs)
        ones, zeros, output_mask = [1, 1], [0, 0], [True, True, False]
        result = torch.ops.aten.convolution_backward(
            gradient, inputs, weight, None, ones, zeros, ones, False, zeros, 1, output_mask
        )
        gradients = [result[1], bias_gradient.to(gradient.dtype), *gradients]
        gradient = result[0]
    return [gradient, *gradients]


@torch.library.custom_op("cclf::relu_bias_backward", mutates_args=())
def relu_bias_backward(gradient: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Backward pass through ReLU and bias, channels last: the gradient masked to positive `outputs`
    (N, C, H, W), and its sum per channel (C,) in float32 or float64."""
    if use_triton(gradient):
        from cclf.kernels import first_convolution_triton

        return first_convolution_triton.relu_bias_backward(gradient, outputs)
    masked = torch.where(outputs > 0, gradient, 0.0).contiguous(memory_format=torch.channels_last)
    return masked, masked.sum((0, 2, 3), dtype=torch.promote_types(masked.dtype, torch.float32))


@relu_bias_backward.register_fake
def _(gradient: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(gradient.dtype, torch.float32)
    masked = torch.empty_like(outputs, memory_format=torch.channels_last)
    return masked, gradient.new_empty(gradient.shape[1], dtype=wide)


def paired_convolutions(
    images: Tensor | LazyCrops,
    layers: Layers,
    dtype: torch.dtype = torch.bfloat16,
    prepare: Prepare = prepare,
    backward: Backward = backward,
    prepare_fused: PrepareFused = fused_encoder.prepare,
) -> Tensor:
    """The features of `reference_convolutions` in `dtype`, flattened from (N, rows, columns + 1, O).
    `prepare`, `backward` and `prepare_fused` may be compiled versions."""
    crops = images if isinstance(images, LazyCrops) else full_frame_crops(images)
    count = len(crops.image_index)
    return paired_split(crops, layers, count, dtype, prepare, backward, prepare_fused)[0]


def paired_split(
    crops: LazyCrops,
    layers: Layers,
    num_learned: int,
    dtype: torch.dtype = torch.bfloat16,
    prepare: Prepare = prepare,
    backward: Backward = backward,
    prepare_fused: PrepareFused = fused_encoder.prepare,
) -> tuple[Tensor, Tensor]:
    """As `paired_convolutions`, split as in `reference_split`. `fused_encoder` computes the features if
    it supports the crops."""
    if crops.images.dtype != dtype:
        crops = crops._replace(images=pack(crops.images, dtype=dtype))
    if fused_encoder.is_supported(crops, layers):
        return fused_encoder.encode(crops, layers, num_learned, prepare_fused)
    columns = (crops.pixels - 3) // 2 + 1
    if columns % 2 == 0:
        raise ValueError(
            f"crops of {crops.pixels} pixels give rows of even length {columns}: pairs need an odd "
            "length"
        )
    features: tuple[Tensor, Tensor] = _Paired.apply(  # type: ignore[no-untyped-call]
        *crops, backward, num_learned, *prepare(layers, dtype)
    )
    return features


class _Paired(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        image_index: Tensor,
        corners: Tensor,
        pixels: int,
        backward: Backward,
        num_learned: int,
        *prepared: Tensor,
    ) -> tuple[Tensor, Tensor]:
        crops = LazyCrops(images, image_index, corners, pixels)
        activations = [to_pixel_pairs(first_convolution.forward(crops, prepared[0], prepared[1]))]
        for weight, bias in zip(prepared[2::2], prepared[3::2], strict=True):
            activations.append(_conv_relu(activations[-1], weight, bias))
        ctx.crops, ctx.backward_function = crops.select(slice(num_learned)), backward
        ctx.save_for_backward(*(x[:num_learned] for x in activations), *prepared[2::2])
        features = activations[-1].permute(0, 2, 3, 1).flatten(1)
        learned, others = features[:num_learned], features[num_learned:]
        ctx.mark_non_differentiable(others)
        return learned, others

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        count = len(ctx.saved_tensors) // 2 + 1
        activations, weights = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        n, channels, rows, pairs = activations[-1].shape
        gradient = gradients[0].view(n, rows, pairs, channels).permute(0, 3, 1, 2)
        gradient, *later = ctx.backward_function(gradient, activations, weights)
        first = first_convolution.gradients(
            ctx.crops, from_pixel_pairs(gradient), from_pixel_pairs(activations[0])
        )
        return *[None] * 6, *first, *later


def _conv_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if x.is_cuda:
        return torch.cudnn_convolution_relu(x, weight, bias, (1, 1), (0, 0), (1, 1), 1)
    return torch.relu(F.conv2d(x, weight, bias))


def to_pixel_pairs(x: Tensor) -> Tensor:
    """(N, H, W, C) to (N, 2 C, H, W / 2), channels last: a view of the same memory, two pixels as
    one."""
    n, h, w, c = x.shape
    return x.view(n, h, w // 2, 2 * c).permute(0, 3, 1, 2)


def from_pixel_pairs(x: Tensor) -> Tensor:
    """The inverse of `to_pixel_pairs`; copies if `x` is not channels last."""
    n, c, h, w = x.shape
    return x.permute(0, 2, 3, 1).reshape(n, h, 2 * w, c // 2)


def pixel_pair_weight(weight: Tensor) -> Tensor:
    """A 3x3 weight (O, C, 3, 3) as a 3x2 weight over pairs of pixels, (2 O, 2 C, 3, 2).

    Output pixel 2X + p depends on input pixel 2(X + j) + q through tap 2j + q - p, if that is in
    0..2.
    """
    zero = torch.zeros_like(weight[..., 0])
    taps = [zero, weight[..., 0], weight[..., 1], weight[..., 2], zero]  # tap t has index t + 1
    rows = []
    for p in range(2):
        columns = [
            torch.stack([taps[2 * j + q - p + 1] for j in range(2)], dim=-1) for q in range(2)
        ]
        rows.append(torch.cat(columns, dim=1))
    return torch.cat(rows, dim=0).contiguous(memory_format=torch.channels_last)
