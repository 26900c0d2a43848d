"""The agent of a run folder in the hands of another program (docs/api.md)."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cclf import validation
from cclf.algorithms.registry import make_agent
from cclf.envs.frame_stack import BatchFrameStack
from cclf.errors import ConfigError, short_error
from cclf.storage.run_folder import read_config
from cclf.training import devices
from cclf.training.agent import evaluation_networks, load_agent
from cclf.training.evaluation import Evaluation
from cclf.training.seeding import derive
from cclf.training.torch_settings import default_settings


class TrainedAgent:
    """Acts on one frame after the other, or on batches of them. It keeps no environment open."""

    def __init__(self, folder: Path, device: str, seed: int, trust_imports: bool):
        self._device = devices.choose_device(device)
        with default_settings():
            agent, _, self.env_steps = load_agent(
                folder, self._device, episodes=1, trust_imports=trust_imports
            )
            agent.close()
        self.config = read_config(folder)
        self.policy: Any = agent.policy
        self._random = np.random.default_rng(derive(seed, "act"))
        self._num_actions = self._history = None
        if agent.spec is not None:
            self._num_actions = agent.spec.num_actions
            self._history = BatchFrameStack(agent.spec, self.config.env.frame_stack)

    def reset(self, rows: Any = None) -> None:
        """The next frame begins an episode; in a batch, of these rows alone: their numbers, or one
        truth value for each row."""
        self._known_history().reset(rows)

    def act(self, observation: Any) -> Any:
        """The action for the newest frame, or one per row for a batch of frames.

        Continuous: float32, each number in [-1, 1]. Discrete: a whole number. It is the action that
        evaluation takes, but for the few random ones that a base algorithm mixes in there.
        """
        history, given = self._known_history(), _array(observation)
        frames = history.to_batch(given)
        with default_settings():
            actions = self._actions(history.push(frames))
        if given.shape != history.frame_shape:
            return actions
        return actions[0] if self._num_actions is None else int(actions[0])

    def evaluate(self, episodes: int = 10, seed: int = 0) -> Evaluation:
        """Fresh episodes, those of `cclf evaluate`; `seed` chooses them."""
        episodes, seed = validation.to_python_number(episodes), validation.to_python_number(seed)
        validation.validate_value("episodes", episodes, validation.PositiveInt)
        validation.validate_value("seed", seed, validation.Seed)
        config = replace(self.config, run=replace(self.config.run, eval_episodes=episodes))
        with (
            default_settings(),
            closing(make_agent(config, self._device)) as agent,
        ):
            weights = evaluation_networks(self.policy).state_dict()
            evaluation_networks(agent.policy).load_state_dict(weights)
            return agent.evaluate([derive(seed, "evaluate", n) for n in range(episodes)])

    def _known_history(self) -> BatchFrameStack:
        if self._history is None:
            raise ConfigError(
                f"the base algorithm {self.config.base} does not say what its agent sees: give its "
                "Agent a spec (see cclf.training.agent); it can be evaluated"
            )
        return self._history

    def _actions(self, stacks: np.ndarray) -> np.ndarray:  # (N, ...) -> (N, A) or (N,)
        if not hasattr(self.policy, "evaluation_action"):  # it samples, in evaluation too
            uniform = self._random.random((len(stacks), self._num_actions or 0))
            sampled: np.ndarray = self.policy.act(stacks, uniform)
            return sampled
        if self._num_actions is not None:
            return np.array([int(self._best(stack[None])) for stack in stacks])
        if self._device.type != "cpu":
            return self._best(stacks).numpy()
        # one by one, as in evaluation: the size of a batch may change the last bit
        return np.concatenate([self._best(stack[None]).numpy() for stack in stacks])

    def _best(self, stacks: np.ndarray) -> torch.Tensor:
        seen = torch.from_numpy(np.ascontiguousarray(stacks))
        # games are played on the CPU whatever the training ran on
        device = self._device if self._num_actions is None else torch.device("cpu")
        with torch.inference_mode():
            action: torch.Tensor = self.policy.evaluation_action(seen.to(device))
        return action.cpu()


def _array(observation: Any) -> np.ndarray:
    try:
        return np.asarray(observation)
    except Exception as error:  # whatever the class of the observation raises
        raise ConfigError(
            f"the observation cannot be read as an array: {short_error(error)}"
        ) from error
