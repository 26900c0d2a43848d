"""What commands share: options declared as dataclasses, checks of outputs, tables."""

import ast
import contextlib
import dataclasses
import errno
import inspect
import io
import itertools
import os
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from cclf import validation
from cclf.console import say
from cclf.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Options = TypeVar("Options", bound=DataclassInstance)

EMPTY_PATH = "the path is empty: name a file or folder, or . for the working directory"

# Options of several commands.
RunFolder = Annotated[
    tyro.conf.Positional[Path],
    tyro.conf.arg(
        metavar="RUN",
        help="A run folder, a folder that contains runs, pretrained/NAME or hf:USER/NAME.",
    ),
]
Last = Annotated[
    bool, tyro.conf.arg(help="Take the run that trained last if the folder contains several.")
]
Device = Annotated[str, tyro.conf.arg(help="cpu, cuda, cuda:N, or auto: a GPU if there is one.")]
EvaluationSeed = Annotated[
    validation.Seed,
    tyro.conf.arg(help="Seed of the episodes. It is independent of the seed of the run."),
]
TrustImports = Annotated[
    bool,
    tyro.conf.arg(
        help="Allow the run to import the Python modules that it names: of a task gym/MODULE:ID, an "
        "encoder, a curiosity or an augmentation MODULE:NAME."
    ),
]
Json = Annotated[bool, tyro.conf.arg(help="Print one JSON document on standard output.")]


def parse(
    kind: "type[Options]", prog: str, arguments: list[str], default: "Options | None" = None
) -> "Options":
    """The options of a command line, read by tyro. Raises ConfigError with one line in place of
    tyro's report. `default` holds the values of options that are not given; without it they are
    those of the class."""
    _reject_empty_paths(kind, arguments)
    # With `default` a flag may be on or off by default, so both of its forms are needed.
    markers = () if default else (tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone)
    registry, report = ConstructorRegistry(), io.StringIO()
    registry.struct_rule(_dataclass_rule)
    try:
        with contextlib.redirect_stderr(report):
            options = tyro.cli(
                kind,
                prog=prog,
                args=arguments,
                default=default or tyro.MISSING_NONPROP,
                config=markers,
                registry=registry,
            )
    except SystemExit as exit_:
        if exit_.code in (0, None):
            raise
        # The first line is the title; a box is drawn around some reports.
        lines = [line.strip("│ ") for line in report.getvalue().splitlines()[1:]]
        text = " ".join(
            line
            for line in lines
            if line.strip("╰─-╯") and not line.startswith("For full helptext")
        )
        error = text.partition(" Argument helptext:")[0] or "invalid options"
        raise ConfigError(f"{error} (see: {prog} --help)") from None
    validation.validate_options(options)
    return options


def _reject_empty_paths(kind: "type[DataclassInstance]", arguments: list[str]) -> None:
    """Raise ConfigError for an empty path, which pathlib reads as the working directory."""
    types = validation.field_types(kind)
    paths = {f"--{name.replace('_', '-')}" for name in types if "Path" in str(types[name])}
    for before, word in itertools.pairwise(["", *arguments]):
        option = before if word == "" else word.removesuffix("=")
        is_positional = word == "" and not before.startswith("--")
        if is_positional or (option in paths and (word == "" or word.endswith("="))):
            name = "" if is_positional else f"{option}: "
            raise ConfigError(f"{name}{EMPTY_PATH}")


@cache
def field_help(kind: type) -> dict[str, str]:
    """The string below each field of a dataclass and of the dataclasses it inherits from, as one
    paragraph, by the name of the field."""
    texts: dict[str, str] = {}
    for base in reversed([each for each in kind.__mro__ if dataclasses.is_dataclass(each)]):
        try:
            source = inspect.getsource(base)
        except OSError:  # the class was not read from a file
            continue
        [definition] = ast.parse(textwrap.dedent(source)).body
        assert isinstance(definition, ast.ClassDef), "this is the source of a class"
        texts |= {
            field.target.id: " ".join(str(below.value.value).split())
            for field, below in itertools.pairwise(definition.body)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        }
    return texts


def _dataclass_rule(info: StructTypeInfo) -> StructConstructorSpec | None:
    """As tyro's own rule, but the text of an option has no line breaks of the source, and a default that
    says nothing is not shown."""
    kind = info.type
    if not isinstance(kind, type) or not dataclasses.is_dataclass(kind):
        return None
    types, texts = validation.field_types(kind), field_help(kind)
    values = vars(info.default) if isinstance(info.default, kind) else {}
    fields = []
    for field in dataclasses.fields(kind):
        given = values.get(field.name, field.default)
        default = tyro.MISSING_NONPROP if given is dataclasses.MISSING else given
        annotation = types[field.name]
        if default in (None, ()) or (default is False and not values):
            annotation = Annotated[annotation, tyro.conf.arg(help_behavior_hint="")]
        fields.append(StructFieldSpec(field.name, annotation, default, texts.get(field.name)))
    return StructConstructorSpec(kind, tuple(fields))


@contextlib.contextmanager
def output_errors(out: Path) -> Iterator[None]:
    """Report an output that cannot be written as one line that names it, and one that replaced an
    existing file with a message."""
    replaces = out.is_file()
    try:
        yield
    except OSError as error:
        raise _not_written(error.filename or out, error) from error
    if replaces:
        say(f"replaced {out}")


def check_writable(out: Path, is_folder: bool = False) -> None:
    """Raise ConfigError for an output that cannot be written, before the work for it begins. No file
    remains."""
    try:
        if not is_folder and out.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if out.is_file() and not os.access(out, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        existing = out if is_folder else out.parent
        while not existing.exists():
            existing = existing.parent
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        raise _not_written(out, error) from error


def _not_written(out: str | Path, error: OSError) -> ConfigError:
    space = "free space there, or " if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return ConfigError(f"cannot write {out}: {error.strerror or error}; {space}name another place")


def print_table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(*header, box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
