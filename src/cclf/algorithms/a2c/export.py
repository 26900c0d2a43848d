"""A2C's policy for other programs, and what it answers on a short rollout by the run's own code."""

import numpy as np
import torch
from torch import Tensor, nn

from cclf.algorithms.a2c.a2c import A2C
from cclf.algorithms.a2c.networks import GRID_WINDOWS, grid_windows
from cclf.config import Config
from cclf.types import EnvFactory, ExportedPolicy


class PolicyLogits(nn.Module):
    """A2C's action logits (B, A) for uint8 grids (B, 7, 7, 3)."""

    windows: Tensor

    def __init__(self, a2c: A2C):
        super().__init__()
        self.encoder, self.actor = a2c.policy.encoder, a2c.policy.actor
        self.register_buffer("windows", torch.from_numpy(GRID_WINDOWS).flatten(), persistent=False)

    def forward(self, grids: Tensor) -> Tensor:
        windows = (
            grids.flatten(1)
            .index_select(1, self.windows)
            .to(torch.float32)
            .view(-1, *GRID_WINDOWS.shape)
        )
        logits: Tensor = self.actor(self.encoder(windows))
        return logits


def export_policy(
    policy: A2C, config: Config, make_env: EnvFactory, seed: int, steps: int
) -> ExportedPolicy:
    random, worlds = np.random.default_rng(seed), make_env.vector(config, 1, seed)
    observation, seen = worlds.reset([seed]), []
    for _ in range(steps):
        seen.append(observation[0].astype(np.uint8))
        observation = worlds.step(
            policy.act(observation, random.random((1, worlds.num_actions)))
        ).observation
    worlds.close()
    observations = np.stack(seen)
    with torch.inference_mode():
        logits = policy.policy.actor(
            policy.policy.encoder(torch.from_numpy(grid_windows(observations)))
        ).numpy()
    return ExportedPolicy(PolicyLogits(policy).eval(), observations, logits, "logits")
