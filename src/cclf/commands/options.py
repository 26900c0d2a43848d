"""What all commands share: exit codes, options from dataclasses, tables."""

import contextlib
import errno
import io
import itertools
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cclf import validation
from cclf.errors import ConfigError

EXIT_DONE, EXIT_FAILED, EXIT_BAD_INPUT, EXIT_STOPPED = 0, 1, 2, 75
DEBUG = "CCLF_DEBUG"  # environment variable: show the traceback of an error of the system
EMPTY_PATH = "the path is empty: name a file or folder, or . for the working directory"
NAMED_RUNS = 8  # of a folder that holds several


def limit_openmp_spinning() -> None:
    """Threads of PyTorch wait for each other by spinning, by default for milliseconds: beside any
    other busy process a run would take thirty times as long. With this, which is read when PyTorch
    starts, they sleep sooner (docs/performance.md)."""
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")


def parse(options: Any, prog: str, arguments: list[str]) -> Any:
    """`options`, a dataclass or an instance holding the defaults, filled by tyro, whose boxed error
    report becomes one line. Where it has a `run`, that may also be a folder that holds one."""
    import tyro

    from cclf.commands.option_help import registry

    kind = options if isinstance(options, type) else type(options)
    _refuse_empty_paths(kind, arguments)
    default = tyro.MISSING_NONPROP if isinstance(options, type) else options
    report = io.StringIO()
    try:
        with contextlib.redirect_stderr(report), registry():
            filled = tyro.cli(kind, prog=prog, args=arguments, default=default)
    except SystemExit as exit_:
        if exit_.code in (0, None):
            raise
        # the first holds the title; not all have boxes
        body = [line.strip("│ ") for line in report.getvalue().splitlines()[1:]]
        words = [
            line for line in body if line.strip("╰─-╯") and not line.startswith("For full helptext")
        ]
        line = " ".join(words).partition(" Argument helptext:")[0]
        raise ConfigError(f"{line or 'bad options'} (see: {prog} --help)") from None
    validation.validate_options(filled)
    named = getattr(filled, "run", None)
    return replace(filled, run=find_run_folder(named)) if isinstance(named, Path) else filled


def _refuse_empty_paths(kind: type, arguments: list[str]) -> None:
    """Of options; tyro would say of one that may be left out which types it has tried."""
    types = validation.field_types(kind)
    options = {f"--{name.replace('_', '-')}" for name in types if "Path" in str(types[name])}
    for before, word in itertools.pairwise(["", *arguments]):
        option = before if word == "" else word.removesuffix("=")
        if option in options and (word == "" or word.endswith("=")):
            raise ConfigError(f"{option}: {EMPTY_PATH}")


def find_run_folder(folder: Path) -> Path:
    """A run folder: `folder` itself, or the only one anywhere under it."""
    from cclf.storage.atomic_files import (
        find_files,  # imports numpy, which some commands do without
    )

    if (folder / "config.json").exists():
        return folder
    runs = sorted(path.parent for path in find_files(folder, "config.json"))
    # the bundle of a failure holds a config, too, and lies in its run
    runs = [run for run in runs if not any(other in run.parents for other in runs)]
    if len(runs) > 1:
        more = f" and {len(runs) - NAMED_RUNS} more" if len(runs) > NAMED_RUNS else ""
        raise ConfigError(
            f"{folder} holds {len(runs)} runs: name one of them: "
            f"{', '.join(map(str, runs[:NAMED_RUNS]))}{more}"
        )
    return runs[0] if runs else folder


@contextlib.contextmanager
def output_errors(out: Path) -> Iterator[None]:
    """An output that cannot be written is bad input: one line that names it."""
    try:
        yield
    except OSError as error:
        raise _not_written(error.filename or out, error) from error


def check_writable(out: Path, is_folder: bool = False) -> None:
    """Refuse an output that cannot be written before the work for it begins. Makes nothing that
    stays."""
    try:
        if not is_folder and out.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if out.is_file() and not os.access(out, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        place = out if is_folder else out.parent
        while not place.exists():
            place = place.parent
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        raise _not_written(out, error) from error


def _not_written(out: str | Path, error: OSError) -> ConfigError:
    space = "free space there, or " if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return ConfigError(f"cannot write {out}: {error.strerror or error}; {space}name another place")


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
