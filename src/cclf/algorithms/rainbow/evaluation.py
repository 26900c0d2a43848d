"""The policy of a Rainbow run, its evaluation in separate games (in this process or in worker processes),
and its export."""

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

    def evaluation_action(self, observation: Tensor) -> Tensor:
        """The best actions (n,) for stacks of frames (n, F, H, W)."""
        values: Tensor = self.q_network(observation)
        return values.argmax(1)

    def state_dict(self) -> StateDict:
        """Same structure as `RunView.state_dict`, but entries that only training needs are empty."""
        unused: StateDict = {"maxima": {}, "moments": {}, "adam_steps": 0}
        return {"networks": self.networks.state_dict()} | unused

    def load_state_dict(self, state: StateDict) -> None:
        self.networks.load_state_dict(state["networks"])


def make_agent(
    config: Config[RainbowConfig], make_env: EnvFactory, workers: EvaluationWorkers | None
) -> Agent:
    """The policy of a run and its evaluation. Both run on the CPU even if a GPU trains: the network is
    small, and so returns do not depend on the device."""
    game, stack = make_env(config, 0, True), config.env.frame_stack
    policy, epsilon = RainbowPolicy(config, num_actions(game.spec)), config.algorithm.epsilon_eval

    def evaluate_async(seeds: Sequence[int], record: bool) -> EvaluationSteps:
        if workers is None:
            return (yield from evaluate_games(game, policy, seeds, epsilon, stack, record))
        # No copies: training does not modify these weights, because `policy` has its own parameters.
        weights = {name: value.numpy() for name, value in policy.q_network.state_dict().items()}
        result = yield from workers.evaluate_async((config.to_dict(), weights), seeds)
        if not record:
            return result
        # The first episode is repeated in this process to record it.
        first = yield from evaluate_games(game, policy, seeds[:1], epsilon, stack, record)
        return result._replace(pictures=first.pictures)

    return Agent(policy, evaluate_async, game.close, game.spec)


def make_evaluation_workers(
    config: Config[RainbowConfig], device: torch.device, make_env: EnvFactory, num_runs: int
) -> EvaluationWorkers | None:
    """By default a worker for each core if a GPU trains, and none otherwise."""
    workers = config.run.eval_workers
    if workers is None:
        workers = 0 if device.type == "cpu" else len(os.sched_getaffinity(0))
    episodes = max(config.run.eval_episodes, config.run.final_eval_episodes)
    workers = min(workers, num_runs * episodes)
    return EvaluationWorkers(partial(EvaluationWorker, make_env), workers) if workers else None


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
    values = policy.q_network(torch.from_numpy(stacks)).numpy()
    return ExportedPolicy(policy.q_network, stacks, values, "q_values")
