"""The text of `--help` comes from the dataclasses of the commands."""

import contextlib
import dataclasses
import importlib
import io
import re

import pytest

from cclf.algorithms.registry import algorithms
from cclf.cli import main
from cclf.commands import COMMANDS, bench
from cclf.commands.options import field_help
from cclf.commands.sweep import MachineOptions
from cclf.commands.train import train_options
from cclf.config import EnvConfig, MethodConfig, RunConfig
from cclf.validation import field_types

OPTIONS = {
    **{
        command: f"{command.capitalize()}Options"
        for command in COMMANDS
        if command not in ("train", "bench")
    },
}
KINDS = {
    **{
        command: getattr(importlib.import_module(f"cclf.commands.{command}"), name)
        for command, name in OPTIONS.items()
    },
    **{f"bench {name}": each.options for name, each in bench.benchmarks().items()},
    **{f"train: {base.name}": base.settings_type for base in algorithms().values()},
    "sweep: machines": MachineOptions,
    "train: environment": EnvConfig,
    "train: method": MethodConfig,
    "train: run": RunConfig,
    "train": train_options(algorithms()["sac"]),
}
# groups of options, and one whose text depends on the base algorithm
NO_OPTIONS = {
    "train": {"env", "method_config", "algorithm", "run", "method"},
    "sweep": {"machine"},
    "compare": {"machine"},
    "reproduce": {"machine"},
}


@pytest.mark.parametrize("name", KINDS)
def test_every_option_is_described_by_sentences(name):
    said = field_help(KINDS[name]) | {
        field: part.help
        for field, annotation in field_types(KINDS[name]).items()
        for part in getattr(annotation, "__metadata__", ())
        if getattr(part, "help", None)
    }
    fields = {field.name for field in dataclasses.fields(KINDS[name])} - NO_OPTIONS.get(name, set())
    assert fields <= said.keys(), f"{name} says nothing of {sorted(fields - said.keys())}"
    for field in fields:
        assert len(said[field].split()) > 1, f"{name}: {field}"
        assert said[field].endswith("."), f"{name}: {field}: {said[field]}"


def shown(*words):
    """The help of a command in a terminal of 80 columns."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stdout(out), pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        assert main([*words, "--help"]) == 0
    out.flush()
    return out.buffer.getvalue().decode()


@pytest.mark.parametrize("command", [*COMMANDS, *(f"bench {name}" for name in bench.benchmarks())])
def test_help_fits_a_terminal_and_names_the_values_of_options(command):
    text = shown(*command.split())
    assert text.startswith(f"usage: cclf {command}")
    assert max(len(line) for line in text.splitlines()[1:]) <= 80
    assert not re.findall(r"STR|\{None\}|\(default: \)", text)


TASK_OF = {"sac": "toy/reach", "drqv2": "toy/reach", "a2c": "minigrid/DoorKey-6x6"}


@pytest.mark.parametrize("base", algorithms())
def test_help_of_train_is_grouped_and_complete(base):
    text = shown("train", TASK_OF.get(base, "toy/catch"), "--base", base)
    titles = re.findall(r"^╭─ ([a-z ]+) ─", text, re.MULTILINE)
    groups = ["environment", "method", "algorithm", "run"]
    assert titles == ["options", *(f"{name} options" for name in groups)]
    assert max(len(line) for line in text.splitlines() if line.startswith("│")) == 80
    words = " ".join(" ".join(line.strip("│ ") for line in text.splitlines()).split())
    for method in algorithms()[base].methods:
        assert f" {method}" in words
    assert "--profile {" + ",".join(algorithms()[base].profiles) + "}" in words
    assert "--base {" + ",".join(algorithms()) + "}" in words
    # what follows an option, its choices and its line breaks is a sentence, not its default
    assert not re.findall(r"--[a-z0-9-]+ (?:[A-Z]+|\{[^}]*\}|\[[^]]*\]\]) \(default", words)
