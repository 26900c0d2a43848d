"""`cclf methods`: the methods of each base algorithm."""

import json
from dataclasses import dataclass

from cclf import presets
from cclf.bases.registry import bases, find_base
from cclf.commands.options import EXIT_DONE, parse, print_table
from cclf.envs.registry import suites


@dataclass(frozen=True)
class Methods:
    """The methods of each base algorithm, each as its difference from CCLF.

    Where a base algorithm has no CCLF, its first method takes that place.
    """

    base: str | None = None
    """Only those of this base algorithm."""
    json: bool = False
    """One JSON document on standard output."""


def main(arguments: list[str]) -> int:
    options = parse(Methods, "cclf methods", arguments)
    shown = bases().values() if options.base is None else [find_base(options.base)]
    if options.json:
        documents = [
            {
                "name": method.name,
                "base": base.name,
                "summary": method.summary,
                "compared_with": base.default_method.name,
                "difference_from_cclf": presets.differences_from_cclf(method, base),
                "pieces": presets.pieces_of(method, base),
            }
            for base in shown
            for method in base.methods.values()
        ]
        print(json.dumps(documents, indent=2))
        return EXIT_DONE
    for base in shown:
        plays = ", ".join(
            name for name, suite in suites().items() if not suite.plays.isdisjoint(base.plays)
        )
        differences = {
            method.name: presets.differences_from_cclf(method, base)
            for method in base.methods.values()
        }
        rows = [
            (name, ", ".join(f"{k}={v}" for k, v in changed.items()) or "-")
            for name, changed in differences.items()
        ]
        print_table(
            (f"method ({base.name}: {plays})", f"difference from {base.default_method.name}"), rows
        )
    return EXIT_DONE
