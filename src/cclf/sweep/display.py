"""A live table of the runs in a terminal, one line per finished run elsewhere."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from rich import box
from rich.console import Console
from rich.live import Live
from rich.progress import Progress, TaskID
from rich.progress_bar import ProgressBar
from rich.table import Table

from cclf.console import message_stream, say
from cclf.sweep.plan import NOT_STARTED, RunOutcome, RunSpec, RunStatus, progress, summarize
from cclf.training.progress import SILENT_SECONDS, SPEED_SECONDS, duration

REDRAW_SECONDS = 0.25
ENDED_ROWS, WAITING_ROWS = 12, 3  # that the table shows
_COLOURS = {"done": "green", "failed": "red", "stopped": "yellow"}

Outcomes = Mapping[RunSpec, RunOutcome]
Reports = Mapping[RunSpec, RunStatus]


class Screen:
    def __init__(self, specs: Sequence[RunSpec], clock: Callable[[], float] = time.monotonic):
        self.specs, self._clock = specs, clock
        self._printed: set[RunSpec] = set()
        self._live: Live | None = None
        self._drawn_at, self._printed_at = float("-inf"), clock()
        self._is_stopping = False
        self._time_left = TimeLeft(specs, clock)

    def __enter__(self) -> "Screen":
        stream = message_stream()
        if stream.isatty():
            self._live = Live(console=Console(file=stream), auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def stopping(self, running: Collection[RunSpec], outcomes: Outcomes) -> None:
        """Acknowledge a request to stop."""
        self._is_stopping = True
        if self._live is None:
            skipped = {spec for spec, outcome in outcomes.items() if outcome.state == NOT_STARTED}
            self._printed |= skipped
            self._print(f"stopping: {len(running)} to be saved, {len(skipped)} not started")

    def show(self, outcomes: Outcomes, running: Collection[RunSpec], reports: Reports) -> None:
        if running and self._clock() - self._drawn_at < REDRAW_SECONDS:
            return
        self._drawn_at = self._clock()
        self._time_left.update(outcomes, running, reports)
        if self._live is not None:
            self._live.update(self.table(outcomes, running, reports), refresh=True)
            return
        for spec, outcome in outcomes.items():
            if spec not in self._printed:
                self._printed.add(spec)
                is_folder = outcome.last_line == str(spec.folder)  # the label names it already
                why = "" if is_folder else f": {outcome.last_line}"
                place = f"[{len(self._printed)}/{len(self.specs)}]"
                self._print(f"{place} {outcome.state}: {spec.label}{why}{self._left(running)}")
        if running and self._clock() - self._printed_at > SILENT_SECONDS:
            self._print(self._summary(outcomes, running))

    def _print(self, line: str) -> None:
        self._printed_at = self._clock()
        say(line)

    def _left(self, running: Collection[RunSpec]) -> str:
        seconds = None if self._is_stopping else self._time_left.seconds(running)
        return "" if seconds is None else f", left about {duration(seconds)}"

    def _summary(self, outcomes: Outcomes, running: Collection[RunSpec]) -> str:
        parts = [summarize(outcomes.values(), len(self.specs))]
        if running:
            parts.append(f"{len(running)} {'saving' if self._is_stopping else 'running'}")
        waiting = len(self.specs) - len(outcomes) - len(running)
        if waiting:
            parts.append(f"{waiting} waiting")
        return ", ".join(parts) + self._left(running)

    def table(self, outcomes: Outcomes, running: Collection[RunSpec], reports: Reports) -> Table:
        caption = self._summary(outcomes, running)
        if self._is_stopping and running:
            caption = f"stopping: the runs save first; Ctrl-C again quits at once\n{caption}"
        if len(outcomes) == len(self.specs):
            caption = ""  # the command prints it
        table = Table(box=box.SIMPLE_HEAD, caption=caption or None, caption_justify="left")
        table.padding = (0, 1, 0, 0)
        table.add_column("task", no_wrap=True)
        table.add_column("method", overflow="fold")
        for name in ("seed", "env steps"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("", width=len(NOT_STARTED))
        table.add_column("return", justify="right", no_wrap=True)
        waiting = [spec for spec in self.specs if spec not in outcomes and spec not in running]
        ended = [spec for spec in self.specs if spec in outcomes]
        in_order = [spec for spec in self.specs if spec in running]
        for spec in [*ended[-ENDED_ROWS:], *in_order, *waiting[:WAITING_ROWS]]:
            report = reports.get(spec) or progress(spec.folder)
            state = outcomes[spec].state if spec in outcomes else "waiting"
            total = spec.config.run.env_steps
            # train.csv has no row for the last steps
            env_steps = total if state == "done" else report.env_steps
            table.add_row(
                spec.config.task,
                spec.method,
                str(spec.config.seed),
                f"{env_steps:,}",
                ProgressBar(total, env_steps, complete_style="cyan", finished_style="green")
                if spec in running
                else f"[{_COLOURS.get(state, 'dim')}]{state}[/]",
                "-" if report.train_return is None else f"{report.train_return:.3g}",
            )
        return table


class TimeLeft:
    """The time that a sweep still takes, from rich's estimates of its runs. It assumes that waiting
    runs will be as fast as the running ones, and that as many run at a time until the last."""

    def __init__(self, specs: Sequence[RunSpec], clock: Callable[[], float]):
        self._estimates = Progress(speed_estimate_period=SPEED_SECONDS, get_time=clock)
        self._tasks: dict[RunSpec, TaskID] = {}  # of runs that update
        self._env_steps_left = {spec: spec.config.run.env_steps for spec in specs}

    def update(self, outcomes: Outcomes, running: Collection[RunSpec], reports: Reports) -> None:
        for spec in outcomes:
            self._env_steps_left[spec] = 0
        for spec in running:
            report, total = reports.get(spec, RunStatus()), spec.config.run.env_steps
            self._env_steps_left[spec] = max(0, total - report.env_steps)
            if report.updates and spec not in self._tasks:  # the warm-up is faster
                self._tasks[spec] = self._estimates.add_task(
                    "", total=total, completed=report.env_steps
                )
            elif spec in self._tasks:
                self._estimates.update(self._tasks[spec], completed=report.env_steps)

    def seconds(self, running: Collection[RunSpec]) -> float | None:
        """None while no run has a speed yet."""
        by_id = {task.id: task for task in self._estimates.tasks}
        tasks = [by_id[self._tasks[spec]] for spec in running if spec in self._tasks]
        speeds = [task.speed for task in tasks if task.speed]
        if not speeds:
            return None
        total_speed = sum(speeds) / len(speeds) * len(running)
        longest = max(task.time_remaining or 0.0 for task in tasks)
        return max(longest, sum(self._env_steps_left.values()) / total_speed)
