"""A learner without replay, for plugins: it acts, steps the environment, and updates on that transition."""

from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from cclf.envs.frame_stack import StackedEnv
from cclf.types import Env, HasState, Metrics, StateDict, StepResult


class Transition(NamedTuple):
    observation: Tensor  # (F, H, W) uint8
    action: int
    reward: float
    next_observation: Tensor  # (F, H, W) uint8
    terminated: bool  # False at a time limit, where the target still bootstraps


class OnlineAlgorithm(HasState, Protocol):
    """Discrete actions, one transition at a time. All random numbers come from `random`."""

    metric_names: tuple[str, ...]

    def act(self, observation: Tensor, random: np.random.Generator) -> int: ...
    def update(self, transition: Transition) -> Metrics: ...


class OnlineLearner:
    """Each step is one agent step and one update on its transition."""

    def __init__(
        self,
        env: Env,
        algorithm: OnlineAlgorithm,
        random: np.random.Generator,
        frame_stack: int,
    ):
        self.env, self.algorithm, self.random = StackedEnv(env, frame_stack), algorithm, random
        self.metric_names = algorithm.metric_names
        self.updates = 0
        self.in_episode = False
        self.game_return = 0.0

    def step(self, env_steps: int) -> StepResult:  # noqa: ARG002 (no schedule depends on it)
        if not self.in_episode:
            self.env.reset()
        observation = torch.from_numpy(self.env.stack)
        action = self.algorithm.act(observation, self.random)
        step = self.env.step(action)
        self.in_episode = not (step.terminated or step.truncated)
        next_observation = torch.from_numpy(self.env.stack)
        metrics = self.algorithm.update(
            Transition(observation, action, step.reward, next_observation, step.terminated)
        )
        self.updates += 1
        self.game_return += step.unclipped_reward
        finished = []
        if step.game_over or step.truncated:
            finished, self.game_return = [self.game_return], 0.0
        return StepResult(1, metrics, finished)

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
            "in_episode": self.in_episode,
            "game_return": self.game_return,
        }

    def load_state_dict(self, state: StateDict) -> None:
        restored = self.env.load_state_dict(state["env"])
        self.algorithm.load_state_dict(state["algorithm"])
        self.random.bit_generator.state = state["random"]
        self.updates, self.in_episode = state["updates"], state["in_episode"] and restored
        self.game_return = state["game_return"] if restored else 0.0
