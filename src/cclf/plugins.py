"""What other packages add by entry points. One that cannot be used is named, with its package."""

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from cclf.errors import ConfigError


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
