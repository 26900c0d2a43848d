"""Rainbow's values for other programs, and what they are on a short rollout by the run's own
code."""

import numpy as np
import torch
from torch import Tensor, nn

from cclf.algorithms.rainbow.learner import make_rainbow
from cclf.algorithms.rainbow.turn import RainbowRun
from cclf.config import Config
from cclf.envs.frame_stack import StackedEnv
from cclf.types import EnvFactory, ExportedPolicy


class QNetwork(nn.Module):
    """Rainbow's Q values (B, A) for stacks of uint8 frames (B, F, H, W), without noise."""

    def __init__(self, run: RainbowRun, config: Config):
        super().__init__()
        self.online = make_rainbow(config, run.num_actions).online
        self.online.load_state_dict(
            {name.removeprefix("online."): p for name, p in run.parameters().items()}, strict=False
        )
        self.register_buffer("valid", torch.ones(run.num_actions), persistent=False)

    def forward(self, frames: Tensor) -> Tensor:
        values: Tensor = self.online.q_values(
            self.online.head(self.online.encoder(frames), (), self.valid)
        )
        return values


def export_policy(
    policy: RainbowRun, config: Config, make_env: EnvFactory, seed: int, steps: int
) -> ExportedPolicy:
    random, seen = np.random.default_rng(seed), []
    game = StackedEnv(make_env(config, seed, True), config.env.frame_stack)
    game.reset(seed)
    for _ in range(steps):
        seen.append(game.stack)
        step = game.step(int(random.integers(policy.num_actions)))
        if step.terminated or step.truncated:
            game.reset()
    game.close()
    stacks = np.stack(seen)
    values = policy.evaluation_values(torch.from_numpy(stacks)).numpy()
    return ExportedPolicy(QNetwork(policy, config).eval(), stacks, values, "q_values")
