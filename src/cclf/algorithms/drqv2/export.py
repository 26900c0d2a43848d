"""DrQ-v2's policy for other programs, and what it answers by the run's own code."""

import torch
from torch import Tensor, nn

from cclf.algorithms.common import pixel_export
from cclf.algorithms.drqv2.drqv2 import DrQv2, make_kernels
from cclf.algorithms.drqv2.learner import make_drqv2
from cclf.config import Config
from cclf.types import EnvFactory, ExportedPolicy


class PixelPolicy(nn.Module):
    """The mean action (B, A), each in [-1, 1], for stacks of uint8 frames (B, C, H, W)."""

    def __init__(self, agent: DrQv2):
        super().__init__()
        self.encoder, self.actor = agent.encoder, agent.actor

    def forward(self, frames: Tensor) -> Tensor:
        action: Tensor = self.actor(self.encoder(frames))
        return action


def export_policy(
    policy: DrQv2, config: Config, make_env: EnvFactory, seed: int, steps: int
) -> ExportedPolicy:
    """Weights are float32 whatever a GPU computed with: that is what other programs get, and what
    they are checked against."""
    env = make_env(config, seed)
    plain = make_drqv2(config, env.spec.action_dim, torch.device("cpu"), make_kernels("fp32"))
    plain.networks.load_state_dict(policy.networks.state_dict())
    return pixel_export.export_policy(plain, PixelPolicy(plain), config, env, seed, steps)
