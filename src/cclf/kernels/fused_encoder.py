"""The encoder's convolutions as CUDA kernels that hold an image in shared memory: one kernel from the
pixels to the features, one for the backward pass, and two for the weight gradients. They are in
`fused_encoder.cu`, for GPUs of the Hopper generation.

On other GPUs, and for other sizes, `paired_convolutions` computes the same functions.
"""

import functools
import importlib.resources
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from cclf.console import say
from cclf.data.augmentations import LazyCrops
from cclf.kernels.compile_cache import cached
from cclf.kernels.first_convolution import CHANNELS, FEW_CHANNELS, TAPS, prepare_weight

Layers = Sequence[tuple[Tensor, Tensor]]  # weight (O, C, 3, 3) and bias (O,) of each convolution
# The sizes that the kernels are written for: pixels of a crop, filters, and sides of the results.
PIXELS, FILTERS, SIDES = 84, 32, (41, 39, 37, 35)
COMPUTE_CAPABILITY = (9, 0)  # Hopper: the kernels use its warpgroup matrix instructions
LAUNCH = {  # threads per block and bytes of shared memory of each kernel, as in the CUDA source
    "encode_frozen": (512, 231_680),
    "encode_and_keep": (512, 231_680),
    "gradients": (512, 226_048),
    "first_weight_gradient": (224, 201_664),
    "later_weight_gradients": (256, 185_408),
}
# Positions in a plane of each convolution's masked gradient. Its rows are as long as those of the
# convolution's input (half as long for the first convolution); zeros fill the rest of the plane.
MASKED_POSITIONS = (1728, 1600, 1520, 1360)
# Products that are summed to an output of the first convolution: eight channels at each tap, the ninth
# channel at all taps, and zeros up to a multiple of 16.
EIGHT = CHANNELS // 2
FIRST_TERMS = 96


class Weights(NamedTuple):
    """Weights in the order in which the kernels multiply them: in steps of 16 terms, which are 16
    channels at one tap, except in the first convolution."""

    first: Tensor  # (6 steps of FIRST_TERMS, 2, 4, 8 outputs, 8 terms)  first convolution
    later: Tensor  # (3, 18 steps, 2, 4, 8, 8)  the other convolutions
    biases: Tensor  # (4, 32)
    flipped: (
        Tensor  # (3, 18 steps, 2, 4, 8 channels, 8 outputs)  the others, last convolution first
    )


def is_supported(crops: LazyCrops, layers: Layers) -> bool:
    """Whether the kernels can encode these crops of packed frames."""
    images = crops.images
    return (
        images.is_cuda
        and images.dtype == torch.bfloat16
        and crops.pixels == PIXELS
        and layers[0][0].shape[1] <= FEW_CHANNELS
        and [len(weight) for weight, _ in layers] == [FILTERS] * len(SIDES)
        and _kernels(images.device) is not None
    )


