"""Calls of environments, whose exceptions become one line that names the environment."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from cclf.console import warn
from cclf.errors import ConfigError, WorkerError, short_error
from cclf.training.signals import SIGNALS

if TYPE_CHECKING:
    import numpy as np

    from cclf.types import Action, Env, EnvStep, StateDict, VectorEnv, VectorStep

MESSAGE_LENGTH = 300  # longer messages are cut; the traceback is complete

P = ParamSpec("P")
R = TypeVar("R")
_EXIT_CODES_OF_SIGNALS = {128 + number for number in SIGNALS}


def call(name: str, method: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Return `function(*args)`. Whatever it raises becomes a WorkerError that names the environment
    (`name`) and the method.

    Not only exceptions are caught: `sys.exit()` in an environment would end a run without a message,
    and StopIteration would silently end the generator of an evaluation.
    """
    settings = _torch_settings()
    try:
        result = function(*args, **kwargs)
        if settings is not None and _torch_settings() != settings:
            torch = sys.modules["torch"]
            torch.set_default_dtype(settings[0])
            torch.set_grad_enabled(settings[1])
            raise RuntimeError("it changed PyTorch's default dtype or gradient mode")
        return result
    except (KeyboardInterrupt, ConfigError, WorkerError):
        raise
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code in _EXIT_CODES_OF_SIGNALS:
            raise  # by our own signal handler: a second signal exits immediately
        message = short_error(error)
        if len(message) > MESSAGE_LENGTH:
            message = f"{message[:MESSAGE_LENGTH]}..."
        line = f"the environment {name} failed in {method}(): {message}"
        raise WorkerError(line, traceback.format_exc()) from error


def _torch_settings() -> tuple[object, bool] | None:
    """Settings that an environment may not change in the training process. PyTorch is not imported
    for this, since workers do not need it."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "is_grad_enabled"):
        return None
    return torch.get_default_dtype(), torch.is_grad_enabled()


def close(name: str, function: Callable[[], None]) -> None:
    """Close an environment. An error is only a warning, since its results are no longer needed."""
    try:
        call(name, "close", function)
    except (ConfigError, WorkerError) as error:
        _warn_once(str(error))


@cache
def _warn_once(line: str) -> None:
    """Once per message: a run closes several copies of an environment."""
    warn(line)


class NamedEnv:
    """An environment of any suite, whose errors name it."""

    def __init__(self, name: str, env: Env):
        self.name, self.unwrapped, self.spec = name, env, env.spec

    def reset(self, seed: int | None = None) -> np.ndarray:
        return call(self.name, "reset", self.unwrapped.reset, seed)

    def step(self, action: Action) -> EnvStep:
        return call(self.name, "step", self.unwrapped.step, action)

    def render(self) -> np.ndarray:
        return call(self.name, "render", self.unwrapped.render)

    def close(self) -> None:
        close(self.name, self.unwrapped.close)

    def state_dict(self) -> StateDict:
        return self.unwrapped.state_dict()

    def load_state_dict(self, state: StateDict) -> bool:
        # An environment of another package may return None.
        return self.unwrapped.load_state_dict(state) is not False


class NamedVectorEnv:
    """A vectorized environment, whose errors name it."""

    def __init__(self, name: str, env: VectorEnv):
        self.name, self.unwrapped = name, env
        self.num_envs, self.num_actions = env.num_envs, env.num_actions
        self.observation_shape = env.observation_shape

    def reset(self, seeds: Sequence[int] | None = None) -> np.ndarray:
        return call(self.name, "reset", self.unwrapped.reset, seeds)

    def step(self, actions: np.ndarray) -> VectorStep:
        return call(self.name, "step", self.unwrapped.step, actions)

    def render(self, index: int) -> np.ndarray:
        return call(self.name, "render", self.unwrapped.render, index)

    def render_observation(self, observation: np.ndarray) -> np.ndarray:
        return self.unwrapped.render_observation(observation)

    def close(self) -> None:
        close(self.name, self.unwrapped.close)

    def state_dict(self) -> StateDict:
        return self.unwrapped.state_dict()

    def load_state_dict(self, state: StateDict) -> object:
        return self.unwrapped.load_state_dict(state)
