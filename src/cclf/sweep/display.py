"""A live table of the runs in a terminal, a line per finished run elsewhere."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from rich.progress import Progress as Estimates
from rich.progress import TaskID

from cclf.console import message_stream, say
from cclf.sweep.plan import NOT_STARTED, Call, Outcome, RunStatus, progress, tally
from cclf.training.progress import SILENT_SECONDS, SPEED_SECONDS, duration

REDRAW_SECONDS = 0.25
ENDED_ROWS, WAITING_ROWS = 12, 3  # that the table shows
_COLOURS = {"done": "green", "failed": "red", "stopped": "yellow"}


class Screen:
    def __init__(self, calls: Sequence[Call], clock: Callable[[], float] = time.monotonic):
        self.calls, self._clock = calls, clock
        self._told: set[Call] = set()
        self._live: Any = None
        self._drawn, self._said = float("-inf"), clock()
        self._is_stopping = False
        self._left = TimeLeft(calls, clock)

    def __enter__(self) -> "Screen":
        stream = message_stream()
        if stream.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(file=stream), auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def stopping(self, running: Collection[Call], outcomes: Mapping[Call, Outcome]) -> None:
        """A person who asks to stop hears at once that it was heard."""
        self._is_stopping = True
        if self._live is None:
            left_out = {call for call, end in outcomes.items() if end.state == NOT_STARTED}
            self._told |= left_out
            self._say(f"stopping: {len(running)} to be saved, {len(left_out)} not started")

    def show(
        self,
        outcomes: Mapping[Call, Outcome],
        running: Collection[Call],
        reports: Mapping[Call, RunStatus],
    ) -> None:
        if running and self._clock() - self._drawn < REDRAW_SECONDS:
            return
        self._drawn = self._clock()
        self._left.update(outcomes, running, reports)
        if self._live is not None:
            self._live.update(self.table(outcomes, running, reports), refresh=True)
            return
        for call, outcome in outcomes.items():
            if call not in self._told:
                self._told.add(call)
                is_folder = outcome.last_line == str(call.folder)  # which the label says, too
                why = "" if is_folder else f": {outcome.last_line}"
                place = f"[{len(self._told)}/{len(self.calls)}]"
                self._say(f"{place} {outcome.state}: {call.label}{why}{self._time_left(running)}")
        if running and self._clock() - self._said > SILENT_SECONDS:
            self._say(self._standing(outcomes, running))

    def _say(self, line: str) -> None:
        self._said = self._clock()
        say(line)

    def _time_left(self, running: Collection[Call]) -> str:
        left = None if self._is_stopping else self._left.seconds(running)
        return "" if left is None else f", left about {duration(left)}"

    def _standing(self, outcomes: Mapping[Call, Outcome], running: Collection[Call]) -> str:
        """How many runs are where."""
        parts = [tally(outcomes.values(), len(self.calls))]
        if running:
            parts.append(f"{len(running)} {'saving' if self._is_stopping else 'running'}")
        waiting = len(self.calls) - len(outcomes) - len(running)
        if waiting:
            parts.append(f"{waiting} waiting")
        return ", ".join(parts) + self._time_left(running)

    def table(
        self,
        outcomes: Mapping[Call, Outcome],
        running: Collection[Call],
        reports: Mapping[Call, RunStatus],
    ) -> Any:
        from rich import box
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        note = "stopping: the runs save first; Ctrl-C again quits at once\n"
        caption = self._standing(outcomes, running)
        if len(outcomes) == len(self.calls):
            caption = ""  # who asked for the sweep says it below
        table = Table(
            box=box.SIMPLE_HEAD,
            caption=f"{note if self._is_stopping and running else ''}{caption}" or None,
            caption_justify="left",
            padding=(0, 1, 0, 0),
        )
        table.add_column("task", no_wrap=True)
        table.add_column("method", overflow="fold")
        for name in ("seed", "env steps"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("", width=len(NOT_STARTED))
        table.add_column("return", justify="right", no_wrap=True)
        waiting = [call for call in self.calls if call not in outcomes and call not in running]
        ended = [call for call in self.calls if call in outcomes]
        shown = [
            *ended[-ENDED_ROWS:],
            *(call for call in self.calls if call in running),
            *waiting[:WAITING_ROWS],
        ]
        for call in shown:
            report, config = reports.get(call) or progress(call.folder), call.config
            state = outcomes[call].state if call in outcomes else "waiting"
            colour = _COLOURS.get(state, "dim")
            # a table has no row for a run's last steps
            steps = config.run.env_steps if state == "done" else report.env_steps
            newest = "-" if report.train_return is None else f"{report.train_return:.3g}"
            table.add_row(
                config.task,
                config.method_name,
                str(config.seed),
                f"{steps:,}",
                ProgressBar(
                    config.run.env_steps,
                    report.env_steps,
                    complete_style="cyan",
                    finished_style="green",
                )
                if call in running
                else f"[{colour}]{state}[/]",
                newest,
            )
        return table


class TimeLeft:
    """Of a whole sweep, by rich's estimates of its runs. Runs that wait are taken to be as fast as
    those that run, and as many to run at a time until the last."""

    def __init__(self, calls: Sequence[Call], clock: Callable[[], float]):
        self._estimates = Estimates(speed_estimate_period=SPEED_SECONDS, get_time=clock)
        self._tasks: dict[Call, TaskID] = {}  # of those that learn
        self._env_steps_left = {call: call.config.run.env_steps for call in calls}

    def update(
        self,
        outcomes: Mapping[Call, Outcome],
        running: Collection[Call],
        reports: Mapping[Call, RunStatus],
    ) -> None:
        for call in outcomes:
            self._env_steps_left[call] = 0
        for call in running:
            report, total = reports.get(call, RunStatus()), call.config.run.env_steps
            self._env_steps_left[call] = max(0, total - report.env_steps)
            if report.updates and call not in self._tasks:  # a warm-up is faster than the rest
                self._tasks[call] = self._estimates.add_task(
                    "", total=total, completed=report.env_steps
                )
            elif call in self._tasks:
                self._estimates.update(self._tasks[call], completed=report.env_steps)

    def seconds(self, running: Collection[Call]) -> float | None:
        """None as long as nothing is known."""
        by_id = {task.id: task for task in self._estimates.tasks}
        tasks = [by_id[self._tasks[call]] for call in running if call in self._tasks]
        speeds = [task.speed for task in tasks if task.speed]
        if not speeds:
            return None
        of_all = sum(speeds) / len(speeds) * len(running)
        longest = max(task.time_remaining or 0.0 for task in tasks)
        return max(longest, sum(self._env_steps_left.values()) / of_all)
