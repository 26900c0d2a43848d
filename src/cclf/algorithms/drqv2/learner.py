"""DrQ-v2 as the rest of the package asks for it: learners, agents, and what its replay takes."""

import torch

from cclf.algorithms.common import pixel_learner
from cclf.algorithms.common.off_policy import OffPolicyLearner
from cclf.algorithms.common.pixel_learner import kernels_for_config
from cclf.algorithms.drqv2.config import Drqv2Config
from cclf.algorithms.drqv2.drqv2 import DrQv2, DrQv2Kernels, make_kernels
from cclf.config import Config
from cclf.training.agent import Agent
from cclf.training.seeding import seeded_weights
from cclf.types import EnvFactory, EnvSpec


def make_drqv2(
    config: Config, action_dim: int, device: torch.device, compute: DrQv2Kernels | None = None
) -> DrQv2:
    with seeded_weights(config.seed):
        return DrQv2(config, action_dim, device, compute)


def make_algorithm(config: Config, spec: EnvSpec, device: torch.device) -> DrQv2:
    """The algorithm alone, as a learner of this config has it."""
    compute = kernels_for_config(config, device, make_kernels)
    return make_drqv2(config, spec.action_dim, device, compute)


def make_learner(config: Config, device: torch.device, make_env: EnvFactory) -> OffPolicyLearner:
    settings: Drqv2Config = config.algorithm
    return pixel_learner.make_learner(
        config,
        device,
        make_env,
        make_algorithm,
        graph_cycle=1,
        n_steps=settings.n_steps,
        update_every_agent_steps=settings.update_every_agent_steps,
    )


def replay_size(config: Config, spec: EnvSpec) -> tuple[int, int]:
    return pixel_learner.replay_size(config, spec, config.algorithm.n_steps)


def make_agent(
    config: Config,
    device: torch.device,
    make_env: EnvFactory,
) -> Agent:

    def make_policy(spec: EnvSpec) -> DrQv2:
        return make_drqv2(config, spec.action_dim, device)

    return pixel_learner.make_agent(config, device, make_env, make_policy)
