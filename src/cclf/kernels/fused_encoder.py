"""All convolutions of the encoder in one kernel, which keeps an image on the chip from its pixels
to its features, and the way back in another: `fused_encoder.cu`, for GPUs of the Hopper generation.

Elsewhere, and where sizes are not those it is made for, `paired_convolutions` computes the same.
"""

import functools
import importlib.resources
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cclf.data.augment import Crops
from cclf.kernels.first_convolution import CHANNELS, prepare_weight

Layers = Sequence[tuple[Tensor, Tensor]]
PIXELS, FILTERS, SIDES = 84, 32, (41, 39, 37, 35)  # of the crops and results it is made for
GENERATION = (9, 0)  # whose matrix instructions it uses
SHARED_BYTES = {"encode_frozen": 232_000, "encode_and_keep": 232_000, "gradients": 225_984}
THREADS = 512


class Weights(NamedTuple):
    """Weights as the kernels multiply them, in steps of 16 channels of a tap."""

    first: Tensor  # (9 steps, 2, 4, 8 outputs, 8 channels)  of the first convolution
    later: Tensor  # (3, 18 steps, 2, 4, 8, 8)  of the others
    biases: Tensor  # (4, 32)
    turned: Tensor  # (3, 18 steps, 2, 4, 8 channels, 8 outputs)  of the others from last to first


def fits(crops: Crops, layers: Layers) -> bool:
    """Whether the kernel can encode these crops of packed frames."""
    images = crops.images
    return (
        images.is_cuda
        and images.dtype == torch.bfloat16
        and (crops.pixels, images.shape[-1]) == (PIXELS, CHANNELS)
        and [len(weight) for weight, _ in layers] == [FILTERS] * len(SIDES)
        and _kernel(images.device, "encode_frozen") is not None
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
            kernel.set_shared_memory_config(SHARED_BYTES[name])
    except (AttributeError, RuntimeError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        print(f"going on without the fused encoder: {reason}", file=sys.stderr)
        return None
    compiled: Callable[..., None] = kernel
    return compiled


def prepare(layers: Layers) -> Weights:
    (first, _), *rest = layers
    later = [_in_steps(weight.permute(2, 3, 1, 0).flatten(0, 1)) for weight, _ in rest]
    turned = [_in_steps(w.flip(2, 3).permute(2, 3, 0, 1).flatten(0, 1)) for w, _ in rest[::-1]]
    biases = torch.stack([bias.float() for _, bias in layers])
    first_steps = _in_steps(prepare_weight(first))
    return Weights(first_steps, torch.stack(later), biases, torch.stack(turned))


def _in_steps(weight: Tensor) -> Tensor:
    """(9 taps, channels, outputs) as steps of 16 channels of a tap."""
    steps = weight.bfloat16().reshape(-1, 2, 8, FILTERS // 8, 8)
    return steps.permute(0, 1, 3, 4, 2).contiguous()


def forward(crops: Crops, weights: Weights, keep: bool = False) -> list[Tensor]:
    """Results (N, side, side + 1, 32) of the last convolution, or with `keep` of each, on crops of
    packed frames. Their last column is zero."""
    images, count = crops.images, len(crops.sample)
    sides = SIDES if keep else SIDES[-1:]
    results = [images.new_empty((count, side, side + 1, FILTERS)) for side in sides]
    kept = results[:-1] if keep else [results[-1]] * 3  # not written to
    inputs = [images, crops.sample.contiguous(), crops.origins.contiguous()]
    arguments = [*inputs, *weights[:3], results[-1], *kept, count, *images.shape[1:3]]
    _run("encode_and_keep" if keep else "encode_frozen", images.device, count, arguments)
    return results


def gradients(
    gradient: Tensor, results: Sequence[Tensor], turned: Tensor
) -> tuple[list[Tensor], Tensor]:
    """From the gradient of the last of four `results` those of all, each cut where its result is
    zero, and their sums for the biases (4, 32)."""
    cuts = [torch.empty_like(result) for result in results]
    shape = (_blocks(gradient.device), THREADS // 32, len(SIDES), FILTERS)
    parts = torch.zeros(shape, device=gradient.device)  # added outside, in one order
    arguments = [gradient.contiguous(), *results, turned, *cuts, parts, len(gradient)]
    _run("gradients", gradient.device, len(gradient), arguments)
    return cuts, parts.sum((0, 1))


def _run(name: str, device: torch.device, count: int, arguments: list[Any]) -> None:
    kernel = _kernel(device, name)
    assert kernel is not None, "ask `fits` first"
    if count > 0:
        size = {"block": (THREADS, 1, 1), "shared_mem": SHARED_BYTES[name]}
        kernel(grid=(min(_blocks(device), count), 1, 1), args=arguments, **size)


def _blocks(device: torch.device) -> int:
    blocks: int = torch.cuda.get_device_properties(device).multi_processor_count
    return blocks
