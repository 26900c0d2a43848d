"""Whether the values of a config that was read from a file are of the kinds that its fields name."""

import dataclasses
import types
from typing import Any, Literal, get_args, get_origin, get_type_hints

from cclf.config import ConfigError


def refuse_wrong_kinds(config: Any, group: str = "") -> None:
    """Dataclasses take any value for any field; a command line is read by kind, a file is not."""
    kinds = get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), f"{group}{field.name}"
        if dataclasses.is_dataclass(value):
            refuse_wrong_kinds(value, f"{name}.")
        elif not _is(kinds[field.name], value):
            shown = repr(value)
            raise ConfigError(f"{name} is {shown if len(shown) < 60 else f'{shown[:57]}...'}, not {_told(kinds[field.name])}")


def _is(kind: Any, value: Any) -> bool:
    """
    >>> _is(int, 3), _is(int, True), _is(float, 3), _is(int | None, None), _is(Literal["a", "b"], "c")
    (True, False, True, True, False)
    """
    if get_origin(kind) is Literal:
        return any(type(value) is type(choice) and value == choice for choice in get_args(kind))
    if isinstance(kind, types.UnionType):
        return any(_is(one, value) for one in get_args(kind))
    if kind is int:
        return type(value) is int and abs(value) < 2**63
    return type(value) in (int, float) if kind is float else type(value) is kind


def _told(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    return getattr(kind, "__name__", None) or str(kind)
