"""Callbacks of a run. They receive plain numbers and the run folder, so they cannot influence
training."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from cclf.errors import StopRun
from cclf.training.devices import restored_settings


class StepInfo(NamedTuple):
    """The counters after a step of the learner: one agent step, or one rollout of A2C."""

    env_steps: int
    agent_steps: int
    updates: int
    episodes: int  # training episodes that ended so far


class EvaluationInfo(NamedTuple):
    """The result of an evaluation, with the counters at its start. `cclf.load(folder)` loads a copy of
    the agent that was evaluated."""

    env_steps: int
    agent_steps: int
    updates: int
    return_mean: float
    return_std: float
    returns: tuple[float, ...]  # of its episodes
    folder: Path  # of the run; its newest checkpoint holds the agent that was evaluated


Info = TypeVar("Info", StepInfo, EvaluationInfo)


class CallbackError(ValueError):
    """Wraps the error of a callback, which is its `__cause__`; its message is the name of the
    callback. Otherwise an OSError would be reported as one of the run folder, and a StopIteration
    would end a generator."""


class Callbacks(NamedTuple):
    """Functions to call during a run. One that raises `StopRun` saves and stops the run, as a signal
    does; any other error ends the run, as the cause of a `CallbackError`."""

    on_step: Callable[[StepInfo], object] | None = None
    on_evaluation: Callable[[EvaluationInfo], object] | None = None

    def notify(self, step: StepInfo | None, evaluations: Sequence[EvaluationInfo]) -> bool:
        """Call each callback. Returns whether one of them requests a stop."""
        requests = []
        if self.on_step is not None and step is not None:
            requests.append(_requests_stop("on_step", self.on_step, step))
        if self.on_evaluation is not None:
            requests += [
                _requests_stop("on_evaluation", self.on_evaluation, info) for info in evaluations
            ]
        return any(requests)


NO_CALLBACKS = Callbacks()


def _requests_stop(name: str, callback: Callable[[Info], object], info: Info) -> bool:
    try:
        with restored_settings():
            callback(info)
    except StopRun:
        return True
    except Exception as error:
        raise CallbackError(name) from error
    return False
