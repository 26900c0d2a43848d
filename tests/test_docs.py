"""The documentation names code that is there: functions, classes, modules, files and config
fields."""

import ast
import dataclasses
import importlib
import itertools
import os
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
import torch

import cclf
from cclf import config, equations, presets
from cclf.algorithms import registry as base_registry
from cclf.algorithms.a2c.a2c import A2C
from cclf.algorithms.drqv2.drqv2 import DrQv2
from cclf.algorithms.rainbow.rainbow import RainbowLoss
from cclf.algorithms.registry import find_algorithm
from cclf.algorithms.sac.sac import SAC
from cclf.analysis.runs import EvaluationRow
from cclf.commands.train import train_config
from cclf.envs import registry as suite_registry
from cclf.storage.tables import EVAL_COLUMNS

ROOT = Path(__file__).parents[1]
SOURCE = Path(cclf.__file__).parent
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
# First words that are not ours, or stand for an object: `env.stack` belongs to some environment.
FOREIGN = {"torch", "nn", "gym", "ale_py", "env", "AtariVectorEnv"}
PLANTED = {"cclf.py", "json.py", "torch.py"}  # what a stranger might put into a run folder
WRITTEN_BY_RUNS = ("csv", "json", "txt", "html", "svg", "onnx", "pt", "safetensors", "mp4")
# groups of them: dotted, but no modules
ENTRY_POINTS = {
    *base_registry.ENTRY_POINT_GROUPS,
    suite_registry.ENTRY_POINTS,
    config.CURIOSITY_ENTRY_POINTS,
}
OURS = ("src/", "tests/", "docs/", "results/", "benchmarks/", "scripts/", "examples/")

FILES = sorted(SOURCE.rglob("*.py"), reverse=True)


def _module(path):
    return ".".join(("cclf", *path.relative_to(SOURCE).with_suffix("").parts))


MODULES = [_module(path) for path in FILES if path.stem != "__init__"]


@cache
def modules_of_classes():
    return {
        node.name: _module(path)
        for path in FILES
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    }


def prose(text):
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def code_words(text):
    """What stands in backticks, blocks of code left out.

    >>> code_words("`a.b` and `c(d)`")
    ['a.b', 'c(d)']
    """
    return re.findall(r"`([^`\n]+)`", prose(text))


def is_name(word):
    """Whether a word looks like a name: `SAC.update(batch)`, `cclf.config`, `tests/test_cli.py`,
    `Appraisal`."""
    dotted, capital = r"[A-Za-z_][\w/+-]*(\.\w+)+(\(.*\))?", r"([A-Z][a-z0-9]+)+"
    return re.fullmatch(f"{dotted}|{capital}", word) is not None


def missing(word):
    """Why a name leads nowhere; None where it leads to something, or is not ours."""
    name = word.partition("(")[0]
    if name in PLANTED | ENTRY_POINTS:
        return None
    if name.endswith((".py", ".md", ".toml")) or name.startswith(OURS):
        places = (ROOT, SOURCE, ROOT / "tests", ROOT / "docs")
        pattern = name.replace("NAME", "*")  # `algorithms/NAME/config.py` stands for any of them
        return None if any(any(place.glob(pattern)) for place in places) else "no such file"
    first, *rest = name.split(".")
    if first in FOREIGN or (rest and rest[-1] in WRITTEN_BY_RUNS):
        return None
    if first == "cclf":
        return _missing_in_package(rest)
    if module := modules_of_classes().get(first):
        return _missing_in(getattr(importlib.import_module(module), first), rest)
    if first == "config" and rest and not _missing_in(config.Config, rest):
        return None  # of the object that every function calls so
    return _missing_in_modules(name.split("."))


def _missing_in_modules(path):
    """A module by the end of its name, `diagnosis.diagnose` or `sac.sac.appraise`: as much of it as
    tells it from others."""
    for length in range(len(path), 0, -1):
        ending = "." + ".".join(path[:length])
        found = sorted(
            (module for module in MODULES if module.endswith(ending)),
            key=lambda module: module.count("."),
        )
        # otherwise the least deep is meant
        if len(found) > 1 and found[0].count(".") == found[1].count("."):
            return f"{ending[1:]} is one of {', '.join(found)}: say which"
        if found:
            return _missing_in(importlib.import_module(found[0]), path[length:])
    return f"cclf has no class or module {path[0]}"


def _missing_in_package(path):
    found = cclf
    for depth, part in enumerate(path):
        try:
            found = importlib.import_module(".".join(("cclf", *path[: depth + 1])))
        except ModuleNotFoundError:
            return _missing_in(found, [part, *path[depth + 1 :]])
    return None


