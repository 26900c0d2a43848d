"""When a run of Rainbow learns, explores, and copies its target."""

from typing import NamedTuple

from cclf.algorithms.rainbow.config import RainbowConfig


class TrainingSchedule(NamedTuple):
    """When to do what, in agent steps; step 1 is the first."""

    learn_start: int
    uniform_warmup: bool
    updates_per_step: int
    target_every: int
    beta: float
    beta_steps: int
    epsilon: float
    epsilon_steps: int

    @staticmethod
    def of(settings: RainbowConfig) -> "TrainingSchedule":
        return TrainingSchedule(
            learn_start=settings.learn_start_agent_steps,
            uniform_warmup=settings.warmup_policy == "uniform",
            updates_per_step=settings.updates_per_agent_step,
            target_every=settings.target_every_agent_steps,
            beta=settings.importance_beta,
            beta_steps=settings.importance_beta_agent_steps,
            epsilon=settings.epsilon_train,
            epsilon_steps=settings.epsilon_decay_agent_steps,
        )

    def updates_at(self, step: int) -> int:
        return self.updates_per_step if step >= self.learn_start else 0

    def updates_target_at(self, step: int) -> bool:
        return step >= self.learn_start and step % self.target_every == 0

    def beta_at(self, step: int) -> float:
        """Exponent of the importance weights: rises to 1, a first step before the first update."""
        risen = (step - self.learn_start + 1) / self.beta_steps
        return min(1.0, self.beta + (1.0 - self.beta) * risen)

    def epsilon_at(self, step: int) -> float:
        if self.uniform_warmup and step < self.learn_start:
            return 1.0
        steps_left = self.learn_start + self.epsilon_steps - step
        left = steps_left / self.epsilon_steps if self.epsilon_steps else 0.0
        return self.epsilon + (1.0 - self.epsilon) * min(1.0, max(0.0, left))
