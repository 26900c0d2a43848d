"""A2C's policy for other programs, and its logits on a short rollout."""

import numpy as np
import torch
from torch import Tensor, nn

from cclf.algorithms.a2c.a2c import A2C
from cclf.algorithms.a2c.networks import GRID_WINDOWS, GridPolicy, grid_windows
from cclf.types import ExportedPolicy, VectorEnv


class PolicyLogits(nn.Module):
    """A2C's action logits (B, A) for uint8 grids (B, 7, 7, 3)."""

    windows: Tensor

    def __init__(self, policy: GridPolicy):
        super().__init__()
        self.encoder, self.actor = policy.encoder, policy.actor
        self.register_buffer("windows", torch.from_numpy(GRID_WINDOWS).flatten(), persistent=False)

    def forward(self, grids: Tensor) -> Tensor:
        windows = grids.flatten(1).index_select(1, self.windows).to(torch.float32)
        logits: Tensor = self.actor(self.encoder(windows.view(-1, *GRID_WINDOWS.shape)))
        return logits


def export_policy(a2c: A2C, env: VectorEnv, seed: int, num_steps: int) -> ExportedPolicy:
    random, grids = np.random.default_rng(seed), []
    grid = env.reset([seed])  # (1, 7, 7, 3)
    for _ in range(num_steps):
        grids.append(grid.astype(np.uint8))
        grid = env.step(a2c.act(grid, random.random((1, env.num_actions)))).observation
    env.close()
    observations, policy = np.concatenate(grids), a2c.policy
    with torch.inference_mode():
        windows = torch.from_numpy(grid_windows(observations))
        logits = policy.actor(policy.encoder(windows)).numpy()
    return ExportedPolicy(PolicyLogits(policy).eval(), observations, logits, "logits")