def _missing_in(found, path):
    for part in path:
        if part in getattr(found, "__annotations__", {}):
            return None  # a field without a default
        if not hasattr(found, part):
            return f"{found.__name__} has no {part}"
        found = getattr(found, part)
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_name_of_code_in_the_documentation_leads_somewhere(page):
    text = page.read_text()
    # files of the page's own examples
    made = re.findall(r"^<!-- test: \w+/(\S+) -->", text, re.MULTILINE)
    found = {word: missing(word) for word in code_words(text) if is_name(word) and word not in made}
    lost = {word: why for word, why in found.items() if why}
    assert not lost, f"{page.name} names code that is not there: {lost}"


def test_names_that_lead_nowhere_are_found():
    gone = [
        "SAC._critic_step",
        "cclf.nowhere",
        "cclf.equations.q_lost",
        "diagnosis.diagnoses",
        "sac.sac.q_lost",
    ]
    assert all(
        missing(word)
        for word in [*gone, "Sack.update", "tests/test_no.py", "algorithms/NAME/no.py"]
    )
    assert "say which" in missing("networks.Encoder")
    there = [
        "SAC.update(batch, noise)",
        "cclf.framework.Framework",
        "Appraisal.bonus",
        "Appraisal",
        "sac.sac.appraise",
    ]
    assert not any(
        missing(word)
        for word in [
            *there,
            "diagnosis.diagnose",
            "torch.nope",
            "eval.csv",
            "algorithms/NAME/config.py",
        ]
    )
    assert not any(
        missing(word) for word in ["algorithms/NAME/presets.py", "config.seed", "config.TaskKind"]
    )
    assert missing("config.sead")
    assert missing("networks.py"), "of which algorithm?"
    assert not is_name("a2c")
    assert not is_name("--profile paper")


def columns(page, heading):
    """The cells under every table heading of that name."""
    cells, column = [], None
    for line in page.read_text().splitlines():
        row = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            column = None
        elif column is None:
            column = row.index(heading) if heading in row else -1
        elif column >= 0 and row[column].strip("-"):
            cells.append(row[column])
    return cells


@pytest.mark.parametrize(("name", "base"), [("deviations.md", "sac"), ("atari.md", "rainbow")])
def test_fields_in_the_documentation_are_fields_of_the_config(name, base):
    """Of what every run has, and of the settings of the base algorithm that the table is about; of
    no other."""
    kinds = [kind for kind in vars(config).values() if dataclasses.is_dataclass(kind)]
    fields = {
        field.name
        for kind in (*kinds, find_algorithm(base).settings_type)
        for field in dataclasses.fields(kind)
    }
    named = {word for cell in columns(ROOT / "docs" / name, "field") for word in code_words(cell)}
    assert len(named) > 6
    assert named <= fields, (
        f"{name} names fields that a run of {base} does not have: {sorted(named - fields)}"
    )


def test_the_functions_beside_the_papers_equations_are_there():
    page = ROOT / "docs" / "paper.md"
    cells = columns(page, "function in `cclf.equations`")
    named = {word for cell in cells for word in code_words(cell)}
    assert len(named) > 10
    assert not [word for word in named if not hasattr(equations, word)]
    assert columns(page, "equation") == [f"({number})" for number in range(1, 10)]


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_every_link_to_a_file_leads_to_one(page):
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose(page.read_text()))
    lost = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not lost, f"{page.name} links to files that are not there: {lost}"


def test_every_cell_about_another_library_names_its_file():
    """And every file that is named is named by a cell."""
    text = (ROOT / "docs" / "comparison.md").read_text()
    said = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("|")]
    header, _, *lines = said
    assert [cell.strip() for cell in header[1:]] == [
        *("cclf", "Stable-Baselines3", "CleanRL", "Dopamine", "TorchRL")
    ]
    (*lines, last) = lines
    assert last[0].strip() == "last commit read"
    bare = [
        f"{line[0].strip()}: {cell.strip()}"
        for line in lines
        for cell in line[2:]
        if cell.strip() and "[^" not in cell
    ]
    assert not bare, "cells without a file of theirs"
    used = set(re.findall(r"\[\^([\w-]+)\](?!:)", text))
    named = dict(re.findall(r"^\[\^([\w-]+)\]: (.*)$", text, re.MULTILINE))
    assert used == named.keys()
    places = {"s": "DLR-RM/stable-baselines3", "c": "vwxyzjn/cleanrl", "d": "google/dopamine"}
    places["t"] = "pytorch/rl"
    for note, line in named.items():
        commits = [cell.split(",")[0].strip() for cell in last[2:]]
        place, commit = places[note[0]], commits["scdt".index(note[0])]
        assert f"(https://github.com/{place}/" in line
        assert f"/{commit}" in line, "the commit that was read"


