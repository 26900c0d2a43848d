"""Calls of an environment's methods: whatever they raise becomes one line that names it."""

import sys
import traceback
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from cclf.console import warn
from cclf.errors import ConfigError, WorkerError, short_error
from cclf.training.signals import SIGNALS

MESSAGE_LENGTH = 300  # longer messages are cut; the traceback is complete

Answer = TypeVar("Answer")
_EXIT_CODES_OF_SIGNALS = {128 + number for number in SIGNALS}


def call(name: str, method: str, function: Callable[..., Answer], *given: Any) -> Answer:
    """Call `function` and return its result. Whatever it raises becomes a WorkerError that names the
    environment (`name`) and the method.

    Not only exceptions are caught: `sys.exit()` in an environment would end a run without a message,
    and StopIteration would silently end the generator that implements the training loop.
    """
    settings = _torch_settings()
    try:
        answer = function(*given)
        if settings is not None and _torch_settings() != settings:
            _restore(settings)
            raise RuntimeError("it changed PyTorch's default dtype or gradient mode")
        return answer
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


def _torch_settings() -> Any:
    """Settings that an environment may not change in the training process. PyTorch is not imported
    for this: workers do without it."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "is_grad_enabled"):
        return None
    return torch.get_default_dtype(), torch.is_grad_enabled()


def _restore(settings: Any) -> None:
    torch = sys.modules["torch"]
    torch.set_default_dtype(settings[0])
    torch.set_grad_enabled(settings[1])


def close(name: str, function: Callable[[], Any]) -> None:
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
    """Wrapper for an environment of any suite, or for a vectorized grid environment, whose errors
    name it. Other attributes are forwarded."""

    def __init__(self, name: str, inner: Any):
        self.name, self.inner = name, inner

    def reset(self, *given: Any) -> Any:
        return call(self.name, "reset", self.inner.reset, *given)

    def step(self, *given: Any) -> Any:
        return call(self.name, "step", self.inner.step, *given)

    def picture(self, *given: Any) -> Any:
        return call(self.name, "picture", self.inner.picture, *given)

    def close(self) -> None:
        close(self.name, self.inner.close)

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self.inner, attribute)

    def __dir__(self) -> list[str]:
        return dir(self.inner)
