"""The first layer of Rainbow's encoder (non-overlapping patches, bias, ReLU), read directly from
uint8 frames, for S runs at once.

On a GPU, patches in float32 would take four times the memory of the frames, and both the forward and the
backward pass would read them. The result has the layout of the second layer's patches, which do not
overlap either, so neither layer copies its patches. With Triton the kernels of
`tiled_convolution_triton` run; the PyTorch code here is their reference. On a CPU the `GameEncoder`
does not use this module.
"""

from typing import Any

import torch
from torch import Tensor

from cclf.kernels import VmapInfo, merge_vmap_dims, use_triton
from cclf.kernels.gather_packed import unpack_frames


def patches(x: Tensor, side: int, stride: int) -> Tensor:
    """All `side` x `side` patches of images (n, H, W, C): (n, h, w, side * side * C)."""
    if side == stride:  # patches do not overlap: a change of view
        h, w = x.shape[1] // side, x.shape[2] // side
        x = x[:, : h * side, : w * side]
        return x.reshape(-1, h, side, w, side, x.shape[3]).transpose(2, 3).flatten(3)
    return x.unfold(1, side, stride).unfold(2, side, stride).permute(0, 1, 2, 4, 5, 3).flatten(3)


@torch.library.custom_op("cclf::first_layer", mutates_args=())
def first_layer(images: Tensor, weight: Tensor, bias: Tensor, side: int, tile: int) -> Tensor:
    """ReLU(patches / 255 @ weight + bias) of images (S, n, F, H, W), or of packed frames
    (S, n, H, W), as `tile` x `tile` patches of the next layer: (S, n, h, w, tile * tile * O).

    Weights are (S, O, side * side * F), biases (S, O); H and W are multiples of side * tile.
    """
    images = unpack_frames(images)
    if use_triton(images) and weight.dtype == torch.float32:
        from cclf.kernels import tiled_convolution_triton

        return tiled_convolution_triton.forward(images, weight, bias, side, tile)
    values = torch.baddbmm(
        bias[:, None], _tiles(images, side, tile).to(weight.dtype), (weight / 255.0).transpose(1, 2)
    )
    return values.relu_().view(*result_shape(images, weight.shape[1], side, tile))


@torch.library.custom_op("cclf::first_layer_gradients", mutates_args=())
def first_layer_gradients(
    images: Tensor, gradient: Tensor, result: Tensor, side: int, tile: int
) -> Tensor:
    """Gradients of weights and biases, concatenated as (S, O, side * side * F + 1), from the gradient
    of `result`."""
    images = unpack_frames(images)
    if use_triton(images) and gradient.dtype == torch.float32:
        from cclf.kernels import tiled_convolution_triton

        return tiled_convolution_triton.gradients(images, gradient, result, side, tile)
    masked = torch.where(result > 0, gradient, 0.0)
    masked = masked.view(len(images), -1, gradient.shape[4] // tile**2).transpose(1, 2)
    weight_gradient = masked @ _tiles(images, side, tile).to(gradient.dtype)
    return torch.cat([weight_gradient / 255.0, masked.sum(2, keepdim=True)], 2)


def _tiles(images: Tensor, side: int, tile: int) -> Tensor:
    """Patches of images (S, n, F, H, W) in the order of the result: (S, number of patches,
    side * side * F)."""
    pixels = images.flatten(0, 1).permute(0, 2, 3, 1)
    return patches(patches(pixels, side, side), tile, tile).view(
        len(images), -1, side * side * images.shape[2]
    )


def result_shape(
    images: Tensor, filters: int, side: int, tile: int
) -> tuple[int, int, int, int, int]:
    runs, count, _, height, width = images.shape
    return runs, count, height // (side * tile), width // (side * tile), tile * tile * filters


@first_layer.register_fake
def _(images: Tensor, weight: Tensor, _bias: Tensor, side: int, tile: int) -> Tensor:
    return weight.new_empty(result_shape(unpack_frames(images), weight.shape[1], side, tile))


@first_layer_gradients.register_fake
def _(images: Tensor, gradient: Tensor, _result: Tensor, side: int, tile: int) -> Tensor:
    runs, _, frames = unpack_frames(images).shape[:3]
    return gradient.new_empty((runs, gradient.shape[4] // tile**2, side * side * frames + 1))


def _save_context(
    ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, int, int], output: Tensor
) -> None:
    images, _, _, ctx.side, ctx.tile = inputs
    ctx.save_for_backward(images, output)


def _backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, Tensor, None, None]:
    images, result = ctx.saved_tensors
    gradients = first_layer_gradients(images, gradient.contiguous(), result, ctx.side, ctx.tile)
    return None, gradients[..., :-1], gradients[..., -1], None, None


@first_layer.register_vmap
def _(
    info: VmapInfo,
    dims: tuple[int, ...],
    images: Tensor,
    weight: Tensor,
    bias: Tensor,
    side: int,
    tile: int,
) -> tuple[Tensor, int]:
    runs = merge_vmap_dims((images, weight, bias), dims[:3])
    return first_layer(*runs, side, tile).unflatten(0, (info.batch_size, -1)), 0


first_layer.register_autograd(_backward, setup_context=_save_context)
