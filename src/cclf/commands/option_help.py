"""How tyro shows the options of a command: the text below each field, joined to one paragraph."""

import ast
import dataclasses
import inspect
import textwrap
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from cclf import validation
from cclf.commands.options import EMPTY_PATH


@cache
def field_help(kind: type) -> dict[str, str]:
    """The string below each field of a dataclass as one paragraph, by the field's name."""
    try:
        source = inspect.getsource(kind)
    except OSError:  # the class was not read from a file
        return {}
    body = ast.parse(textwrap.dedent(source)).body[0].body  # type: ignore[attr-defined]
    return {
        field.target.id: " ".join(str(below.value.value).split())
        for field, below in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
    }


def registry() -> ConstructorRegistry:
    """Rules for tyro, which by itself keeps the line breaks of the source and accepts `Path("")`."""
    rules = ConstructorRegistry()
    rules.struct_rule(_dataclass_options)
    rules.primitive_rule(_path_option)
    return rules


def _dataclass_options(info: StructTypeInfo) -> StructConstructorSpec | None:
    kind = info.type
    if not isinstance(kind, type) or not dataclasses.is_dataclass(kind):
        return None
    types = validation.field_types(kind)
    options = tuple(
        StructFieldSpec(
            field.name,
            types[field.name],
            _default(field, info.default),
            partial(_help, kind, field.name),  # computed only for --help
        )
        for field in dataclasses.fields(kind)
    )
    return StructConstructorSpec(kind, options)


def _default(field: "dataclasses.Field[Any]", instance: Any) -> Any:
    if instance is not tyro.MISSING and instance is not tyro.MISSING_NONPROP:
        return getattr(instance, field.name)
    return tyro.MISSING_NONPROP if field.default is dataclasses.MISSING else field.default


def _help(kind: type, name: str) -> str | None:
    """The text of an option, or the docstring of a group of options."""
    inner = get_args(validation.field_types(kind)[name])[:1]
    if inner and dataclasses.is_dataclass(inner[0]):
        return " ".join((inner[0].__doc__ or "").split())
    return field_help(kind).get(name)


def _path_option(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Path] | None:
    if info.type is not Path:
        return None
    return PrimitiveConstructorSpec(
        1, "PATH", _path, lambda value: isinstance(value, Path), lambda path: [str(path)]
    )


def _path(words: list[str]) -> Path:
    if not words[0]:
        raise ValueError(EMPTY_PATH)
    return Path(words[0])
