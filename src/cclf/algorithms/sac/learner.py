"""SAC as the rest of the package asks for it: learners, agents, and what its replay takes."""

import math

import torch

from cclf.algorithms.common import pixel_learner
from cclf.algorithms.common.off_policy import OffPolicyLearner
from cclf.algorithms.common.pixel_learner import compute_for
from cclf.algorithms.sac.config import SacConfig
from cclf.algorithms.sac.parts import Compute, compute_with
from cclf.algorithms.sac.sac import Sac
from cclf.config import Config
from cclf.training.agent import Agent
from cclf.training.evaluation_workers import Evaluators
from cclf.training.seeding import seeded_weights
from cclf.types import EnvSpec, MakeEnv

evaluates_beside_training = pixel_learner.evaluates_beside_training
replay_forecast = pixel_learner.replay_forecast


def make_sac(
    config: Config,
    action_dim: int,
    device: torch.device,
    compute: Compute | None = None,
    state_dim: int = 0,
) -> Sac:
    """`state_dim`: see `Sac`."""
    with seeded_weights(config.seed):
        return Sac(config, action_dim, device, compute, state_dim)


def make_algorithm(config: Config, spec: EnvSpec, device: torch.device) -> Sac:
    """The algorithm alone, as a learner of this config has it."""
    compute = compute_for(config, device, compute_with)
    return make_sac(config, spec.action_dim, device, compute, spec.state_dim)


def make_learner(config: Config, device: torch.device, make_env: MakeEnv) -> OffPolicyLearner:
    settings: SacConfig = config.algorithm
    cycle = math.lcm(settings.actor_every_updates, settings.target_every_updates)
    return pixel_learner.make_learner(config, device, make_env, make_algorithm, cycle)


def make_agent(
    config: Config,
    device: torch.device,
    make_env: MakeEnv,
    runs: int = 1,
    evaluators: Evaluators | None = None,  # noqa: ARG001 (SAC acts here, whoever steps the environments)
) -> Agent:

    def make_policy(spec: EnvSpec) -> Sac:
        return make_sac(config, spec.action_dim, device, state_dim=spec.state_dim)

    return pixel_learner.make_agent(config, device, make_env, make_policy, runs)
