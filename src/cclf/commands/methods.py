"""`cclf methods`: the methods of each base algorithm."""

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from cclf import presets
from cclf.algorithms.base import BaseAlgorithm
from cclf.algorithms.registry import algorithms, find_algorithm
from cclf.commands.options import Json, parse, print_json
from cclf.envs.registry import suites


@dataclass(frozen=True)
class MethodsOptions:
    """List the methods of each base algorithm and their differences from CCLF, or from the first method
    of a base algorithm without CCLF."""

    base: str | None = None
    """List only the methods of this base algorithm."""
    json: Json = False


def main(arguments: list[str]) -> None:
    options = parse(MethodsOptions, "cclf methods", arguments)
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
        print_json(documents)
    else:
        _print(shown)


def _print(shown: Iterable[BaseAlgorithm]) -> None:
    """Print each method with its summary and its differences. A table would break long names, which
    users copy."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    fill = partial(textwrap.fill, width=console.width, break_on_hyphens=False)
    indent = " " * 6
    for base in shown:
        task_suites = ", ".join(
            name
            for name, suite in suites().items()
            if not suite.kinds.isdisjoint(base.supported_tasks)
        )
        title = f"{base.name} (tasks: {task_suites}), with differences from "
        console.print(Text(f"{title}{base.default_method.name}", "bold"))
        for method in base.methods.values():
            line = fill(f"  {method.name}  {method.summary}", subsequent_indent=indent)
            _, name, summary = line.partition(method.name)
            console.print(Text.assemble("  ", (name, "bold cyan"), summary), soft_wrap=True)
            changed = presets.differences_from_cclf(method, base)
            pairs = ", ".join(f"{name}={value}" for name, value in changed.items())
            if pairs:
                pairs = fill(pairs, initial_indent=indent, subsequent_indent=indent)
                console.print(Text(pairs, "dim"), soft_wrap=True)
        console.print()
