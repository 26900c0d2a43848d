"""Kernels compared with their references, in float64 where they support it."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from cclf.data import augmentations
from cclf.data.augmentations import LazyCrops
from cclf.kernels import (
    bf16_linear,
    first_convolution,
    fused_encoder,
    gather_packed,
    paired_convolutions,
    tiled_convolution,
)
from cclf.kernels.tiled_convolution import patches


def make_layers(
    dtype: torch.dtype, channels: int = 9, filters: int = 32
) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    layers = []
    for i in range(4):
        inputs = channels if i == 0 else filters
        weight = torch.randn(filters, inputs, 3, 3, dtype=dtype) * (2.0 / (9 * inputs)) ** 0.5
        layers.append(
            (weight.requires_grad_(), (0.1 * torch.randn(filters, dtype=dtype)).requires_grad_())
        )
    return layers


@pytest.mark.parametrize("channels", [9, 12])
def test_paired_convolutions_equal_the_reference_with_gradients(channels: int) -> None:
    layers = make_layers(torch.float64, channels)
    frames = torch.randint(256, (2, channels, 100, 100), dtype=torch.uint8)
    crops = LazyCrops(frames, torch.tensor([0, 1, 1]), torch.tensor([[0, 16], [3, 5], [16, 0]]), 84)
    plain = paired_convolutions.reference_convolutions(crops, layers).view(3, 35, 35, 32)
    paired = paired_convolutions.paired_convolutions(crops, layers, torch.float64).view(
        3, 35, 36, 32
    )[:, :, :35]
    torch.testing.assert_close(paired, plain, rtol=1e-12, atol=1e-12)
    weights = [parameter for layer in layers for parameter in layer]
    direction = torch.randn_like(plain)
    for mine, theirs in zip(
        torch.autograd.grad((paired * direction).sum(), weights),
        torch.autograd.grad((plain * direction).sum(), weights),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-8)


def test_paired_split_gives_gradients_to_the_first_crops_only() -> None:
    layers = make_layers(torch.float64)
    frames = torch.randint(256, (2, 9, 30, 30), dtype=torch.uint8)
    origins = torch.tensor([[0, 5], [3, 5], [9, 0], [7, 7]])
    crops = LazyCrops(frames, torch.tensor([0, 1, 1, 0]), origins, 20)
    weights = [parameter for layer in layers for parameter in layer]
    whole = paired_convolutions.paired_convolutions(crops, layers, torch.float64)
    first, others = paired_convolutions.paired_split(crops, layers, 3, torch.float64)
    assert torch.equal(torch.cat([first, others]), whole)
    assert not others.requires_grad
    direction = torch.randn_like(first)
    for mine, theirs in zip(
        torch.autograd.grad((first * direction).sum(), weights, retain_graph=True),
        torch.autograd.grad((whole[:3] * direction).sum(), weights),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def test_pixel_pair_weight_aligns_each_tap_with_its_pixel() -> None:
    # One channel, taps 1, 2, 3 in each row: output pixel 0 of a pair depends on pixels 0 1 | 2, output
    # pixel 1 on 1 | 2 3.
    weight = torch.tensor([1.0, 2.0, 3.0]).expand(1, 1, 3, 3)
    pairs = paired_convolutions.pixel_pair_weight(weight)
    assert pairs.shape == (2, 2, 3, 2)
    # [output pixel, input pixel, row, pair]
    assert pairs[0, :, 0].T.tolist() == [[1.0, 2.0], [3.0, 0.0]]
    assert pairs[1, :, 0].T.tolist() == [[0.0, 1.0], [2.0, 3.0]]


def test_paired_convolutions_in_bfloat16_are_within_rounding_of_the_reference() -> None:
    layers = make_layers(torch.float32)
    images = torch.randint(256, (2, 9, 84, 84), dtype=torch.uint8)
    plain = paired_convolutions.reference_convolutions(images, layers).view(2, 35, 35, 32)
    rounded = paired_convolutions.paired_convolutions(images, layers).view(2, 35, 36, 32)[:, :, :35]
    assert rounded.dtype == torch.bfloat16
    assert float((rounded.float() - plain).detach().norm() / plain.detach().norm()) < 1e-2


def test_paired_convolutions_reject_rows_of_even_length() -> None:
    with pytest.raises(ValueError, match="even length"):
        paired_convolutions.paired_convolutions(
            torch.zeros(1, 9, 86, 86, dtype=torch.uint8), make_layers(torch.float32)
        )


def test_bf16_linear_ignores_the_extra_column() -> None:
    torch.manual_seed(0)
    features = torch.randn(2, 3, 4, 5).bfloat16()  # 3 x 3 pixels of 5 channels, and an extra column
    weight, bias = torch.randn(6, 45, requires_grad=True), torch.randn(6)
    result = bf16_linear.bf16_linear(features.flatten(1), weight, bias)
    plain = bf16_linear.bf16_linear(features[:, :, :3].flatten(1), weight, bias)
    torch.testing.assert_close(result, plain)
    torch.testing.assert_close(
        *(torch.autograd.grad(value.sum(), weight)[0] for value in (result, plain))
    )


def test_bf16_linear_rounds_operands_but_not_the_result() -> None:
    torch.manual_seed(0)
    features = torch.randn(6, 100).bfloat16().requires_grad_()
    weight, bias = torch.randn(5, 100, requires_grad=True), torch.randn(5, requires_grad=True)
    result = bf16_linear.bf16_linear(features, weight, bias)
    plain = F.linear(features.float(), weight.bfloat16().float(), bias)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, plain)
    direction = torch.randn_like(plain).bfloat16().float()  # exact in bfloat16
    for_features, for_weight, for_bias = torch.autograd.grad(
        (result * direction).sum(), (features, weight, bias)
    )
    exact = direction @ weight.detach().bfloat16().float()
    assert float((for_features.float() - exact).norm() / exact.norm()) < 1e-2
    # float32 sums, not rounded again
    torch.testing.assert_close(for_weight, direction.T @ features.detach().float())
    torch.testing.assert_close(for_bias, direction.sum(0))


@pytest.mark.parametrize("border", [0, 3])
def test_packed_frames_have_a_replicated_border(border: int) -> None:
    torch.manual_seed(0)
    frames = torch.randint(256, (4, 9, 12, 12), dtype=torch.uint8)
    packed = first_convolution.pack(frames[:3, :6], frames[3:, 3:], border=border)
    wide = torch.nn.functional.pad(frames.float(), (border,) * 4, mode="replicate")
    expected = torch.cat([wide[:3, :6], wide[3:, 3:]])
    assert torch.equal(first_convolution.unpacked(packed)[:, :6].float(), expected)
    assert (first_convolution.unpacked(packed)[:, 6:] == 0).all()


@pytest.mark.parametrize("border", [0, 3])
def test_ninth_channel_is_packed_under_eight_taps(border: int) -> None:
    frames = torch.randint(1, 256, (2, 9, 12, 12), dtype=torch.uint8)
    packed = first_convolution.unpacked(first_convolution.pack(frames, border=border)).float()
    wide = F.pad(frames.float(), (border,) * 4, mode="replicate")
    assert torch.equal(packed[:, :9], wide)
    patches = F.unfold(F.pad(wide[:, 8:], (0, 2, 0, 2)), 3)  # (B, 9 taps, pixels)
    assert torch.equal(packed[:, 8:].flatten(2), patches[:, :8])


@pytest.mark.gpu
@pytest.mark.parametrize("channels", [3, 9, 12])
@pytest.mark.parametrize("border", [0, 1, 3, 4])
def test_pack_on_a_gpu_equals_the_reference(border: int, channels: int) -> None:
    torch.manual_seed(0)
    stacks = torch.randint(256, (5, 2 * channels, 84, 84), dtype=torch.uint8)
    plain = first_convolution.pack(*stacks.split(channels, 1), border=border)
    there = first_convolution.pack(*stacks.cuda().split(channels, 1), border=border)
    assert torch.equal(there.cpu(), plain)


@pytest.mark.gpu
def test_first_convolution_on_a_gpu_equals_the_reference() -> None:
    torch.manual_seed(0)
    frames = first_convolution.pack(torch.randint(256, (3, 9, 100, 100), dtype=torch.uint8))
    crops = LazyCrops(frames, torch.tensor([0, 1, 2, 2]), torch.randint(16, (4, 2)), 84)
    weight, bias = first_convolution.prepare_weight(0.1 * torch.randn(32, 9, 3, 3)), torch.randn(32)
    wide = crops._replace(images=frames.float())
    plain = first_convolution.forward(wide, weight.bfloat16().float(), bias)
    there = LazyCrops(*(part.cuda() for part in crops[:3]), 84)
    result = first_convolution.forward(there, weight.cuda(), bias.cuda())
    # one rounding to bfloat16
    assert float((result.cpu().float() - plain).norm() / plain.norm()) < 4e-3
    slope = torch.randn_like(plain).bfloat16()
    ours = first_convolution.gradients(there, slope.cuda(), result)
    theirs = first_convolution.gradients(wide, slope.float(), result.cpu().float())
    for mine, other in zip(ours, theirs, strict=True):
        assert float((mine.cpu() - other).norm() / other.norm()) < 1e-4


@pytest.mark.gpu
def test_relu_bias_backward_on_a_gpu_equals_the_reference() -> None:
    torch.manual_seed(0)
    shape = {"memory_format": torch.channels_last}
    gradient, outputs = (torch.randn(37, 64, 11, 6).bfloat16().to(**shape) for _ in range(2))
    plain, plain_sum = paired_convolutions.relu_bias_backward(gradient, outputs)
    cut, total = paired_convolutions.relu_bias_backward(gradient.cuda(), outputs.cuda())
    assert torch.equal(cut.cpu(), plain)
    torch.testing.assert_close(total.cpu(), plain_sum, rtol=1e-4, atol=1e-3)


def distance(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1, 133, 300])
def test_fused_encoder_equals_the_reference(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [(w.detach().cuda(), b.detach().cuda()) for w, b in make_layers(torch.float32)]
    frames = torch.randint(256, (7, 9, 100, 100), dtype=torch.uint8).cuda()
    sample, origins = torch.randint(7, (count,)).cuda(), torch.randint(17, (count, 2)).cuda()
    crops = LazyCrops(first_convolution.pack(frames), sample, origins, 84)
    assert fused_encoder.is_supported(crops, layers)
    assert not fused_encoder.is_supported(crops, make_layers(torch.float32, channels=12))
    weights = fused_encoder.prepare(layers)
    (frozen,) = fused_encoder.forward(crops, weights)
    kept = fused_encoder.forward(crops, weights, save_activations=True)
    torch.testing.assert_close(kept[-1], frozen, rtol=0, atol=0)
    x = LazyCrops(frames, sample, origins, 84).materialize().double() / 255.0
    for i, (weight, bias) in enumerate(layers):
        stride = 2 if i == 0 else 1
        x = torch.relu(F.conv2d(x, weight.double(), bias.double(), stride=stride))
        planes = kept[i].permute(0, 2, 3, 1, 4).flatten(3) if i < 3 else kept[i][:, :, :-1]
        assert distance(planes, x.permute(0, 2, 3, 1)) < 8e-3
    assert (frozen[:, :, -1] == 0).all()

    def gradients() -> list[Tensor]:
        for parameter in (p for layer in layers for p in layer):
            parameter.requires_grad_()
        features = paired_convolutions.paired_convolutions(crops, layers).view(count, 35, 36, 32)
        loss = (features[:, :, :-1].float() ** 2).sum()
        return list(torch.autograd.grad(loss, [p for layer in layers for p in layer]))

    found = gradients()
    monkeypatch.setattr(fused_encoder, "is_supported", lambda *_: False)
    for mine, theirs in zip(found, gradients(), strict=True):
        assert distance(mine, theirs) < 2e-2


@pytest.mark.gpu
def test_fused_encoder_is_deterministic() -> None:
    """Sums have a fixed order, so a differing bit would be a race condition. Another stream uses the GPU
    at the same time, as in an update."""
    torch.manual_seed(0)
    layers = [(w.detach().cuda(), b.detach().cuda()) for w, b in make_layers(torch.float32)]
    frames = torch.randint(256, (64, 9, 100, 100), dtype=torch.uint8).cuda()
    sample, origins = torch.randint(64, (512,)).cuda(), torch.randint(17, (512, 2)).cuda()
    crops = LazyCrops(first_convolution.pack(frames), sample, origins, 84)
    weights = fused_encoder.prepare(layers)
    gradient = torch.randn(512, 35, 36, 32).cuda().bfloat16()
    gradient[:, :, -1] = 0.0

    def once() -> list[Tensor]:
        (frozen,) = fused_encoder.forward(crops, weights)
        kept = fused_encoder.forward(crops, weights, save_activations=True)
        return [
            frozen,
            *kept,
            *fused_encoder.gradients(gradient.flatten(1), crops, kept, weights.flipped, 9),
        ]

    first, other_stream = once(), torch.cuda.Stream()
    other = torch.randn(1024, 1024, device="cuda")
    for _ in range(300):
        with torch.cuda.stream(other_stream):
            other = torch.tanh(other @ other)
        for found, wanted in zip(once(), first, strict=True):
            assert torch.equal(found, wanted)


def first_layer_by_patches(
    images: Tensor, weight: Tensor, bias: Tensor, side: int, tile: int
) -> Tensor:
    """The reference of one run."""
    values = (
        patches(images.permute(0, 2, 3, 1), side, side).to(weight.dtype) / 255.0 @ weight.T + bias
    )
    return patches(torch.relu(values), tile, tile)


def make_runs(dtype: torch.dtype, runs: int = 3, frames: int = 4) -> tuple[Tensor, ...]:
    """Images are slices of larger ones, and weights and biases slices of rows: none is contiguous."""
    torch.manual_seed(0)
    images = torch.randint(256, (runs, 6, frames, 59, 77), dtype=torch.uint8)[..., :50, :75]
    weight, bias, _ = (0.1 * torch.randn(runs, 32 * 25 * frames + 39, dtype=dtype)).split(
        [32 * 25 * frames, 32, 7], 1
    )
    return images, weight.view(runs, 32, -1).requires_grad_(), bias.requires_grad_()


def test_first_layer_of_several_runs_equals_patches_times_weights_of_each() -> None:
    images, weight, bias = make_runs(torch.float64)
    one = torch.stack(
        [first_layer_by_patches(*run, 5, 5) for run in zip(images, weight, bias, strict=True)]
    )
    stacked = tiled_convolution.first_layer(images, weight, bias, 5, 5)
    mapped = torch.func.vmap(
        lambda *run: tiled_convolution.first_layer(*(part[None] for part in run), 5, 5)[0]
    )
    direction = torch.randn_like(one)
    found = torch.autograd.grad((one * direction).sum(), (weight, bias))
    for tiled in (stacked, mapped(images, weight, bias)):
        torch.testing.assert_close(tiled, one, rtol=1e-12, atol=1e-12)
        for mine, theirs in zip(
            torch.autograd.grad((tiled * direction).sum(), (weight, bias)), found, strict=True
        ):
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("runs", "frames", "words"),
    [(1, 4, False), (3, 3, False), (60, 4, False), (1, 4, True), (60, 4, True)],
)
def test_first_layer_on_a_gpu_equals_the_reference(
    runs: int, frames: int, words: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    images, weight, bias = make_runs(torch.float32, runs, frames)
    if words:
        images = images.movedim(2, -1).contiguous().view(torch.int32).squeeze(-1)
    plain = tiled_convolution.first_layer(images, weight, bias, 5, 5)
    direction = torch.randn_like(plain)
    theirs = tiled_convolution.first_layer_gradients(images, direction, plain, 5, 5)
    there = [tensor.detach().cuda() for tensor in (images, weight, bias)]
    result = tiled_convolution.first_layer(*there, 5, 5)
    mine = tiled_convolution.first_layer_gradients(
        there[0], direction.cuda(), plain.detach().cuda(), 5, 5
    )
    torch.testing.assert_close(result.cpu(), plain, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-3, atol=1e-2)


def make_views(runs: int) -> tuple[Tensor, Tensor, Tensor]:
    """Images that are slices of larger ones, and three views of each with random rows and columns."""
    torch.manual_seed(0)
    images = torch.randint(256, (runs, 6, 4, 59, 77), dtype=torch.uint8)[..., 1:50, :75]
    return images, torch.randint(49, (runs, 3, 6, 45)), torch.randint(75, (runs, 3, 6, 37))


def test_gather_packed_of_several_runs_gathers_the_pixels_of_each() -> None:
    runs = make_views(3)
    mapped = torch.func.vmap(gather_packed.gather_packed)
    for number, one in enumerate(zip(*runs, strict=True)):
        plain = augmentations.gather_pixels(*one)
        for words in (
            gather_packed.gather_packed(*one),
            gather_packed.gather_packed_runs(*runs)[number],
            mapped(*runs)[number],
        ):
            assert torch.equal(gather_packed.unpack_frames(words), plain)


@pytest.mark.gpu
@pytest.mark.parametrize("runs", [1, 3, 60])
def test_gather_packed_on_a_gpu_equals_the_reference(runs: int) -> None:
    parts = make_views(runs)
    plain = gather_packed.gather_packed_runs(*parts)
    assert torch.equal(
        gather_packed.gather_packed_runs(*(part.cuda() for part in parts)).cpu(), plain
    )
