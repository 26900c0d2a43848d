"""A linear layer on bfloat16 features that accumulates in float32 and returns float32.

The encoder ends in LayerNorm, which divides by a small standard deviation. If the linear layer's result
were rounded to bfloat16, this division would amplify the rounding error in every logit of the belief.

Features of `paired_convolutions` have one extra column of pixels, whose weight is zero here. On a
GPU the outputs are zero-padded to a multiple of 16: a product with 50 columns takes twice as long as
one with 64.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

OUTPUT_ALIGNMENT = 16


def pad_weight_column(weight: Tensor, width: int) -> Tensor:
    """Weight (O, s s C) for features (s, s + 1, C) flattened to `width`: zero for the extra column.
    A weight that has this width already is returned unchanged."""
    if weight.shape[1] == width:
        return weight
    side = weight.shape[1] // (width - weight.shape[1])
    return F.pad(weight.view(len(weight), side, side, -1), (0, 0, 0, 1)).flatten(1)


def drop_weight_column(gradient: Tensor, width: int) -> Tensor:
    """Gradient of the weight (O, `width`) from that of the padded weight."""
    if gradient.shape[1] == width:
        return gradient
    side = width // (gradient.shape[1] - width)
    return gradient.view(len(gradient), side, side + 1, -1)[:, :, :-1].flatten(1)


class _Bf16Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.outputs, ctx.width = weight.shape
        padding = -ctx.outputs % OUTPUT_ALIGNMENT if features.is_cuda else 0
        padded = F.pad(pad_weight_column(weight.bfloat16(), features.shape[1]), (0, 0, 0, padding))
        ctx.save_for_backward(features, padded)
        return _matmul_float32(features, padded.T)[:, : ctx.outputs] + bias

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features, weight = ctx.saved_tensors
        gradient = F.pad(gradients[0].bfloat16(), (0, len(weight) - ctx.outputs))
        weight_gradient = _matmul_float32(gradient.T, features)[: ctx.outputs]
        return (
            gradient @ weight,
            drop_weight_column(weight_gradient, ctx.width),
            gradients[0].sum(0),
        )


def _matmul_float32(a: Tensor, b: Tensor) -> Tensor:
    """a @ b of bfloat16 matrices with a float32 result. A CPU has no such product, so the operands
    are converted first."""
    if a.is_cuda:
        return torch.mm(a, b, out_dtype=torch.float32)  # type: ignore[call-overload, no-any-return]
    return a.float() @ b.float()


def bf16_linear(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Features (B, D) in bfloat16 to (B, O) in float32."""
    result: Tensor = _Bf16Linear.apply(features, weight, bias)  # type: ignore[no-untyped-call]
    return result
