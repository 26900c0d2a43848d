"""Rainbow's update under `curl` against the figures of CURL's own code on the same weights, batches, noise and crops."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cclf import build, equations, presets
from cclf.algorithms.rainbow import RainbowNoise
from cclf.algorithms.rainbow_stack import RainbowStack
from cclf.nets_rainbow import LayerNoise
from cclf.replay_nstep import NStepReplay
from cclf.types import GameBatch
from golden_inputs import fixed, fixed_integers, fixed_uniform, largest_error, summary

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "curl_rainbow.json").read_text())
BATCH, HIDDEN, ACTIONS, ATOMS, UPDATES, BETA = 8, 16, 3, 51, 3, 0.55
LAYERS = {"fc_h_a": (576, HIDDEN), "fc_z_a": (HIDDEN, ACTIONS * ATOMS), "fc_h_v": (576, HIDDEN), "fc_z_v": (HIDDEN, ATOMS)}
"""The head's layers in our order, by the names of the original: inputs and outputs."""


def initial(network: str, name: str, shape: tuple[int, ...]) -> Tensor:
    """A parameter before the first update, in the original's layout."""
    full = f"{network}.{name}"
    if name in ("W_h", "W_c", "W"):
        return fixed_uniform(full, shape) * (0.1 if name == "W" else 0.2)
    if name in ("b_h", "b_c") or name.endswith(("bias", "bias_mu")):
        return fixed(full, shape, 0.1)
    if name.endswith("sigma"):
        return 0.02 + 0.08 * fixed_uniform(full, shape)
    return fixed(full, shape, (2.0 if "convs" in name else 1.0) / math.sqrt(math.prod(shape[1:])))


def pixels_first(weight: Tensor, channels: int, side: int) -> Tensor:
    """(n, C s s), as the original counts, to (n, s s C)."""
    return weight.view(-1, channels, side, side).permute(0, 2, 3, 1).flatten(1)


def channels_first(weight: Tensor, channels: int, side: int) -> Tensor:
    return weight.view(-1, side, side, channels).permute(0, 3, 1, 2).flatten(1)


def originals(parameters: dict[str, Tensor], network: str) -> dict[str, Tensor]:
    """Our parameters under the original's names and in its layout."""
    encoder, projection = (f"{network}{'.' if network == 'online' else '_'}{part}" for part in ("encoder", "projection"))
    found = {
        "convs.0.weight": channels_first(parameters[f"{encoder}.weights.0"], 4, 5),
        "convs.2.weight": channels_first(parameters[f"{encoder}.weights.1"], 32, 5),
        "convs.0.bias": parameters[f"{encoder}.biases.0"],
        "convs.2.bias": parameters[f"{encoder}.biases.1"],
        "W_h": channels_first(parameters[f"{projection}.hidden_weight"], 64, 3).T,
        "b_h": parameters[f"{projection}.hidden_bias"],
        "W_c": parameters[f"{projection}.weight"].T,
        "b_c": parameters[f"{projection}.bias"],
    }
    if network == "online":
        found["W"] = parameters["framework.bilinear"]
        for number, (name, (inputs, _)) in enumerate(LAYERS.items()):
            for theirs, ours in (("mu", "mean"), ("sigma", "sigma")):
                weight = parameters[f"online.head.layers.{number}.weight_{ours}"]
                found[f"{name}.weight_{theirs}"] = channels_first(weight, 64, 3) if inputs == 576 else weight
                found[f"{name}.bias_{theirs}"] = parameters[f"online.head.layers.{number}.bias_{ours}"]
    return found


def set_initial(parameters: dict[str, Tensor], group: str) -> None:
    """Each of our parameters from the original's by name."""
    for name, parameter in parameters.items():
        parts = name.replace("_", ".", 1).split(".") if group != "online" else name.split(".")
        kind, rest = parts[1], parts[2:]
        if name == "framework.bilinear":
            value = initial("online", "W", (128, 128))
        elif kind == "encoder":
            number, part = int(rest[1]), rest[0]
            filters, channels = ((32, 4), (64, 32))[number]
            weight = part == "weights"
            original = f"convs.{2 * number}.{'weight' if weight else 'bias'}"
            value = initial(group, original, (filters, channels, 5, 5) if weight else (filters,))
            value = pixels_first(value.flatten(1), channels, 5) if weight else value
        elif kind == "projection":
            original = {"hidden_weight": "W_h", "hidden_bias": "b_h", "weight": "W_c", "bias": "b_c"}[rest[0]]
            shape = {"W_h": (576, HIDDEN), "b_h": (HIDDEN,), "W_c": (HIDDEN, 128), "b_c": (128,)}[original]
            value = initial(group, original, shape)
            value = pixels_first(value.T.contiguous(), 64, 3) if original == "W_h" else value.T if value.ndim == 2 else value
        else:
            layer, (inputs, outputs) = list(LAYERS.items())[int(rest[1])]
            part, of = rest[2].split("_")
            shape = (outputs, inputs) if part == "weight" else (outputs,)
            value = initial(group, f"{layer}.{part}_{'mu' if of == 'mean' else 'sigma'}", shape)
            value = pixels_first(value, 64, 3) if shape == (outputs, 576) else value
        parameter.copy_(value)


