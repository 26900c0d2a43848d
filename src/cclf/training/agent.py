"""A policy with evaluation environments of its own, and how to load one from a run folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from cclf.algorithms.registry import make_agent
from cclf.config import Config
from cclf.storage.run_folder import (
    WEIGHTS,
    read_checkpoint,
    read_config,
    read_weights,
    reject_imports,
)
from cclf.storage.safe_loading import data_error_context, load_state
from cclf.training.evaluation import (
    Evaluation,
    EvaluationSteps,
    EvaluationWorkers,
    evaluate,
    evaluate_games,
    wait_for_evaluation,
)
from cclf.training.workers import LocalPool
from cclf.types import Env, EnvSpec, HasNetworks, HasState, Policy


class Agent(NamedTuple):
    # Implements `HasState`, and `HasNetworks` if evaluation needs only its networks.
    policy: Any
    evaluate_async: Callable[[Sequence[int], bool], EvaluationSteps]  # (seeds, record)
    close: Callable[[], None]
    spec: EnvSpec | None = None  # `TrainedAgent.act` needs it, evaluation does not

    def evaluate(
        self,
        seeds: Sequence[int],
        record: bool = False,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Evaluation:
        """One episode per seed. Raises EvaluationStoppedError once `stopped()` is true."""
        return wait_for_evaluation(self.evaluate_async(seeds, record), stopped)


def make_default_agent(env: Env, policy: Policy, frame_stack: int, device: torch.device) -> Agent:
    """An agent that plays one episode after another in `env` and always takes the greedy action."""

    def evaluate_async(seeds: Sequence[int], record: bool) -> EvaluationSteps:
        if env.spec.num_actions is None:
            return evaluate(LocalPool([env]), policy, seeds, frame_stack, device, record)
        return evaluate_games(env, policy, seeds, 0.0, frame_stack, record)

    return Agent(policy, evaluate_async, env.close, env.spec)


def evaluation_networks(algorithm: HasState) -> HasState:
    """The part of an algorithm that evaluation copies: its networks, or all of it."""
    return algorithm.networks if isinstance(algorithm, HasNetworks) else algorithm


def load_agent(
    folder: Path,
    device: torch.device,
    episodes: int,
    evaluation_workers: EvaluationWorkers | None = None,
    trust_imports: bool = False,
) -> tuple[Agent, Config, int]:
    """The trained agent of a run folder or of an exported agent, its config, and the env steps of
    its training. Each of its evaluations has `episodes` episodes."""
    config = read_config(folder)
    reject_imports(config, folder, trust_imports)
    config = replace(config, run=replace(config.run, eval_episodes=episodes))
    weights_only = (folder / WEIGHTS).exists() and not os.path.lexists(folder / "checkpoint")
    if weights_only:
        state, env_steps = read_weights(folder)
    else:
        saved = read_checkpoint(folder, frames=False)
        state, env_steps = saved["learner"], saved["agent_steps"] * config.env.action_repeat
    with ExitStack() as stack, data_error_context(f"cannot make the agent of {folder}"):
        agent = stack.enter_context(closing(make_agent(config, device, evaluation_workers)))
        if weights_only:
            load_state(evaluation_networks(agent.policy), state, "networks")
        else:
            load_state(agent.policy, state["algorithm"], "learner/algorithm")
        stack.pop_all()
    return agent, config, env_steps
