"""`cclf methods` and `tasks`: what there is."""

import json
from dataclasses import dataclass

from cclf import presets
from cclf.commands.options import EXIT_DONE, parse, print_table


@dataclass(frozen=True)
class Listing:
    """List what there is."""

    json: bool = False
    """One JSON document on standard output."""


def methods(arguments: list[str]) -> int:
    options = parse(Listing, "cclf methods", arguments)
    if options.json:
        documents = [
            {
                "name": method.name,
                "base": base,
                "summary": method.summary,
                "difference_from_cclf": presets.differences_from_cclf(method, base),
                "pieces": presets.pieces_of(method, base),
            }
            for base, known in presets.METHODS.items()
            for method in known.values()
        ]
        print(json.dumps(documents, indent=2))
        return EXIT_DONE
    for base, known in presets.METHODS.items():
        suites = ", ".join(name for name, suite in presets.SUITES.items() if suite.base == base)
        differences = {method.name: presets.differences_from_cclf(method, base) for method in known.values()}
        rows = [(name, ", ".join(f"{k}={v}" for k, v in changed.items()) or "-") for name, changed in differences.items()]
        print_table((f"method ({base}: {suites})", "difference from cclf"), rows)
    return EXIT_DONE


def tasks(arguments: list[str]) -> int:
    options = parse(Listing, "cclf tasks", arguments)
    if options.json:
        documents = [
            {"name": task.name, "summary": task.summary, "action_repeat": presets.resolve(task.name).env.action_repeat}
            for task in presets.TASKS.values()
        ]
        print(json.dumps(documents, indent=2))
        return EXIT_DONE
    rows = [(task.name, str(presets.resolve(task.name).env.action_repeat), task.summary) for task in presets.TASKS.values()]
    print_table(("task", "action repeat", "what to do"), rows)
    print("\n" + "\n".join(presets.OPEN_SUITES.values()))
    return EXIT_DONE
