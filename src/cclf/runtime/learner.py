"""Off-policy learning: acts, keeps transitions in replay, and hands batches to the algorithm. Knows no particular algorithm."""

from typing import Any

import numpy as np
import torch

from cclf.replay import Replay
from cclf.runtime.seeding import Generators
from cclf.types import EnvStep, Metrics, OffPolicyAlgorithm, Policy


class OffPolicyLearner:
    """In the order of one agent step: `act`, `update` on replay without the step under way, then `observe` what came of it."""

    def __init__(
        self,
        algorithm: OffPolicyAlgorithm,
        replay: Replay,
        generators: Generators,
        batch_size: int,
        warmup_agent_steps: int,
        action_dim: int,
    ):
        self.algorithm = algorithm
        self.policy: Policy = algorithm
        self.metric_names = (*algorithm.metric_names, "priority_entropy_share")
        self.replay, self.generators = replay, generators
        self.batch_size, self.warmup_agent_steps, self.action_dim = batch_size, warmup_agent_steps, action_dim
        self.agent_steps = 0
        self.updates = 0

    @property
    def warming_up(self) -> bool:
        return self.agent_steps < self.warmup_agent_steps

    def begin_episode(self, frame: np.ndarray) -> None:
        self.replay.begin_episode(frame)

    def act(self) -> np.ndarray:
        if self.warming_up:
            generator = self.generators["act"]
            uniform = torch.rand(self.action_dim, generator=generator, device=generator.device)
            return (uniform * 2.0 - 1.0).cpu().numpy()
        observation = self.replay.observation().to(self.generators["act"].device)
        return self.algorithm.collection_action(observation, self.generators["act"], self.generators["act"])[0].cpu().numpy()

    def update(self, env_steps: int) -> Metrics | None:
        if self.warming_up:
            return None
        generators = self.generators
        device = generators["policy"].device
        batch = self.replay.sample(self.batch_size, generators["replay"])
        noise = self.algorithm.draw_noise(self.batch_size, generators["augment"], generators["policy"])
        metrics, priority = self.algorithm.update(
            batch.to(device), noise, torch.tensor(float(env_steps), dtype=torch.float64, device=device)
        )
        if priority is not None:
            self.replay.set_priorities(batch.slot, priority.to(batch.slot.device))
        self.updates += 1
        return metrics

    def observe(self, action: np.ndarray, step: EnvStep) -> None:
        self.replay.add(action, step.reward, step.terminated, step.frame)
        self.agent_steps += 1

    def slow_metrics(self) -> dict[str, float]:
        """Statistics over the whole replay, for the log only."""
        return {"priority_entropy_share": self.replay.priority_entropy_share()}

    def state_dict(self) -> dict[str, Any]:
        parts = {name: getattr(self, name).state_dict() for name in ("algorithm", "replay", "generators")}
        return parts | {"agent_steps": self.agent_steps, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("algorithm", "replay", "generators"):
            getattr(self, name).load_state_dict(state[name])
        self.agent_steps, self.updates = int(state["agent_steps"]), int(state["updates"])
