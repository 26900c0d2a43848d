"""A policy with evaluation environments of its own."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from cclf.training.evaluation import (
    Evaluation,
    EvaluationSteps,
    evaluate,
    evaluate_games,
    wait_for_evaluation,
)
from cclf.training.workers import LocalEnvs
from cclf.types import EnvSpec, Policy


class Agent(NamedTuple):
    # with `state_dict` and `load_state_dict`, and `networks` where those are not all of it
    policy: Any
    rounds: Callable[..., EvaluationSteps]  # (seeds, record)
    close: Callable[[], None]
    spec: EnvSpec | None = None  # of what it plays; without one it can be evaluated, not asked

    def evaluate(
        self,
        seeds: Sequence[int],
        record: bool = False,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Evaluation:
        return wait_for_evaluation(self.rounds(seeds, record), stopped)


def plain_agent(env: Any, policy: Policy, frame_stack: int, device: torch.device) -> Agent:
    """Plays in this process, one episode after the other, always what `policy` holds best.

    `env` is an `Env`, or a `Game` where actions are discrete.
    """

    def rounds(seeds: Sequence[int], record: bool) -> EvaluationSteps:
        if env.spec.num_actions is None:
            return evaluate(LocalEnvs([env]), policy, seeds, frame_stack, device, record)
        return evaluate_games(env, policy, seeds, 0.0, record)

    return Agent(policy, rounds, env.close, env.spec)
