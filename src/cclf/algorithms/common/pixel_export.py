"""What a policy on pixels answers to a short rollout, for a check of its exported form."""

import numpy as np
import torch
from torch import nn

from cclf.config import Config
from cclf.envs.frame_stack import FrameStack
from cclf.types import Env, ExportedPolicy, Policy

ANSWER = "action"


def export_policy(
    policy: Policy, module: nn.Module, config: Config, env: Env, seed: int, steps: int
) -> ExportedPolicy:
    """Random moves: a policy that stands still would be checked on one frame alone."""
    random = np.random.default_rng(seed)
    frames = FrameStack(config.env.frame_stack, pad="repeat")
    stacks, actions = [frames.push(env.reset(seed))], []
    for _ in range(steps):
        actions.append(policy.evaluation_action(torch.from_numpy(stacks[-1])[None])[0].numpy())
        step = env.step(random.uniform(-1.0, 1.0, env.spec.action_dim).astype(np.float32))
        if step.terminated or step.truncated:
            break
        stacks.append(frames.push(step.frame))
    env.close()
    return ExportedPolicy(
        module.eval(), np.stack(stacks[: len(actions)]), np.stack(actions), ANSWER
    )
