"""`cclf completion`: the Tab key of bash, zsh and fish.

The shell's script knows nothing: it asks `cclf completion words WORD...`, which answers from what
the other commands are made of. Nothing slow is imported for that.
"""

import contextlib
import dataclasses
import importlib
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import tyro

from cclf import fields, presets
from cclf.algorithms.base import BaseAlgorithm
from cclf.algorithms.registry import bases, find_base
from cclf.analysis import experiments
from cclf.commands import COMMANDS, bench
from cclf.commands.options import EXIT_DONE, parse
from cclf.commands.train_options import train_options
from cclf.config import Curiosity
from cclf.envs.registry import known_tasks
from cclf.errors import ConfigError

SCRIPTS = {
    "bash": """\
_cclf() {
    local IFS=$'\\n'
    COMPREPLY=($(cclf completion words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _cclf cclf
""",
    "zsh": """\
_cclf() {
    local -a found
    found=(${(f)"$(cclf completion words "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( $#found )); then compadd -a found; else _files; fi
}
compdef _cclf cclf
""",
    "fish": """\
function __cclf
    set -l words (commandline -opc)
    set -e words[1]
    set -l current (commandline -ct)
    set -l found (cclf completion words $words "$current" 2>/dev/null)
    if set -q found[1]
        printf '%s\\n' $found
    else
        __fish_complete_path "$current"
    end
end
complete -c cclf -f -a '(__cclf)'
""",
}


@dataclass(frozen=True)
class Completion:
    """Print the script that makes the Tab key complete commands, options and names.

    To have it in every shell, add a line to the start-up file:

    bash (~/.bashrc): eval "$(cclf completion bash)"

    zsh (~/.zshrc, below compinit): eval "$(cclf completion zsh)"

    fish (~/.config/fish/config.fish): cclf completion fish | source
    """

    shell: tyro.conf.Positional[Literal["bash", "zsh", "fish"]]
    """The shell whose script to print."""


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["words"]:
        with contextlib.suppress(ConfigError):  # what is typed so far makes no sense
            print("".join(f"{word}\n" for word in candidates(arguments[1:])), end="")
        return EXIT_DONE
    print(SCRIPTS[parse(Completion, "cclf completion", arguments).shell], end="")
    return EXIT_DONE


class Option(NamedTuple):
    """What completion knows of an option."""

    kind: Any  # the type of its value
    takes_several: bool

    @property
    def is_flag(self) -> bool:
        return self.kind is bool


def candidates(words: list[str]) -> list[str]:
    """What the last of the words may become; nothing where it is a file or a number.

    >>> candidates(["meth"]), candidates(["train", "toy/reach", "--profile", ""])
    (['methods'], ['released', 'paper'])
    """
    *before, current = words or [""]
    return [word for word in _known(before, current) if word.startswith(current)]


def _known(before: list[str], current: str) -> Iterable[str]:
    if not before:
        return (*COMMANDS, "--help", "--version")
    command, *rest = before
    if command not in COMMANDS:
        return ()
    if command in ("sweep", "reproduce") and "--" in rest:  # those of each `cclf train`
        command, rest = "train", rest[rest.index("--") + 1 :]
    if command == "bench" and not rest:
        return (*bench.OPTIONS, *(name for name, base in bases().items() if base.has("bench")))
    base = _base(rest)
    kind = _dataclass(command, rest, base)
    found = {} if kind is None else _options(kind)
    if current.startswith("-"):
        return sorted([*_names(found), "--help"])
    name = _waiting(rest, found)
    if name is None:
        return _positional(command, rest)
    return _values(name, found[name].kind, base)


def _base(rest: list[str]) -> BaseAlgorithm | None:
    """That the words speak of; None where they leave it open."""
    given = dict(itertools.pairwise(rest)).get("--base")
    if given is not None:
        return find_base(given)
    tasks = [word for word in rest if word in known_tasks()]
    return presets.select_algorithm(tasks[0], look=False) if tasks else None


def _dataclass(command: str, rest: list[str], base: BaseAlgorithm | None) -> Any:
    """The options of a command; None of an algorithm's own benchmark, which would import torch."""
    if command == "train":
        return train_options(base or next(iter(bases().values())))
    if command == "bench":
        return bench.OPTIONS.get(rest[0])
    return getattr(importlib.import_module(f"cclf.commands.{command}"), command.capitalize())


def _options(kind: type) -> dict[str, Option]:
    """The options of a dataclass by name, those of dataclasses in it included."""
    found: dict[str, Option] = {}
    for name, hint in fields.field_types(kind).items():
        if tyro.conf.Positional in get_args(hint):
            continue
        plain = _plain(hint)
        if dataclasses.is_dataclass(plain):
            found |= _options(plain)  # type: ignore[arg-type]
            continue
        several = get_origin(plain) is tuple
        value = _plain(get_args(plain)[0]) if several else plain
        found[f"--{name.strip('_').replace('_', '-')}"] = Option(value, several)
    return found


def _plain(hint: Any) -> Any:
    """A type without what is said about it, and without None."""
    if get_origin(hint) is Annotated:
        return _plain(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return _plain(next(each for each in get_args(hint) if each is not type(None)))
    return hint


def _names(found: dict[str, Option]) -> list[str]:
    return [
        name
        for option, known in found.items()
        for name in ([option, f"--no-{option[2:]}"] if known.is_flag else [option])
    ]


def _waiting(rest: list[str], found: dict[str, Option]) -> str | None:
    """The option whose value comes next."""
    place = max((i for i, word in enumerate(rest) if word.startswith("--")), default=None)
    if place is None or rest[place] not in found or found[rest[place]].is_flag:
        return None
    has_its_value = place < len(rest) - 1
    return None if has_its_value and not found[rest[place]].takes_several else rest[place]


def _positional(command: str, rest: list[str]) -> Iterable[str]:
    if command == "train":
        return () if any(word in known_tasks() for word in rest) else known_tasks()
    return {"reproduce": (*experiments.TABLES, "cost"), "completion": SCRIPTS}.get(command, ())


def _values(option: str, kind: Any, base: BaseAlgorithm | None) -> Iterable[str]:
    if get_origin(kind) is Literal:
        return map(str, get_args(kind))
    algorithms = bases().values() if base is None else [base]
    by_name: dict[str, Callable[[], Iterable[str]]] = {
        "task": known_tasks,
        "with-task": known_tasks,
        "method": lambda: dict.fromkeys(
            name for algorithm in algorithms for name in algorithm.methods
        ),
        "base": bases,
        "profile": lambda: dict.fromkeys(
            name for algorithm in algorithms for name in algorithm.profiles
        ),
        "size": lambda: dict.fromkeys(name for algorithm in algorithms for name in algorithm.sizes),
        "table": lambda: experiments.TABLES,
        "curiosity": lambda: get_args(Curiosity),
        "device": lambda: ("auto", "cpu", "cuda"),
    }
    known = by_name.get(option.removeprefix("--").removesuffix("s"))
    return () if known is None else known()
