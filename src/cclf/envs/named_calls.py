"""Calls into the code of an environment: whatever it raises becomes one line that names it."""

import sys
import traceback
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from cclf.console import warn
from cclf.errors import ConfigError, WorkerError, short_error
from cclf.training.signals import SIGNALS

MESSAGE_LENGTH = 300  # the traceback has all of it

Answer = TypeVar("Answer")
_EXIT_CODES_OF_SIGNALS = {128 + number for number in SIGNALS}


def call(name: str, method: str, function: Callable[..., Answer], *given: Any) -> Answer:
    """What `function` answers; `name` and `method` are what an error calls the two.

    Not only exceptions are caught: `sys.exit()` in an environment would end a run in silence, and
    StopIteration would end the generator that a run is.
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
            raise  # of `Stop`: a second signal ends the process
        said = short_error(error)
        said = said if len(said) <= MESSAGE_LENGTH else f"{said[:MESSAGE_LENGTH]}..."
        line = f"the environment {name} failed in {method}(): {said}"
        raise WorkerError(line, traceback.format_exc()) from error


def _torch_settings() -> Any:
    """What an environment may not change in the process that learns; without an import of PyTorch,
    which workers do not need."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "is_grad_enabled"):
        return None
    return torch.get_default_dtype(), torch.is_grad_enabled()


def _restore(settings: Any) -> None:
    torch = sys.modules["torch"]
    torch.set_default_dtype(settings[0])
    torch.set_grad_enabled(settings[1])


def close(name: str, function: Callable[[], Any]) -> None:
    """What an environment raises as it closes costs a warning: its work is done."""
    try:
        call(name, "close", function)
    except (ConfigError, WorkerError) as error:
        _warn_once(str(error))


@cache
def _warn_once(line: str) -> None:
    """A run closes several environments of a kind."""
    warn(line)


class NamedEnv:
    """An environment of any suite, or several grids as one, with errors that name it. All else is
    the environment's own."""

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
