"""A linear layer on bfloat16 features with float32 sums and a float32 result.

The encoder ends in LayerNorm, which divides by a small spread: rounding the layer's result to
bfloat16 first would multiply that error into every logit of the belief.

Features of paired convolutions have one column of pixels too many; here its weight is zero.
On a GPU outputs are filled up to a multiple of 16 with zeros: products of 50 columns take twice as
long as of 64.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

ALIGNED_OUTPUTS = 16


def reference(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """What is computed, plainly, on operands rounded to bfloat16."""
    return F.linear(
        features.float(), pad_weight_column(weight.bfloat16().float(), features.shape[1]), bias
    )


def pad_weight_column(weight: Tensor, width: int) -> Tensor:
    """A weight (O, s s C) for features (s, s + 1, C): the same, and zero for the last column.
    Others stay as they are."""
    if weight.shape[1] == width:
        return weight
    side = weight.shape[1] // (width - weight.shape[1])
    return F.pad(weight.view(len(weight), side, side, -1), (0, 0, 0, 1)).flatten(1)


def without_column(gradient: Tensor, width: int) -> Tensor:
    """Of the widened weight's gradient, that of the weight (O, `width`)."""
    if gradient.shape[1] == width:
        return gradient
    side = width // (gradient.shape[1] - width)
    return gradient.view(len(gradient), side, side + 1, -1)[:, :, :-1].flatten(1)


def output_padding(outputs: int, on_gpu: bool) -> int:
    """Zeros to fill outputs up with.

    >>> output_padding(50, on_gpu=True), output_padding(64, on_gpu=True), output_padding(50, on_gpu=False)
    (14, 0, 0)
    """
    return -outputs % ALIGNED_OUTPUTS if on_gpu else 0


class _Bf16Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.outputs, ctx.width = weight.shape
        more = output_padding(ctx.outputs, features.is_cuda)
        rounded = F.pad(pad_weight_column(weight.bfloat16(), features.shape[1]), (0, 0, 0, more))
        ctx.save_for_backward(features, rounded)
        return _product(features, rounded.T)[:, : ctx.outputs] + bias

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features, weight = ctx.saved_tensors
        gradient = F.pad(gradients[0].bfloat16(), (0, len(weight) - ctx.outputs))
        for_weight = without_column(_product(gradient.T, features)[: ctx.outputs], ctx.width)
        return gradient @ weight, for_weight, gradients[0].sum(0)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b with a float32 result; on a CPU, which has no such product, by widening the
    operands."""
    if a.is_cuda:
        return torch.mm(a, b, out_dtype=torch.float32)  # type: ignore[call-overload, no-any-return]
    return a.float() @ b.float()


def bf16_linear(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    result: Tensor = _Bf16Linear.apply(features, weight, bias)  # type: ignore[no-untyped-call]
    return result
