"""Optimizers compared with PyTorch's, and another optimizer in a run."""

import copy
import subprocess
import sys
from collections.abc import Callable, Iterable
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
from cclf.algorithms.common.pixel_actor_critic import PixelActorCritic
from cclf.storage.run_folder import read_checkpoint
from cclf.training.cuda_graphs import Compiler, uncompiled
from tiny_runs import differing, run, tiny_config

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
def test_optimizers_are_bitwise_equal_to_pytorchs(
    make: Callable[..., Optimizer], pytorchs: Callable[..., torch.optim.Optimizer]
) -> None:
    theirs = small_network()
    ours = copy.deepcopy(theirs)
    optimizer, known = make(ours.parameters()), pytorchs(theirs.parameters())
    for number in range(8):
        if number == 4:  # saving and loading changes nothing
            saved = optimizer.state_dict()
            optimizer = make(ours.parameters())
            optimizer.load_state_dict(saved)
        inputs = torch.randn(4, 5)
        backward_and_step(ours(inputs).square().sum(), optimizer)
        known.zero_grad()
        theirs(inputs).square().sum().backward()
        known.step()
        assert all(map(torch.equal, ours.parameters(), theirs.parameters()))
    for number, state in known.state_dict()["state"].items():
        mine = optimizer.state_dict()[str(number)]
        assert mine.keys() == state.keys()
        assert all(torch.equal(mine[name], state[name]) for name in state)


def test_load_state_dict_copies_the_state() -> None:
    network = small_network()
    optimizers = [Adam(network.parameters(), **SETTINGS) for _ in range(2)]
    backward_and_step(network(torch.randn(4, 5)).sum(), optimizers[0])
    saved = optimizers[0].state_dict()
    before = copy.deepcopy(saved)
    optimizers[1].load_state_dict(saved)
    backward_and_step(network(torch.randn(4, 5)).sum(), optimizers[1])
    for number, state in saved.items():
        assert all(torch.equal(state[name], before[number][name]) for name in state)


def test_adam_step_equals_the_fused_adam() -> None:
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


@pytest.mark.parametrize("compiler", [None, uncompiled])
def test_steps_of_two_parameter_subsets_equal_one_step_of_all(
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


class Lion(Optimizer):
    """The example of "Another optimizer" in docs/design.md (Chen et al., 2023)."""

    state_names = ("momentum",)

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.99),
        *,
        compiler: Compiler | None,  # noqa: ARG002 (for optimizers with a step that can be compiled)
    ):
        super().__init__(parameters, lr)
        self.betas = betas

    def apply(
        self,
        parameters: list[Tensor],
        gradients: list[Tensor],
        states: list[list[Tensor]],
        steps: list[Tensor],
    ) -> None:
        beta1, beta2 = self.betas
        for parameter, gradient, momentum, step in zip(
            parameters, gradients, *states, steps, strict=True
        ):
            parameter -= self.lr * momentum.lerp(gradient, 1.0 - beta1).sign()
            momentum.lerp_(gradient, 1.0 - beta2)
            step += 1.0


@pytest.mark.quick("sac-cclf")
@pytest.mark.parametrize(("base", "method"), [("sac", "cclf"), ("drqv2", "drq-v2+cclf")])
def test_another_optimizer_is_one_class_and_one_line(
    base: str, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PixelActorCritic, "optimizer_class", Lion)
    config = tiny_config(method=method, base=base)
    run(config, tmp_path / "whole")
    run(config, tmp_path / "parts", stop_at=35)
    run(config, tmp_path / "parts")
    whole, parts = (read_checkpoint(tmp_path / name)["learner"] for name in ("whole", "parts"))
    assert not differing(whole, parts)
    for optimizer in parts["algorithm"]["optimisers"].values():
        for state in optimizer.values():
            assert state.keys() == {"step", "momentum"}
            assert state["momentum"].any()


@pytest.mark.slow("test_cli.py::test_signal_saves_the_run_and_the_same_command_resumes")
def test_cpu_runs_do_not_import_the_compiler(tmp_path: Path) -> None:
    """Its import takes a second or more of every start."""
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
