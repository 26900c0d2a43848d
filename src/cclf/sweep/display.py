"""The progress of a sweep: a line for each run that ended, and in a terminal a bar for each running
one."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from cclf.console import message_stream, say
from cclf.sweep.plan import NOT_STARTED, RunOutcome, RunProgress, RunSpec, read_progress, summarize
from cclf.training.progress import SILENT_SECONDS, SPEED_SECONDS, duration

REDRAW_SECONDS = 0.5

Outcomes = Mapping[RunSpec, RunOutcome]
ProgressOfRuns = Mapping[RunSpec, RunProgress]


class SweepDisplay:
    def __init__(self, specs: Sequence[RunSpec], clock: Callable[[], float] = time.monotonic):
        self.specs, self._clock = specs, clock
        self._printed: set[RunSpec] = set()
        self._drawn_at, self._printed_at = float("-inf"), clock()
        self._is_stopping = False
        self._env_steps_left = {spec: spec.config.run.env_steps for spec in specs}
        stream = message_stream()
        self._is_live = stream.isatty()
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(20, complete_style="cyan", finished_style="green"),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} {task.fields[note]}"),
            console=Console(file=stream),
            auto_refresh=False,
            disable=not self._is_live,
            speed_estimate_period=SPEED_SECONDS,
            get_time=clock,
        )
        self._all_runs = self._bars.add_task("", total=len(specs), start=False, note="runs")
        self._bar_ids: dict[RunSpec, TaskID] = {}  # of the running runs

    def __enter__(self) -> "SweepDisplay":
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def stopping(self, running: Collection[RunSpec], outcomes: Outcomes) -> None:
        """Acknowledge a request to stop."""
        self._is_stopping = True
        skipped = {spec for spec, outcome in outcomes.items() if outcome.state == NOT_STARTED}
        self._printed |= skipped
        self._print(
            f"stopping: {len(running)} to be saved, {len(skipped)} not started; Ctrl-C again quits "
            "at once"
        )

    def show(self, outcomes: Outcomes, running: Collection[RunSpec]) -> None:
        if running and self._clock() - self._drawn_at < REDRAW_SECONDS:
            return
        self._drawn_at = self._clock()
        self.update(outcomes, {spec: read_progress(spec.folder) for spec in running})
        for spec, outcome in outcomes.items():
            if spec not in self._printed:
                self._printed.add(spec)
                # The last line of a run that is done is its folder, which is not printed.
                reason = "" if outcome.last_line == str(spec.folder) else f": {outcome.last_line}"
                count = f"[{len(self._printed)}/{len(self.specs)}]"
                left = "" if self._is_live else self._time_left(running)
                self._print(f"{count} {outcome.state}: {spec.label}{reason}{left}")
        summary = self._summary(outcomes, running)
        self._bars.update(
            self._all_runs, description=summary, completed=len(outcomes), refresh=self._is_live
        )
        is_silent = self._clock() - self._printed_at > SILENT_SECONDS
        if running and is_silent and not self._is_live:
            self._print(summary)

    def update(self, outcomes: Outcomes, running: ProgressOfRuns) -> None:
        """Update the bars of the runs and the estimates of their speeds."""
        for spec in outcomes:
            self._env_steps_left[spec] = 0
            if spec in self._bar_ids:
                self._bars.remove_task(self._bar_ids.pop(spec))
        by_id = {task.id: task for task in self._bars.tasks}
        for spec, progress in running.items():
            total = spec.config.run.env_steps
            self._env_steps_left[spec] = max(0, total - progress.env_steps)
            if spec not in self._bar_ids:
                label = f"  {spec.label}"
                self._bar_ids[spec] = self._bars.add_task(label, start=False, total=total, note="")
            elif progress.updates and not by_id[self._bar_ids[spec]].started:
                # The warm-up is faster, so it is not part of the estimate.
                self._bars.reset(self._bar_ids[spec], completed=progress.env_steps)
            task = by_id.get(self._bar_ids[spec])
            note = f"env steps  left {duration(task.time_remaining if task else None)}"
            if progress.train_return is not None:
                note += f"  return {progress.train_return:.3g}"
            self._bars.update(self._bar_ids[spec], completed=progress.env_steps, note=note)

    def seconds_left(self, running: Collection[RunSpec]) -> float | None:
        """An estimate for the whole sweep, which assumes that waiting runs will be as fast as the
        running ones, and that as many run at a time until the end. None while no speed is known."""
        ids = {self._bar_ids[spec] for spec in running if spec in self._bar_ids}
        tasks = [task for task in self._bars.tasks if task.id in ids and task.speed]
        if not tasks:
            return None
        total_speed = sum(task.speed or 0.0 for task in tasks) / len(tasks) * len(running)
        longest = max(task.time_remaining or 0.0 for task in tasks)
        return max(longest, sum(self._env_steps_left.values()) / total_speed)

    def _print(self, line: str) -> None:
        self._printed_at = self._clock()
        say(line)

    def _time_left(self, running: Collection[RunSpec]) -> str:
        seconds = None if self._is_stopping else self.seconds_left(running)
        return "" if seconds is None else f", left about {duration(seconds)}"

    def _summary(self, outcomes: Outcomes, running: Collection[RunSpec]) -> str:
        waiting = len(self.specs) - len(outcomes) - len(running)
        counts = [
            (len(running), "saving" if self._is_stopping else "running"),
            (waiting, "waiting"),
        ]
        parts = [summarize(outcomes.values(), len(self.specs))]
        parts += [f"{count} {state}" for count, state in counts if count]
        return ", ".join(parts) + self._time_left(running)
