"""`cclf methods`: the methods of each base algorithm."""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from cclf import presets
from cclf.algorithms.base import BaseAlgorithm
from cclf.algorithms.registry import algorithms, find_algorithm
from cclf.commands.options import Json, parse
from cclf.envs.registry import suites
from cclf.errors import EXIT_DONE


@dataclass(frozen=True)
class Methods:
    """List the methods of each base algorithm and their differences from CCLF, or from the first method
    of a base algorithm without CCLF."""

    base: str | None = None
    """List only the methods of this base algorithm."""
    json: Json = False


def main(arguments: list[str]) -> int:
    options = parse(Methods, "cclf methods", arguments)
    shown = algorithms().values() if options.base is None else [find_algorithm(options.base)]
    if options.json:
        documents = [
            {
                "name": method.name,
                "base": base.name,
                "summary": method.summary,
                "compared_with": base.default_method.name,
                "difference_from_cclf": presets.differences_from_cclf(method, base),
                "pieces": presets.method_config(method, base).active_pieces,
            }
            for base in shown
            for method in base.methods.values()
        ]
        print(json.dumps(documents, indent=2))
        return EXIT_DONE
    _print(shown)
    return EXIT_DONE


def _print(shown: Iterable[BaseAlgorithm]) -> None:
    """Print the name and summary of each method, and its differences below. A table would break
    long names, which users copy."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(highlight=False)
    for base in shown:
        task_suites = ", ".join(
            name
            for name, suite in suites().items()
            if not suite.kinds.isdisjoint(base.supported_tasks)
        )
        compared = base.default_method.name
        console.print(
            Text(f"{base.name} (tasks: {task_suites}), with differences from {compared}", "bold")
        )
        for method in base.methods.values():
            changed = presets.differences_from_cclf(method, base)
            name, below = f"  {method.name}", []
            fits = len(f"{name}  {method.summary}") <= console.width
            if not fits:
                below.append(Text(method.summary))
            if changed:
                pairs = (f"{name}={value}" for name, value in changed.items())
                below.append(Text(", ".join(pairs), "dim"))
            summary = f"  {method.summary}" if fits else ""
            console.print(Text.assemble((name, "bold cyan"), summary))
            for text in below:
                console.print(Padding(text, (0, 0, 0, 6)))
        console.print()
