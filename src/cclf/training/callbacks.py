"""What a run tells a program that watches it. Facts are numbers, so nothing that is told can change
what is learned."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cclf.errors import StopRun
from cclf.training.torch_settings import restored_settings


class StepInfo(NamedTuple):
    """A turn of the learner is over: one agent step, and of A2C one rollout."""

    env_steps: int
    agent_steps: int
    updates: int
    episodes: int  # of training, those that ended


class EvaluationInfo(NamedTuple):
    """An evaluation is over; the counters are those of the moment it began."""

    env_steps: int
    agent_steps: int
    updates: int
    return_mean: float
    return_std: float
    returns: tuple[float, ...]  # of its episodes


class CallbackError(ValueError):
    """Carries an error of a callback, its `__cause__`, through the generators of a run: they would
    take a StopIteration for their own end, and an OSError for one of the run folder."""


class Callbacks(NamedTuple):
    """Each may raise `StopRun`: the run is then saved and stops, as after a signal. Any other error
    ends the run, as the cause of a `CallbackError`."""

    on_step: Callable[[StepInfo], Any] | None = None
    on_evaluation: Callable[[EvaluationInfo], Any] | None = None

    def tell(self, step: StepInfo | None, evaluations: Sequence[EvaluationInfo]) -> bool:
        """Whether one asks to stop. All are told first."""
        steps = () if step is None or self.on_step is None else (step,)
        asked = [_requests_stop("on_step", self.on_step, fact) for fact in steps]
        if self.on_evaluation is not None:
            asked += [
                _requests_stop("on_evaluation", self.on_evaluation, fact) for fact in evaluations
            ]
        return any(asked)


NO_CALLBACKS = Callbacks()


def _requests_stop(name: str, callback: Any, fact: StepInfo | EvaluationInfo) -> bool:
    try:
        with restored_settings():
            callback(fact)
    except StopRun:
        return True
    except Exception as error:
        raise CallbackError(name) from error
    return False