def make(task: str) -> RainbowStack:
    config = presets.resolve(task, "curl")
    sizes = {"hidden_dim": HIDDEN, "contrastive_hidden_dim": HIDDEN, "batch_size": BATCH}
    config = replace(config, algorithm=replace(config.algorithm, **sizes))
    stack = build.make_rainbow_stack([config], [ACTIONS], torch.device("cpu"), torch.float64)
    support = stack.template.online.support
    support.copy_(torch.linspace(-10.0, 10.0, ATOMS, dtype=torch.float64))  # it was made in float32, like everything
    for group in ("online", "target", "momentum"):
        set_initial({name: row[0] for name, row in views_of(stack, group).items()}, group)
    return stack


def views_of(stack: RainbowStack, group: str) -> dict[str, Tensor]:
    """Parameters (1, ...) that are views of the stack's rows."""
    row, layout = stack.rows[group].detach(), stack.layouts[group]
    parts = torch.split(row, layout.sizes, dim=1)
    return {name: part.view(1, *shape) for (name, shape), part in zip(layout.shapes.items(), parts, strict=True)}


def head_noise(network: str, update: int) -> tuple[LayerNoise, ...]:
    layers = []
    for name, (inputs, outputs) in LAYERS.items():
        into = equations.noise_factor(fixed(f"noise.{network}.{name}.in.{update}", (inputs,)))
        into = pixels_first(into[None], 64, 3)[0] if inputs == 576 else into
        layers.append(
            LayerNoise(into[None], equations.noise_factor(fixed(f"noise.{network}.{name}.out.{update}", (outputs,)))[None])
        )
    return tuple(layers)


def noise_of(update: int) -> RainbowNoise:
    places = fixed_integers(f"shift.{update}", 0, 5, (2, BATCH, 2, 2))
    shifts = ((places.double() + 0.5) / 5)[None]  # the uniform numbers that lead to these places
    none = torch.zeros(1, 1)
    return RainbowNoise(head_noise("online", update), head_noise("target", update), shifts, shifts, none, none)


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
def test_three_updates_in_a_row_are_those_of_the_original(task: str, game: str) -> None:
    """The two games have different contrastive coefficients; in the second update the gradient is clipped."""
    stack, golden = make(task), GOLDEN[game]
    beta, clock = torch.tensor(BETA, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for update, theirs in enumerate(golden["updates"]):
        metrics, priority = stack.update(batch_of(update), noise_of(update), clock, beta)
        assert largest_error(metrics["contrastive_loss"][0], theirs["contrastive_loss"]) < 1e-9
        assert largest_error(metrics["gradient_norm"][0], theirs["gradient_norm"]) < 1e-6, "it clips the same norm"
        assert largest_error(priority[0], theirs["priority"]) < 1e-9
        ours: dict[str, Tensor] = {}
        for network in ("online", "momentum"):
            parameters = {name: part[0] for name, part in views_of(stack, network).items()}
            ours |= {f"{network}.{name}": part for name, part in originals(parameters, network).items()}
        assert ours.keys() == theirs["parameters"].keys()
        for name, part in ours.items():
            assert largest_error(summary(part), theirs["parameters"][name]) < 1e-8, f"{name} after update {update + 1}"


def test_values_with_and_without_noise_are_those_of_the_original() -> None:
    stack, golden = make("atari/Freeway"), GOLDEN["freeway"]
    beta, clock = torch.tensor(BETA, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for update in range(UPDATES):
        stack.update(batch_of(update), noise_of(update), clock, beta)
    seen, network = images(f"observation.{UPDATES - 1}"), stack.network(0)
    noise = tuple(LayerNoise(layer.inputs[0], layer.outputs[0]) for layer in head_noise("online", UPDATES))
    with torch.no_grad():
        assert largest_error(network(seen, noise, stack.valid[0]), golden["q_with_noise"]) < 1e-9
        assert largest_error(network(seen, (), stack.valid[0]), golden["q_without_noise"]) < 1e-9


@pytest.mark.parametrize("moment", GOLDEN["replay"], ids=["young", "full"])
def test_what_replay_gives_is_what_the_original_gives(moment: dict[str, Any]) -> None:
    """With the original's slip; without it only `continuation` may differ, as tests/test_replay_nstep.py says where."""
    steps = 150
    ended = fixed_uniform("replay.ended", (steps,)) < 0.12
    reward, action = fixed_integers("replay.reward", -1, 2, (steps,)), fixed_integers("replay.action", 0, 6, (steps,))
    replay = NStepReplay(1, 60, (1, 1), 4, 5, 0.99, n_step_slip=True, device=torch.device("cpu"))
    assert replay.slots == 64
    age = 0
    for step in range(moment["steps"]):
        replay.add(torch.full((1, 1, 1), step + 1, dtype=torch.uint8), action[step : step + 1], torch.tensor([age]))
        replay.add_outcome(reward[step : step + 1].float(), ended[step : step + 1])
        age = 0 if ended[step] else age + 1
    slots = torch.tensor([row[0] for row in moment["transitions"]])
    assert torch.nonzero(replay.drawable()[0]).flatten().tolist() == slots.tolist()
    ours = replay.gather(slots[None])
    for number, (_, stack, taken, returned, next_stack, nonterminal) in enumerate(moment["transitions"]):
        assert ours.observation[0, number].flatten().tolist() == stack
        assert ours.action[0, number] == taken
        assert ours.n_step_return[0, number].item() == pytest.approx(returned, abs=1e-6)
        assert ours.continuation[0, number] == nonterminal
        assert ours.next_observation[0, number].flatten().tolist() == next_stack
