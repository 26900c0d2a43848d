"""The encoder's convolutions in kernels that keep an image on the chip: one from its pixels to its
features, one for the way back, and two for the weights. They are in `fused_encoder.cu`, for GPUs of
the Hopper generation.

Elsewhere, and where sizes are not those they are made for, `paired_convolutions` computes the same.
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
PIXELS, FILTERS, SIDES = 84, 32, (41, 39, 37, 35)  # of the crops and results they are made for
GENERATION = (9, 0)  # whose matrix instructions they use
LAUNCH = {  # threads of a block, and bytes of shared memory: the constants of the kernels
    "encode_frozen": (512, 231_680),
    "encode_and_keep": (512, 231_680),
    "gradients": (512, 226_048),
    "first_weight_gradient": (224, 201_664),
    "later_weight_gradients": (256, 185_408),
}
# places in a plane of each cut gradient: rows as long as those of the inputs (of the first, half as
# long), and zeros behind
CUT_PLACES = (1728, 1600, 1520, 1360)
# what a first result is the sum of: eight channels under each tap, the ninth under all, and zeros up to
# a multiple of 16
EIGHT = CHANNELS // 2
FIRST_TERMS = 96


class Weights(NamedTuple):
    """Weights as the kernels multiply them, in steps of 16 terms: 16 channels of a tap, where nothing
    else is said."""

    first: Tensor  # (6 steps of FIRST_TERMS, 2, 4, 8 outputs, 8 terms)  of the first convolution
    later: Tensor  # (3, 18 steps, 2, 4, 8, 8)  of the others
    biases: Tensor  # (4, 32)
    turned: Tensor  # (3, 18 steps, 2, 4, 8 channels, 8 outputs)  of the others from last to first


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
    """By name, compiled for the GPU; None for one of another generation, or with a line that says
    why."""
    if torch.cuda.get_device_capability(device) != GENERATION:
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
    """Machine code of all kernels, by NVIDIA's compiler in seconds."""
    from torch.cuda._utils import _nvrtc_compile

    made: Any = _nvrtc_compile(source, next(iter(LAUNCH)), compute_capability="90a")
    binary: bytes = made[0] if isinstance(made, tuple) else made  # as PyTorch's version has it
    return binary


def prepare(layers: Layers) -> Weights:
    (first, _), *rest = layers
    taps = prepare_weight(first)
    terms = torch.cat([taps[:, :EIGHT].flatten(0, 1), taps[:, EIGHT]])
    first_steps = _in_steps(F.pad(terms, (0, 0, 0, FIRST_TERMS - len(terms))))
    later = [_in_steps(w.permute(2, 3, 1, 0).flatten(0, 1)) for w, _ in rest]
    turned = [_in_steps(w.flip(2, 3).permute(2, 3, 0, 1).flatten(0, 1)) for w, _ in rest[::-1]]
    biases = torch.stack([bias.float() for _, bias in layers])
    return Weights(first_steps, torch.stack(later), biases, torch.stack(turned))


def _in_steps(weight: Tensor) -> Tensor:
    """(..., terms, outputs) as steps of 16 terms."""
    steps = weight.bfloat16().reshape(-1, 2, 8, FILTERS // 8, 8)
    return steps.permute(0, 1, 3, 4, 2).contiguous()


def encode(
    crops: LazyCrops,
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
        crops = LazyCrops(images, sample, origins, pixels)
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
        return *[None] * 7, *gradients(features[0], ctx.crops, results, turned, ctx.channels)


def forward(crops: LazyCrops, weights: Weights, keep: bool = False) -> list[Tensor]:
    """Features (N, 35, 36, 32), their last column zero; with `keep` before them the results of the
    other convolutions, in planes (N, 4, side, side, 8)."""
    images, count = crops.images, len(crops.sample)
    sides = SIDES[:-1] if keep else ()
    kept = [images.new_empty((count, FILTERS // 8, side, side, 8)) for side in sides]
    features = images.new_empty((count, SIDES[-1], SIDES[-1] + 1, FILTERS))
    others = kept or [features] * 3  # not written to
    arguments = [*_places(crops), *weights[:3], features, *others, count, *images.shape[3:5]]
    _run("encode_and_keep" if keep else "encode_frozen", images.device, count, arguments)
    return [*kept, features]


def gradients(
    gradient: Tensor, crops: LazyCrops, results: Sequence[Tensor], turned: Tensor, channels: int
) -> list[Tensor]:
    """Of all weights and biases in turn, from the gradient of the last of four `results`. Blocks sum
    over their images, and here the blocks are summed, in one order."""
    count, device = len(gradient), gradient.device
    cuts = [gradient.new_empty((count, FILTERS // 8, places, 8)) for places in CUT_PLACES]
    later_weights = [TAPS * FILTERS * FILTERS] * 3
    numbers = [FIRST_TERMS * FILTERS, *later_weights, len(SIDES) * FILTERS]
    parts = torch.empty((_blocks(device, count), sum(numbers)), device=device)
    start = functools.partial(_run, device=device, count=count)
    start("gradients", arguments=[gradient.contiguous(), *results, turned, *cuts, parts, count])
    pixels = [*_places(crops), cuts[0], parts, count, *crops.images.shape[3:5]]
    start("first_weight_gradient", arguments=pixels)
    start("later_weight_gradients", arguments=[*results[:-1], *cuts[1:], parts, count])
    first, *later, biases = torch.split(parts.sum(0), numbers)
    terms = first.view(FIRST_TERMS, FILTERS)
    eight = terms[: TAPS * EIGHT].view(TAPS, EIGHT, FILTERS)
    taps = torch.cat([eight, terms[TAPS * EIGHT :][:TAPS, None]], 1)
    first = taps[:, :channels] / 255.0
    found = [weight.reshape(3, 3, -1, FILTERS).permute(3, 2, 0, 1) for weight in (first, *later)]
    return [each for layer in zip(found, biases.view(-1, FILTERS), strict=True) for each in layer]


def _places(crops: LazyCrops) -> list[Tensor]:
    return [crops.images, crops.sample.contiguous(), crops.origins.contiguous()]


def _run(name: str, device: torch.device, count: int, arguments: list[Any]) -> None:
    kernels, (threads, shared_bytes) = _kernels(device), LAUNCH[name]
    assert kernels is not None, "ask `fits` first"
    if count > 0:
        grid, block = (_blocks(device, count), 1, 1), (threads, 1, 1)
        kernels[name](grid=grid, block=block, args=arguments, shared_mem=shared_bytes)


def _blocks(device: torch.device, count: int) -> int:
    """One for each multiprocessor, as far as there are images."""
    blocks: int = torch.cuda.get_device_properties(device).multi_processor_count
    return min(blocks, count)
