"""Turns of learners, which are generators: alone, or those of several runs part by part."""

from collections.abc import Generator, Sequence
from typing import Any

from cclf.errors import WorkerError
from cclf.storage.failure import NonFiniteError
from cclf.types import StepResult, Turn


def run_to_end(turn: Turn) -> StepResult:
    """A turn without a stop."""
    while True:
        try:
            next(turn)
        except StopIteration as end:
            result: StepResult = end.value
            return result


def interleave(
    turns: Sequence[Generator[None, None, Any]],
) -> dict[int, NonFiniteError | WorkerError]:
    """All turns to their ends, a part of each after another; those that failed, by place."""
    errors: dict[int, NonFiniteError | WorkerError] = {}
    going_on = dict(enumerate(turns))
    while going_on:
        for place, turn in list(going_on.items()):
            try:
                next(turn)
            except StopIteration:
                del going_on[place]
            except (NonFiniteError, WorkerError) as error:
                errors[place] = error
                del going_on[place]
    return errors
