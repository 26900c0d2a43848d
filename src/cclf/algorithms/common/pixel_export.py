"""What a policy on pixels answers to a short rollout, for a check of its exported form."""

from collections import deque

import numpy as np
import torch
from torch import nn

from cclf.config import Config
from cclf.types import Env, ExportedPolicy, Policy

ANSWER = "action"


def export_policy(
    policy: Policy, module: nn.Module, config: Config, env: Env, seed: int, steps: int
) -> ExportedPolicy:
    """Random moves: a policy that stands still would be checked on one frame alone."""
    random = np.random.default_rng(seed)
    frames = deque([env.reset(seed)] * config.env.frame_stack, config.env.frame_stack)
    stacks, actions = [], []
    for _ in range(steps):
        stacks.append(np.concatenate(frames))
        actions.append(policy.evaluation_action(torch.from_numpy(stacks[-1])[None])[0].numpy())
        step = env.step(random.uniform(-1.0, 1.0, env.spec.action_dim).astype(np.float32))
        frames.append(step.frame)
        if step.terminated or step.truncated:
            break
    env.close()
    return ExportedPolicy(module.eval(), np.stack(stacks), np.stack(actions), ANSWER)
