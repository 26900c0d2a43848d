"""Inputs and initial weights of golden/drqv2.json, made again from its recipe: every tensor comes
from its name.

The file holds what the authors' DrQ-v2 made of them in four updates in a row. A test builds our
networks with the sizes below, fills each parameter with `fill`, runs update u on `batch(u, dtype)`
at agent step `STEPS[u]`, and compares with `GOLDEN`. Its fields:

- `source`, `produced_with`, `recipe`: whose code it was, on what, and this module in words.
- `settings`: the agent's constants. `shapes`: every parameter, in the authors' layout.
- `shifts`: per update the corners (y, x) that `batch` gives, written out.
- `augmentation`: how far the authors' `grid_sample` is from the crop that `shifted` cuts, in
  levels of 0..255.
- `rounding`: the largest difference between two float32 runs, the authors' own and one that gets
  the crop instead, and between the authors' float32 and float64 runs; relative to max(1, |x|).
  What a float32 test can hope for.
- `float64`, `float32`: one run in each precision.
  - `updates`: per update `step` and `stddev` (σ of the noise); `critic_target_q`, the mean of
    r + d min(Q'1, Q'2); `critic_q1` and `critic_q2`, means, from before the critic's step;
    `critic_loss`, the two mean squared errors added; `actor_loss`, minus the mean of
    min(Q1, Q2) from after the critic's step; per sample `q1`, `q2`, `next_q1`, `next_q2` (the
    target's), `actor_q1`, `actor_q2`; `gradient_norm` of encoder and critic under the critic's
    loss and of the actor under its own.
  - `after_first`, `after_last`: what `summary` makes of every parameter after update 0 and after
    the last one.
  - `action_before`, `action_after`: the policy's mean for `observation_to_act` before the first
    and after the last update. `exploring_action`: after the last one, with σ of `ACT_STEP` and
    the noise `act_noise`, which is not clipped.
- `schedule`: [agent step, σ], by schedule.
- `replay`: a hand-made episode. Step 0 is its first observation, without an action; step t holds
  the action that led there, its reward, and the discount of the state reached. `samples` are
  what the authors' replay gives, by number of steps n, for every start it can draw: [step of the
  observation, step of the action, n-step return, discount, step of the next observation].
"""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from golden_inputs import fixed, fixed_integers, fixed_uniform

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "golden" / "drqv2.json").read_text())
DTYPES = {"float32": torch.float32, "float64": torch.float64}

BATCH, ACTION_DIM, FRAME_CHANNELS, FRAME_PIXELS, PAD_PIXELS = 6, 3, 9, 84, 4
FILTERS, MAP_PIXELS, FEATURE_DIM, HIDDEN_DIM = 32, 35, 10, 32
LEARNING_RATE, TAU, NOISE_CLIP = 1e-4, 0.01, 0.3
DISCOUNT, N_STEPS, TERMINAL_SAMPLE = 0.99, 3, 2
SCHEDULE = "linear(1.0,0.1,100000)"
STEPS = (20_000, 50_000, 90_000, 150_000)  # agent steps of the updates
ACT_STEP = 30_000
# Adam's first step is the sign of a gradient: with these draws no gradient is so near zero that
# rounding in float32 decides it, both Q-functions are the smaller one in turn, and actions reach
# the bounds.
SALT = "drqv2.50"


class Inputs(NamedTuple):
    """What one update gets. Observations are uint8, before the shift; a shift is the corner (y, x)
    of a crop of the padded image, each 0..8."""

    observation: Tensor  # (B, 9, 84, 84)
    action: Tensor  # (B, A)
    reward: Tensor  # (B,)  n-step return
    discount: Tensor  # (B,)  DISCOUNT ** N_STEPS, and 0 for TERMINAL_SAMPLE
    next_observation: Tensor  # (B, 9, 84, 84)
    shift: Tensor  # (B, 2)
    next_shift: Tensor  # (B, 2)
    target_noise: Tensor  # (B, A)  standard normal, before σ and the clip
    actor_noise: Tensor  # (B, A)


def batch(update: int, dtype: torch.dtype) -> Inputs:
    discount = torch.full((BATCH,), DISCOUNT**N_STEPS, dtype=torch.float64)
    discount[TERMINAL_SAMPLE] = 0.0
    of_actions = (BATCH, ACTION_DIM)
    return Inputs(
        observation=images(f"observation.{update}", BATCH),
        action=torch.tanh(fixed(f"{SALT}.action.{update}", of_actions)).to(dtype),
        reward=(2.0 * fixed_uniform(f"{SALT}.reward.{update}", (BATCH,))).to(dtype),
        discount=discount.to(dtype),
        next_observation=images(f"next_observation.{update}", BATCH),
        shift=corners(f"{SALT}.shift.{update}"),
        next_shift=corners(f"{SALT}.next_shift.{update}"),
        target_noise=fixed(f"{SALT}.target_noise.{update}", of_actions).to(dtype),
        actor_noise=fixed(f"{SALT}.actor_noise.{update}", of_actions).to(dtype),
    )


