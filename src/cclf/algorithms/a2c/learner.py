"""A2C as the rest of the package asks for it: learners and agents. It keeps no replay and needs no
GPU."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from cclf.algorithms.a2c.a2c import A2C
from cclf.algorithms.a2c.config import A2cConfig
from cclf.algorithms.a2c.rollout import RolloutLearner
from cclf.config import Config
from cclf.errors import ConfigError
from cclf.training.agent import Agent
from cclf.training.evaluation import evaluate_vector
from cclf.training.seeding import derive, seeded_weights
from cclf.types import EnvFactory, EnvSpec, VectorEnv


def make_a2c(config: Config, num_actions: int) -> A2C:
    with seeded_weights(config.seed):
        return A2C(config, num_actions)


def make_vector_env(config: Config, make_env: EnvFactory, num_envs: int, seed: int) -> VectorEnv:
    try:
        worlds = make_env.vector(config, num_envs, seed)
    except (ValueError, ImportError) as error:
        raise ConfigError(str(error)) from error
    if tuple(worlds.observation_shape) != (7, 7, 3):
        shape = worlds.observation_shape
        raise ConfigError(
            f"{config.task} shows {shape}: A2C here reads MiniGrid's 7x7x3 grids alone"
        )
    return worlds


def make_learner(
    config: Config,
    device: torch.device,  # noqa: ARG001 (always on the CPU)
    make_env: EnvFactory,
) -> RolloutLearner:
    settings: A2cConfig = config.algorithm
    worlds = make_vector_env(config, make_env, settings.num_envs, derive(config.seed, "env"))
    random = np.random.default_rng(derive(config.seed, "act"))
    return RolloutLearner(
        worlds, make_a2c(config, worlds.num_actions), random, settings.rollout_steps
    )


def make_agent(
    config: Config,
    device: torch.device,  # noqa: ARG001
    make_env: EnvFactory,
) -> Agent:
    worlds = make_vector_env(config, make_env, config.run.eval_episodes, seed=0)
    a2c = make_a2c(config, worlds.num_actions)

    def rounds(seeds: Sequence[int], record: bool) -> Any:
        return evaluate_vector(worlds, a2c, seeds, derive(seeds[0], "act"), record)

    spec = EnvSpec(worlds.observation_shape, 1, 1, None, worlds.num_actions)
    return Agent(a2c, rounds, worlds.close, spec)
