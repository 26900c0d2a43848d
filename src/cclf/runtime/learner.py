"""How data flows from an environment to an algorithm: off-policy through replay, on-policy through rollouts.

Learners know no particular algorithm; they see the protocols of `cclf.types`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cclf.from_disk import refuse_unless, refuse_unlike
from cclf.replay import Replay
from cclf.runtime.compile import GraphedPolicy, GraphedUpdate
from cclf.runtime.seeding import Generators
from cclf.runtime.turns import whole
from cclf.transfer import ToHost, to_device
from cclf.types import (
    Advance,
    Batch,
    Env,
    EnvStep,
    Metrics,
    OffPolicyAlgorithm,
    OnPolicyAlgorithm,
    RemoteEnv,
    Rollout,
    Turn,
    UpdateResult,
    VectorEnv,
)


class OffPolicyLearner:
    """One turn is one agent step in the released code's order: act, update on replay without the step under way, see what
    came of it. (The paper's Algorithm 1 stores that step before it samples.)

    Since the update shares no data with the step under way, the two may overlap without changing anything.
    """

    def __init__(
        self,
        env: Env,
        algorithm: OffPolicyAlgorithm,
        update: Callable[[Batch, Any, Tensor], UpdateResult],
        replay: Replay,
        generators: Generators,
        batch_size: int,
        warmup_agent_steps: int,
        graph_cycle: int | None = None,
    ):
        """`update` is the algorithm's own or a faster equal of it; with `graph_cycle` it runs in that many CUDA graphs."""
        self.env, self.algorithm, self.replay, self.generators = env, algorithm, replay, generators
        self._update = update
        self._moment = torch.zeros((), dtype=torch.float64, device=generators["policy"].device)
        self._run_update = self._draw_and_update
        acting = generators["act"]
        self._collect: Callable[[Tensor], Tensor] = partial(
            algorithm.collection_action, augment_generator=acting, policy_generator=acting
        )
        if graph_cycle is not None:
            self._collect = GraphedPolicy(self._collect, [acting])
            streams = [generators[name] for name in ("replay", "augment", "policy")]
            self._run_update = GraphedUpdate(self._draw_and_update, graph_cycle, algorithm.count_updates, streams)
        self.metric_names = (*algorithm.metric_names, "priority_entropy_share")
        self.batch_size, self.warmup_agent_steps = batch_size, warmup_agent_steps
        self.agent_steps = 0
        self.updates = 0
        self.in_episode = False
        self.episode_return = 0.0

    def advance(self, env_steps: int) -> Advance:
        return whole(self.turn(env_steps))

    def turn(self, env_steps: int) -> Turn:
        if not self.in_episode:
            self.replay.begin_episode(self.env.reset())
            self.in_episode, self.episode_return = True, 0.0
        chosen = self.act()
        yield  # a GPU works in order: actions of all runs first, so that no environment waits for another run's update
        metrics = self.update(env_steps)  # before the action is waited for: a GPU goes on with it while the environment steps
        yield
        action = chosen.numpy()
        if isinstance(self.env, RemoteEnv):
            answer = self.env.begin_step(action)
            yield
            step = answer()
        else:
            step = self.env.step(action)
        self.observe(action, step)
        finished = [] if self.in_episode else [self.episode_return]
        return Advance(1, metrics, finished)

    @property
    def warming_up(self) -> bool:
        return self.agent_steps < self.warmup_agent_steps

    def act(self) -> ToHost:
        generator = self.generators["act"]
        if self.warming_up:
            uniform = torch.rand(self.env.spec.action_dim, generator=generator, device=generator.device)
            return ToHost(uniform * 2.0 - 1.0)
        observation = to_device(self.replay.observation(), generator.device)
        return ToHost(self._collect(observation)[0])

    def update(self, env_steps: int) -> Metrics | None:
        if self.warming_up:
            return None
        self._moment.fill_(env_steps)  # time reaches a graph as a tensor: a number would be frozen in it
        metrics = self._run_update()
        self.updates += 1
        return metrics

    def _draw_and_update(self) -> Metrics:
        generators = self.generators
        batch = self.replay.sample(self.batch_size, generators["replay"])
        noise = self.algorithm.draw_noise(self.batch_size, generators["augment"], generators["policy"])
        metrics, priority = self._update(batch.to(self._moment.device), noise, self._moment)
        if priority is not None:
            self.replay.set_priorities(batch.slot, priority.to(batch.slot.device))
        return metrics

    def observe(self, action: np.ndarray, step: EnvStep) -> None:
        self.replay.add(action, step.reward, step.terminated, step.frame)
        self.agent_steps += 1
        self.episode_return += step.reward
        self.in_episode = not (step.terminated or step.truncated)

    def slow_metrics(self) -> dict[str, float]:
        """Statistics over the whole replay, for the log only."""
        return {"priority_entropy_share": self.replay.priority_entropy_share()}

    def close(self) -> None:
        self.env.close()

    _PARTS = ("env", "algorithm", "replay", "generators")
    _COUNTERS = ("agent_steps", "updates", "in_episode", "episode_return")

    def state_dict(self) -> dict[str, Any]:
        parts = {name: getattr(self, name).state_dict() for name in self._PARTS}
        return parts | {name: getattr(self, name) for name in self._COUNTERS}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in self._COUNTERS:
            setattr(self, name, state[name])
        for name in self._PARTS[1:]:
            getattr(self, name).load_state_dict(state[name])
        if state["env"]:
            self.env.load_state_dict(state["env"])
        else:  # an environment that cannot be saved: the cut-off episode is left as it is, a new one begins
            self.in_episode = False


class OnPolicyLearner:
    """One turn is a rollout of T steps in N environments, and one update on it."""

    def __init__(self, env: VectorEnv, algorithm: OnPolicyAlgorithm, random: np.random.Generator, rollout_steps: int):
        self.env, self.algorithm, self.random, self.rollout_steps = env, algorithm, random, rollout_steps
        self.metric_names = algorithm.metric_names
        self.updates = 0
        self.observation: np.ndarray | None = None
        self.episode_returns = np.zeros(env.num_envs)

    def advance(self, env_steps: int) -> Advance:
        return whole(self.turn(env_steps))

    def turn(self, env_steps: int) -> Turn:
        rollout, finished = self.collect()
        yield
        metrics = self.algorithm.update(rollout, torch.tensor(float(env_steps), dtype=torch.float64))
        self.updates += 1
        return Advance(rollout.action.size, metrics, finished)

    def collect(self) -> tuple[Rollout, list[float]]:
        """T steps in each environment, and the returns of the episodes that ended there."""
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

    def slow_metrics(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        self.env.close()

    def state_dict(self) -> dict[str, Any]:
        return {
            "env": self.env.state_dict(),
            "algorithm": self.algorithm.state_dict(),
            "random": self.random.bit_generator.state,
            "updates": self.updates,
            "observation": self.observation,
            "episode_returns": self.episode_returns,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        seen = state["observation"]
        begun = state["env"]["started"]
        refuse_unless(begun is (seen is not None), "observation and env disagree whether a first episode has begun")
        if seen is not None:
            refuse_unlike(np.zeros((self.env.num_envs, *self.env.observation_shape), np.uint8), seen, "observation")
        self.env.load_state_dict(state["env"])
        self.algorithm.load_state_dict(state["algorithm"])
        self.random.bit_generator.state = state["random"]
        self.updates = state["updates"]
        self.observation, self.episode_returns = state["observation"], state["episode_returns"]
