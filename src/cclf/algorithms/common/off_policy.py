"""The learner of off-policy algorithms: one environment, a replay, and one update per step."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from cclf.algorithms.base import ReplaySize
from cclf.algorithms.common.off_policy_base import ReplaySettings
from cclf.config import Config
from cclf.data.device_transfer import AsyncHostCopy, to_device
from cclf.data.replay import Replay
from cclf.training.cuda_graphs import GraphedPolicy, GraphedUpdate
from cclf.training.devices import choose_replay_device
from cclf.training.seeding import Generators
from cclf.types import (
    Batch,
    Env,
    EnvSpec,
    EnvStep,
    Metrics,
    OffPolicyAlgorithm,
    StateDict,
    StepResult,
)


def replay_size(config: Config[ReplaySettings], spec: EnvSpec) -> ReplaySize:
    """The largest number of transitions that this run stores, and their bytes."""
    replay = _empty_replay(config, spec, torch.device("meta"))
    return ReplaySize(replay.capacity, replay.num_bytes)


def make_replay(config: Config[ReplaySettings], spec: EnvSpec, device: torch.device) -> Replay:
    """An empty replay, on the GPU that computes the updates if it fits there."""
    num_bytes = replay_size(config, spec).num_bytes
    choice = config.algorithm.replay_device
    return _empty_replay(config, spec, choose_replay_device(choice, device, num_bytes))


def _empty_replay(config: Config[ReplaySettings], spec: EnvSpec, device: torch.device) -> Replay:
    """Discrete actions are stored as one-hot vectors. A short run does not allocate the whole
    capacity."""
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
        _frame_dtype(spec),
        settings.horizon_steps,
        settings.new_priority,
        settings.priority_decay,
    )


def _frame_dtype(spec: EnvSpec) -> torch.dtype:
    return torch.float32 if spec.state_dim else torch.uint8


class OffPolicyLearner:
    """Collects one transition per step and learns from replay, in the order of the released code:
    act, update, step the environment, store the transition. (The paper's Algorithm 1 stores the
    transition before it samples.)

    The update does not use the transition of the same step, so a GPU can compute it while the
    environment steps.
    """

    def __init__(
        self,
        config: Config[ReplaySettings],
        env: Env,
        algorithm: OffPolicyAlgorithm,
        replay: Replay,
        generators: Generators,
        before_update: Callable[[Replay, Generators], None] | None = None,
    ):
        """`before_update` runs before each update, outside of CUDA graphs."""
        self.settings, self.before_update = config.algorithm, before_update
        self.env, self.algorithm, self.replay, self.generators = env, algorithm, replay, generators
        self.device, acting = generators["policy"].device, generators["act"]
        self._env_steps = torch.zeros((), dtype=torch.float64, device=self.device)
        self._run_update = self._draw_and_update
        self._collect: Callable[[Tensor], Tensor] = partial(
            algorithm.collection_action,
            env_steps=self._env_steps,
            augment_generator=acting,
            policy_generator=acting,
        )
        # A custom augmentation may do what a CUDA graph cannot repeat.
        can_use_graphs = self.settings.supports_cuda_graphs
        can_use_graphs &= config.run.cuda_graphs and not config.method.has_custom_augmentation
        if can_use_graphs and replay.device.type == "cuda":
            self._collect = GraphedPolicy(self._collect, [acting])
            streams = [generators[name] for name in ("replay", "augment", "policy")]
            self._run_update = GraphedUpdate(
                self._draw_and_update, self.settings.updates_per_cycle, algorithm, streams
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
        # Before waiting for the action, so that a GPU updates while the environment steps.
        updates_now = self.agent_steps % self.settings.update_every_agent_steps == 0
        metrics = self.update(env_steps) if updates_now else None
        action = pending_action.numpy()
        is_discrete = self.env.spec.num_actions is not None
        self.observe(action, self.env.step(int(action.argmax()) if is_discrete else action))
        finished_returns = [] if self.in_episode else [self.episode_return]
        return StepResult(1, metrics, finished_returns)

    @property
    def warming_up(self) -> bool:
        return self.agent_steps < self.settings.warmup_agent_steps

    def act(self, env_steps: int) -> AsyncHostCopy:
        # A tensor, because a CUDA graph would always repeat the value of a Python number.
        self._env_steps.fill_(env_steps)
        generator = self.generators["act"]
        if self.warming_up:
            actions = self.replay.actions.shape[1]
            uniform = torch.rand(actions, generator=generator, device=generator.device)
            if self.env.spec.num_actions is None:
                return AsyncHostCopy(uniform * 2.0 - 1.0)
            return AsyncHostCopy(one_hot(uniform.argmax(), actions).float())
        observation = to_device(self.replay.observation(), generator.device)
        return AsyncHostCopy(self._collect(observation)[0])

    def update(self, env_steps: int) -> Metrics | None:
        if self.warming_up:
            return None
        self._env_steps.fill_(env_steps)
        if self.before_update is not None:
            self.before_update(self.replay, self.generators)
        metrics = self._run_update()
        self.updates += 1
        return metrics

    def draw(self) -> tuple[Batch, Any]:
        """The inputs of an update: a batch, on the device of the replay, and its random numbers."""
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
        """Statistics over the whole replay, for the log only."""
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
