"""The learner of off-policy algorithms, with one environment and a replay, and the agent of such a
run, whose evaluation environments are in this process or in workers."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from cclf.algorithms.common.off_policy_base import ReplaySettings
from cclf.config import Config
from cclf.data.device_transfer import AsyncHostCopy, to_device
from cclf.data.replay import Replay
from cclf.training.agent import Agent
from cclf.training.cuda_graphs import GraphedPolicy, GraphedUpdate
from cclf.training.evaluation import evaluate
from cclf.training.seeding import Generators
from cclf.training.workers import LocalPool, Pool, WorkerPool
from cclf.types import (
    Batch,
    Env,
    EnvFactory,
    EnvSpec,
    EnvStep,
    Metrics,
    OffPolicyAlgorithm,
    Policy,
    StateDict,
    StepResult,
)


def make_replay(config: Config[ReplaySettings], spec: EnvSpec, device: torch.device) -> Replay:
    """An empty replay, which stores discrete actions as one-hot vectors. Its capacity is at most the
    number of transitions of the run."""
    settings = config.algorithm
    return Replay(
        min(settings.replay_capacity_transitions, max(1, config.planned_agent_steps)),
        spec.frame_shape,
        spec.num_actions or spec.action_dim,
        config.env.frame_stack,
        spec.max_episode_agent_steps,
        device,
        settings.n_steps,
        settings.discount,
        torch.float32 if spec.state_dim else torch.uint8,
        settings.horizon_steps,
        settings.new_priority,
        settings.priority_decay,
    )


class ReplayAlgorithm(OffPolicyAlgorithm, Protocol):
    """An algorithm that an `OffPolicyLearner` can train."""

    def before_update(self, replay: Replay, generators: Generators) -> None:
        """Called before each update, outside of CUDA graphs."""


class OffPolicyLearner:
    """Collects one transition per step and learns from replay, in the order of the authors' code:
    act, update, step the environment, store the transition. (The paper's Algorithm 1 stores the
    transition before it samples.)

    The update does not use the transition of the same step, so a GPU can compute it while the
    environment steps.
    """

    def __init__(
        self,
        config: Config[ReplaySettings],
        env: Env,
        algorithm: ReplayAlgorithm,
        replay: Replay,
        generators: Generators,
    ):
        self.settings = config.algorithm
        self.env, self.algorithm, self.replay, self.generators = env, algorithm, replay, generators
        self.device, act_generator = generators["policy"].device, generators["act"]
        self._env_steps = torch.zeros((), dtype=torch.float64, device=self.device)
        self._run_update = self._draw_and_update
        self._select_action: Callable[[Tensor], Tensor] = partial(
            algorithm.collection_action,
            env_steps=self._env_steps,
            augment_generator=act_generator,
            policy_generator=act_generator,
        )
        # A custom augmentation may run code that a CUDA graph cannot capture.
        can_use_graphs = self.settings.supports_cuda_graphs
        can_use_graphs &= config.run.cuda_graphs and not config.method.has_custom_augmentation
        if can_use_graphs and replay.device.type == "cuda":
            self._select_action = GraphedPolicy(self._select_action, [act_generator])
            rngs = [generators[name] for name in ("replay", "augment", "policy")]
            self._run_update = GraphedUpdate(
                self._draw_and_update, self.settings.updates_per_cycle, algorithm, rngs
            )
        self.metric_names = (*algorithm.metric_names, "priority_entropy_share")
        self.agent_steps = 0
        self.updates = 0
        self.in_episode = False
        self.episode_return = 0.0

    def step(self, env_steps: int) -> StepResult:
        if not self.in_episode:
            self.replay.begin_episode(self.env.reset())
            self.in_episode, self.episode_return = True, 0.0
        pending_action = self.act(env_steps)
        # The update starts before the wait for the action: a GPU computes it during the env step.
        is_update_step = self.agent_steps % self.settings.update_every_agent_steps == 0
        metrics = self.update(env_steps) if is_update_step else None
        action = pending_action.numpy()
        is_discrete = self.env.spec.num_actions is not None
        self.observe(action, self.env.step(int(action.argmax()) if is_discrete else action))
        finished_returns = [] if self.in_episode else [self.episode_return]
        return StepResult(agent_steps=1, metrics=metrics, finished_returns=finished_returns)

    @property
    def warming_up(self) -> bool:
        return self.agent_steps < self.settings.warmup_agent_steps

    def act(self, env_steps: int) -> AsyncHostCopy:
        # `_env_steps` is a tensor because a CUDA graph captures Python numbers as constants.
        self._env_steps.fill_(env_steps)
        generator = self.generators["act"]
        if self.warming_up:
            action_dim = self.replay.actions.shape[1]
            uniform = torch.rand(action_dim, generator=generator, device=generator.device)
            if self.env.spec.num_actions is None:
                return AsyncHostCopy(uniform * 2.0 - 1.0)
            return AsyncHostCopy(one_hot(uniform.argmax(), action_dim).float())
        observation = to_device(self.replay.observation(), generator.device)
        return AsyncHostCopy(self._select_action(observation)[0])

    def update(self, env_steps: int) -> Metrics | None:
        if self.warming_up:
            return None
        self._env_steps.fill_(env_steps)
        self.algorithm.before_update(self.replay, self.generators)
        metrics = self._run_update()
        self.updates += 1
        return metrics

    def draw(self) -> tuple[Batch, Any]:
        """Sample the inputs of an update: a batch on the replay's device, and random numbers."""
        generators, batch_size = self.generators, self.settings.batch_size
        batch = self.replay.sample(batch_size, generators["replay"])
        return batch, self.algorithm.draw_noise(
            batch_size, generators["augment"], generators["policy"]
        )

    def _draw_and_update(self) -> Metrics:
        batch, noise = self.draw()
        metrics, priority = self.algorithm.update(batch.to(self.device), noise, self._env_steps)
        if priority is not None:
            self.replay.set_priorities(batch.slot, priority.to(batch.slot.device))
        return metrics

    def observe(self, action: np.ndarray, step: EnvStep) -> None:
        self.replay.add(action, step.reward, step.terminated, step.frame)
        self.agent_steps += 1
        self.episode_return += step.reward
        self.in_episode = not (step.terminated or step.truncated)

    def replay_metrics(self) -> dict[str, float]:
        """Metrics of the whole replay, which are only logged."""
        return {"priority_entropy_share": self.replay.priority_entropy_share()}

    def close(self) -> None:
        self.env.close()

    def state_dict(self) -> StateDict:
        return {
            "env": self.env.state_dict(),
            "algorithm": self.algorithm.state_dict(),
            "replay": self.replay.state_dict(),
            "generators": self.generators.state_dict(),
            "agent_steps": self.agent_steps,
            "updates": self.updates,
            "in_episode": self.in_episode,
            "episode_return": self.episode_return,
        }

    def load_state_dict(self, state: StateDict) -> None:
        self.agent_steps, self.updates = state["agent_steps"], state["updates"]
        self.in_episode, self.episode_return = state["in_episode"], state["episode_return"]
        self.algorithm.load_state_dict(state["algorithm"])
        self.replay.load_state_dict(state["replay"])
        self.generators.load_state_dict(state["generators"])
        # If the environment cannot be restored, the next step begins a new episode. The unfinished one
        # stays in the replay, neither terminated nor truncated.
        if not state["env"] or self.env.load_state_dict(state["env"]) is False:
            self.in_episode = False


