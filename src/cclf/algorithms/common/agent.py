"""The agent of an off-policy run: its policy, and evaluation environments in this process or in
workers."""

import os
from functools import partial

import torch

from cclf.config import Config
from cclf.training.agent import Agent
from cclf.training.cuda_graphs import GraphedPolicy
from cclf.training.evaluation import evaluate
from cclf.training.workers import LocalPool, Pool, WorkerPool
from cclf.types import Env, EnvFactory, Policy


def make_agent(
    config: Config, device: torch.device, make_env: EnvFactory, env: Env, policy: Policy
) -> Agent:
    """`env` is an evaluation environment, which is closed if workers make their own."""
    workers = num_eval_workers(config, device)
    pool: Pool[Env]
    if workers:
        env.close()
        pool = WorkerPool([partial(make_env, config, 0)] * workers, config.task)
    elif evaluates_between_steps(device):
        # Two, because an action is available one step after it was requested.
        pool = LocalPool([env, make_env(config, 0)])
    else:
        pool = LocalPool([env])
    acting = policy
    if device.type == "cuda" and config.run.cuda_graphs:
        acting = GraphedPolicy(policy.evaluation_action)
    stack = config.env.frame_stack
    return Agent(
        policy,
        lambda seeds, record: evaluate(pool, acting, seeds, stack, device, record),
        pool.close,
        env.spec,
    )


def num_eval_workers(config: Config, device: torch.device) -> int:
    """The number of processes that step evaluation environments. By default one for each episode, but
    no more than cores, for a policy on a GPU; none on a CPU, where they would not save time."""
    if config.run.eval_workers is not None:
        return min(config.run.eval_workers, config.run.eval_episodes)
    if device.type == "cpu":
        return 0
    return min(config.run.eval_episodes, len(os.sched_getaffinity(0)))


def evaluates_between_steps(device: torch.device) -> bool:
    """Whether the training process can evaluate without stopping training: a GPU computes updates
    while the host steps evaluation environments."""
    return device.type == "cuda"
