"""What a person sees while a run goes on: a live line in a terminal, plain lines elsewhere. All of
it on standard error."""

import time
from collections.abc import Callable, Iterable

from rich.console import Console
from rich.live import Live
from rich.progress import Progress as Estimates
from rich.progress_bar import ProgressBar
from rich.table import Table

from cclf.console import message_stream, say
from cclf.training.pace import Pace

WIDTH = 80  # columns of a line that stays
MAX_EVALUATION_LINES = 20  # evaluations of a run that get a line of their own, about
SILENT_SECONDS = 600.0  # after which the next evaluation gets one, too
# After so long without a line, or a fifth of the time since the start, one says that a run goes on.
LIFE_SECONDS, LIFE_SHARE = 60.0, 0.2
DRAW_SECONDS = 0.5
# The speed of the last minutes: evaluations belong to it, the warm-up does not.
SPEED_SECONDS = 480.0
_BAR_COLUMNS = 8, 40  # at least and at most
_SPARE_COLUMNS = 3  # for the ^C that a terminal adds: in a full line it would begin a new one
_MOST_DAYS = 9_999
_MEAN_COLUMNS, _STD_COLUMNS, _TRAIN_COLUMNS, _RATE_COLUMNS = 9, 7, 8, len("updates/s")
_FIRST_WITH_EXPONENT = 1_000_000


def duration(seconds: float | None) -> str:
    """
    >>> duration(3725.4), duration(94 * 3600 + 845), duration(1e300), duration(None)
    ('01:02:05', '3 d 22 h', 'over 9,999 d', '-')
    """
    if seconds is None:
        return "-"
    if seconds >= 86_400 * (_MOST_DAYS + 1):
        return f"over {_MOST_DAYS:,} d"
    days, rest = divmod(int(seconds), 86_400)
    if days:
        return f"{days:,} d {rest // 3_600} h"
    return time.strftime("%H:%M:%S", time.gmtime(rest))


def number(value: float, digits: int, columns: int) -> str:
    """`digits` significant digits, fewer where they do not fit, or a whole number where that has
    more of them. An exponent only from a million on, and below 0.0001.

    >>> number(-1240.6, 3, 8), number(0.00123456, 4, 9), number(-1.5e300, 4, 9), number(1e-7, 4, 9)
    ('-1,241', '0.001235', '-1.5e300', '1e-7')
    """
    if min(10**digits, 1_000) - 0.5 <= abs(value) < _FIRST_WITH_EXPONENT - 0.5:
        return f"{value:,.0f}"
    texts = (_short(f"{value:.{count}g}") for count in range(digits, 0, -1))
    return next((text for text in texts if len(text) <= columns), f"{value:.0e}")


def _short(text: str) -> str:
    """Without what an exponent does not need: 1.2e+06 is 1.2e6."""
    figures, mark, exponent = text.partition("e")
    return f"{figures}e{int(exponent)}" if mark else figures


def joined(cells: list[str], spare: Iterable[str], columns: int) -> str:
    """Cells of a line; those that can be spared leave, in their order, until it fits.

    >>> joined(["eval 3", "train 2", "left -"], ["train 2"], 16)
    'eval 3  left -'
    """
    kept = list(cells)
    for cell in spare:
        if len("  ".join(kept)) <= columns:
            break
        kept.remove(cell)
    return "  ".join(kept)


