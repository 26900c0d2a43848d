"""Code of other packages: entry points, and objects that an option names as MODULE:NAME. Any error
in them becomes a ConfigError of one line."""

import importlib
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from operator import attrgetter
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, TypeVar

from cclf.errors import ConfigError, did_you_mean, short_error

T = TypeVar("T")


def load_entry_points(
    group: str, kind: type[Any], known: dict[str, T], validate: Callable[[T], str]
) -> None:
    """Import the objects of all entry points of `group` and add them to `known`, by their names.

    Each must be an instance of `kind` and have a name that is not taken. `validate` returns what is
    wrong with an object as a relative clause ("which has no task"), or "".
    """
    for point in sorted(entry_points(group=group), key=lambda point: point.value):
        added = _load(point)
        if not isinstance(added, kind):
            error = f"which is no {kind.__name__} but {added!r:.60}"
        elif added.name in known:
            error = f"whose name {added.name} is taken already"
        else:
            error = validate(added)
        if error:
            raise _entry_point_error(point, error)
        known[added.name] = added


def entry_point_names(group: str) -> list[str]:
    """The names of the entry points of a group. Nothing is imported."""
    return sorted(entry_points(group=group).names)


def load_entry_point(option: str, group: str, name: str) -> object:
    """The object that the entry point `name` of `group` refers to."""
    for point in entry_points(group=group, name=name):
        return _load(point)
    raise ConfigError(f"{option}={name} is not installed")


def _load(point: EntryPoint) -> Any:
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # code of another package
        reason = f"which cannot be imported: {type(error).__name__}: {error}"
        raise _entry_point_error(point, reason) from error


def _entry_point_error(point: EntryPoint, error: str) -> ConfigError:
    package = point.dist.name if point.dist else point.module
    return ConfigError(
        f"the package {package} adds {point.value} to {point.group}, {error}; repair or uninstall "
        f"{package} (see docs/extending.md)"
    )


def validate_import_name(option: str, text: str, example: str) -> None:
    """Raise ConfigError unless `text` has the form MODULE:NAME."""
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise ConfigError(f"{option}={text} must be MODULE:FUNCTION, e.g. {example}")
    path = PurePath(module)
    if path.suffix == ".py" or path.name != module:
        raise ConfigError(
            f"{option}={text} must name a module as `import` does, not the path of a file: e.g. "
            f"{path.stem}:{name}, with its folder in PYTHONPATH"
        )


def no_module(name: str) -> str:
    return (
        f"Python finds no module {name!r}; install it, or name its folder in PYTHONPATH (the working "
        "directory is not searched)"
    )


def import_object(option: str, text: str) -> object:
    """The object that the text MODULE:NAME of an option names. Imports the module, which runs its
    code."""
    module_name, _, name = text.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # code of the user
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            raise ConfigError(f"{option}={text}: {no_module(missing)}") from error
        raise ConfigError(f"{option}={text} cannot be imported: {short_error(error)}") from error
    try:
        imported: object = attrgetter(name)(module)
    except AttributeError as error:
        hint = did_you_mean(name, vars(module))
        raise ConfigError(
            f"{option}={text}: the module {module_name} has no {name}{hint}"
        ) from error
    return imported


def import_function(option: str, text: str) -> Callable[..., Any]:
    """The function that the text MODULE:FUNCTION of an option names."""
    imported = import_object(option, text)
    if not callable(imported):
        raise ConfigError(f"{option}={text} is not a function but {type(imported).__name__}")
    return imported


def qualified_name(option: str, function: object) -> str:
    """The text MODULE:NAME by which another process can import a function or a class. Raises
    ConfigError if there is none."""
    consequence = "a run folder could not name it for a later process"
    if not isinstance(function, (FunctionType, BuiltinFunctionType, MethodType, type)):
        kind = type(function).__name__
        raise ConfigError(f"{option} is an object ({kind}), not a function: {consequence}")
    module, name = function.__module__, function.__qualname__
    if "<" in name:  # <lambda>, <locals>
        raise ConfigError(
            f"{option}: {name} is a lambda, or defined inside a function, and {consequence}; write "
            "it with `def` at the top of a module, and import it from there"
        )
    if module == "__main__":
        raise ConfigError(
            f"{option}: {name} is defined in the script or notebook that runs (__main__), and "
            f"{consequence}; move it to a module (a .py file) and import it from there"
        )
    if import_object(option, f"{module}:{name}") != function:
        raise ConfigError(
            f"{option}: {module}:{name} is another function by now, and {consequence}"
        )
    return f"{module}:{name}"
