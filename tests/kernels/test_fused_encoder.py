"""The CUDA kernels of the fused encoder, compiled for the CPU from the same source, with fibers as
threads. The test on a GPU is in `test_kernels`."""

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cclf.data.augmentations import LazyCrops
from cclf.kernels import first_convolution, fused_encoder, paired_convolutions

HERE = Path(__file__).parent
KERNELS = Path(fused_encoder.__file__).with_suffix(".cu")
# the first and the last corner, and all combinations of even and odd
ORIGINS = [[0, 0], [16, 16], [5, 7], [2, 11], [13, 4]]
LEARNED = 3
BLOCKS = 2  # a block encodes up to two images, and loads pixels of the next one early


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    path = tmp_path_factory.mktemp("kernels") / "block.so"
    command = [compiler, "-O2", "-shared", "-fPIC", "-std=c++17", f'-DKERNEL="{KERNELS}"']
    subprocess.run([*command, "-o", str(path), str(HERE / "one_gpu_block.cpp")], check=True)
    return ctypes.CDLL(str(path))


@pytest.fixture
def emulated(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run the kernels of `fused_encoder` on the CPU. Memory that is not written is NaN."""

    def run(name: str, device: torch.device, count: int, arguments: list[Any]) -> None:
        if not count:
            return
        values = [
            ctypes.c_void_p(each.data_ptr()) if isinstance(each, Tensor) else ctypes.c_int(each)
            for each in arguments
        ]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(each) for each in values))
        blocks = fused_encoder._blocks(device, count)
        library.run(name.encode(), pointers, blocks, *fused_encoder.LAUNCH[name])

    monkeypatch.setattr(fused_encoder, "_run", run)
    monkeypatch.setattr(fused_encoder, "_blocks", lambda _, count: min(BLOCKS, count))
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def distance(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


def encoded(fused: bool, channels: int) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Features of the learned and of the other crops, and gradients of all parameters."""
    torch.manual_seed(0)
    frames = torch.randint(256, (2, 9, 100, 100), dtype=torch.uint8)
    # few bright pixels, so that the gradients of neighboring taps differ
    frames = torch.where(torch.rand(frames.shape) < 0.2, frames | 128, 0)
    sample, origins = torch.tensor([0, 1, 1, 0, 1]), torch.tensor(ORIGINS)
    crops = LazyCrops(first_convolution.pack(frames[:, :channels]), sample, origins, 84)
    layers = [
        (torch.randn(32, inputs, 3, 3) * (2 / (9 * inputs)) ** 0.5, 0.1 * torch.randn(32))
        for inputs in (channels, 32, 32, 32)
    ]
    parameters = [parameter.requires_grad_() for layer in layers for parameter in layer]
    split = fused_encoder.encode if fused else paired_convolutions.paired_split
    features = [found.view(-1, 35, 36, 32) for found in split(crops, layers, LEARNED)]
    if fused:
        assert all((found[:, :, -1] == 0).all() for found in features)
    first, others = (found[:, :, :-1].float() for found in features)
    loss = (first * torch.linspace(-1, 1, 32)).square().sum()
    return first.detach(), others, torch.autograd.grad(loss, parameters)


@pytest.mark.quick("6")
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("channels", [9, 6])
def test_fused_encoder_agrees_with_paired_convolutions(channels: int) -> None:
    """Both round to bfloat16 after each layer; `paired_convolutions` also rounds the biases."""
    first, others, gradients = encoded(True, channels)
    wanted_first, wanted_others, wanted_gradients = encoded(False, channels)
    assert distance(first, wanted_first) < 5e-3
    assert distance(others, wanted_others) < 5e-3
    for found, wanted in zip(gradients, wanted_gradients, strict=True):
        assert found.shape == wanted.shape
        assert distance(found, wanted) < 5e-3
