"""Errors of environments, turned into one line that names the environment and its method."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, TypeVar, cast

from cclf.console import warn
from cclf.errors import ConfigError, WorkerError, short_error
from cclf.training.signals import SIGNALS

if TYPE_CHECKING:
    from cclf.types import Env, VectorEnv

MAX_MESSAGE_CHARACTERS = 300  # longer messages are cut; the traceback is complete
_EXIT_CODES_OF_SIGNALS = {128 + number for number in SIGNALS}

E = TypeVar("E", "Env", "VectorEnv")


@contextmanager
def named_errors(name: str, method: str) -> Iterator[None]:
    """Turn whatever an environment raises into a WorkerError that names it and its method.

    Not only exceptions are caught: `sys.exit()` in an environment would end a run without a message,
    and StopIteration would silently end the generator of an evaluation.
    """
    torch = sys.modules.get("torch")  # not imported here: worker processes do not need it
    settings = (torch.get_default_dtype(), torch.is_grad_enabled()) if torch else None
    try:
        yield
        if torch and settings and settings != (torch.get_default_dtype(), torch.is_grad_enabled()):
            torch.set_default_dtype(settings[0])
            torch.set_grad_enabled(settings[1])
            raise RuntimeError("it changed PyTorch's default dtype or gradient mode")
    except (KeyboardInterrupt, ConfigError, WorkerError):
        raise
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code in _EXIT_CODES_OF_SIGNALS:
            raise  # raised by our own signal handler, which exits immediately at a second signal
        message = short_error(error)
        if len(message) > MAX_MESSAGE_CHARACTERS:
            message = f"{message[:MAX_MESSAGE_CHARACTERS]}..."
        line = f"the environment {name} failed in {method}(): {message}"
        raise WorkerError(line, traceback.format_exc()) from error


def close_env(name: str, close: Callable[[], None]) -> None:
    """Close an environment. An error is only a warning, since its results are no longer needed."""
    try:
        with named_errors(name, "close"):
            close()
    except (ConfigError, WorkerError) as error:
        _warn_once(str(error))


_warn_once = cache(warn)  # once per message: a run closes several copies of an environment


class _NamedEnv:
    """Forwards all attributes of an environment, and adds its name to the errors of its methods."""

    def __init__(self, name: str, env: Env | VectorEnv):
        self._env = env
        for method in ("reset", "step", "render"):
            setattr(self, method, named_errors(name, method)(getattr(env, method)))
        self.close = partial(close_env, name, env.close)

    def __getattr__(self, attribute: str) -> object:
        return getattr(self._env, attribute)


def with_named_errors(name: str, env: E) -> E:
    """Wrap an environment so that its errors name it."""
    return cast("E", _NamedEnv(name, env))
