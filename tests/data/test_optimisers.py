"""A step of Adam as one function, beside PyTorch's."""

import copy

import pytest
import torch
from torch import nn

from cclf.data.optimisers import Move, adam_step, descend, step


def test_the_compilable_step_is_adams() -> None:
    torch.manual_seed(0)
    theirs = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)).double()
    ours = copy.deepcopy(theirs)
    settings = {"lr": 1e-2, "betas": (0.8, 0.95), "eps": 1e-3}
    adams = [torch.optim.Adam(network.parameters(), **settings) for network in (theirs, ours)]
    for _ in range(8):
        inputs = torch.randn(4, 5, dtype=torch.float64)
        descend(theirs(inputs).square().sum(), adams[0])
        descend(ours(inputs).square().sum(), adams[1], move=adam_step)
        for one, other in zip(theirs.parameters(), ours.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=0.0, atol=1e-14)
    for one, other in zip(*(adam.state_dict()["state"].values() for adam in adams), strict=True):
        for name in ("step", "exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(one[name], other[name], rtol=0.0, atol=1e-14)


def test_only_what_an_optimiser_holds_is_moved() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    first = copy.deepcopy(network[0].weight)
    adam = torch.optim.Adam(network[1].parameters(), lr=0.1)
    descend(network(torch.randn(4, 3)).sum(), adam)
    assert torch.equal(network[0].weight, first)
    assert all(parameter.grad is None for parameter in network.parameters())


@pytest.mark.parametrize("move", [None, adam_step])
def test_steps_of_some_parameters_and_of_the_others_are_one_step_of_all(move: Move | None) -> None:
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1))
    parted = copy.deepcopy(whole)
    adams = [torch.optim.Adam(network.parameters(), lr=0.1) for network in (whole, parted)]
    for _ in range(4):
        inputs = torch.randn(4, 5)
        descend(whole(inputs).square().sum(), adams[0], move=move)
        parameters = list(parted.parameters())
        gradients = torch.autograd.grad(parted(inputs).square().sum(), parameters)
        before = [parameter.detach().clone() for parameter in parameters]
        step(adams[1], parameters[2:], gradients[2:], move)
        assert all(map(torch.equal, parameters[:2], before[:2]))
        step(adams[1], parameters[:2], gradients[:2], move)
        assert all(map(torch.equal, parameters, whole.parameters()))
