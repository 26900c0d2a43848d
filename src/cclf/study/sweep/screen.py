"""A live table of the runs in a terminal, a line per finished run elsewhere."""

import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from cclf.study.sweep.plan import STOPPED, Call, Outcome, RunStatus, progress

REDRAW_SECONDS = 0.25


class Screen:
    def __init__(self, calls: Sequence[Call]):
        self.calls = calls
        self._told: set[Call] = set()
        self._live: Any = None
        self._drawn = 0.0

    def __enter__(self) -> "Screen":
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(
        self,
        outcomes: Mapping[Call, Outcome],
        running: Collection[Call],
        reports: Mapping[Call, RunStatus],
    ) -> None:
        if self._live is not None:
            if time.monotonic() - self._drawn > REDRAW_SECONDS or not running:
                self._drawn = time.monotonic()
                self._live.update(self.table(outcomes, running, reports), refresh=True)
            return
        for call, outcome in outcomes.items():
            if call not in self._told:
                self._told.add(call)
                state = (
                    "stopped"
                    if outcome.exit_code == STOPPED
                    else f"failed ({outcome.exit_code})"
                    if outcome.failed
                    else "done"
                )
                line = f"[{len(self._told)}/{len(self.calls)}] {state}: {call.label}: {outcome.last_line}"
                print(line, file=sys.stderr, flush=True)

    def table(
        self,
        outcomes: Mapping[Call, Outcome],
        running: Collection[Call],
        reports: Mapping[Call, RunStatus],
    ) -> Any:
        from rich import box
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        table = Table(
            box=box.SIMPLE_HEAD,
            caption=f"{len(outcomes)} of {len(self.calls)} runs ended",
            caption_justify="left",
        )
        for name in ("task", "method", "seed", "env steps", "", "return"):
            table.add_column(
                name, justify="right" if name in ("seed", "env steps", "return") else "left"
            )
        waiting = [call for call in self.calls if call not in outcomes and call not in running]
        ended = [call for call in self.calls if call in outcomes]
        for call in [*ended[-12:], *(call for call in self.calls if call in running), *waiting[:3]]:
            report, config = reports.get(call) or progress(call.folder), call.config
            failed = call in outcomes and outcomes[call].failed
            bar = (
                "[red]failed[/]"
                if failed
                else ProgressBar(config.run.env_steps, report.env_steps, width=24)
            )
            newest = "-" if report.train_return is None else f"{report.train_return:.3g}"
            table.add_row(
                config.task,
                config.method_name,
                str(config.seed),
                f"{report.env_steps:,}",
                bar,
                newest,
            )
        return table
