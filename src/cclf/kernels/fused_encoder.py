"""The encoder's convolutions in kernels that keep an image on the chip: one from its pixels to its
features, one for the way back, and two for the weights. They are in `fused_encoder.cu`, for GPUs of
the Hopper generation.

Elsewhere, and where sizes are not those they are made for, `paired_convolutions` computes the same.
"""

import functools
import importlib.resources
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cclf.data.augment import Crops
from cclf.kernels.first_convolution import CHANNELS, TAPS, prepare_weight

Layers = Sequence[tuple[Tensor, Tensor]]  # weight (O, C, 3, 3) and bias (O,) of each convolution
PIXELS, FILTERS, SIDES = 84, 32, (41, 39, 37, 35)  # of the crops and results they are made for
GENERATION = (9, 0)  # whose matrix instructions they use
LAUNCH = {  # threads of a block, and bytes of shared memory: the constants of the kernels
    "encode_frozen": (512, 232_000),
    "encode_and_keep": (512, 232_000),
    "gradients": (512, 225_984),
    "first_weight_gradient": (224, 201_600),
    "later_weight_gradients": (256, 193_536),
}


class Weights(NamedTuple):
    """Weights as the kernels multiply them, in steps of 16 channels of a tap."""

    first: Tensor  # (9 steps, 2, 4, 8 outputs, 8 channels)  of the first convolution
    later: Tensor  # (3, 18 steps, 2, 4, 8, 8)  of the others
    biases: Tensor  # (4, 32)
    turned: Tensor  # (3, 18 steps, 2, 4, 8 channels, 8 outputs)  of the others from last to first


def fits(crops: Crops, layers: Layers) -> bool:
    """Whether the kernels can encode these crops of packed frames."""
    images = crops.images
    return (
        images.is_cuda
        and images.dtype == torch.bfloat16
        and (crops.pixels, images.shape[-1]) == (PIXELS, CHANNELS)
        and [len(weight) for weight, _ in layers] == [FILTERS] * len(SIDES)
        and all(_kernel(images.device, name) is not None for name in LAUNCH)
    )


