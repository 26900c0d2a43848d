"""Rainbow's update under `curl` against numbers of CURL's own code with the same weights, batches,
noise and crops."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cclf import presets
from cclf.algorithms.rainbow import equations as rainbow_equations
from cclf.algorithms.rainbow.batched import BatchedRainbow
from cclf.algorithms.rainbow.networks import LayerNoise
from cclf.algorithms.rainbow.rainbow import RainbowNoise
from cclf.algorithms.rainbow.replay import NStepReplay
from cclf.types import GameBatch
from golden_inputs import fixed, fixed_integers, fixed_uniform, largest_error, summary

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "curl_rainbow.json").read_text())
BATCH, HIDDEN, ACTIONS, ATOMS, UPDATES, BETA = 8, 16, 3, 51, 3, 0.55
LAYERS = {
    "fc_h_a": (576, HIDDEN),
    "fc_z_a": (HIDDEN, ACTIONS * ATOMS),
    "fc_h_v": (576, HIDDEN),
    "fc_z_v": (HIDDEN, ATOMS),
}
"""The head's layers in our order, by the names of the original: inputs and outputs."""


def initial(network: str, name: str, shape: tuple[int, ...]) -> Tensor:
    """A parameter before the first update, in the layout of CURL's code."""
    full = f"{network}.{name}"
    if name in ("W_h", "W_c", "W"):
        return fixed_uniform(full, shape) * (0.1 if name == "W" else 0.2)
    if name in ("b_h", "b_c") or name.endswith(("bias", "bias_mu")):
        return fixed(full, shape, 0.1)
    if name.endswith("sigma"):
        return 0.02 + 0.08 * fixed_uniform(full, shape)
    return fixed(full, shape, (2.0 if "convs" in name else 1.0) / math.sqrt(math.prod(shape[1:])))


def parameters_by_their_names(rainbow: BatchedRainbow, network: str) -> dict[str, Tensor]:
    """Views of our parameters under the names of CURL's code, with its order of entries: channels
    before pixels."""
    ours = rainbow.runs[0].networks.state_dict()
    prefix = "online." if network == "online" else f"{network}_"
    found = {}
    for number, (filters, channels) in enumerate(((32, 4), (64, 32))):
        weight = ours[f"{prefix}encoder.weights.{number}"].view(filters, 5, 5, channels)
        found[f"convs.{2 * number}.weight"] = weight.permute(0, 3, 1, 2)
        found[f"convs.{2 * number}.bias"] = ours[f"{prefix}encoder.biases.{number}"]
    if network != "target":
        found["W_h"] = (
            ours[f"{prefix}projection.hidden_weight"].view(HIDDEN, 3, 3, 64).permute(3, 1, 2, 0)
        )
        found["b_h"] = ours[f"{prefix}projection.hidden_bias"]
        found["W_c"] = ours[f"{prefix}projection.weight"].T
        found["b_c"] = ours[f"{prefix}projection.bias"]
    if network != "momentum":
        for number, (name, (inputs, _)) in enumerate(LAYERS.items()):
            for theirs, kind in (("mu", "mean"), ("sigma", "sigma")):
                weight = ours[f"{prefix}head.layers.{number}.weight_{kind}"]
                found[f"{name}.weight_{theirs}"] = (
                    channels_first(weight) if inputs == 576 else weight
                )
                found[f"{name}.bias_{theirs}"] = ours[f"{prefix}head.layers.{number}.bias_{kind}"]
    if network == "online":
        found["W"] = ours["framework.bilinear"]
    return found


def channels_first(weight: Tensor) -> Tensor:
    """A view (n, 64, 3, 3) of a weight (n, 576) that multiplies the encoder's features."""
    return weight.view(-1, 3, 3, 64).permute(0, 3, 1, 2)


def make(task: str) -> BatchedRainbow:
    config = presets.resolve(task, "curl")
    sizes = {"hidden_dim": HIDDEN, "contrastive_hidden_dim": HIDDEN, "batch_size": BATCH}
    config = replace(config, algorithm=replace(config.algorithm, **sizes))
    rainbow = BatchedRainbow([config], [ACTIONS], torch.device("cpu"), torch.float64)
    # the atoms are computed in float32
    rainbow.module.online.support.copy_(torch.linspace(-10.0, 10.0, ATOMS, dtype=torch.float64))
    for network in ("online", "target", "momentum"):
        for name, view in parameters_by_their_names(rainbow, network).items():
            view.copy_(initial(network, name, tuple(view.shape)))
    return rainbow


def head_noise(network: str, update: int) -> tuple[LayerNoise, ...]:
    layers = []
    for name, (inputs, outputs) in LAYERS.items():
        into = rainbow_equations.noise_factor(
            fixed(f"noise.{network}.{name}.in.{update}", (inputs,))
        )
        into = into.view(64, 3, 3).permute(1, 2, 0).flatten() if inputs == 576 else into
        layers.append(
            LayerNoise(
                into[None],
                rainbow_equations.noise_factor(
                    fixed(f"noise.{network}.{name}.out.{update}", (outputs,))
                )[None],
            )
        )
    return tuple(layers)


