"""Q-learning with a table: one row of values for each frame."""

from dataclasses import dataclass
from typing import ClassVar

from cclf.algorithms.base import (
    CCLF_DISABLED,
    BaseAlgorithm,
    Method,
    cclf_inactive_rules,
    index_by_name,
    reject_eval_workers,
)
from cclf.config import AlgorithmSettings
from cclf.validation import Fraction, Positive, PositiveInt, always_inactive

FRAME = always_inactive("q-table, which uses the whole newest frame")


@dataclass(frozen=True)
class QTableConfig(AlgorithmSettings):
    base: ClassVar = "q-table"
    # Options that have no effect here: setting one is an error.
    rules: ClassVar = cclf_inactive_rules("q-table") | {"crop_pixels": FRAME, "frame_stack": FRAME}

    learning_rate: Positive = 0.5
    discount: Fraction = 0.9
    epsilon: Fraction = 0.1
    """Share of random actions in training."""
    rows: PositiveInt = 50_000

    def validate(self, config):  # raises ConfigError for conflicts with the rest of a run
        reject_eval_workers(config.run, "q-table")

    def updates_at(self, agent_steps):  # the number of updates made by this agent step
        return agent_steps


class QTableAlgorithm(BaseAlgorithm):
    name = "q-table"
    supported_tasks = ("discrete",)
    settings_type = QTableConfig
    methods = index_by_name(
        Method("q-learning", "learn what the best next action is worth", {}),
        Method("short-sighted", "learn the next reward alone", {}, {"discount": 0.0}),
    )
    defaults = CCLF_DISABLED

    def make_algorithm(self, config, spec, device):
        from q_table.agent import QTable

        return QTable(config, spec.num_actions)

    def make_learner(self, config, device, make_env):
        from q_table.agent import make_learner

        return make_learner(self, config, device, make_env)


ALGORITHM = QTableAlgorithm()