@functools.cache
def _kernel(device: torch.device, name: str) -> Callable[..., None] | None:
    """Compiled for the GPU; None for one of another generation, or with a line that says why."""
    if torch.cuda.get_device_capability(device) != GENERATION:
        return None
    source = importlib.resources.files("cclf.kernels").joinpath("fused_encoder.cu").read_text()
    try:
        with torch.cuda.device(device):
            kernel: Any = torch.cuda._compile_kernel(  # type: ignore[attr-defined]
                source, name, compute_capability="90a"
            )
            kernel.set_shared_memory_config(LAUNCH[name][1])
    except (AttributeError, RuntimeError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        print(f"going on without the fused encoder: {reason}", file=sys.stderr)
        return None
    compiled: Callable[..., None] = kernel
    return compiled


def prepare(layers: Layers) -> Weights:
    (first, _), *rest = layers
    first_steps = _in_steps(prepare_weight(first))
    later = [_in_steps(w.permute(2, 3, 1, 0).flatten(0, 1)) for w, _ in rest]
    turned = [_in_steps(w.flip(2, 3).permute(2, 3, 0, 1).flatten(0, 1)) for w, _ in rest[::-1]]
    biases = torch.stack([bias.float() for _, bias in layers])
    return Weights(first_steps, torch.stack(later), biases, torch.stack(turned))


def _in_steps(weight: Tensor) -> Tensor:
    """(9 taps, channels, outputs) as steps of 16 channels of a tap."""
    steps = weight.bfloat16().reshape(-1, 2, 8, FILTERS // 8, 8)
    return steps.permute(0, 1, 3, 4, 2).contiguous()


def encode(
    crops: Crops,
    layers: Layers,
    learned: int,
    prepare: Callable[[Layers], Weights] = prepare,
) -> tuple[Tensor, Tensor]:
    """Features (N, 35 * 36 * 32) of crops of packed frames, of which the first `learned` have a
    gradient, and those of the others. Their last column of pixels is zero."""
    parameters = [parameter for layer in layers for parameter in layer]
    keep = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in parameters)
    features: tuple[Tensor, Tensor] = _Encode.apply(  # type: ignore[no-untyped-call]
        *crops, learned, keep, prepare, *parameters
    )
    return features


class _Encode(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        sample: Tensor,
        origins: Tensor,
        pixels: int,
        learned: int,
        keep: bool,
        prepare: Any,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:
        crops = Crops(images, sample, origins, pixels)
        weights = prepare(list(zip(parameters[::2], parameters[1::2], strict=True)))
        first, rest = crops.rows(slice(learned)), crops.rows(slice(learned, None))
        results, others = forward(first, weights, keep), forward(rest, weights)[0].flatten(1)
        ctx.crops, ctx.channels = first, parameters[0].shape[1]
        ctx.save_for_backward(*results, weights.turned)
        ctx.mark_non_differentiable(others)
        return results[-1].flatten(1), others

    @staticmethod
    def backward(ctx: Any, *features: Tensor) -> Any:
        *results, turned = ctx.saved_tensors
        cuts, biases = gradients(features[0], results, turned)
        weights = weight_gradients(ctx.crops, results, cuts, ctx.channels)
        found = [gradient for layer in zip(weights, biases, strict=True) for gradient in layer]
        return *[None] * 7, *found


def forward(crops: Crops, weights: Weights, keep: bool = False) -> list[Tensor]:
    """Results (N, side, side + 1, 32) of the last convolution, or with `keep` of each. Their last
    column is zero."""
    images, count = crops.images, len(crops.sample)
    sides = SIDES if keep else SIDES[-1:]
    results = [images.new_empty((count, side, side + 1, FILTERS)) for side in sides]
    kept = results[:-1] if keep else [results[-1]] * 3  # not written to
    arguments = [*_places(crops), *weights[:3], results[-1], *kept, count, *images.shape[1:3]]
    _run("encode_and_keep" if keep else "encode_frozen", images.device, count, arguments)
    return results


def gradients(
    gradient: Tensor, results: Sequence[Tensor], turned: Tensor
) -> tuple[list[Tensor], Tensor]:
    """From the gradient of the last of four `results` those of all, each cut where its result is
    zero, and their sums for the biases (4, 32)."""
    count, device = len(gradient), gradient.device
    cuts = [torch.empty_like(result) for result in results]
    warps = LAUNCH["gradients"][0] // 32
    parts = torch.zeros((_blocks(device, count), warps, len(SIDES), FILTERS), device=device)
    arguments = [gradient.contiguous(), *results, turned, *cuts, parts, count]
    _run("gradients", device, count, arguments)
    return cuts, parts.sum((0, 1))


def weight_gradients(
    crops: Crops, results: Sequence[Tensor], cuts: Sequence[Tensor], channels: int
) -> list[Tensor]:
    """Of each weight, (O, C, 3, 3): blocks sum over their images, and here the blocks are summed,
    in one order."""
    count, device = len(crops.sample), crops.images.device
    first, *later = (
        torch.empty((_blocks(device, count), TAPS, inputs, FILTERS), device=device)
        for inputs in (CHANNELS, FILTERS, FILTERS, FILTERS)
    )
    arguments = [*_places(crops), cuts[0], first, count, *crops.images.shape[1:3]]
    _run("first_weight_gradient", device, count, arguments)
    _run("later_weight_gradients", device, count, [*results[:-1], *cuts[1:], *later, count])
    sums = [first.sum(0)[:, :channels] / 255.0, *(parts.sum(0) for parts in later)]
    return [found.view(3, 3, -1, FILTERS).permute(3, 2, 0, 1) for found in sums]


def _places(crops: Crops) -> list[Tensor]:
    return [crops.images, crops.sample.contiguous(), crops.origins.contiguous()]


def _run(name: str, device: torch.device, count: int, arguments: list[Any]) -> None:
    kernel, (threads, shared_bytes) = _kernel(device, name), LAUNCH[name]
    assert kernel is not None, "ask `fits` first"
    if count > 0:
        grid, block = (_blocks(device, count), 1, 1), (threads, 1, 1)
        kernel(grid=grid, block=block, args=arguments, shared_mem=shared_bytes)


def _blocks(device: torch.device, count: int) -> int:
    """One for each multiprocessor, as far as there are images."""
    blocks: int = torch.cuda.get_device_properties(device).multi_processor_count
    return min(blocks, count)
