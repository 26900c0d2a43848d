"""The policies of SAC and DrQ-v2 for other programs, and their actions on a short rollout."""

from collections import deque

import numpy as np
import torch
from torch import Tensor, nn

from cclf.algorithms.common.off_policy_base import OffPolicySettings
from cclf.algorithms.common.pixel_actor_critic import PixelActorCritic
from cclf.types import Env, ExportedPolicy


class GreedyPolicy(nn.Module):
    """The mean action (B, A), each in [-1, 1], for stacks of uncropped uint8 frames (B, C, H, W) or
    for float32 states (B, D)."""

    def __init__(self, encoder: nn.Module, actor: nn.Module, crop: slice | None = None):
        """`crop`: the rows and columns of a frame that the encoder reads, by default all."""
        super().__init__()
        self.encoder, self.actor, self.crop = encoder, actor, crop

    def forward(self, observations: Tensor) -> Tensor:
        if self.crop is not None:
            observations = observations[:, :, self.crop, self.crop]
        action: Tensor = self.actor(self.encoder(observations))
        return action


def export_policy(
    policy: PixelActorCritic[OffPolicySettings],
    env: Env,
    frame_stack: int,
    seed: int,
    num_steps: int,
) -> ExportedPolicy:
    """The policy and its actions on a rollout. The environment executes random actions, so that the
    observations differ even if those of the policy do not change anything."""
    random = np.random.default_rng(seed)
    frames = deque([env.reset(seed)] * frame_stack, frame_stack)
    stacks, actions = [], []
    for _ in range(num_steps):
        stacks.append(np.concatenate(frames))
        actions.append(policy.evaluation_action(torch.from_numpy(stacks[-1])[None])[0].numpy())
        step = env.step(random.uniform(-1.0, 1.0, env.spec.action_dim).astype(np.float32))
        frames.append(step.frame)
        if step.terminated or step.truncated:
            break
    env.close()
    module = policy.greedy_policy().eval()
    return ExportedPolicy(module, np.stack(stacks), np.stack(actions), "action")
