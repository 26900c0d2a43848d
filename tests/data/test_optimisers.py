"""Optimisers beside PyTorch's own, and a step of Adam as one function."""

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cclf.algorithms.common.optimizers import (
    Adam,
    Optimizer,
    RMSprop,
    backward_and_step,
)
from cclf.training.cuda_graphs import Compiler, uncompiled

SETTINGS = {"lr": 1e-2, "betas": (0.8, 0.95), "eps": 1e-3}
RMSPROP = {"lr": 1e-2, "alpha": 0.9, "eps": 1e-3}


def small_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1))


def assert_same(ours: list[Tensor], theirs: list[Tensor], tolerance: float) -> None:
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0.0, atol=tolerance)


@pytest.mark.parametrize(
    ("make", "pytorchs"),
    [
        (
            lambda some: Adam(some, **SETTINGS),
            lambda some: torch.optim.Adam(some, **SETTINGS, fused=True),
        ),
        (
            lambda some: RMSprop(some, **RMSPROP),
            lambda some: torch.optim.RMSprop(some, **RMSPROP, foreach=True),
        ),
    ],
)
def test_they_are_pytorchs_to_the_last_bit(
    make: Callable[..., Optimizer], pytorchs: Callable[..., torch.optim.Optimizer]
) -> None:
    theirs = small_network()
    ours = copy.deepcopy(theirs)
    optimiser, known = make(ours.parameters()), pytorchs(theirs.parameters())
    for turn in range(8):
        if turn == 4:  # what is saved and loaded goes on as if nothing had happened
            saved = optimiser.state_dict()
            optimiser = make(ours.parameters())
            optimiser.load_state_dict(saved)
        inputs = torch.randn(4, 5)
        backward_and_step(ours(inputs).square().sum(), optimiser)
        known.zero_grad()
        theirs(inputs).square().sum().backward()
        known.step()
        assert all(map(torch.equal, ours.parameters(), theirs.parameters()))
    for number, state in known.state_dict()["state"].items():
        mine = optimiser.state_dict()[str(number)]
        assert mine.keys() == state.keys()
        assert all(torch.equal(mine[name], state[name]) for name in state)


def test_loading_takes_a_copy() -> None:
    network = small_network()
    optimisers = [Adam(network.parameters(), **SETTINGS) for _ in range(2)]
    backward_and_step(network(torch.randn(4, 5)).sum(), optimisers[0])
    saved = optimisers[0].state_dict()
    before = copy.deepcopy(saved)
    optimisers[1].load_state_dict(saved)
    backward_and_step(network(torch.randn(4, 5)).sum(), optimisers[1])
    for number, state in saved.items():
        assert all(torch.equal(state[name], before[number][name]) for name in state)


def test_the_compilable_step_is_adams() -> None:
    theirs = small_network().double()
    ours = copy.deepcopy(theirs)
    adams = [
        Adam(network.parameters(), **SETTINGS, compiler=compiler)
        for network, compiler in ((theirs, None), (ours, uncompiled))
    ]
    for _ in range(8):
        inputs = torch.randn(4, 5, dtype=torch.float64)
        backward_and_step(theirs(inputs).square().sum(), adams[0])
        backward_and_step(ours(inputs).square().sum(), adams[1])
        assert_same(list(ours.parameters()), list(theirs.parameters()), 1e-14)
    for one, other in zip(*(each.state_dict().values() for each in adams), strict=True):
        for name in ("step", "exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(one[name], other[name], rtol=0.0, atol=1e-14)


def test_only_what_an_optimiser_holds_is_moved() -> None:
    network = small_network()
    first = copy.deepcopy(network[0].weight)
    backward_and_step(network(torch.randn(4, 5)).sum(), Adam(network[2].parameters(), lr=0.1))
    assert torch.equal(network[0].weight, first)
    assert all(parameter.grad is None for parameter in network.parameters())


@pytest.mark.parametrize("compiler", [None, uncompiled])
def test_steps_of_some_parameters_and_of_the_others_are_one_step_of_all(
    compiler: Compiler | None,
) -> None:
    whole = small_network()
    parted = copy.deepcopy(whole)
    adams = [Adam(network.parameters(), lr=0.1, compiler=compiler) for network in (whole, parted)]
    for _ in range(4):
        inputs = torch.randn(4, 5)
        backward_and_step(whole(inputs).square().sum(), adams[0])
        parameters = list(parted.parameters())
        gradients = torch.autograd.grad(parted(inputs).square().sum(), parameters)
        before = [parameter.detach().clone() for parameter in parameters]
        adams[1].step(parameters[2:], gradients[2:])
        assert all(map(torch.equal, parameters[:2], before[:2]))
        adams[1].step(parameters[:2], gradients[:2])
        assert all(map(torch.equal, parameters, whole.parameters()))


def test_runs_on_a_cpu_do_not_import_the_compiler(tmp_path: Path) -> None:
    """It takes a second or more of every start."""
    toy = "toy/reach-1d --warmup-agent-steps 100 --env-steps 103 --batch-size 4 --hidden-dim 8"
    code = f"""
import sys
from cclf import cli
always = "--device cpu --no-video --no-tensorboard --eval-episodes 1 --out".split()
for run in ("{toy}", "minigrid/Empty-5x5 --env-steps 400"):
    assert cli.main(["train", *run.split(), *always, {str(tmp_path)!r}]) == 0
found = [name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules]
sys.exit(" ".join(found) or 0)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
