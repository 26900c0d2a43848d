"""SAC's policy for other programs, and what it answers on a short rollout by the run's own code."""

import torch
from torch import Tensor, nn

from cclf.algorithms.common import pixel_export
from cclf.algorithms.sac.learner import make_sac
from cclf.algorithms.sac.sac import SAC, make_kernels
from cclf.config import Config
from cclf.types import EnvFactory, ExportedPolicy


class PixelPolicy(nn.Module):
    """SAC's mean action (B, A), each in [-1, 1], for stacks of whole uint8 frames (B, C, H, W)."""

    def __init__(self, sac: SAC):
        super().__init__()
        self.convolutions, self.head, self.trunk = (
            sac.critic.encoder.convolutions,
            sac.actor.head,
            sac.actor.trunk,
        )
        self.first, self.crop_pixels = (
            (sac.env.frame_pixels - sac.env.crop_pixels) // 2,
            sac.env.crop_pixels,
        )

    def forward(self, frames: Tensor) -> Tensor:
        last = self.first + self.crop_pixels
        centre = frames[:, :, self.first : last, self.first : last]
        mean = self.trunk(self.head(self.convolutions(centre))).chunk(2, dim=1)[0]
        return torch.tanh(mean)


class StatePolicy(nn.Module):
    """SAC's mean action (B, A), each in [-1, 1], for stacks of float32 state (B, D)."""

    def __init__(self, sac: SAC):
        super().__init__()
        self.layer = sac.critic.encoder.convolutions
        self.head, self.trunk = sac.actor.head, sac.actor.trunk

    def forward(self, states: Tensor) -> Tensor:
        return torch.tanh(self.trunk(self.head(self.layer(states))).chunk(2, dim=1)[0])


def export_policy(
    policy: SAC, config: Config, make_env: EnvFactory, seed: int, steps: int
) -> ExportedPolicy:
    """Weights are float32 whatever a GPU computed with: that is what other programs get, and what
    they are checked against."""
    env = make_env(config, seed)
    spec, compute = env.spec, make_kernels("fp32")
    plain = make_sac(config, spec.action_dim, torch.device("cpu"), compute, spec.state_dim)
    plain.networks.load_state_dict(policy.networks.state_dict())
    module = StatePolicy(plain) if spec.state_dim else PixelPolicy(plain)
    return pixel_export.export_policy(plain, module, config, env, seed, steps)
