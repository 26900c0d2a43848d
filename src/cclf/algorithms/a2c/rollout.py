"""The learner of A2C, which collects a rollout in all environments and makes one update on it, and the
agent, which is evaluated and exported."""

from collections.abc import Sequence

import numpy as np
import torch

from cclf.algorithms.a2c.a2c import A2C
from cclf.algorithms.a2c.config import A2cConfig
from cclf.algorithms.a2c.networks import PolicyLogits, grid_windows
from cclf.config import Config
from cclf.errors import ConfigError
from cclf.storage.safe_loading import check_data, check_same_structure, load_state
from cclf.training.agent import Agent
from cclf.training.evaluation import EvaluationSteps, evaluate_vector
from cclf.training.seeding import derive
from cclf.types import (
    EnvFactory,
    EnvSpec,
    ExportedPolicy,
    Rollout,
    StateDict,
    StepResult,
    VectorEnv,
)

GRID_SHAPE = (7, 7, 3)  # of an observation of MiniGrid


def make_learner(config: Config[A2cConfig], make_env: EnvFactory) -> "RolloutLearner":
    """The learner of a run, with its training environments."""
    settings, seed = config.algorithm, derive(config.seed, "env")
    envs = make_vector_env(config, make_env, settings.num_envs, seed)
    random = np.random.default_rng(derive(config.seed, "act"))
    return RolloutLearner(envs, A2C(config, envs.num_actions), random, settings.rollout_steps)


def load_learner(
    config: Config[A2cConfig], make_env: EnvFactory, state: StateDict
) -> "RolloutLearner":
    """The learner of a run in the state of its checkpoint."""
    learner = make_learner(config, make_env)
    load_state(learner, state, "learner")
    return learner


def make_agent(config: Config[A2cConfig], make_env: EnvFactory) -> Agent:
    """The policy of a run, with evaluation environments of its own."""
    envs = make_vector_env(config, make_env, config.run.eval_episodes, seed=0)
    policy = A2C(config, envs.num_actions)

    def evaluate(seeds: Sequence[int], record: bool) -> EvaluationSteps:
        return evaluate_vector(envs, policy, seeds, derive(seeds[0], "act"), record)

    spec = EnvSpec(envs.observation_shape, 1, 1, None, envs.num_actions)
    return Agent(policy, evaluate, envs.close, spec)


def make_vector_env(config: Config, make_env: EnvFactory, num_envs: int, seed: int) -> VectorEnv:
    try:
        envs = make_env.vector(config, num_envs, seed)
    except (ValueError, ImportError) as error:
        raise ConfigError(str(error)) from error
    shape = tuple(envs.observation_shape)
    if shape != GRID_SHAPE:
        raise ConfigError(
            f"{config.task} has observations of shape {shape}: A2C needs MiniGrid's {GRID_SHAPE}"
        )
    return envs


class RolloutLearner:
    """Each step is a rollout of T steps in N environments, and one update on it."""

    def __init__(
        self, env: VectorEnv, algorithm: A2C, random: np.random.Generator, rollout_steps: int
    ):
        self.env, self.algorithm, self.random = env, algorithm, random
        self.rollout_steps = rollout_steps
        self.metric_names = algorithm.metric_names
        self.updates = 0
        self.observation: np.ndarray | None = None
        self.episode_returns = np.zeros(env.num_envs)

    def step(self, env_steps: int) -> StepResult:
        rollout, finished = self.collect()
        permutation = None
        if self.algorithm.needs_permutation:
            permutation = torch.from_numpy(self.random.permutation(rollout.action.size))
        steps = torch.tensor(float(env_steps), dtype=torch.float64)
        metrics = self.algorithm.update(rollout, steps, permutation)
        self.updates += 1
        return StepResult(rollout.action.size, metrics, finished)

    def collect(self) -> tuple[Rollout, list[float]]:
        """A rollout of T steps in each environment, and the returns of the episodes that ended in it."""
        steps, envs = self.rollout_steps, self.env.num_envs
        now = self.env.reset() if self.observation is None else self.observation
        uniform = self.random.random((steps, envs, self.env.num_actions))
        observation = np.empty((steps + 1, *now.shape), now.dtype)
        action = np.empty((steps, envs), np.int64)
        reward, ended = np.empty((steps, envs), np.float32), np.empty((steps, envs), bool)
        finished: list[float] = []
        for t in range(steps):
            observation[t] = now
            action[t] = self.algorithm.act(now, uniform[t])
            now, reward[t], terminated, truncated = self.env.step(action[t])
            np.logical_or(terminated, truncated, out=ended[t])
            self.episode_returns += reward[t]
            if ended[t].any():
                finished += self.episode_returns[ended[t]].tolist()
                self.episode_returns[ended[t]] = 0.0
        observation[steps] = self.observation = now
        return Rollout(observation, action, reward, ended), finished

    def replay_metrics(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        self.env.close()

    def state_dict(self) -> StateDict:
        return {
            "env": self.env.state_dict(),
            "algorithm": self.algorithm.state_dict(),
            "random": self.random.bit_generator.state,
            "updates": self.updates,
            "observation": self.observation,
            "episode_returns": self.episode_returns,
        }

    def load_state_dict(self, state: StateDict) -> None:
        observation, started = state["observation"], state["env"]["started"]
        check_data(
            started is (observation is not None),
            "observation and env disagree whether a first episode has begun",
        )
        if observation is not None:
            shape = (self.env.num_envs, *self.env.observation_shape)
            check_same_structure(np.zeros(shape, np.uint8), observation, "observation")
        self.env.load_state_dict(state["env"])
        self.algorithm.load_state_dict(state["algorithm"])
        self.random.bit_generator.state = state["random"]
        self.updates = state["updates"]
        self.observation, self.episode_returns = observation, state["episode_returns"]


def export_policy(a2c: A2C, env: VectorEnv, seed: int, num_steps: int) -> ExportedPolicy:
    """The policy for other programs, and its logits on a short rollout."""
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
