"""A word of warning early in a run: at the speed of its first minute of learning it would take
days.

Counted is only time in which it learns: the warm-up is much faster, the first updates may be
compiled, and evaluations come seldom, so all of them would mislead. Nothing here reaches a table or
the learner.
"""

import time
from collections.abc import Callable

MEASURED_SECONDS = 60.0
LONG_SECONDS = 86_400.0
FIRST_UPDATES = 5  # which may be compiled


class Pace:
    def __init__(self, total_env_steps: int, clock: Callable[[], float] = time.monotonic):
        self._total, self._clock = total_env_steps, clock
        self._seconds, self._env_steps = 0.0, 0  # of learning
        self._first: int | None = None  # updates before this process made any
        self._last: tuple[float, int, int] | None = None  # clock, env steps, updates
        self._over = False

    def step(self, env_steps: int, updates: int) -> float | None:
        """Seconds that the rest takes without evaluations: once, if that is more than a day."""
        if self._over:
            return None
        now = self._clock()
        self._first = updates if self._first is None else self._first
        if self._last is not None:
            then, steps_then, updates_then = self._last
            learns = updates > max(updates_then, self._first + FIRST_UPDATES)
            # once it learns all steps count: some base algorithms make no update in some of them
            if self._env_steps or learns:
                self._seconds += now - then
                self._env_steps += env_steps - steps_then
        self._last = now, env_steps, updates
        if self._seconds < MEASURED_SECONDS:
            return None
        self._over = True
        left = (self._total - env_steps) * self._seconds / self._env_steps
        return left if left > LONG_SECONDS else None

    def pause(self) -> None:
        """Something else took time since the last step."""
        self._last = None
