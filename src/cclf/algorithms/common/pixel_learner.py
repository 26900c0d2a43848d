"""Learners and agents that base algorithms on pixels (or state) with continuous actions share: one
environment, replay, and evaluation beside training."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from cclf.algorithms.common.off_policy import OffPolicyLearner
from cclf.config import Config
from cclf.data.replay import Replay
from cclf.training.agent import Agent
from cclf.training.cuda_graphs import GraphedPolicy, compiled
from cclf.training.devices import choose_replay_device
from cclf.training.evaluation import evaluate
from cclf.training.seeding import Generators, derive
from cclf.training.workers import EnvPool, EnvWorkers, LocalEnvs
from cclf.types import Env, EnvFactory, EnvSpec, OffPolicyAlgorithm, Policy

Compute = TypeVar("Compute")
MakeAlgorithm = Callable[[Config, EnvSpec, torch.device], OffPolicyAlgorithm]


def kernels_for_config(
    config: Config, device: torch.device, compute_with: Callable[..., Compute]
) -> Compute:
    """How an update of this run is computed: on a GPU all of it is compiled."""
    compiles = device.type == "cuda" and config.run.compile
    precision = config.algorithm.precision
    return compute_with(precision, compiled) if compiles else compute_with(precision)


def make_learner(
    config: Config,
    device: torch.device,
    make_env: EnvFactory,
    make_algorithm: MakeAlgorithm,
    graph_cycle: int,
    n_steps: int = 1,
    update_every_agent_steps: int = 1,
) -> OffPolicyLearner:
    """`graph_cycle`: after how many updates the next one computes the same again."""
    settings = config.algorithm
    env: Env = make_env(config, derive(config.seed, "env"))
    shape, action_dim, _, max_steps, _ = env.spec
    transitions, size = replay_size(config, env.spec, n_steps)
    replay_device = choose_replay_device(settings.replay_device, device, size)
    stack, stored = config.env.frame_stack, (n_steps, settings.discount, frame_dtype(env.spec))
    replay = Replay(transitions, shape, action_dim, stack, max_steps, replay_device, *stored)
    graphed = device.type == "cuda" and replay_device == device and config.run.cuda_graphs
    return OffPolicyLearner(
        env,
        make_algorithm(config, env.spec, device),
        replay,
        Generators(config.seed, device, replay_device),
        settings.batch_size,
        settings.warmup_agent_steps,
        graph_cycle if graphed else None,
        update_every_agent_steps,
    )


def replay_size(config: Config, spec: EnvSpec, n_steps: int = 1) -> tuple[int, int]:
    """Transitions this run can ever hold, and their bytes. A short run never allocates the whole
    capacity."""
    transitions = min(
        config.algorithm.replay_capacity_transitions, max(1, config.planned_agent_steps)
    )
    shape, action_dim, _, max_steps, _ = spec
    return transitions, Replay.bytes_needed(
        transitions,
        shape,
        action_dim,
        config.env.frame_stack,
        max_steps,
        n_steps,
        frame_dtype(spec),
    )


def frame_dtype(spec: EnvSpec) -> torch.dtype:
    return torch.float32 if spec.state_dim else torch.uint8


class Shown(NamedTuple):
    """A faster way to the actions of a policy."""

    evaluation_action: Callable[[Tensor], Tensor]


def make_agent(
    config: Config,
    device: torch.device,
    make_env: EnvFactory,
    make_policy: Callable[[EnvSpec], Any],
) -> Agent:
    """The agent of a run, with evaluation environments in this process or in workers."""
    env = make_env(config, 0)
    policy = make_policy(env.spec)
    workers = num_eval_workers(config, device)
    pool: EnvPool = LocalEnvs([env])
    if workers:
        env.close()  # it was here to say what its actions are
        pool = EnvWorkers([partial(make_env, config, 0)] * workers, workers, config.task)
    elif evaluates_between_steps(device):  # two: an action arrives a turn after it was asked for
        pool = LocalEnvs([env, make_env(config, 0)])
    stack = config.env.frame_stack
    graphed = device.type == "cuda" and config.run.cuda_graphs
    shown: Policy = Shown(GraphedPolicy(policy.evaluation_action)) if graphed else policy
    return Agent(
        policy,
        lambda seeds, record: evaluate(pool, shown, seeds, stack, device, record),
        pool.close,
        env.spec,
    )


def num_eval_workers(config: Config, device: torch.device) -> int:
    """Processes that step evaluation environments. By default there is one for each episode on a
    GPU, as far as there are cores, and none on a CPU, where they would not save time."""
    if config.run.eval_workers is not None:
        return min(config.run.eval_workers, config.run.eval_episodes)
    if device.type == "cpu":
        return 0
    return min(config.run.eval_episodes, len(os.sched_getaffinity(0)))


def evaluates_asynchronously(config: Config, device: torch.device) -> bool:
    return num_eval_workers(config, device) > 0 or evaluates_between_steps(device)


def evaluates_between_steps(device: torch.device) -> bool:
    """Whether the training process can evaluate without stopping training: a GPU computes updates
    while the host steps evaluation environments."""
    return device.type == "cuda"
