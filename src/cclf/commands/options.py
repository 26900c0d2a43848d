"""Code that commands share: options declared as dataclasses, checks of output paths, tables."""

import ast
import contextlib
import dataclasses
import errno
import inspect
import io
import itertools
import json
import os
import re
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from cclf import validation
from cclf.console import say
from cclf.errors import FULL_DISK, ConfigError, did_you_mean

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Options = TypeVar("Options", bound=DataclassInstance)

EMPTY_PATH = "the path is empty: name a file or folder, or . for the working directory"
HELP_COLUMNS = 80
FIGURE_SUFFIXES, PAGE_SUFFIXES = (".svg", ".png", ".pdf"), (".html", ".htm")

# Options of several commands.
BaseName = Annotated[
    str | None,
    tyro.conf.arg(help="The base algorithm; by default that of the task (see: cclf methods)."),
]
Profile = Annotated[
    str,
    tyro.conf.arg(
        help="Settings for the points on which the paper and the released code disagree."
    ),
]
DryRun = Annotated[
    bool, tyro.conf.arg(help="Print the runs and their environment steps, and stop.")
]
Device = Annotated[str, tyro.conf.arg(help="cpu, cuda, cuda:N, or auto: a GPU if there is one.")]
EvaluationSeed = Annotated[
    validation.Seed,
    tyro.conf.arg(help="Seed of the episodes. It is independent of the seed of the run."),
]
# A flag without the form --no-NAME, also in commands whose other flags have it.
Switch = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help_behavior_hint="")]
Json = Annotated[Switch, tyro.conf.arg(help="Print one JSON document on standard output.")]


def parse(
    kind: "type[Options]", prog: str, arguments: list[str], default: "Options | None" = None
) -> "Options":
    """The options of a command line, read by tyro. Raises ConfigError with one line in place of
    tyro's report. `default` holds the values of options that are not given; without it they are
    those of the class."""
    words = check_options(arguments, option_types(kind), prog)
    # With `default` a flag may be on or off by default, so both of its forms are needed.
    markers = () if default else (tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone)
    registry, report = ConstructorRegistry(), io.StringIO()
    registry.struct_rule(_dataclass_rule)
    paragraphs = inspect.cleandoc(kind.__doc__ or "").split("\n\n")
    # tyro joins lines that begin with a letter, whatever their width.
    wrap = partial(textwrap.fill, width=HELP_COLUMNS, initial_indent="  ", subsequent_indent="  ")
    try:
        with contextlib.redirect_stderr(report):
            options = tyro.cli(
                kind,
                prog=prog,
                args=words,
                description="\n".join(map(wrap, paragraphs)),
                default=default or tyro.MISSING_NONPROP,
                config=markers,
                registry=registry,
            )
    except SystemExit as exit_:
        if exit_.code in (0, None):
            raise
        raise ConfigError(f"{_first_error(report.getvalue())} (see: {prog} --help)") from None
    validation.validate_options(options)
    return options


def option_types(kind: "DataclassInstance | type[DataclassInstance]") -> dict[str, Any]:
    """The type of each option, by its name on the command line, and those of its groups."""
    types: dict[str, Any] = {}
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        option, hint = f"--{field.name.strip('_').replace('_', '-')}", hints[field.name]
        types |= option_types(hint) if dataclasses.is_dataclass(hint) else {option: hint}
    return types


def check_options(arguments: list[str], types: dict[str, Any], prog: str) -> list[str]:
    """The arguments with options as `--with-dashes`. Raises ConfigError for an option that is not
    in `types`, and for an empty path, which pathlib reads as the working directory."""
    switched_off = (
        f"--no-{name.removeprefix('--')}" for name, each in types.items() if each is bool
    )
    known, words = {*types, *switched_off, "--help"}, [""]
    for word in arguments:
        option, equals, value = word.partition("=")
        is_option = word.startswith("--")
        if is_option:
            option = option.replace("_", "-")
            if option not in known:
                hint = did_you_mean(option, known)
                raise ConfigError(f"unknown option {option}{hint} (see: {prog} --help)")
        option_of_value = option if is_option else words[-1]
        is_path = "Path" in str(types.get(option_of_value)) or not option_of_value.startswith("--")
        if is_path and (value if is_option and equals else word) == "":
            raise ConfigError(EMPTY_PATH)
        words.append(f"{option}{equals}{value}")
    return words[1:]


