"""SAC as the rest of the package asks for it: learners, agents, and what its replay takes."""

import math

import torch

from cclf.algorithms.common import pixel_learner
from cclf.algorithms.common.off_policy import OffPolicyLearner
from cclf.algorithms.common.pixel_learner import kernels_for_config
from cclf.algorithms.sac.config import SacConfig
from cclf.algorithms.sac.sac import SAC, SacKernels, make_kernels
from cclf.config import Config
from cclf.training.agent import Agent
from cclf.training.seeding import seeded_weights
from cclf.types import EnvFactory, EnvSpec

replay_size = pixel_learner.replay_size


def make_sac(
    config: Config,
    action_dim: int,
    device: torch.device,
    compute: SacKernels | None = None,
    state_dim: int = 0,
) -> SAC:
    """`state_dim`: see `SAC`."""
    with seeded_weights(config.seed):
        return SAC(config, action_dim, device, compute, state_dim)


def make_algorithm(config: Config, spec: EnvSpec, device: torch.device) -> SAC:
    """The algorithm alone, as a learner of this config has it."""
    compute = kernels_for_config(config, device, make_kernels)
    return make_sac(config, spec.action_dim, device, compute, spec.state_dim)


def make_learner(config: Config, device: torch.device, make_env: EnvFactory) -> OffPolicyLearner:
    settings: SacConfig = config.algorithm
    cycle = math.lcm(settings.actor_every_updates, settings.target_every_updates)
    return pixel_learner.make_learner(config, device, make_env, make_algorithm, cycle)


def make_agent(
    config: Config,
    device: torch.device,
    make_env: EnvFactory,
) -> Agent:

    def make_policy(spec: EnvSpec) -> SAC:
        return make_sac(config, spec.action_dim, device, state_dim=spec.state_dim)

    return pixel_learner.make_agent(config, device, make_env, make_policy)
