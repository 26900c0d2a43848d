"""SAC's policy for other programs, and what it answers on a short rollout by the run's own code."""

from collections import deque

import numpy as np
import torch
from torch import Tensor, nn

from cclf.bases.sac.learner import make_sac
from cclf.bases.sac.update import Sac, compute_with
from cclf.config import Config
from cclf.data.types import Answers, MakeEnv

ANSWER = "action"


class PixelPolicy(nn.Module):
    """SAC's mean action (B, A), each in [-1, 1], for stacks of whole uint8 frames (B, C, H, W)."""

    def __init__(self, sac: Sac):
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


def answers(policy: Sac, config: Config, make_env: MakeEnv, seed: int, steps: int) -> Answers:
    """Random moves: a policy that stands still would be checked on one frame alone.

    Weights are float32 whatever a GPU computed with: that is what other programs get, and what they
    are checked against.
    """
    env, random = make_env(config, seed), np.random.default_rng(seed)
    plain = make_sac(config, env.spec.action_dim, torch.device("cpu"), compute_with("fp32"))
    plain.networks.load_state_dict(policy.networks.state_dict())
    frames = deque([env.reset(seed)] * config.env.frame_stack, config.env.frame_stack)
    stacks, actions = [], []
    for _ in range(steps):
        stacks.append(np.concatenate(frames))
        actions.append(plain.evaluation_action(torch.from_numpy(stacks[-1])[None])[0].numpy())
        step = env.step(random.uniform(-1.0, 1.0, env.spec.action_dim).astype(np.float32))
        frames.append(step.frame)
        if step.terminated or step.truncated:
            break
    env.close()
    return Answers(PixelPolicy(plain).eval(), np.stack(stacks), np.stack(actions), ANSWER)