def images(name: str, count: int) -> Tensor:
    """Squares of 7 pixels, each of one level, on a dark or a bright ground per channel."""
    side = FRAME_PIXELS // 7
    ground = 176 * fixed_integers(f"{SALT}.{name}.ground", 0, 2, (count, FRAME_CHANNELS, 1, 1))
    squares = fixed_integers(f"{SALT}.{name}", 0, 80, (count, FRAME_CHANNELS, side, side))
    whole = (ground + squares).repeat_interleave(7, -1).repeat_interleave(7, -2)
    return whole.to(torch.uint8)


def corners(name: str) -> Tensor:
    return fixed_integers(name, 0, 2 * PAD_PIXELS + 1, (BATCH, 2))


def observation_to_act() -> Tensor:
    """(9, 84, 84)."""
    return images("observation_to_act", 1)[0]


def act_noise(dtype: torch.dtype) -> Tensor:
    """(A,), standard normal times 2, so that a clip of it would show; before σ."""
    return (2.0 * fixed(f"{SALT}.act_noise", (ACTION_DIM,))).to(dtype)


def shifted(frames: Tensor, corner: Tensor) -> Tensor:
    """The augmentation, plainly: edges repeated outwards, then a crop with its corner at (y, x)."""
    side = frames.shape[-1]
    padded = F.pad(frames.double(), (PAD_PIXELS,) * 4, mode="replicate")
    crops = [
        frame[:, y : y + side, x : x + side]
        for frame, (y, x) in zip(padded, corner.tolist(), strict=True)
    ]
    return torch.stack(crops).to(frames.dtype)


def shapes() -> dict[str, tuple[int, ...]]:
    """Every parameter, named by its role. Linear layers of a head are 0, 2 and 4."""
    found: dict[str, tuple[int, ...]] = {}
    for layer in range(4):
        inputs = FILTERS if layer else FRAME_CHANNELS
        found |= _weight_and_bias(f"encoder.convolutions.{layer}", (FILTERS, inputs, 3, 3))
    for network in ("actor", "critic", "target"):
        trunk = f"{network}.trunk"
        found |= _weight_and_bias(f"{trunk}.linear", (FEATURE_DIM, FILTERS * MAP_PIXELS**2))
        found |= _weight_and_bias(f"{trunk}.norm", (FEATURE_DIM,))
        if network == "actor":
            found |= _head("actor.policy", FEATURE_DIM, ACTION_DIM)
        else:
            found |= _head(f"{network}.q1", FEATURE_DIM + ACTION_DIM, 1)
            found |= _head(f"{network}.q2", FEATURE_DIM + ACTION_DIM, 1)
    return found


def _head(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return (
        _weight_and_bias(f"{name}.0", (HIDDEN_DIM, inputs))
        | _weight_and_bias(f"{name}.2", (HIDDEN_DIM, HIDDEN_DIM))
        | _weight_and_bias(f"{name}.4", (outputs, HIDDEN_DIM))
    )


def _weight_and_bias(name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}


def fill(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A parameter before the first update, in the authors' layout; the target's are near the
    critic's but not the same."""
    if name.startswith("target."):
        own, critic = _value(name, shape), _value(name.replace("target.", "critic."), shape)
        return (0.85 * critic + 0.15 * own).to(dtype)
    return _value(name, shape).to(dtype)


def _value(name: str, shape: tuple[int, ...]) -> Tensor:
    if name.endswith(".norm.weight"):
        return 1.0 + fixed(f"{SALT}.{name}", shape, 0.1)
    if name.endswith(".bias"):
        return fixed(f"{SALT}.{name}", shape, 0.1)
    gain = 1.0 if ".trunk." in name else math.sqrt(2.0)
    return fixed(f"{SALT}.{name}", shape, gain / math.sqrt(math.prod(shape[1:])))


def to_channels_last(weight: Tensor) -> Tensor:
    """Columns of a `trunk.linear.weight` from the authors' order (C, H, W) into (H, W, C)."""
    by_place = weight.unflatten(1, (FILTERS, MAP_PIXELS, MAP_PIXELS))
    return by_place.permute(0, 2, 3, 1).flatten(1)


def to_planes(weight: Tensor) -> Tensor:
    """Columns of a `trunk.linear.weight` from (H, W, C) into the authors' order (C, H, W)."""
    by_place = weight.unflatten(1, (MAP_PIXELS, MAP_PIXELS, FILTERS))
    return by_place.permute(0, 3, 1, 2).flatten(1)


def summary(tensor: Tensor) -> list[float]:
    """How the golden file records a parameter, in the authors' layout: its sum, the sum of its
    squares, the sum of x[i] cos(i), and six entries from the first to the last, evenly spread."""
    flat = tensor.detach().double().flatten()
    places = torch.arange(len(flat), dtype=torch.float64)
    entries = [flat[k * (len(flat) - 1) // 5].item() for k in range(6)]
    return [
        flat.sum().item(),
        flat.square().sum().item(),
        (flat * places.cos()).sum().item(),
        *entries,
    ]
