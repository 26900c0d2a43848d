"""Rainbow's Q-network as a module for other programs, with its outputs on a short rollout."""

import numpy as np
import torch

from cclf.algorithms.rainbow.config import RainbowConfig
from cclf.algorithms.rainbow.evaluation import RainbowPolicy
from cclf.config import Config
from cclf.envs.frame_stack import StackedEnv
from cclf.types import EnvFactory, ExportedPolicy


def export_policy(
    policy: RainbowPolicy,
    config: Config[RainbowConfig],
    make_env: EnvFactory,
    seed: int,
    num_steps: int,
) -> ExportedPolicy:
    random, observations = np.random.default_rng(seed), []
    game = StackedEnv(make_env(config, seed, True), config.env.frame_stack)
    game.reset(seed)
    for _ in range(num_steps):
        observations.append(game.stack)
        step = game.step(int(random.integers(policy.num_actions)))
        if step.terminated or step.truncated:
            game.reset()
    game.close()
    stacks = np.stack(observations)
    values = policy.evaluation_values(torch.from_numpy(stacks)).numpy()
    return ExportedPolicy(policy.q_network.eval(), stacks, values, "q_values")
