"""What an evaluation worker does: it plays an episode of an agent that it is told in full, on one thread of a CPU."""

import os
from typing import Any

import numpy as np
import torch

from cclf import build
from cclf.config import Config

NICENESS = 10  # the games that training waits for get the cores first


class EpisodePlayer:
    def __init__(self) -> None:
        os.nice(NICENESS)
        torch.set_num_threads(1)
        self._agents: dict[str, build.Agent] = {}  # by task: to start an emulator takes longer than to load weights

    def play(self, config: dict[str, Any], weights: dict[str, np.ndarray], seed: int) -> float:
        task = config["task"]
        if task not in self._agents:
            self._agents[task] = build.make_agent(Config.from_dict(config), torch.device("cpu"))
        agent = self._agents[task]
        agent.policy.network.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})  # type: ignore[union-attr]
        return agent.evaluate([seed]).returns[0]

    def close(self) -> None:
        for agent in self._agents.values():
            agent.close()
