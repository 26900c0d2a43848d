"""`cclf tasks`: the tasks of each suite."""

import textwrap
from dataclasses import dataclass

from cclf import presets
from cclf.commands.options import HELP_COLUMNS, Json, parse, print_json, print_table
from cclf.envs.registry import known_tasks, suites


@dataclass(frozen=True)
class TasksOptions:
    """List the tasks, and how to name others of the same suites."""

    json: Json = False


def main(arguments: list[str]) -> None:
    options = parse(TasksOptions, "cclf tasks", arguments)
    repeats = {
        name: presets.env_config(name, presets.select_algorithm(name)).action_repeat
        for name in known_tasks()
    }
    if options.json:
        documents = [
            {"name": task.name, "summary": task.summary, "action_repeat": repeats[task.name]}
            for task in known_tasks().values()
        ]
        print_json(documents)
        return
    rows = [(task.name, str(repeats[task.name]), task.summary) for task in known_tasks().values()]
    print_table(("task", "action repeat", "goal"), rows)
    for suite in suites().values():
        if suite.naming_help:
            print(textwrap.fill(suite.naming_help, HELP_COLUMNS, subsequent_indent="  "))