def _first_error(report: str) -> str:
    """The first part of tyro's report as one line: without its colors, its title, its box or rules,
    and the help texts."""
    lines = [line.strip("│ ") for line in re.sub(r"\x1b\[[0-9;]*m", "", report).splitlines()]
    parts = itertools.groupby(lines[1:], lambda line: bool(line.strip("╰─╯-")))
    first, *others = next(list(part) for is_text, part in parts if is_text)
    if first.startswith("Missing from "):
        return f"{first.removeprefix('Missing from cclf ').removesuffix(':')} needs {others[0]}"
    return " ".join([first.removeprefix("Error parsing "), *others])


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
    """tyro's rule for dataclasses with three changes: the placeholder of a string is the name of
    its option in capitals, help texts do not keep the line breaks of the source, and empty defaults
    are hidden."""
    kind = info.type
    if not isinstance(kind, type) or not dataclasses.is_dataclass(kind):
        return None
    types, plain_types, texts = validation.field_types(kind), get_type_hints(kind), field_help(kind)
    values = vars(info.default) if isinstance(info.default, kind) else {}
    fields, annotated = [], cast(Any, Annotated)
    for field in dataclasses.fields(kind):
        plain, declared = plain_types[field.name], types[field.name]
        default = values.get(field.name, field.default)
        if default is dataclasses.MISSING:
            default = () if get_origin(plain) is tuple else tyro.MISSING_NONPROP
        is_empty = default in (None, (), "") or (default is False and not values)
        shown = tyro.conf.arg(
            metavar=_metavar(field.name, plain), help_behavior_hint="" if is_empty else None
        )
        # Settings of the annotation come last, so that they override `shown`.
        is_annotated = get_origin(declared) is Annotated
        kind_of_value, *metadata = get_args(declared) if is_annotated else (declared,)
        annotation = annotated[(kind_of_value, shown, *metadata)]
        fields.append(StructFieldSpec(field.name, annotation, default, texts.get(field.name)))
    return StructConstructorSpec(kind, tuple(fields))


def _metavar(name: str, kind: object) -> str | None:
    """How the help shows the value of an option; None for tyro's own choice.

    >>> _metavar("base", str | None), _metavar("tasks", tuple[str, ...]), _metavar("seed", int)
    ('BASE', '[TASK [TASK ...]]', None)
    """
    word = name.rpartition("_")[2].upper()
    one = word.removesuffix("S")
    shown: dict[object, str] = {
        str: word,
        str | None: word,
        int | None: "INT",
        tuple[str, ...]: f"[{one} [{one} ...]]",
        tuple[int, ...]: f"[{one} [{one} ...]]",
        tuple[Path, ...]: "[PATH [PATH ...]]",
    }
    return shown.get(kind)


@contextlib.contextmanager
def output_errors(out: Path) -> Iterator[None]:
    """Turn an error while writing `out` into a ConfigError of one line that names it. Print a
    message if an existing file was replaced."""
    replaces = out.is_file()
    try:
        yield
    except OSError as error:
        raise _not_written(error.filename or out, error) from error
    if replaces:
        say(f"replaced {out}")


def check_writable(out: Path, suffixes: Sequence[str] = (), is_folder: bool = False) -> None:
    """Raise ConfigError for an output that cannot be written, before the work for it begins. No file
    remains. Its name must end in one of `suffixes`, if there are any."""
    if suffixes and out.suffix not in suffixes:
        raise ConfigError(f"cannot write {out}: the name must end in {' or '.join(suffixes)}")
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
    space = "free space there, or " if error.errno in FULL_DISK else ""
    return ConfigError(f"cannot write {out}: {error.strerror or error}; {space}name another place")


def print_json(document: object) -> None:
    """Print the one JSON document of a command."""
    print(json.dumps(document, indent=2, default=vars))


def print_table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(*header, box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