@functools.cache
def _kernels(device: torch.device) -> dict[str, Callable[..., None]] | None:
    """The compiled kernels by name. None for a GPU of another generation, and also, after a message, if
    they cannot be compiled."""
    if torch.cuda.get_device_capability(device) != COMPUTE_CAPABILITY:
        return None
    source = importlib.resources.files("cclf.kernels").joinpath("fused_encoder.cu").read_text()
    try:
        from torch.cuda._utils import _cuda_load_module

        with torch.cuda.device(device):
            versions = (torch.__version__, str(torch.version.cuda))
            module: Any = _cuda_load_module(cached(lambda: _compile(source), source, *versions))
            kernels = {name: getattr(module, name) for name in LAUNCH}
            for name, (_, shared_bytes) in LAUNCH.items():
                kernels[name].set_shared_memory_config(shared_bytes)
    except (ImportError, AttributeError, RuntimeError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        say(f"going on without the fused encoder: {reason}")
        return None
    return kernels


def _compile(source: str) -> bytes:
    """Machine code of all kernels, compiled by NVRTC in a few seconds."""
    from torch.cuda._utils import _nvrtc_compile

    compiled: Any = _nvrtc_compile(source, next(iter(LAUNCH)), compute_capability="90a")
    # some versions of PyTorch return a tuple
    binary: bytes = compiled[0] if isinstance(compiled, tuple) else compiled
    return binary


def prepare(layers: Layers) -> Weights:
    (first, _), *rest = layers
    taps = prepare_weight(first)
    terms = torch.cat([taps[:, :EIGHT].flatten(0, 1), taps[:, EIGHT]])
    first_steps = _in_steps(F.pad(terms, (0, 0, 0, FIRST_TERMS - len(terms))))
    later = [_in_steps(w.permute(2, 3, 1, 0).flatten(0, 1)) for w, _ in rest]
    flipped = [_in_steps(w.flip(2, 3).permute(2, 3, 0, 1).flatten(0, 1)) for w, _ in rest[::-1]]
    biases = torch.stack([bias.float() for _, bias in layers])
    return Weights(first_steps, torch.stack(later), biases, torch.stack(flipped))


def _in_steps(weight: Tensor) -> Tensor:
    """(..., terms, outputs) to (steps of 16 terms, 2, outputs / 8, 8 outputs, 8 terms)."""
    steps = weight.bfloat16().reshape(-1, 2, 8, FILTERS // 8, 8)
    return steps.permute(0, 1, 3, 4, 2).contiguous()


def encode(
    crops: LazyCrops,
    layers: Layers,
    num_learned: int,
    prepare: Callable[[Layers], Weights] = prepare,
) -> tuple[Tensor, Tensor]:
    """Features (n, 35 * 36 * 32) of the first `num_learned` crops of packed frames, with gradient, and of
    the other crops, without gradient. The last of the 36 columns of pixels is zero."""
    parameters = [parameter for layer in layers for parameter in layer]
    save_activations = torch.is_grad_enabled() and any(each.requires_grad for each in parameters)
    features: tuple[Tensor, Tensor] = _Encode.apply(  # type: ignore[no-untyped-call]
        *crops, num_learned, save_activations, prepare, *parameters
    )
    return features


class _Encode(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        image_index: Tensor,
        corners: Tensor,
        pixels: int,
        num_learned: int,
        save_activations: bool,
        prepare: Callable[[Layers], Weights],
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:
        crops = LazyCrops(images, image_index, corners, pixels)
        weights = prepare(list(zip(parameters[::2], parameters[1::2], strict=True)))
        learned, others = crops.select(slice(num_learned)), crops.select(slice(num_learned, None))
        results = forward(learned, weights, save_activations)
        other_features = forward(others, weights)[0].flatten(1)
        ctx.crops, ctx.channels = learned, parameters[0].shape[1]
        ctx.save_for_backward(*results, weights.flipped)
        ctx.mark_non_differentiable(other_features)
        return results[-1].flatten(1), other_features

    @staticmethod
    def backward(ctx: Any, *features: Tensor) -> tuple[Tensor | None, ...]:
        *results, flipped = ctx.saved_tensors
        return *[None] * 7, *gradients(features[0], ctx.crops, results, flipped, ctx.channels)


def forward(crops: LazyCrops, weights: Weights, save_activations: bool = False) -> list[Tensor]:
    """A list whose last element is the features (N, 35, 36, 32), with a last column of zeros. With
    `save_activations`, the results of the first three convolutions precede it, as planes
    (N, 4, side, side, 8)."""
    images, count = crops.images, len(crops.image_index)
    sides = SIDES[:-1] if save_activations else ()
    activations = [images.new_empty((count, FILTERS // 8, side, side, 8)) for side in sides]
    features = images.new_empty((count, SIDES[-1], SIDES[-1] + 1, FILTERS))
    others = activations or [features] * 3  # the kernel ignores these arguments
    arguments = [*_crop_tensors(crops), *weights[:3], features, *others, count, *images.shape[3:5]]
    name = "encode_and_keep" if save_activations else "encode_frozen"
    _run(name, images.device, count, arguments)
    return [*activations, features]


def gradients(
    gradient: Tensor, crops: LazyCrops, results: Sequence[Tensor], flipped: Tensor, channels: int
) -> list[Tensor]:
    """Gradients of weight and bias of each layer, from the gradient of the last of four `results`.
    Every block sums over its images; the sums of all blocks are added here, in a fixed order."""
    count, device = len(gradient), gradient.device
    masked = [
        gradient.new_empty((count, FILTERS // 8, positions, 8)) for positions in MASKED_POSITIONS
    ]
    later_weights = [TAPS * FILTERS * FILTERS] * 3
    sizes = [FIRST_TERMS * FILTERS, *later_weights, len(SIDES) * FILTERS]
    parts = torch.empty((_blocks(device, count), sum(sizes)), device=device)
    run = functools.partial(_run, device=device, count=count)
    run("gradients", arguments=[gradient.contiguous(), *results, flipped, *masked, parts, count])
    pixels = [*_crop_tensors(crops), masked[0], parts, count, *crops.images.shape[3:5]]
    run("first_weight_gradient", arguments=pixels)
    run("later_weight_gradients", arguments=[*results[:-1], *masked[1:], parts, count])
    first, *later, biases = torch.split(parts.sum(0), sizes)
    terms = first.view(FIRST_TERMS, FILTERS)
    eight = terms[: TAPS * EIGHT].view(TAPS, EIGHT, FILTERS)
    taps = torch.cat([eight, terms[TAPS * EIGHT :][:TAPS, None]], 1)
    first = taps[:, :channels] / 255.0
    weights = [weight.reshape(3, 3, -1, FILTERS).permute(3, 2, 0, 1) for weight in (first, *later)]
    return [each for layer in zip(weights, biases.view(-1, FILTERS), strict=True) for each in layer]


def _crop_tensors(crops: LazyCrops) -> list[Tensor]:
    return [crops.images, crops.image_index.contiguous(), crops.corners.contiguous()]


def _run(name: str, device: torch.device, count: int, arguments: Sequence[Tensor | int]) -> None:
    kernels, (threads, shared_bytes) = _kernels(device), LAUNCH[name]
    assert kernels is not None, "callers check is_supported first"
    if count > 0:
        grid, block = (_blocks(device, count), 1, 1), (threads, 1, 1)
        kernels[name](grid=grid, block=block, args=list(arguments), shared_mem=shared_bytes)


def _blocks(device: torch.device, count: int) -> int:
    """One block per multiprocessor, and at most one per image."""
    blocks: int = torch.cuda.get_device_properties(device).multi_processor_count
    return min(blocks, count)
