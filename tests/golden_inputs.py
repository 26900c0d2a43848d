"""Inputs and initial weights of golden/released_sac.json, made again from its recipe: every tensor
comes from its name."""

import json
import math
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parent / "golden" / "released_sac.json").read_text()
)
DTYPES = {"float32": torch.float32, "float64": torch.float64}

TRANSITIONS, BATCH, VIEWS, ACTION_DIM = 20, 12, 5, 2
FRAME_PIXELS, CROP_PIXELS, FEATURE_DIM, HIDDEN_DIM, ACTION_REPEAT = 20, 16, 50, 64, 4


def _generator(name: str) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


def fixed(name: str, shape: tuple[int, ...], scale: float = 1.0) -> Tensor:
    return torch.randn(shape, generator=_generator(name), dtype=torch.float64) * scale


def fixed_uniform(name: str, shape: tuple[int, ...]) -> Tensor:
    return torch.rand(shape, generator=_generator(name), dtype=torch.float64)


def fixed_integers(name: str, low: int, high: int, shape: tuple[int, ...]) -> Tensor:
    return torch.randint(low, high, shape, generator=_generator(name))


def value(full_name: str, shape: tuple[int, ...]) -> Tensor:
    """An initial parameter, by its name in the released code."""
    if full_name.endswith("encoder.ln.weight"):
        return 1.0 + fixed(full_name, shape, 0.1)
    if full_name.endswith(".bias"):
        return fixed(full_name, shape, 0.1)
    gain = 2.0 if ".convs." in full_name else 1.0
    return fixed(full_name, shape, gain / math.sqrt(math.prod(shape[1:])))


def initial_parameter(name: str, shape: tuple[int, ...]) -> Tensor:
    """Critic, target, actor, W or log_alpha before the first update."""
    if name == "W":
        return bilinear()
    if name == "log_alpha":
        return torch.tensor(math.log(0.1), dtype=torch.float64)
    if name.startswith("target."):
        return 0.85 * value(name.replace("target.", "critic."), shape) + 0.15 * value(name, shape)
    return value(name, shape)


def bilinear() -> Tensor:
    return 0.1 * fixed_uniform("W", (FEATURE_DIM, FEATURE_DIM)) + 0.6 * torch.eye(
        FEATURE_DIM, dtype=torch.float64
    )


def images(name: str) -> Tensor:
    base = 176 * fixed_integers(f"{name}.base", 0, 2, (TRANSITIONS, 9, 1, 1))
    grid = fixed_integers(f"{name}.grid", 0, 80, (TRANSITIONS, 9, 2, 2))
    return (base + grid).repeat_interleave(10, -1).repeat_interleave(10, -2).to(torch.uint8)


def replay_contents() -> dict[str, Tensor]:
    not_done = torch.ones(TRANSITIONS, dtype=torch.float64)
    not_done[[3, 7]] = 0.0
    return {
        "observation": images("observation"),
        "next_observation": images("next_observation"),
        "action": torch.tanh(fixed("action", (TRANSITIONS, ACTION_DIM))),
        "reward": fixed_uniform("reward", (TRANSITIONS,)),
        "continuation": not_done,
    }


def initial_priorities() -> Tensor:
    return 0.5 + 0.5 * fixed_uniform("priority", (TRANSITIONS,))


def indices(update: int) -> Tensor:
    return fixed_integers(f"indices.{update}", 0, TRANSITIONS, (BATCH,))


def crop_origins(update: int) -> tuple[Tensor, Tensor]:
    """Corners of the views of o and of o', (K, B, 2)."""
    shape = (VIEWS, BATCH, 2)
    return fixed_integers(f"offsets.{update}", 0, 4, shape), fixed_integers(
        f"next_offsets.{update}", 0, 4, shape
    )


def target_noise(update: int) -> Tensor:
    return torch.stack(
        [fixed(f"target_noise.{update}.{view}", (BATCH, ACTION_DIM)) for view in range(2)]
    )


def actor_noise(update: int) -> Tensor:
    return fixed(f"actor_noise.{update}", (BATCH, ACTION_DIM))


def summary(tensor: Tensor) -> list[float]:
    """How the golden file records a tensor: its sum, the sum of absolute values, the first four
    entries."""
    flat = tensor.detach().double().flatten()
    return [flat.sum().item(), flat.abs().sum().item(), *flat[:4].tolist()]


def largest_error(ours: Any, theirs: Any) -> float:
    """The largest difference, relative to max(1, |x|)."""
    ours, theirs = (torch.as_tensor(x, dtype=torch.float64).detach() for x in (ours, theirs))
    assert ours.shape == theirs.shape, (
        f"shapes differ: {tuple(ours.shape)} here, {tuple(theirs.shape)} recorded"
    )
    return float(((ours - theirs).abs() / theirs.abs().clamp_min(1.0)).max())
