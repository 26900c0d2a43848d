"""A linear layer on bfloat16 features with float32 sums and a float32 result.

The encoder ends in LayerNorm, which divides by a small spread: rounding the layer's result to bfloat16 first would
multiply that error into every logit of the belief.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def reference(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """What is computed, plainly, on operands rounded to bfloat16."""
    return F.linear(features.float(), weight.bfloat16().float(), bias)


class _Bf16Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        rounded = weight.bfloat16()
        ctx.save_for_backward(features, rounded)
        return _product(features, rounded.T) + bias

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features, weight = ctx.saved_tensors
        gradient = gradients[0].bfloat16()
        return gradient @ weight, _product(gradient.T, features), gradients[0].sum(0)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b with a float32 result; on a CPU, which has no such product, by widening the operands."""
    if a.is_cuda:
        return torch.mm(a, b, out_dtype=torch.float32)  # type: ignore[call-overload, no-any-return]
    return a.float() @ b.float()


def bf16_linear(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    result: Tensor = _Bf16Linear.apply(features, weight, bias)  # type: ignore[no-untyped-call]
    return result
