"""SAC as the rest of the package asks for it: learners, agents, and what its replay takes."""

import math
import os
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from cclf.bases.sac.config import SacConfig
from cclf.bases.sac.update import Compute, Sac, compute_with
from cclf.config import Config
from cclf.data.replay import Replay
from cclf.data.types import Env, EnvSpec, MakeEnv, Policy
from cclf.runtime.agent import Agent
from cclf.runtime.compile import GraphedPolicy, compiled
from cclf.runtime.devices import choose_replay_device
from cclf.runtime.evaluate import evaluate
from cclf.runtime.evaluators import Evaluators
from cclf.runtime.learner import OffPolicyLearner
from cclf.runtime.seeding import Generators, derive
from cclf.runtime.workers import EnvPool, EnvWorkers, LocalEnvs, WorkerEnv


def make_sac(
    config: Config, action_dim: int, device: torch.device, compute: Compute | None = None
) -> Sac:
    # networks are drawn on the CPU: the same weights on every device
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(config.seed, "init"))
        return Sac(config, action_dim, device, compute)


def compute_for(config: Config, device: torch.device) -> Compute:
    """How an update of this run is computed: on a GPU all of it but the optimisers is compiled."""
    compiles = device.type == "cuda" and config.run.compile
    precision = config.algorithm.precision
    return compute_with(precision, compiled) if compiles else compute_with(precision)


def make_algorithm(config: Config, spec: EnvSpec, device: torch.device) -> Sac:
    """The algorithm alone, as a learner of this config has it."""
    return make_sac(config, spec.action_dim, device, compute_for(config, device))


def make_learner(config: Config, device: torch.device, make_env: MakeEnv) -> OffPolicyLearner:
    settings: SacConfig = config.algorithm
    make = partial(make_env, config, derive(config.seed, "env"))
    env: Env = WorkerEnv(make, config.task) if config.run.env_worker else make()
    shape, action_dim, _, max_steps, _ = env.spec
    transitions, size = replay_forecast(config, env.spec)
    replay_device = choose_replay_device(settings.replay_device, device, size)
    replay = Replay(
        transitions, shape, action_dim, config.env.frame_stack, max_steps, replay_device
    )
    graphed = device.type == "cuda" and replay_device == device and config.run.cuda_graphs
    return OffPolicyLearner(
        env,
        make_algorithm(config, env.spec, device),
        replay,
        Generators(config.seed, device, replay_device),
        settings.batch_size,
        settings.warmup_agent_steps,
        graph_cycle=math.lcm(settings.actor_every_updates, settings.target_every_updates)
        if graphed
        else None,
    )


def replay_forecast(config: Config, spec: EnvSpec) -> tuple[int, int]:
    """Transitions this run can ever hold, and their bytes. A short run never allocates the whole
    capacity."""
    transitions = min(
        config.algorithm.replay_capacity_transitions, max(1, config.planned_agent_steps)
    )
    shape, action_dim, _, max_steps, _ = spec
    return transitions, Replay.bytes_needed(
        transitions, shape, action_dim, config.env.frame_stack, max_steps
    )


class Shown(NamedTuple):
    """A faster way to the actions of a policy."""

    evaluation_action: Callable[[Tensor], Tensor]


def make_agent(
    config: Config,
    device: torch.device,
    make_env: MakeEnv,
    runs: int = 1,
    evaluators: Evaluators | None = None,  # noqa: ARG001 (SAC acts here, whoever steps the environments)
) -> Agent:
    """`runs`: how many share this machine's cores, each with workers of its own."""
    env = make_env(config, 0)
    sac = make_sac(config, env.spec.action_dim, device)
    workers = eval_workers(config, device, runs)
    pool: EnvPool = LocalEnvs([env])
    if workers:
        env.close()  # it was here to say what its actions are
        pool = EnvWorkers([partial(make_env, config, 0)] * workers, workers, config.task)
    elif plays_between_turns(device):  # two: an action arrives a turn after it was asked for
        pool = LocalEnvs([env, make_env(config, 0)])
    stack = config.env.frame_stack
    graphed = device.type == "cuda" and config.run.cuda_graphs
    shown: Policy = Shown(GraphedPolicy(sac.evaluation_action)) if graphed else sac
    return Agent(
        sac, lambda seeds, record: evaluate(pool, shown, seeds, stack, device, record), pool.close
    )


def eval_workers(config: Config, device: torch.device, runs: int) -> int:
    """Unless told: on a GPU one process per episode as far as there are cores; on a CPU none, since
    they would gain nothing."""
    if config.run.eval_workers is not None:
        return min(config.run.eval_workers, config.run.eval_episodes)
    if device.type == "cpu":
        return 0
    return min(config.run.eval_episodes, max(1, len(os.sched_getaffinity(0)) // runs))


def evaluates_beside_training(
    config: Config,
    device: torch.device,
    runs: int,
    evaluators: Evaluators | None,  # noqa: ARG001 (SAC has none)
) -> bool:
    return eval_workers(config, device, runs) > 0 or plays_between_turns(device)


def plays_between_turns(device: torch.device) -> bool:
    """Whether evaluation in the training process need not stop training: a GPU computes updates
    while the host steps."""
    return device.type == "cuda"
