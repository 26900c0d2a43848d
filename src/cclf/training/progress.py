"""The progress of a run on standard error: a live bar in a terminal, and a line per evaluation."""

import time
from collections.abc import Callable

from rich import progress as rich_progress
from rich.console import Console

from cclf.console import message_stream, say

MAX_EVALUATION_LINES = 20  # per run, approximately
SILENT_SECONDS = 600.0  # without a line, after which the next evaluation always gets one
DRAW_SECONDS = 0.5  # between updates of the live bar
# The time left is estimated from the speed in this period, evaluations included.
SPEED_SECONDS = 480.0


def duration(seconds: float | None) -> str:
    """
    >>> duration(3725.4), duration(94 * 3600 + 845), duration(None)
    ('01:02:05', '3 d 22 h', '-')
    """
    if seconds is None:
        return "-"
    days, rest = divmod(int(seconds), 86_400)
    if days:
        return f"{days:,} d {rest // 3_600} h"
    return time.strftime("%H:%M:%S", time.gmtime(rest))


def number(value: float) -> str:
    """
    >>> number(-1240.6), number(0.00123456), number(1.5e300)
    ('-1,241', '0.001235', '1.5e+300')
    """
    return f"{value:,.0f}" if 1_000 <= abs(value) < 1e9 else f"{value:.4g}"


class Progress:
    """Env steps, returns, env steps per second and the time left."""

    def __init__(
        self,
        total_env_steps: int,
        env_steps: int,
        updates: int,
        label: str = "",
        clock: Callable[[], float] = time.monotonic,
    ):
        """`label` begins each line if several runs share the terminal, which then has no live
        bar."""
        self.total, self.label, self._clock = total_env_steps, label, clock
        self._env_steps, self._initial_updates, self._is_learning = env_steps, updates, False
        self._started, self._drawn = clock(), float("-inf")
        self._last_line: tuple[int, float] | None = None  # env steps and time
        self._train_return = self._eval_return = "-"
        stream = message_stream()
        self._live = stream.isatty() and not label
        self._bar = rich_progress.Progress(
            rich_progress.BarColumn(20, complete_style="cyan", finished_style="green"),
            rich_progress.TextColumn("{task.description}"),
            rich_progress.TimeRemainingColumn(elapsed_when_finished=True),
            console=Console(file=stream),
            auto_refresh=False,
            speed_estimate_period=SPEED_SECONDS,
            get_time=clock,
        )
        self._task = self._bar.add_task("", start=False, total=total_env_steps)
        if self._live:
            self._bar.start()

    def step(self, env_steps: int, updates: int) -> None:
        self._env_steps = env_steps
        if not self._is_learning and updates > self._initial_updates:
            self._is_learning = True  # the warm-up is faster, so it is not part of the estimate
            self._bar.reset(self._task, completed=env_steps)
        if self._clock() - self._drawn > DRAW_SECONDS:
            self._draw()

    def training_return(self, value: float) -> None:
        self._train_return = number(value)

    def evaluation(self, env_steps: int, mean: float, std: float) -> None:
        self._eval_return = number(mean)
        self._draw()
        if self._should_print(env_steps):
            finished, left = env_steps >= self.total, self._bar.tasks[0].time_remaining
            time_text = f"took {duration(self._clock() - self._started)}"
            self.print(
                f"{self.label}{env_steps:,}/{self.total:,} env steps  "
                f"eval {number(mean)} ± {number(std)}  train {self._train_return}  "
                f"{self._speed()}  {time_text if finished else f'left {duration(left)}'}"
            )
            self._last_line = env_steps, self._clock()

    def _should_print(self, env_steps: int) -> bool:
        """Whether an evaluation gets a line. A run may have hundreds, all of which are in
        eval.csv."""
        if self._last_line is None or env_steps >= self.total:
            return True
        last_env_steps, last_time = self._last_line
        interval = self.total / MAX_EVALUATION_LINES
        in_next_interval = env_steps // interval > last_env_steps // interval
        return in_next_interval or self._clock() - last_time > SILENT_SECONDS

    def _draw(self) -> None:
        """Update the estimate of the speed, and redraw the bar if there is a live one."""
        self._drawn = self._clock()
        text = (
            f"{self._env_steps:,}/{self.total:,}  eval {self._eval_return}  "
            f"train {self._train_return}  {self._speed()}"
        )
        self._bar.update(
            self._task, completed=self._env_steps, description=text, refresh=self._live
        )

    def _speed(self) -> str:
        speed = self._bar.tasks[0].speed
        return "- steps/s" if speed is None else f"{number(speed)} steps/s"

    def print(self, line: str) -> None:
        """Print a line above the bar."""
        if self._live:
            self._bar.console.print(line, highlight=False, markup=False, soft_wrap=True)
        else:
            say(line)

    def close(self) -> None:
        """Draw the bar for the last time. Later lines are printed below it."""
        if self._live:
            self._draw()
            self._bar.stop()
            self._live = False
