"""Code of others: what packages add by entry points, and functions that a run names as
MODULE:FUNCTION. What cannot be used is named, in one line."""

import importlib
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from cclf.errors import ConfigError, did_you_mean, short_error


def add_from_packages(
    group: str, kind: type[Any], found: dict[str, Any], lacks: Callable[[Any], str]
) -> None:
    """Add to `found`, by name, what the entry points of `group` name.

    Each must be of this `kind`, have a name of its own, and `lacks` must find nothing wrong.
    """
    for point in sorted(entry_points(group=group), key=lambda point: point.value):
        package = point.dist.name if point.dist else point.module
        thing, wrong = _loaded(point)
        if not wrong and not isinstance(thing, kind):
            wrong = f"which is no {kind.__name__} but {thing!r:.60}"
        elif not wrong and thing.name in found:
            wrong = f"whose name {thing.name} is taken already"
        wrong = wrong or lacks(thing)
        if wrong:
            where = f"the package {package} adds {point.value} to {group}"
            remedy = f"repair or uninstall {package} (see docs/extending.md)"
            raise ConfigError(f"{where}, {wrong}; {remedy}")
        found[thing.name] = thing


def _loaded(point: EntryPoint) -> tuple[Any, str]:
    """What an entry point names, and why there is nothing."""
    try:
        return point.load(), ""
    except (Exception, SystemExit) as error:  # whatever the code of another package does
        return None, f"which cannot be imported: {type(error).__name__}: {error}"


def import_function(option: str, text: str) -> Callable[..., Any]:
    """What the text MODULE:FUNCTION of an option names. Imports the module: runs its code."""
    module, _, name = text.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # whatever the code of another does
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module}.".startswith(f"{missing}."):
            raise ConfigError(
                f"{option}={text}: Python finds no module {missing!r}; install it, or name its "
                "folder in PYTHONPATH (the working directory is not searched)"
            ) from error
        raise ConfigError(f"{option}={text} cannot be imported: {short_error(error)}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            hint = did_you_mean(part, vars(found) if hasattr(found, "__dict__") else ())
            raise ConfigError(f"{option}={text}: the module {module} has no {name}{hint}")
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(f"{option}={text} is no function but {type(found).__name__}")
    function: Callable[..., Any] = found
    return function


def qualified_name(option: str, function: Callable[..., Any]) -> str:
    """The text MODULE:FUNCTION by which another process finds a function again; refused where
    there is none."""
    module, name = (getattr(function, each, "") for each in ("__module__", "__qualname__"))
    again = "a run folder could not name it for a later process"
    if not module or not name:
        kind = type(function).__name__
        raise ConfigError(f"{option} is an object ({kind}), not a function: {again}")
    if "<" in name:  # <lambda>, <locals>
        raise ConfigError(
            f"{option}: {name} is a lambda, or defined inside a function, and {again}; write it "
            "with `def` at the top of a module, and import it from there"
        )
    if module == "__main__":
        raise ConfigError(
            f"{option}: {name} is defined in the script or notebook that runs (__main__), and "
            f"{again}; move it to a module, e.g. my_encoders.py, and import it from there"
        )
    if import_function(option, f"{module}:{name}") != function:
        raise ConfigError(f"{option}: {module}:{name} is another function by now, and {again}")
    return f"{module}:{name}"
