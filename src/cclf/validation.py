"""Validation of options: the types and ranges of fields, and the rules by which an option has no
effect in a run.

This module imports only the standard library, like the configuration itself.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from cclf.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
_MAX_TEXT_CHARACTERS = 60


class Range(NamedTuple):
    """A range of numbers. Its ends belong to it unless they are exclusive."""

    minimum: float = -math.inf
    maximum: float = math.inf
    exclusive_minimum: bool = False
    exclusive_maximum: bool = False

    def error(self, value: float) -> str:
        """Why a value is outside the range; empty if it is inside."""
        # An int may be too large for a float.
        is_finite = isinstance(value, int) or math.isfinite(value)
        if (
            is_finite
            and self.minimum <= value <= self.maximum
            and not (self.exclusive_minimum and value == self.minimum)
            and not (self.exclusive_maximum and value == self.maximum)
        ):
            return ""
        return str(self) if is_finite or math.isfinite(self.maximum) else "must be a finite number"

    def __str__(self) -> str:
        """
        >>> str(Range(1)), str(Range(0, exclusive_minimum=True)), str(Range(0, 1, exclusive_maximum=True))
        ('must be 1 or more', 'must be above 0', 'must lie in [0, 1)')
        """
        if math.isinf(self.maximum):
            end = f"above {self.minimum}" if self.exclusive_minimum else f"{self.minimum} or more"
            return f"must be {end}"
        first = "(" if self.exclusive_minimum else "["
        last = ")" if self.exclusive_maximum else "]"
        return f"must lie in {first}{self.minimum}, {self.maximum}{last}"


# The maxima keep sizes representable in PyTorch and in file systems. A smaller size that still does
# not fit into memory is refused where the memory is allocated.
StepCount = Annotated[int, Range(1, 10**12)]  # steps, updates, transitions
StepCountOrZero = Annotated[int, Range(0, 10**12)]
PositiveInt = Annotated[int, Range(1, 100_000)]  # batch sizes, layers, axes
Seed = Annotated[int, Range(0, 2**63 - 1)]
Episodes = Annotated[int, Range(1, 100_000)]  # episodes that one command runs
Fraction = Annotated[float, Range(0, 1)]
FractionBelowOne = Annotated[float, Range(0, 1, exclusive_maximum=True)]
Positive = Annotated[float, Range(0, exclusive_minimum=True)]
ZeroOrMore = Annotated[float, Range(0)]


@cache
def field_types(config: type[DataclassInstance]) -> dict[str, Any]:
    """The type of each field of a dataclass, with its range."""
    hints = get_type_hints(config, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(config)}


def type_error(value: object, kind: object) -> str:
    """Why `value` does not fit a field of this type, to follow `name=value` in a message; empty if
    it fits.

    >>> type_error(1.5, Fraction), type_error(True, StepCount), type_error(64, PositiveInt)
    ('must lie in [0, 1]', 'must be a whole number', '')
    """
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        error = type_error(value, parts[0])
        if error or not isinstance(value, (int, float)):
            return error
        errors = [part.error(value) for part in parts if isinstance(part, Range)]
        return errors[0] if errors else ""
    if origin is Literal:
        fits = any(type(value) is type(choice) and value == choice for choice in parts)
        return "" if fits else f"must be one of {', '.join(map(str, parts))}"
    if origin in (Union, UnionType):
        kinds = [each for each in parts if each is not NoneType or value is None]
        return min((type_error(value, each) for each in kinds), key=len)
    if isinstance(kind, TypeVar):
        return type_error(value, kind.__bound__)
    if kind is Any:
        return ""
    assert isinstance(kind, type), f"a field of type {kind} cannot be validated"
    if kind is int or kind is float:
        is_number = isinstance(value, int if kind is int else (int, float))
        fits = is_number and not isinstance(value, bool)
        return "" if fits else f"must be a {'whole ' if kind is int else ''}number"
    description = {bool: "true or false", str: "text"}.get(kind, kind.__name__)
    return "" if isinstance(value, kind) else f"must be {description}"


def validate_value(name: str, value: object, kind: object) -> None:
    """Raise ConfigError unless `value` fits this type."""
    if error := type_error(value, kind):
        raise ConfigError(f"{name}={short_text(value)} {error}")


def validate_fields(config: DataclassInstance) -> None:
    """Raise ConfigError unless every field has a value of its type and range, wherever it came
    from: a command line, a file or Python."""
    for name, kind in field_types(type(config)).items():
        validate_value(name, vars(config)[name], kind)


def validate_options(options: DataclassInstance) -> None:
    """Raise ConfigError if a number of a command line is out of range, or if an option that takes
    several values, and has some by default, is given none."""
    for field in dataclasses.fields(options):
        value, kind = vars(options)[field.name], field_types(type(options))[field.name]
        option = f"--{field.name.replace('_', '-')}"
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            validate_options(value)
            continue
        if value == () and field.default not in ((), dataclasses.MISSING):
            raise ConfigError(f"{option} needs at least one value")
        takes_several = get_origin(kind) is tuple
        for each in value if takes_several else (value,):
            if error := _range_error(each, get_args(kind)[0] if takes_several else kind):
                raise ConfigError(f"{option} {short_text(each)} {error}")


def _range_error(value: object, kind: object) -> str:
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    has_range = any(isinstance(part, Range) for each in kinds for part in get_args(each))
    return type_error(value, kind) if has_range else ""


def short_text(value: object) -> str:
    """Any value as part of a one-line message.

    >>> short_text(1.5), short_text("tpu"), short_text([1, 2]), len(short_text("x" * 1_000))
    ('1.5', 'tpu', '[1, 2]', 60)
    """
    try:
        text = " ".join(str(value).split())
    except Exception:  # a broken __str__, or an int with more digits than Python prints
        text = f"<{type(value).__name__}>"
    shortened = f"{text[: _MAX_TEXT_CHARACTERS - 3]}..."
    return text if len(text) <= _MAX_TEXT_CHARACTERS else shortened


def to_python_number(value: T) -> T:
    """A NumPy or PyTorch scalar as a Python number; other values unchanged."""
    import numpy as np
    import torch

    if isinstance(value, (np.generic, np.ndarray, torch.Tensor)) and value.ndim == 0:
        return cast("T", value.item())
    return value


def names(text: str) -> frozenset[str]:
    """Field names separated by white space, as a set."""
    return frozenset(text.split())


# A rule takes the values of the fields that affect learning, by field name. It returns why an option
# has no effect in that run, to follow `conflicts with` in a message, or "" if it has one.
Values = Mapping[str, Any]
Rule = Callable[[Values], str]


def requires(name: str, value: object = True) -> Rule:
    return lambda values: "" if values[name] == value else f"{name}={values[name]}"


def excludes(name: str, value: object = True) -> Rule:
    return lambda values: f"{name}={value}" if values[name] == value else ""


def always_inactive(reason: str) -> Rule:
    return lambda _: reason


def all_of(*rules: Rule) -> Rule:
    """The option has an effect if every rule allows it; the message names the first conflict."""
    return lambda values: next(filter(None, (rule(values) for rule in rules)), "")


def any_of(*rules: Rule) -> Rule:
    """The option has an effect if at least one rule allows it; the message names all conflicts."""

    def rule(values: Values) -> str:
        conflicts = [each(values) for each in rules]
        return " and ".join(conflicts) if all(conflicts) else ""

    return rule


METHOD_RULES: dict[str, Rule] = {  # for the fields of `MethodConfig`, whatever the base algorithm
    "bonus_temperature": requires("reward"),
    "bonus_decay_per_env_step": requires("reward"),
    "bonus_maxima": requires("reward"),
    "priority_momentum": requires("prioritisation"),
    "contrastive_reduction": requires("contrastive"),
    "negatives": requires("contrastive"),
    "curiosity": any_of(
        requires("selection", "curiosity"),
        requires("prioritisation"),
        requires("regularisation"),
        requires("reward"),
    ),
}
GRID_ONLY = always_inactive("pixels, where no two observations are equal: it is made for grids")
