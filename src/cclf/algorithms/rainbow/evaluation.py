"""The policy of a run: its evaluation in separate games, in this process or in workers, and its
export."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cclf import presets
from cclf.algorithms.rainbow.config import RainbowConfig
from cclf.algorithms.rainbow.learner import num_actions
from cclf.algorithms.rainbow.rainbow import RunParameters, make_rainbow
from cclf.config import Config
from cclf.envs.frame_stack import StackedEnv
from cclf.training.agent import Agent
from cclf.training.evaluation import EvaluationSteps, EvaluationWorkers, evaluate_games
from cclf.types import EnvFactory, ExportedPolicy, StateDict


class RainbowPolicy:
    """The greedy policy of a run: its online network without noise."""

    def __init__(self, config: Config[RainbowConfig], num_actions: int):
        module = make_rainbow(config, num_actions).requires_grad_(False)
        self.q_network = module.online.eval()
        # All parameters of the run, because they are part of an exported agent.
        self.networks = RunParameters(dict(module.named_parameters()))

    @torch.no_grad()
    def evaluation_values(self, observation: Tensor) -> Tensor:
        """Q values (n, A) for stacks of frames (n, F, H, W)."""
        values: Tensor = self.q_network(observation)
        return values

    def evaluation_action(self, observation: Tensor) -> Tensor:
        """The best actions (n,) for stacks of frames (n, F, H, W)."""
        return self.evaluation_values(observation).argmax(1)

    def state_dict(self) -> StateDict:
        """As `RunView.state_dict`; the parts that only training needs are empty."""
        unused: StateDict = {"maxima": {}, "moments": {}, "adam_steps": 0}
        return {"networks": self.networks.state_dict()} | unused

    def load_state_dict(self, state: StateDict) -> None:
        self.networks.load_state_dict(state["networks"])


def make_agent(
    config: Config[RainbowConfig], make_env: EnvFactory, workers: EvaluationWorkers | None
) -> Agent:
    """The policy of a run and its evaluation. Both run on the CPU even if a GPU trains: the network is
    small, and so returns do not depend on the device."""
    settings = config.algorithm
    game, stack = make_env(config, 0, True), config.env.frame_stack
    policy = RainbowPolicy(config, num_actions(game.spec))

    def evaluate_async(seeds: Sequence[int], record: bool) -> EvaluationSteps:
        if workers is None:
            return evaluate_games(game, policy, seeds, settings.epsilon_eval, stack, record)
        # Copied now, because training may continue during the evaluation.
        weights = {
            name: value.numpy().copy() for name, value in policy.q_network.state_dict().items()
        }
        return evaluate_in_workers(workers, weights, seeds, record)

    def evaluate_in_workers(
        workers: EvaluationWorkers,
        weights: dict[str, np.ndarray],
        seeds: Sequence[int],
        record: bool,
    ) -> EvaluationSteps:
        result = yield from workers.evaluate_async((config.to_dict(), weights), seeds)
        if not record:
            return result
        # The first episode is repeated in this process to record it.
        recorded = yield from evaluate_games(
            game, policy, seeds[:1], settings.epsilon_eval, stack, record=True
        )
        return result._replace(pictures=recorded.pictures)

    return Agent(policy, evaluate_async, game.close, game.spec)


class EvaluationWorker:
    """Runs evaluation episodes in a worker process, on one thread."""

    def __init__(self, make_env: EnvFactory) -> None:
        set_idle_priority()
        self._make_env = make_env
        torch.set_num_threads(1)
        self._agents: dict[str, Agent] = {}  # by task; kept, because an emulator starts slowly

    def play(self, config: dict[str, Any], weights: dict[str, np.ndarray], seed: int) -> float:
        """The return of one episode."""
        task = config["task"]
        if task not in self._agents:
            self._agents[task] = make_agent(presets.from_dict(config), self._make_env, None)
        agent = self._agents[task]
        agent.policy.q_network.load_state_dict(
            {name: torch.from_numpy(value) for name, value in weights.items()}
        )
        return agent.evaluate([seed]).returns[0]

    def close(self) -> None:
        for agent in self._agents.values():
            agent.close()


def set_idle_priority() -> None:
    """Run this process only on otherwise idle cores. A nice value would not be enough: the games of
    training sleep between their steps, and each would wait until a process with a high nice value
    has used up its time slice."""
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # Linux
    except (AttributeError, OSError):
        os.nice(19)


def export_policy(
    policy: RainbowPolicy,
    config: Config[RainbowConfig],
    make_env: EnvFactory,
    seed: int,
    num_steps: int,
) -> ExportedPolicy:
    """The Q-network as a module for other programs, with its outputs on a rollout of random
    actions."""
    random, observations = np.random.default_rng(seed), []
    game = StackedEnv(make_env(config, seed, True), config.env.frame_stack)
    game.reset(seed)
    for _ in range(num_steps):
        observations.append(game.stack)
        step = game.step(int(random.integers(num_actions(game.spec))))
        if step.terminated or step.truncated:
            game.reset()
    game.close()
    stacks = np.stack(observations)
    values = policy.evaluation_values(torch.from_numpy(stacks)).numpy()
    return ExportedPolicy(policy.q_network, stacks, values, "q_values")
