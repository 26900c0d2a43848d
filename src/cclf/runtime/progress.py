"""What a person sees while a run goes on: a live line in a terminal, plain lines elsewhere. All of
it on standard error."""

import sys
import time
from typing import Any

from cclf.runtime.pace import Pace

_MOST_DAYS = 9_999


def duration(seconds: float) -> str:
    """
    >>> duration(3725.4), duration(94 * 3600 + 845), duration(1e300), duration(float("nan"))
    ('01:02:05', '3 d 22:14:05', 'over 9,999 d', '-')
    """
    if seconds != seconds:
        return "-"
    if seconds >= 86_400 * (_MOST_DAYS + 1):
        return f"over {_MOST_DAYS:,} d"
    days, rest = divmod(int(seconds), 86_400)
    clock = time.strftime("%H:%M:%S", time.gmtime(rest))
    return f"{days:,} d {clock}" if days else clock


class Progress:
    """env steps, return, updates per second, time left."""

    def __init__(
        self,
        total_env_steps: int,
        done_env_steps: int,
        done_updates: int,
        quiet: bool = False,
        label: str = "",
        if_slow: str = "fewer --env-steps would help",
    ):
        """`label` begins each line; with one, others share the terminal and nothing is drawn
        live. `if_slow`: what to do about a run that would take days."""
        self.total, self.quiet, self.label = total_env_steps, quiet, label
        self._pace, self._if_slow = Pace(total_env_steps), if_slow
        self._started, self._first_env_steps, self._first_updates = (
            time.monotonic(),
            done_env_steps,
            done_updates,
        )
        self._train_return, self._eval_return = "-", "-"
        self._last_draw = 0.0
        self._updates = done_updates
        self._live: Any = None
        if sys.stderr.isatty() and not quiet and not label:
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as RichProgress

            columns = (
                TextColumn("{task.fields[steps]} env steps"),
                BarColumn(),
                TextColumn(
                    "return [cyan]{task.fields[train]}[/] train [green]{task.fields[eval]}[/] eval"
                ),
                TextColumn("{task.fields[rate]} updates/s"),
                TextColumn("left {task.fields[left]}"),
            )
            self._live = RichProgress(*columns, console=Console(stderr=True), auto_refresh=False)
            fields = self._fields(done_env_steps, done_updates)
            self._task = self._live.add_task(
                "", total=total_env_steps, completed=done_env_steps, **fields
            )
            self._live.start()

    def _fields(self, env_steps: int, updates: int) -> dict[str, str]:
        seconds = max(1e-9, time.monotonic() - self._started)
        done = env_steps - self._first_env_steps
        left = max(0, self.total - env_steps) * seconds / done if done else float("nan")
        return {
            "steps": f"{env_steps:,}/{self.total:,}",
            "train": self._train_return,
            "eval": self._eval_return,
            "rate": f"{(updates - self._first_updates) / seconds:.1f}",
            "left": duration(left),
        }

    def step(self, env_steps: int, updates: int) -> None:
        now = time.monotonic()
        if self._live is not None and now - self._last_draw > 0.2:
            self._last_draw = now
            self._live.update(
                self._task, completed=env_steps, refresh=True, **self._fields(env_steps, updates)
            )
        self._updates = updates
        left = self._pace.step(env_steps, updates)
        if left is not None:
            self.say(
                f"{self.label}cclf: at the speed of its first minute of learning this run takes "
                f"{duration(left)} more: {self._if_slow}"
            )

    def training_return(self, value: float) -> None:
        self._train_return = f"{value:.4g}"

    def evaluation(self, env_steps: int, mean: float, std: float) -> None:
        self._pace.pause()
        self._eval_return = f"{mean:.4g}"
        fields = self._fields(env_steps, self._updates)
        self.say(
            f"{self.label}env steps {fields['steps']}  eval return {mean:.4g} ± {std:.2g}  train "
            f"return {fields['train']}  "
            f"{fields['rate']} updates/s  left {fields['left']}"
        )

    def say(self, line: str) -> None:
        if self.quiet:
            return
        if self._live is not None:
            self._live.console.print(line, highlight=False, markup=False)  # [video] is no markup
        else:
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
