"""When a run of Rainbow learns, explores and updates its target network."""

from typing import NamedTuple

from cclf.algorithms.rainbow.config import RainbowConfig


class TrainingSchedule(NamedTuple):
    """What happens at each agent step; the first is step 1."""

    settings: RainbowConfig

    def updates_at(self, step: int) -> int:
        """The number of updates."""
        learns = step >= self.settings.learn_start_agent_steps
        return self.settings.updates_per_agent_step if learns else 0

    def update_index(self, step: int, update: int = 0) -> int:
        """The index of an update, which determines its random numbers. The agent acts with the noise
        of the first update of the step."""
        return step * self.settings.updates_per_agent_step + update

    def updates_target_at(self, step: int) -> bool:
        learns = step >= self.settings.learn_start_agent_steps
        return learns and step % self.settings.target_every_agent_steps == 0

    def beta_at(self, step: int) -> float:
        """The exponent of the importance weights, which increases to 1. The first update is already
        one step above the initial value."""
        steps = step - self.settings.learn_start_agent_steps + 1
        done = steps / self.settings.importance_beta_agent_steps
        beta = self.settings.importance_beta
        return min(1.0, beta + (1.0 - beta) * done)

    def epsilon_at(self, step: int) -> float:
        """The probability of a random action."""
        settings = self.settings
        if settings.warmup_policy == "uniform" and step < settings.learn_start_agent_steps:
            return 1.0
        decay = settings.epsilon_decay_agent_steps
        steps_left = settings.learn_start_agent_steps + decay - step
        left = min(1.0, max(0.0, steps_left / decay)) if decay else 0.0
        return settings.epsilon_train + (1.0 - settings.epsilon_train) * left