@pytest.mark.parametrize(("code", "queued"), [(0, ""), (75, "requeue 7_3\n"), (2, "")])
def test_the_script_for_slurm_goes_back_into_the_queue_only_to_go_on(tmp_path, code, queued):
    text = (ROOT / "docs" / "install.md").read_text()
    (script,) = re.findall(r"^<!-- test: slurm -->\n```bash\n(.*?)^```", text, re.DOTALL | re.M)
    said = tmp_path / "said"
    stubs = {"srun": f'echo "$@" > {tmp_path}/run; exit {code}', "scontrol": f'echo "$@" >> {said}'}
    for name, line in stubs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": "/home/me"}
    environment |= {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_JOB_ID": "7"}
    done = subprocess.run(["bash", "-c", script], env=environment, check=False)
    assert done.returncode == code
    assert (said.read_text() if said.exists() else "") == queued
    asked = train_config((tmp_path / "run").read_text().split()[2:])
    assert (asked.config.seed, asked.out) == (3, Path("/home/me/runs"))


def test_every_column_of_a_table_is_explained():
    """In docs/protocol.md, under the heading of its file."""
    explained = {
        word
        for cell in columns(ROOT / "docs" / "protocol.md", "column")
        for word in code_words(cell)
    }
    written = {*EVAL_COLUMNS, "episode_return", "gradient_norm", "priority_entropy_share"}
    written |= set(EvaluationRow._fields)
    for algorithm in (SAC, DrQv2, A2C, RainbowLoss):
        written |= set(algorithm.metric_names)
    assert explained == written


def test_readme_names_the_files_of_the_algorithm():
    words = (ROOT / "README.md").read_text()
    files = ("equations.py", "framework.py", "algorithms/sac/sac.py")
    assert all(f"src/cclf/{name}" in words for name in files)


def test_one_version_in_package_citation_and_changelog():
    assert f"\nversion: {cclf.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert next(heading for heading in headings if heading != "Unreleased") == cclf.__version__


def test_the_two_profiles_of_minigrid_differ_as_the_documentation_says():
    paper, released = (
        presets.resolve("minigrid/DoorKey-6x6", profile=p).hashed_fields()
        for p in ("paper", "released")
    )
    assert [key for key in paper if paper[key] != released[key]] == [
        "algorithm.entropy_coefficient"
    ]
    assert paper["method.contrastive_reduction"] == "weighted-mean"
    words = (ROOT / "docs" / "deviations.md").read_text()
    assert "`paper` and `released` differ in the entropy coefficient alone" in words
    assert (
        "| contrastive loss (8) | Σ c·l / Σ c under `paper`, too (`contrastive_reduction`) |"
        in words
    )


def test_how_often_all_pairs_of_crops_would_choose_another_pair():
    origins = torch.randint(16, (5, 100_000, 2), generator=torch.Generator().manual_seed(0))
    with_anchor = equations.overlap(origins[:1], origins[1:], 84).amin(0)
    pairs = itertools.combinations(range(5), 2)
    of_all = torch.stack([equations.overlap(origins[i], origins[j], 84) for i, j in pairs]).amin(0)
    share = f"another pair in {(of_all < with_anchor).double().mean():.0%} of samples".replace(
        "%", " %"
    )
    assert share in " ".join((ROOT / "docs" / "deviations.md").read_text().split())


def test_the_front_page_has_pictures_for_light_and_for_dark_screens():
    text = (ROOT / "README.md").read_text()
    dark, light = (
        re.findall(f'{word}="(docs/figures/[^"]+)"', text) for word in ("srcset", "img .*?src")
    )
    assert len(light) == 2
    assert dark == [path.replace("-light.", "-dark.") for path in light]
    assert all((ROOT / path).stat().st_size > 1_000 for path in (*light, *dark))


def test_the_commands_of_the_front_page_are_whole_on_a_screen():
    """A block of code on GitHub shows about 112 columns before it has to be scrolled."""
    lines = (ROOT / "README.md").read_text().splitlines()
    code = [line for line in lines if line.startswith("    ")]
    assert len(code) > 10
    assert [line for line in code if len(line) - 4 > 110] == []


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs" / "figures").iterdir()), ids=lambda p: p.name
)
def test_a_figure_is_shown_somewhere_and_a_command_draws_it(path):
    assert any(path.name in page.read_text() for page in PAGES)
    commands = (ROOT / "Makefile").read_text()
    # those of the front page come from a script, that of a benchmark from a GPU
    assert path.name in commands or path.name.startswith(("front-", "cost-"))