def make_agent(
    config: Config, device: torch.device, make_env: EnvFactory, env: Env, policy: Policy
) -> Agent:
    """An agent that acts with `policy` in evaluation environments. `env` is one of them; it is closed
    if workers make the environments instead."""
    workers = num_eval_workers(config, device)
    pool: Pool[Env]
    if workers:
        env.close()
        pool = WorkerPool([partial(make_env, config, 0)] * workers, config.task)
    elif evaluates_between_steps(device):
        # An action arrives one training step after its request; two episodes advance in that time.
        pool = LocalPool([env, make_env(config, 0)])
    else:
        pool = LocalPool([env])
    evaluated_policy = policy
    if device.type == "cuda" and config.run.cuda_graphs:
        evaluated_policy = GraphedPolicy(policy.evaluation_action)
    stack = config.env.frame_stack
    return Agent(
        policy,
        lambda seeds, record: evaluate(pool, evaluated_policy, seeds, stack, device, record),
        pool.close,
        env.spec,
    )


def num_eval_workers(config: Config, device: torch.device) -> int:
    """The number of processes that step evaluation environments. By default, a run on a GPU has
    one per episode but at most one per core, and a run on a CPU none, as they would save no time."""
    if config.run.eval_workers is not None:
        return min(config.run.eval_workers, config.run.eval_episodes)
    if device.type == "cpu":
        return 0
    return min(config.run.eval_episodes, len(os.sched_getaffinity(0)))


def evaluates_between_steps(device: torch.device) -> bool:
    """Whether the training process itself evaluates between training steps. With a GPU this does
    not stop training, since the GPU computes updates while the CPU steps evaluation environments."""
    return device.type == "cuda"
