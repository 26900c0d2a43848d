"""The learner of off-policy algorithms: one environment, a replay, and one update per step."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from cclf.algorithms.base import ReplaySize
from cclf.algorithms.common.off_policy_base import OffPolicySettings
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


def replay_size(config: Config[OffPolicySettings], spec: EnvSpec, n_steps: int = 1) -> ReplaySize:
    """The transitions that this run can ever hold, and their bytes. A short run never allocates the
    whole capacity."""
    capacity, planned = config.algorithm.replay_capacity_transitions, config.planned_agent_steps
    transitions = min(capacity, max(1, planned))
    num_bytes = Replay.bytes_needed(
        transitions,
        spec.frame_shape,
        spec.num_actions or spec.action_dim,
        config.env.frame_stack,
        spec.max_episode_agent_steps,
        n_steps,
        _frame_dtype(spec),
    )
    return ReplaySize(transitions, num_bytes)


def make_replay(
    config: Config[OffPolicySettings],
    spec: EnvSpec,
    device: torch.device,
    n_steps: int = 1,
    horizon_steps: int = 0,
    new_priority: Literal["one", "max"] = "one",
    priority_decay: float = 1.0,
) -> Replay:
    """An empty replay, on the GPU of the updates where it fits. It stores discrete actions as one-hot
    vectors."""
    size = replay_size(config, spec, max(n_steps, horizon_steps))
    return Replay(
        size.transitions,
        spec.frame_shape,
        spec.num_actions or spec.action_dim,
        config.env.frame_stack,
        spec.max_episode_agent_steps,
        choose_replay_device(config.algorithm.replay_device, device, size.num_bytes),
        n_steps,
        config.algorithm.discount,
        _frame_dtype(spec),
        horizon_steps,
        new_priority,
        priority_decay,
    )


def uses_cuda_graphs(config: Config, replay_device: torch.device) -> bool:
    """Whether updates run in CUDA graphs. A custom augmentation may do what a graph cannot repeat."""
    graphs = replay_device.type == "cuda" and config.run.cuda_graphs
    return graphs and not config.method.has_custom_augmentation


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
        env: Env,
        algorithm: OffPolicyAlgorithm,
        replay: Replay,
        generators: Generators,
        batch_size: int,
        warmup_agent_steps: int,
        graph_cycle: int | None = None,
        update_every_agent_steps: int = 1,
        before_update: Callable[[Replay, Generators], None] | None = None,
    ):
        """With `graph_cycle` updates run in CUDA graphs: every `graph_cycle`-th update launches the
        same kernels. `before_update` runs before each update, outside of the graphs."""
        self.env, self.algorithm, self.replay, self.generators = env, algorithm, replay, generators
        self.device = generators["policy"].device
        self._env_steps = torch.zeros((), dtype=torch.float64, device=self.device)
        self._run_update = self._draw_and_update
        acting = generators["act"]
        self._collect: Callable[[Tensor], Tensor] = partial(
            algorithm.collection_action,
            env_steps=self._env_steps,
            augment_generator=acting,
            policy_generator=acting,
        )
        if graph_cycle is not None:
            self._collect = GraphedPolicy(self._collect, [acting])
            streams = [generators[name] for name in ("replay", "augment", "policy")]
            self._run_update = GraphedUpdate(self._draw_and_update, graph_cycle, algorithm, streams)
        self.metric_names = (*algorithm.metric_names, "priority_entropy_share")
        self.batch_size, self.warmup_agent_steps = batch_size, warmup_agent_steps
        self.update_every_agent_steps = update_every_agent_steps
        self.before_update = before_update
        self.agent_steps = 0
        self.updates = 0
        self.in_episode = False
        self.episode_return = 0.0

    def step(self, env_steps: int) -> StepResult:
        if not self.in_episode:
            self.replay.begin_episode(self.env.reset())
            self.in_episode, self.episode_return = True, 0.0
        chosen = self.act(env_steps)
        # before waiting for the action: a GPU computes the update while the environment steps
        updates_now = self.agent_steps % self.update_every_agent_steps == 0
        metrics = self.update(env_steps) if updates_now else None
        action = chosen.numpy()
        is_discrete = self.env.spec.num_actions is not None
        self.observe(action, self.env.step(int(action.argmax()) if is_discrete else action))
        finished = [] if self.in_episode else [self.episode_return]
        return StepResult(1, metrics, finished)

    @property
    def warming_up(self) -> bool:
        return self.agent_steps < self.warmup_agent_steps

    def act(self, env_steps: int) -> AsyncHostCopy:
        # a tensor, because a CUDA graph would keep the value of a Python number
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
        generators = self.generators
        batch = self.replay.sample(self.batch_size, generators["replay"])
        return batch, self.algorithm.draw_noise(
            self.batch_size, generators["augment"], generators["policy"]
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
        # If the environment cannot be saved or restored, its episode is cut off without an end, and
        # the next step begins a new one.
        if not state["env"] or self.env.load_state_dict(state["env"]) is False:
            self.in_episode = False
