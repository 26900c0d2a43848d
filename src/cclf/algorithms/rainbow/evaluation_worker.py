"""What an evaluation worker does: it plays an episode of an agent that it is told in full, on one
thread of a CPU."""

import os
from typing import Any

import numpy as np
import torch

from cclf import presets
from cclf.algorithms.rainbow.learner import make_agent
from cclf.training.agent import Agent
from cclf.types import EnvFactory


def set_idle_priority() -> None:
    """This process gets the cores that nothing else wants. Niceness would not do: training's games
    sleep between their steps, and would wait each time until a nice process had used up its
    slice."""
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # Linux
    except (AttributeError, OSError):
        os.nice(19)


class EvaluationWorker:
    def __init__(self, make_env: EnvFactory) -> None:
        set_idle_priority()
        self._make_env = make_env
        torch.set_num_threads(1)
        # by task: to start an emulator takes longer than to load weights
        self._agents: dict[str, Agent] = {}

    def play(self, config: dict[str, Any], weights: dict[str, np.ndarray], seed: int) -> float:
        task = config["task"]
        if task not in self._agents:
            self._agents[task] = make_agent(
                presets.from_dict(config), torch.device("cpu"), self._make_env
            )
        agent = self._agents[task]
        agent.policy.network.load_state_dict(
            {name: torch.from_numpy(value) for name, value in weights.items()}
        )
        return agent.evaluate([seed]).returns[0]

    def close(self) -> None:
        for agent in self._agents.values():
            agent.close()
