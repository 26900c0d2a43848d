"""All convolutions of the encoder in one kernel, which keeps an image on the chip from its pixels
to its features: `fused_encoder.cu`, for GPUs of the Hopper generation.

Elsewhere, and where sizes are not those it is made for, `paired_convolutions` computes the same.
"""

import functools
import importlib.resources
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cclf.data.augment import Crops
from cclf.kernels.first_convolution import CHANNELS, prepare_weight

Layers = Sequence[tuple[Tensor, Tensor]]  # weight (O, C, 3, 3) and bias (O,) of each convolution
Weights = tuple[Tensor, Tensor, Tensor]
PIXELS, FILTERS, SIDES = 84, 32, (41, 39, 37, 35)  # of the crops and results it is made for
GENERATION = (9, 0)  # whose matrix instructions it uses
SHARED_BYTES = 232_000  # ALL_BYTES of the kernel
THREADS = 512


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
            kernel.set_shared_memory_config(SHARED_BYTES)
    except (AttributeError, RuntimeError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        print(f"going on without the fused encoder: {reason}", file=sys.stderr)
        return None
    compiled: Callable[..., None] = kernel
    return compiled


def prepare(layers: Layers) -> Weights:
    """Weights as the kernel multiplies them: of the first convolution (9 steps, 2, 4, 8 outputs, 8
    channels), of the others the same with 3 times 18 steps, and all biases (4, 32)."""
    (first, _), *rest = layers
    later = [_in_steps(weight.permute(2, 3, 1, 0).flatten(0, 1)) for weight, _ in rest]
    biases = torch.stack([bias.float() for _, bias in layers])
    return _in_steps(prepare_weight(first)), torch.stack(later), biases


def _in_steps(weight: Tensor) -> Tensor:
    """(9 taps, channels, outputs) as steps of 16 channels of a tap."""
    steps = weight.bfloat16().reshape(-1, 2, 8, FILTERS // 8, 8)
    return steps.permute(0, 1, 3, 4, 2).contiguous()


def forward(crops: Crops, weights: Weights, keep: bool = False) -> list[Tensor]:
    """Results (N, side, side + 1, 32) of the last convolution, or with `keep` of each, on crops of
    packed frames. Their last column is zero."""
    images, count = crops.images, len(crops.sample)
    kernel = _kernel(images.device, "encode_and_keep" if keep else "encode_frozen")
    assert kernel is not None, "ask `fits` first"
    sides = SIDES if keep else SIDES[-1:]
    results = [images.new_empty((count, side, side + 1, FILTERS)) for side in sides]
    kept = results[:-1] if keep else [results[-1]] * 3  # not written to
    blocks = torch.cuda.get_device_properties(images.device).multi_processor_count
    inputs = [images, crops.sample.contiguous(), crops.origins.contiguous()]
    if count > 0:
        kernel(
            grid=(min(blocks, count), 1, 1),
            block=(THREADS, 1, 1),
            args=[*inputs, *weights, results[-1], *kept, count, *images.shape[1:3]],
            shared_mem=SHARED_BYTES,
        )
    return results
