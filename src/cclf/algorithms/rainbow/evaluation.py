"""The evaluation of a run: its policy in games of its own, in this process or in workers."""

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cclf import presets
from cclf.algorithms.rainbow.config import RainbowConfig
from cclf.algorithms.rainbow.learner import num_actions
from cclf.algorithms.rainbow.networks import QNetwork
from cclf.algorithms.rainbow.rainbow import RunParameters, make_rainbow
from cclf.config import Config
from cclf.training.agent import Agent
from cclf.training.evaluation import EvaluationSteps, evaluate_games
from cclf.training.evaluation_workers import EvaluationWorkers
from cclf.types import EnvFactory, StateDict


class RainbowPolicy:
    """The greedy policy of a run. Only its `q_network` is used; `networks` hold the other parameters
    of the run too, because they are part of an exported agent."""

    def __init__(self, config: Config[RainbowConfig], num_actions: int):
        module = make_rainbow(config, num_actions).requires_grad_(False)
        self.num_actions = num_actions
        self.networks = RunParameters(module)
        self.q_network = QNetwork(module.online)

    @torch.no_grad()
    def evaluation_values(self, observation: Tensor) -> Tensor:
        """Q values (n, A) for stacks of frames (n, F, H, W)."""
        values: Tensor = self.q_network(observation)
        return values

    def evaluation_action(self, observation: Tensor) -> Tensor:
        """The best actions (n,) for stacks of frames (n, F, H, W)."""
        return self.evaluation_values(observation).argmax(1)

    def state_dict(self) -> StateDict:
        """The parts of `RunView.state_dict`; those that a policy does not have are empty."""
        unused: StateDict = {"maxima": {}, "moments": {}, "adam_steps": 0}
        return {"networks": self.networks.state_dict()} | unused

    def load_state_dict(self, state: StateDict) -> None:
        self.networks.load_state_dict(state["networks"])


def make_agent(
    config: Config[RainbowConfig], make_env: EnvFactory, workers: EvaluationWorkers | None
) -> Agent:
    """The policy of a run and its evaluation. It runs on the CPU whatever device trains: the network
    is small, and returns do not depend on the device."""
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


def make_evaluation_workers(
    config: Config[RainbowConfig], device: torch.device, make_env: EnvFactory, num_runs: int
) -> EvaluationWorkers | None:
    """Processes for the evaluation episodes of all runs; None if this process evaluates."""
    episodes = num_runs * max(config.run.eval_episodes, config.run.final_eval_episodes)
    workers = config.run.eval_workers
    if workers is None:
        workers = 0 if device.type == "cpu" else len(os.sched_getaffinity(0))
    workers = min(episodes, workers)
    return EvaluationWorkers(partial(EvaluationWorker, make_env), workers) if workers else None


class EvaluationWorker:
    """Runs evaluation episodes in a worker process, on one thread."""

    def __init__(self, make_env: EnvFactory) -> None:
        set_idle_priority()
        self._make_env = make_env
        torch.set_num_threads(1)
        self._agents: dict[str, Agent] = {}  # by task, because it takes long to start an emulator

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
    training sleep between their steps and would wait until a nice process has used up its time
    slice."""
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # Linux
    except (AttributeError, OSError):
        os.nice(19)
