"""Inputs and initial weights of golden/mrq.json, made again from its recipe: every tensor comes from
its name (`golden_inputs.fixed`).

The file holds what the authors' MR.Q and DR.Q made of them in float64: two encoder updates in a row,
then two updates of value and policy. A test makes an agent with `settings(method)`, fills it with
`fill`, and compares. By case: `encoder_loss`; of the value updates `critic_loss`, `policy_loss`,
`gradient_norm` (before clipping), and per sample `target` and `priority`; `parameters`: the sum and
the sum of absolute values of each parameter afterwards, by its name in this package.
"""

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cclf import presets
from cclf.algorithms.mrq.mrq import MrQ, MrqNoise
from cclf.data.replay import SequenceBatch
from cclf.types import Batch, EnvSpec
from golden_inputs import fixed, fixed_integers, fixed_uniform

PATH = Path(__file__).parent / "golden" / "mrq.json"
GOLDEN: dict[str, Any] = json.loads(PATH.read_text()) if PATH.exists() else {}

BATCH, STATE_DIM, ACTIONS, HORIZON, PIXELS = 6, 5, 3, 5, 84
REWARD_SCALES = 0.7, 0.9  # of rewards, and of the target's values
SMALL = {
    "batch_size": BATCH,
    "feature_dim": 16,
    "action_feature_dim": 8,
    "encoder_hidden_dim": 24,
    "hidden_dim": 20,
}
# Case: (method, discrete actions, pixels, a termination within the subsequences).
CASES = {
    "vectors": ("mr-q", False, False, True),
    "vectors, discrete": ("mr-q", True, False, True),
    "pixels": ("mr-q", False, True, True),
    "pixels, discrete": ("mr-q", True, True, False),
    "DR.Q vectors": ("dr-q", False, False, False),
    "DR.Q vectors, discrete": ("dr-q", True, False, False),
}


def agent(case: str) -> MrQ:
    """Call with float64 as the default dtype."""
    method, discrete, pixels, _ = CASES[case]
    config = presets.resolve(
        "dmc/cartpole-swingup" if pixels else "gym/Pendulum-v1",
        method,
        base_name="mrq",
        observe="pixels" if pixels else "state",
        make_env=False,
    ).with_settings(**SMALL)
    shape = (3, PIXELS, PIXELS) if pixels else (STATE_DIM,)
    spec = EnvSpec(shape, 1 if discrete else ACTIONS, 1, None, ACTIONS if discrete else None)
    made = MrQ(config, spec, torch.device("cpu"))
    made.networks.double()
    made.targets.double()
    fill(made.networks, "online.")
    fill(made.targets, "target.")
    if made.settings.scale_rewards:
        made.reward_scale, made.target_reward_scale = map(torch.tensor, REWARD_SCALES)
    return made


def fill(networks: nn.Module, prefix: str) -> None:
    with torch.no_grad():
        for name, parameter in networks.named_parameters():
            shape = tuple(parameter.shape)
            scale = 0.1 if name.endswith("bias") else 1.5 / math.sqrt(math.prod(shape[1:]))
            parameter.copy_(fixed("mrq." + prefix + name, shape, scale))


def observations(name: str, count: int, pixels: bool) -> Tensor:
    """(count, B, ...)."""
    if pixels:
        return fixed_integers(name, 0, 256, (count, BATCH, 9, PIXELS, PIXELS)).double()
    return fixed(name, (count, BATCH, STATE_DIM))


def actions(name: str, shape: tuple[int, ...], discrete: bool) -> Tensor:
    if discrete:
        index = fixed_integers(name, 0, ACTIONS, shape)
        return torch.nn.functional.one_hot(index, ACTIONS).double()
    return fixed(name, (*shape, ACTIONS)).tanh()


def sequences(case: str, update: int) -> SequenceBatch:
    _, discrete, pixels, ends = CASES[case]
    name = f"mrq.{case}.{update}."
    continuation = torch.ones(BATCH, HORIZON, dtype=torch.float64)
    if ends:  # at the start, within, and at the end of a subsequence
        continuation[0, 0] = continuation[1, 2] = continuation[2, HORIZON - 1] = 0.0
    return SequenceBatch(
        observations(name + "sequence", 1 + HORIZON, pixels),
        actions(name + "actions", (BATCH, HORIZON), discrete),
        fixed(name + "rewards", (BATCH, HORIZON), 2.0),
        continuation,
    )


def transitions(case: str, update: int) -> Batch:
    """Transitions whose n-step returns are given."""
    _, discrete, pixels, _ = CASES[case]
    name = f"mrq.{case}.{update}."
    observation, next_observation = observations(name + "transition", 2, pixels)
    continuation = torch.ones(BATCH, dtype=torch.float64)
    continuation[3] = 0.0
    zeros = torch.zeros(BATCH)
    returns = fixed(name + "returns", (BATCH,), 3.0)
    action = actions(name + "action", (BATCH,), discrete)
    return Batch(
        observation, action, zeros, continuation, next_observation, zeros, zeros.long(), returns
    )


def noise(case: str, update: int) -> MrqNoise:
    """Without shifts of images: the authors' are the same crops, by interpolation."""
    discrete, name = CASES[case][1], f"mrq.{case}.{update}."
    gumbel = [
        -(-fixed_uniform(name + kind, (BATCH, ACTIONS)).log()).log() if discrete else None
        for kind in ("target-gumbel", "policy-gumbel")
    ]
    return MrqNoise(fixed(name + "noise", (BATCH, ACTIONS)), None, *gumbel)
