"""What `--help` says, and what the Tab key offers: both from the dataclasses of the commands."""

import contextlib
import dataclasses
import importlib
import io
import os
import re
import shutil
import subprocess
import sys

import pytest

from cclf.algorithms.registry import bases
from cclf.cli import main
from cclf.commands import COMMANDS, bench, completion
from cclf.commands.option_help import sentences
from cclf.commands.sweep import Where
from cclf.commands.train_options import train_options
from cclf.config import EnvConfig, MethodConfig, RunConfig
from cclf.envs.registry import known_tasks

OPTIONS = {
    **{command: command.capitalize() for command in COMMANDS if command not in ("train", "bench")},
}
KINDS = {
    **{
        command: getattr(importlib.import_module(f"cclf.commands.{command}"), name)
        for command, name in OPTIONS.items()
    },
    **{f"bench {name}": kind for name, kind in bench.OPTIONS.items()},
    **{f"train: {base.name}": base.settings for base in bases().values()},
    **{
        f"bench {base.name}": base.part("bench").Options
        for base in bases().values()
        if base.has("bench")
    },
    "sweep: machines": Where,
    "train: environment": EnvConfig,
    "train: method": MethodConfig,
    "train: run": RunConfig,
    "train": train_options(bases()["sac"]),
}
# groups of options, and one whose text depends on the base algorithm
NO_OPTIONS = {
    "train": {"env", "method_config", "algorithm", "run", "method"},
    "sweep": {"where"},
    "reproduce": {"where"},
}


@pytest.mark.parametrize("name", KINDS)
def test_every_option_has_a_sentence(name):
    said = sentences(KINDS[name])
    fields = {field.name for field in dataclasses.fields(KINDS[name])} - NO_OPTIONS.get(name, set())
    assert fields <= said.keys(), f"{name} says nothing of {sorted(fields - said.keys())}"
    for field in fields:
        assert len(said[field].split()) > 1, f"{name}: {field}"
        assert said[field].endswith("."), f"{name}: {field}: {said[field]}"


def shown(*words, columns="80"):
    """The help of a command, without boxes."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stdout(out), pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", columns)
        with contextlib.suppress(SystemExit):
            main([*words, "--help"])
    out.flush()
    return out.buffer.getvalue().decode()


TASK_OF = {"sac": "toy/reach", "drqv2": "toy/reach", "a2c": "minigrid/DoorKey-6x6"}


@pytest.mark.parametrize("base", bases())
def test_the_help_of_train_is_grouped_and_complete(base):
    text = shown("train", TASK_OF.get(base, "toy/catch"), "--base", base)
    titles = re.findall(r"^╭─ ([a-z ]+) ─", text, re.MULTILINE)
    groups = ["environment", "method", "algorithm", "run"]
    assert titles == ["options", *(f"{name} options" for name in groups)]
    assert max(len(line) for line in text.splitlines() if line.startswith("│")) == 80
    words = " ".join(" ".join(line.strip("│ ") for line in text.splitlines()).split())
    for method in bases()[base].methods:
        assert f" {method}" in words
    assert "--profile {" + ",".join(bases()[base].profiles) + "}" in words
    assert "--base {" + ",".join(bases()) + "}" in words
    # what follows an option, its choices and its line breaks is a sentence, not its default
    assert not re.findall(r"--[a-z0-9-]+ (?:[A-Z]+|\{[^}]*\}|\[[^]]*\]\]) \(default", words)


def test_help_flows_as_one_paragraph():
    assert "What it changes is shown below" in " ".join(
        line.strip("│ ") for line in shown("train", "toy/reach").splitlines()
    )
    assert "│ except `env_steps`, which says when to stop." in shown("train", "toy/reach")
    assert "{None}" not in shown("train", "toy/reach") + shown("sweep")


@pytest.mark.parametrize(
    ("words", "some"),
    [
        (["ev"], ["evaluate"]),
        (["train", "toy/"], [name for name in known_tasks() if name.startswith("toy/")]),
        (["train", "toy/reach", "--method", "curl"], ["curl", "curl+", "curl++"]),
        (["train", "minigrid/DoorKey-6x6", "--method", "re3+cclf-d"], ["re3+cclf-distinct"]),
        (["train", "--seed", "1", "toy/c"], ["toy/catch"]),
        (["train", "toy/reach", ""], []),
        (["train", "toy/reach", "--no-vid"], ["--no-video"]),
        (["train", "toy/reach", "--num-e"], []),
        (["train", "minigrid/DoorKey-6x6", "--num-e"], ["--num-envs"]),
        (["train", "toy/reach", "--replay-device", "c"], ["cpu", "cuda"]),
        (["train", "toy/reach", "--video", "cp"], []),
        (["sweep", "--methods", "cclf", "re3+cclf-d"], ["re3+cclf-distinct"]),
        (["sweep", "--tasks", "toy/reach", "--", "--no-vid"], ["--no-video"]),
        (["bench", "up"], ["update"]),
        (["reproduce", "cos"], ["cost"]),
        (["completion", "z"], ["zsh"]),
        (["nonsense", ""], []),
        (["train", "--base", "nonsense", "--method", ""], []),
    ],
    ids=" ".join,
)
def test_the_tab_key(words, some, capsys):
    assert main(["completion", "words", *words]) == 0
    assert capsys.readouterr().out.split() == some


@pytest.mark.parametrize("command", COMMANDS)
def test_the_tab_key_knows_the_options_of_every_command(command):
    words = [command, "update"] if command == "bench" else [command]
    found = completion.candidates([*words, "--"])
    assert "--help" in found
    said = shown(*words)
    for option in found:
        assert option in said


def test_the_script_of_bash_asks_the_command(tmp_path):
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    (tmp_path / "cclf").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m cclf "$@"\n')
    (tmp_path / "cclf").chmod(0o755)
    script = """
eval "$(cclf completion bash)"
COMP_WORDS=(cclf train minigrid/DoorKey-6x6 --method re3+cclf-d) COMP_CWORD=4
_cclf; echo "${COMPREPLY[@]}"
COMP_WORDS=(cclf "") COMP_CWORD=1
_cclf; echo "${COMPREPLY[0]}"
complete -p cclf
"""
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [bash, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PATH": path},
    )
    first, second, third = done.stdout.splitlines()
    assert (first, second) == ("re3+cclf-distinct", COMMANDS[0])
    assert third == "complete -o default -F _cclf cclf"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_scripts_are_words_of_their_shells(shell, capsys):
    assert main(["completion", shell]) == 0
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"no {shell} here")
    script = capsys.readouterr().out
    done = subprocess.run([found, "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
