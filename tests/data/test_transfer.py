"""Copies between host and GPU: what arrives, and that nothing but the action is waited for."""

import contextlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from cclf.algorithms.registry import make_learner
from cclf.data.device_transfer import AsyncHostCopy, to_device
from cclf.data.replay import Replay
from rainbow_inputs import batched_learner, tiny
from tiny_runs import CPU, tiny_config

CUDA = torch.device("cuda")


@contextlib.contextmanager
def nothing_waits():
    """PyTorch raises where an operation would wait for the GPU."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_copies_on_a_cpu_are_ready_immediately():
    tensor = torch.arange(3)
    assert to_device(tensor, CPU) is tensor
    copy = AsyncHostCopy(tensor)
    assert copy.ready()
    assert copy.numpy().tolist() == [0, 1, 2]


@pytest.mark.gpu
def test_host_copy_has_the_values_at_the_time_of_the_request():
    tensor = to_device(torch.arange(4), CUDA)
    assert tensor.is_cuda
    copy = AsyncHostCopy(tensor)
    tensor.add_(100)
    assert copy.numpy().tolist() == [0, 1, 2, 3]


@pytest.mark.gpu
def test_item_assignment_synchronizes():
    """Why replay fills numbers in."""
    rewards = torch.zeros(5, device=CUDA)
    with nothing_waits(), pytest.raises(RuntimeError, match="synchroniz"):
        rewards[2] = 1.5
    with nothing_waits():
        rewards[2].fill_(1.5)


@pytest.mark.gpu
def test_replay_add_does_not_synchronize():
    replay = Replay(3, (3, 8, 8), 2, 3, 4, CUDA)
    replay.begin_episode(np.zeros((3, 8, 8), np.uint8))
    with nothing_waits():
        for number in range(6):  # beyond its capacity
            replay.add(
                np.zeros(2, np.float32),
                float(number),
                number == 2,
                np.full((3, 8, 8), number, np.uint8),
            )


@pytest.mark.gpu
def test_a_step_of_sac_synchronizes_for_its_action_only():
    config = tiny_config(env_steps=200)
    learner = make_learner(
        replace(config, run=replace(config.run, device="cuda", compile=False)), CUDA
    )
    for agent_steps in range(40):  # beyond the warm-up and the capture of CUDA graphs
        learner.step(agent_steps)
    assert learner.in_episode
    with nothing_waits():
        learner.step(40)


@pytest.mark.gpu
def test_a_step_of_batched_runs_synchronizes_for_its_actions_only():
    config = tiny("cclf")
    configs = [
        replace(config, seed=seed, run=replace(config.run, compile=False, env_steps=200))
        for seed in (1, 2)
    ]
    learner = batched_learner(configs, CUDA, workers=2)
    for turn in range(30):
        learner.step(turn)
    with nothing_waits():
        learner.step(30)
    learner.games.close()
