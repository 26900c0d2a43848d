"""What `--help` says of an option: the text below the field that it fills."""

import ast
import dataclasses
import inspect
import textwrap
from functools import cache, partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from cclf import fields
from cclf.commands.options import EMPTY_PATH

_NONE_GIVEN = (tyro.MISSING, tyro.MISSING_NONPROP)


@cache
def sentences(kind: type) -> dict[str, str]:
    """What the fields of a dataclass say of themselves, each as one paragraph."""
    try:
        source = inspect.getsource(kind)
    except OSError:  # of another package, made without a file
        return {}
    body = ast.parse(textwrap.dedent(source)).body[0]
    assert isinstance(body, ast.ClassDef), f"{kind} is a class"
    said = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        is_field = isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if is_field and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            said[field.target.id] = " ".join(str(below.value.value).split())  # type: ignore[attr-defined]
    return said


def registry() -> ConstructorRegistry:
    """For tyro, which else keeps the line breaks of the source in its boxes and shows a type that
    may be None as `{None}|STR`."""
    rules = ConstructorRegistry()
    rules.struct_rule(_as_options)
    rules.primitive_rule(_as_path)
    return rules


def _as_path(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Path] | None:
    """`Path("")` would silently be the working directory."""
    if info.type is not Path:
        return None
    return PrimitiveConstructorSpec(
        1, "PATH", _path, lambda value: isinstance(value, Path), lambda path: [str(path)]
    )


def _path(words: list[str]) -> Path:
    if not words[0]:
        raise ValueError(EMPTY_PATH)
    return Path(words[0])


def _as_options(info: StructTypeInfo) -> StructConstructorSpec | None:
    kind = info.type
    if not dataclasses.is_dataclass(kind) or not isinstance(kind, type):
        return None
    types = fields.field_types(kind)
    return StructConstructorSpec(
        kind,
        tuple(
            StructFieldSpec(
                field.name,
                _named(types[field.name]),
                _default(field, info.default),
                partial(_sentence, kind, field.name),  # read only where help is asked for
            )
            for field in dataclasses.fields(kind)
        ),
    )


def _sentence(kind: type, name: str) -> str | None:
    """Of an option, or of a group of them, which is a dataclass."""
    inner = get_args(fields.field_types(kind)[name])[:1]
    if inner and dataclasses.is_dataclass(inner[0]):
        return " ".join((inner[0].__doc__ or "").split())
    return sentences(kind).get(name)


def _default(field: "dataclasses.Field[Any]", given: Any) -> Any:
    if not any(given is none for none in _NONE_GIVEN):
        return getattr(given, field.name)
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return tyro.MISSING_NONPROP


def _named(kind: Any) -> Any:
    """A type that may be None is shown by the other."""
    if get_origin(kind) not in (Union, UnionType):
        return kind
    others = [each for each in get_args(kind) if each is not NoneType]
    if len(others) != 1 or get_origin(others[0]) is Literal:
        return kind
    plain = get_args(others[0])[0] if get_origin(others[0]) is Annotated else others[0]
    return Annotated[kind, tyro.conf.arg(metavar=plain.__name__.upper())]
