"""What all commands share: exit codes, options from dataclasses, tables."""

import contextlib
import io
from collections.abc import Sequence
from typing import Any

from cclf.config import ConfigError

EXIT_DONE, EXIT_FAILED, EXIT_BAD_INPUT, EXIT_STOPPED = 0, 1, 2, 75


def parse(options: Any, prog: str, arguments: list[str]) -> Any:
    """`options`, a dataclass or an instance holding the defaults, filled by tyro, whose boxed error report becomes one line."""
    import tyro

    kind = options if isinstance(options, type) else type(options)
    default = tyro.MISSING_NONPROP if isinstance(options, type) else options
    report = io.StringIO()
    try:
        with contextlib.redirect_stderr(report):
            return tyro.cli(kind, prog=prog, args=arguments, default=default)
    except SystemExit as exit_:
        if exit_.code in (0, None):
            raise
        body = [line.strip("│ ") for line in report.getvalue().splitlines()[1:]]  # the first holds the title; not all have boxes
        words = [line for line in body if line.strip("╰─-╯") and not line.startswith("For full helptext")]
        raise ConfigError(f"{' '.join(words) or 'bad options'} (see: {prog} --help)") from None


def print_table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for name in header:
        table.add_column(name)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