def noise_of(update: int) -> RainbowNoise:
    places = fixed_integers(f"shift.{update}", 0, 5, (2, BATCH, 2, 2))
    shifts = ((places.double() + 0.5) / 5)[None]  # the uniform numbers that lead to these places
    none = torch.zeros(1, 1)
    return RainbowNoise(
        head_noise("online", update), head_noise("target", update), shifts, shifts, none, none, none
    )


def images(name: str) -> Tensor:
    return fixed_integers(name, 0, 256, (BATCH, 4, 84, 84)).to(torch.uint8)


def batch_of(update: int) -> GameBatch:
    continuation = torch.ones(BATCH, dtype=torch.float64)
    continuation[2] = 0.0
    parts = GameBatch(
        observation=images(f"observation.{update}"),
        action=fixed_integers(f"action.{update}", 0, ACTIONS, (BATCH,)),
        reward=torch.zeros(BATCH, dtype=torch.float64),
        n_step_return=fixed(f"return.{update}", (BATCH,), 2.0),
        continuation=continuation,
        next_observation=images(f"next_observation.{update}"),
        priority=0.2 + 0.8 * fixed_uniform(f"priority.{update}", (BATCH,)),
        slot=torch.arange(BATCH),
    )
    return GameBatch(*(part[None] for part in parts))


@pytest.mark.parametrize(("task", "game"), [("atari/Freeway", "freeway"), ("atari/Alien", "alien")])
def test_three_updates_equal_those_of_curls_code(task: str, game: str) -> None:
    """The two games have different contrastive coefficients; in the second update the gradient is
    clipped."""
    rainbow, golden = make(task), GOLDEN[game]
    beta, clock = torch.tensor(BETA, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for update, theirs in enumerate(golden["updates"]):
        metrics, priority = rainbow.update(batch_of(update), noise_of(update), clock, beta)
        assert largest_error(metrics["contrastive_loss"][0], theirs["contrastive_loss"]) < 1e-9
        assert largest_error(metrics["gradient_norm"][0], theirs["gradient_norm"]) < 1e-6, (
            "it clips the same norm"
        )
        assert largest_error(priority[0], theirs["priority"]) < 1e-9
        networks = ("online", "momentum")
        ours = {
            f"{network}.{name}": part
            for network in networks
            for name, part in parameters_by_their_names(rainbow, network).items()
        }
        assert ours.keys() == theirs["parameters"].keys()
        for name, part in ours.items():
            assert largest_error(summary(part), theirs["parameters"][name]) < 1e-8, (
                f"{name} after update {update + 1}"
            )


def test_q_values_with_and_without_noise_equal_those_of_curls_code() -> None:
    rainbow, golden = make("atari/Freeway"), GOLDEN["freeway"]
    beta, clock = torch.tensor(BETA, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for update in range(UPDATES):
        rainbow.update(batch_of(update), noise_of(update), clock, beta)
    inputs = rainbow.rows["online"][0], images(f"observation.{UPDATES - 1}")
    noise = tuple(
        LayerNoise(layer.inputs[0], layer.outputs[0]) for layer in head_noise("online", UPDATES)
    )
    with torch.no_grad():
        assert (
            largest_error(
                rainbow.q_values(*inputs, noise, rainbow.action_mask[0]), golden["q_with_noise"]
            )
            < 1e-9
        )
        assert (
            largest_error(
                rainbow.q_values(*inputs, (), rainbow.action_mask[0]), golden["q_without_noise"]
            )
            < 1e-9
        )


@pytest.mark.parametrize("moment", GOLDEN["replay"], ids=["young", "full"])
def test_replay_samples_equal_those_of_curls_code(moment: dict[str, Any]) -> None:
    """With the n-step bug of CURL's code; without it only `continuation` may differ:
    tests/algorithms/test_replay_nstep.py tests where."""
    steps = 150
    ended = fixed_uniform("replay.ended", (steps,)) < 0.12
    reward, action = (
        fixed_integers("replay.reward", -1, 2, (steps,)),
        fixed_integers("replay.action", 0, 6, (steps,)),
    )
    replay = NStepReplay(1, 60, (4, 1, 1), 5, 0.99, n_step_bug=True, device=torch.device("cpu"))
    assert replay.slots == 64
    age = 0
    for step in range(moment["steps"]):
        replay.add(
            torch.full((1, 1, 1), step + 1, dtype=torch.uint8),
            action[step : step + 1],
            torch.tensor([age]),
        )
        replay.add_reward(reward[step : step + 1].float(), ended[step : step + 1])
        age = 0 if ended[step] else age + 1
    slots = torch.tensor([row[0] for row in moment["transitions"]])
    assert torch.nonzero(replay.sampling_weights()[0]).flatten().tolist() == slots.tolist()
    ours = replay.gather(slots[None])
    for number, (_, stack, taken, returned, next_stack, nonterminal) in enumerate(
        moment["transitions"]
    ):
        assert ours.observation[0, number].flatten().tolist() == stack
        assert ours.action[0, number] == taken
        assert ours.n_step_return[0, number].item() == pytest.approx(returned, abs=1e-6)
        assert ours.continuation[0, number] == nonterminal
        assert ours.next_observation[0, number].flatten().tolist() == next_stack
