"""The types of config fields: what each may hold. A config checks every field of its own against
its type.

Standard library only, like the config itself.
"""

import dataclasses
import math
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from cclf.errors import ConfigError

_SHOWN_CHARACTERS = 60


class Range(NamedTuple):
    """From `least` to `most`, both included unless told."""

    least: float = -math.inf
    most: float = math.inf
    without_least: bool = False
    without_most: bool = False

    def admits(self, value: float) -> bool:
        return (
            # An int may be too large for a float.
            (isinstance(value, int) or math.isfinite(value))
            and self.least <= value <= self.most
            and not (self.without_least and value == self.least)
            and not (self.without_most and value == self.most)
        )

    def complaint(self, value: float) -> str:
        """What is wrong with a value that is not admitted."""
        is_finite = isinstance(value, int) or math.isfinite(value)
        return str(self) if is_finite or math.isfinite(self.most) else "must be a finite number"

    def __str__(self) -> str:
        """
        >>> str(Range(1)), str(Range(0, without_least=True)), str(Range(0, 1, without_most=True))
        ('must be 1 or more', 'must be above 0', 'must lie in [0, 1)')
        """
        if math.isinf(self.least) and math.isinf(self.most):
            return "must be a number"
        if math.isinf(self.most):
            return (
                f"must be above {self.least}"
                if self.without_least
                else f"must be {self.least} or more"
            )
        brackets = "(" if self.without_least else "[", ")" if self.without_most else "]"
        return f"must lie in {brackets[0]}{self.least}, {self.most}{brackets[1]}"


# Upper ends keep numbers inside what PyTorch and a disk can count; a size that only lacks memory is
# refused where it is known.
StepCount = Annotated[int, Range(1, 10**12)]  # of steps, updates, transitions
StepCountOrZero = Annotated[int, Range(0, 10**12)]
PositiveInt = Annotated[int, Range(1, 100_000)]  # of a batch, a layer, an axis
Seed = Annotated[int, Range(0, 2**63 - 1)]
Episodes = Annotated[int, Range(1, 100_000)]  # of one command
Fraction = Annotated[float, Range(0, 1)]
FractionBelowOne = Annotated[float, Range(0, 1, without_most=True)]
Positive = Annotated[float, Range(0, without_least=True)]
ZeroOrMore = Annotated[float, Range(0)]


def names(text: str) -> frozenset[str]:
    """Of fields, separated by spaces."""
    return frozenset(text.split())


@cache
def field_types(config: type) -> dict[str, Any]:
    """The fields of a dataclass with their types, ranges included."""
    hints = get_type_hints(config, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(config)}


def type_error(value: Any, kind: Any) -> str:
    """What is wrong with `value` as a field of this type, to be read after `name=value`; empty
    where nothing is.

    >>> type_error(1.5, Fraction), type_error(True, StepCount), type_error(64, PositiveInt)
    ('must lie in [0, 1]', 'must be a whole number', '')
    """
    origin = get_origin(kind)
    if origin is Annotated:
        base, *rules = get_args(kind)
        ranges = [rule for rule in rules if isinstance(rule, Range)]
        broken = [
            each.complaint(value)
            for each in ranges
            if not type_error(value, base) and not each.admits(value)
        ]
        return type_error(value, base) or "".join(broken[:1])
    if origin is Literal:
        choices = get_args(kind)
        fits = any(type(value) is type(choice) and value == choice for choice in choices)
        return "" if fits else f"must be one of {', '.join(map(str, choices))}"
    if origin in (Union, UnionType):
        complaints = [
            type_error(value, each)
            for each in get_args(kind)
            if each is not NoneType or value is None
        ]
        return min(complaints, key=len)
    if kind is Any:
        return ""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is int:
        return "" if is_number and isinstance(value, int) else "must be a whole number"
    if kind is float:
        return "" if is_number else "must be a number"
    if kind is bool:
        return "" if isinstance(value, bool) else "must be true or false"
    return "" if isinstance(value, kind) else f"must be {'text' if kind is str else kind.__name__}"


def refuse_misfit(name: str, value: Any, kind: Any) -> None:
    wrong = type_error(value, kind)
    if wrong:
        raise ConfigError(f"{name}={shown(value)} {wrong}")


def refuse_options(options: Any) -> None:
    """The numbers of a command line, a dataclass: each in its range, and of an option that takes
    several values at least one, where the command itself has some."""
    for field in dataclasses.fields(options):
        value, kind = getattr(options, field.name), field_types(options.__class__)[field.name]
        option = f"--{field.name.replace('_', '-')}"
        if value == () and field.default not in ((), dataclasses.MISSING):
            raise ConfigError(f"{option} needs at least one value")
        several = get_origin(kind) is tuple
        for each in value if several else (value,):
            wrong = _out_of_range(each, get_args(kind)[0] if several else kind)
            if wrong:
                raise ConfigError(f"{option} {shown(each)} {wrong}")


def _out_of_range(value: Any, kind: Any) -> str:
    has_range = get_origin(kind) is Annotated and any(isinstance(a, Range) for a in get_args(kind))
    return type_error(value, kind) if has_range else ""


def shown(value: Any) -> str:
    """A value as a short part of one line, whatever it is.

    >>> shown(1.5), shown("tpu"), shown([1, 2]), len(shown("x" * 1_000))
    ('1.5', 'tpu', '[1, 2]', 60)
    """
    try:
        text = " ".join(str(value).split())
    except Exception:  # of the class of the value, or an int with more digits than Python writes
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."


def plain(value: Any) -> Any:
    """The number of Python that a number of NumPy or PyTorch stands for; other values as they
    are."""
    is_number = getattr(value, "shape", None) == () and hasattr(value, "dtype")
    return value.item() if is_number and hasattr(value, "item") else value
