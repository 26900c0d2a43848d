"""The text of `--help` comes from the dataclasses of the commands."""

import contextlib
import io
import re

import pytest

from cclf.algorithms.registry import algorithms
from cclf.cli import main
from cclf.commands import COMMANDS, bench

# groups of options, and one whose text depends on the base algorithm


# An option, its choices, and directly after them its default: a description is missing.
UNDESCRIBED = re.compile(r"--[a-z0-9-]+ (?:[A-Z]+|\{[^}]*\}|\[[^]]*\]\]) \(default")


def one_line(text):
    return " ".join(" ".join(line.strip("│ ") for line in text.splitlines()).split())


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
    assert not UNDESCRIBED.findall(one_line(text))


TASK_OF = {"sac": "toy/reach", "drqv2": "toy/reach", "a2c": "minigrid/DoorKey-6x6"}


@pytest.mark.parametrize("base", algorithms())
def test_help_of_train_is_grouped_and_complete(base):
    text = shown("train", TASK_OF.get(base, "toy/catch"), "--base", base)
    titles = re.findall(r"^╭─ ([a-z ]+) ─", text, re.MULTILINE)
    groups = ["environment", "method", "algorithm", "run"]
    assert titles == ["options", *(f"{name} options" for name in groups)]
    assert max(len(line) for line in text.splitlines() if line.startswith("│")) == 80
    words = one_line(text)
    for method in algorithms()[base].methods:
        assert f" {method}" in words
    assert "--profile {" + ",".join(algorithms()[base].profiles) + "}" in words
    assert "--base {" + ",".join(algorithms()) + "}" in words
    assert not UNDESCRIBED.findall(words)
