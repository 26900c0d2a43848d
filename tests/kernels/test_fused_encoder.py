"""The CUDA kernel of the fused encoder, run on the CPU: its own source, compiled with threads that
are fibers. The same on a GPU is in `test_kernels`."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from cclf.data.augment import Crops
from cclf.kernels import first_convolution, fused_encoder
from cclf.kernels.fused_encoder import SHARED_BYTES, SIDES, THREADS

HERE = Path(__file__).parent
KERNEL = Path(fused_encoder.__file__).with_suffix(".cu")
COUNT, BLOCKS = (
    3,
    2,
)  # so that one block has two images, and one has the next one's pixels too early


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    library = tmp_path_factory.mktemp("kernel") / "block.so"
    command = [compiler, "-O1", "-shared", "-fPIC", "-std=c++17", f'-DKERNEL="{KERNEL}"']
    subprocess.run([*command, "-o", str(library), str(HERE / "one_gpu_block.cpp")], check=True)
    return ctypes.CDLL(str(library))


def pointer(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def test_the_kernels_constants_are_those_it_is_started_with(emulated: ctypes.CDLL) -> None:
    assert (emulated.shared_bytes(), emulated.threads()) == (SHARED_BYTES, THREADS)


@pytest.mark.parametrize("keep", [False, True])
def test_the_kernel_computes_the_reference(emulated: ctypes.CDLL, keep: bool) -> None:
    torch.manual_seed(0)
    frames = torch.randint(256, (2, 9, 100, 100), dtype=torch.uint8)
    sample, origins = torch.tensor([0, 1, 1]), torch.randint(17, (COUNT, 2))
    layers = [
        (torch.randn(32, channels, 3, 3) * (2 / (9 * channels)) ** 0.5, 0.1 * torch.randn(32))
        for channels in (9, 32, 32, 32)
    ]
    packed, weights = first_convolution.pack(frames), fused_encoder.prepare(layers)
    shapes = [(COUNT, side, side + 1, 32) for side in SIDES]
    *kept, features = (torch.full(shape, torch.nan, dtype=torch.bfloat16) for shape in shapes)
    inputs = map(pointer, (packed, sample, origins, *weights, features))
    outputs = (pointer(results if keep else None) for results in kept)
    emulated.run(*inputs, *outputs, COUNT, *packed.shape[1:3], BLOCKS)

    x = Crops(frames, sample, origins, 84).cut().float()
    for number, (weight, bias) in enumerate(layers):
        rounded = (weight / 255.0 if number == 0 else weight).bfloat16().float()
        x = (
            torch.relu(F.conv2d(x, rounded, bias, stride=2 if number == 0 else 1))
            .bfloat16()
            .float()
        )
        wanted = F.pad(x.permute(0, 2, 3, 1), (0, 0, 0, 1))
        found = [*kept, features][number].float()
        if keep or number == 3:  # sums in another order, rounded otherwise here and there
            assert (found == wanted).float().mean() > 0.99
            torch.testing.assert_close(found, wanted, rtol=0.02, atol=0.02)
        else:
            assert found.isnan().all()