class Progress:
    """env steps, returns, updates per second, time left."""

    def __init__(
        self,
        total_env_steps: int,
        done_env_steps: int,
        done_updates: int,
        quiet: bool = False,
        label: str = "",
        if_slow: str = "fewer --env-steps would help",
        shows_life: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ):
        """`label` begins each line; with one, others share the terminal and nothing is drawn
        live. `if_slow`: what to do about a run that would take days. `shows_life`: it says that it
        would, and where nothing is drawn live a line now and then between evaluations says how far
        it is; of several runs one will do."""
        self.total, self.quiet, self.label = total_env_steps, quiet, label
        self._pace, self._if_slow = Pace(total_env_steps, clock), if_slow
        self._clock, self._started, self._drawn = clock, clock(), float("-inf")
        self._env_steps, self._updates, self._first_updates = (
            done_env_steps,
            done_updates,
            done_updates,
        )
        self._train_return, self._eval_return = "-", "-"
        # env steps and clock of the newest line of an evaluation, and when anything was said last
        self._told: tuple[int, float] | None = None
        self._shows_life, self._said, self._headed = shows_life, clock(), False
        self._estimates = Estimates(speed_estimate_period=SPEED_SECONDS, get_time=clock)
        # Neither has begun before the first update: nothing is estimated from a warm-up.
        self._steps = self._estimates.add_task("", start=False, total=total_env_steps)
        self._loss_views = self._estimates.add_task("", start=False, total=None)
        self._live: Live | None = None
        stream = message_stream()
        if stream.isatty() and not quiet and not label:
            console = Console(file=stream)
            self._live = Live(get_renderable=self._row, console=console, auto_refresh=False)
            self._live.start()

    def step(self, env_steps: int, updates: int) -> None:
        begins = self._updates == self._first_updates < updates
        self._env_steps, self._updates = env_steps, updates
        if begins:
            self._estimates.reset(self._steps, completed=env_steps)
            self._estimates.reset(self._loss_views, completed=updates)
        if begins or self._clock() - self._drawn > DRAW_SECONDS:
            self._draw()
        left = self._pace.step(env_steps, updates)
        if left is not None and self._shows_life:
            self.say(
                f"{self.label}cclf: at the speed of its first minute of learning this run takes "
                f"{duration(left)} more: {self._if_slow}"
            )
        if self._shows_life and self._live is None:
            self._show_life()

    def _show_life(self) -> None:
        now = self._clock()
        if now - self._said > max(LIFE_SECONDS, LIFE_SHARE * (now - self._started)):
            self._draw()
            self._say_row(self._env_steps, "")

    def training_return(self, value: float) -> None:
        self._train_return = number(value, 3, _TRAIN_COLUMNS)

    def evaluation(self, env_steps: int, mean: float, std: float) -> None:
        self._pace.pause()
        self._eval_return = number(mean, 4, _MEAN_COLUMNS)
        self._draw()
        if not self._should_print(env_steps):
            return
        self._say_row(env_steps, f"{self._eval_return} ± {number(std, 2, _STD_COLUMNS)}")
        self._told = env_steps, self._clock()

    def _say_row(self, env_steps: int, result: str) -> None:
        """How a run stands, with the result of an evaluation if there is one."""
        steps, left = f"{env_steps:,}/{self.total:,}", self._time_left()
        if self.label:
            what = f"eval {result}" if result else f"{self._rate()} updates/s"
            self.say(f"{self.label}{steps}  {what}  {left}")
            return
        if not self._headed:
            self.say(self._row_of("env steps", "eval return", "train", "updates/s", "time"))
            self._headed = True
        self.say(self._row_of(steps, result, self._train_return, self._rate(), left))

    def _row_of(self, steps: str, result: str, train: str, rate: str, left: str) -> str:
        width = max(len("env steps"), 2 * len(f"{self.total:,}") + 1)
        result_columns = _MEAN_COLUMNS + len(" ± ") + _STD_COLUMNS
        return (
            f"{steps:>{width}}  {result:<{result_columns}}  {train:>{_TRAIN_COLUMNS}}  "
            f"{rate:>{_RATE_COLUMNS}}  {left}"
        )

    def _should_print(self, env_steps: int) -> bool:
        """A suite with hundreds of evaluations must not flood a terminal or a log; all of them are
        in eval.csv."""
        if self._told is None or env_steps >= self.total:
            return True
        told_env_steps, told_at = self._told
        share, told_share = (
            MAX_EVALUATION_LINES * steps // self.total for steps in (env_steps, told_env_steps)
        )
        return share > told_share or self._clock() - told_at > SILENT_SECONDS

    def _draw(self) -> None:
        """Also where nothing is drawn: estimates come from what is told here."""
        self._drawn = self._clock()
        self._estimates.update(self._steps, completed=self._env_steps)
        self._estimates.update(self._loss_views, completed=self._updates)
        if self._live is not None:
            self._live.refresh()

    def _time_left(self) -> str:
        if self._env_steps >= self.total:
            return f"took {duration(self._clock() - self._started)}"
        return f"left {duration(self._estimates.tasks[0].time_remaining)}"

    def _rate(self) -> str:
        speed = self._estimates.tasks[1].speed
        return "-" if speed is None else number(speed, 3, _RATE_COLUMNS)

    def _row(self) -> Table:
        """What is drawn live: a bar, and as much text as fits."""
        least, most = _BAR_COLUMNS
        width = (self._live.console.width if self._live else WIDTH) - _SPARE_COLUMNS
        text = self._live_text(width - least - 1)
        columns = max(0, min(most, width - len(text) - 1))
        row = Table.grid(padding=(0, 1, 0, 0))
        row.add_column(width=columns)
        row.add_column(no_wrap=True, overflow="crop")
        # rich's own red would look like a failure
        bar = ProgressBar(
            self.total,
            self._env_steps,
            width=columns,
            complete_style="cyan",
            finished_style="green",
        )
        row.add_row(bar, text)
        return row

    def _live_text(self, columns: int) -> str:
        rate = f"{self._rate()} updates/s"
        train = f"train {self._train_return}"
        steps = f"{self._env_steps:,}/{self.total:,}"
        cells = [steps, f"eval {self._eval_return}", train, rate, self._time_left()]
        return joined(cells, [rate, train], columns)

    def say(self, line: str) -> None:
        self._said = self._clock()
        if self.quiet:
            return
        if self._live is not None:
            self._live.console.print(line, highlight=False, markup=False)  # [video] is no markup
        else:
            say(line)

    def close(self) -> None:
        """The line that stays says how the run stands now. What is said later stands below it."""
        if self._live is not None:
            self._draw()
            self._live.stop()
            self._live = None
