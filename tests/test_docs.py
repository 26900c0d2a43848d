"""The documentation names code that is there: functions, classes, modules, files and config fields."""

import ast
import dataclasses
import importlib
import itertools
import re
from pathlib import Path

import pytest
import torch

import cclf
from cclf import config, equations, presets

ROOT = Path(__file__).parents[1]
SOURCE = Path(cclf.__file__).parent
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
# First words that are not ours, or stand for an object: `env.stack` belongs to some environment.
FOREIGN = {"torch", "ale_py", "env", "AtariVectorEnv"}
PLANTED = {"cclf.py", "json.py", "torch.py"}  # what a stranger might put into a run folder
WRITTEN_BY_RUNS = ("csv", "json", "txt", "html", "svg", "onnx", "pt")
OURS = ("src/", "tests/", "docs/", "results/", "benchmarks/", "scripts/")

FILES = sorted(SOURCE.rglob("*.py"), reverse=True)  # of two with one name the last, least deep wins


def _module(path):
    return ".".join(("cclf", *path.relative_to(SOURCE).with_suffix("").parts))


MODULES = {path.stem: _module(path) for path in FILES if path.stem != "__init__"}
TREES = {_module(path): ast.parse(path.read_text()) for path in FILES}
CLASSES = {node.name: module for module, tree in TREES.items() for node in tree.body if isinstance(node, ast.ClassDef)}


def code_words(text):
    """What stands in backticks, blocks of code left out.

    >>> code_words("`a.b` and `c(d)`")
    ['a.b', 'c(d)']
    """
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"`([^`\n]+)`", prose)


def is_name(word):
    """Whether a word looks like a name: `Sac.update(batch)`, `cclf.config`, `tests/test_cli.py`, `Appraisal`."""
    dotted, capital = r"[A-Za-z_][\w/+-]*(\.\w+)+(\(.*\))?", r"([A-Z][a-z0-9]+)+"
    return re.fullmatch(f"{dotted}|{capital}", word) is not None


def missing(word):
    """Why a name leads nowhere; None where it leads to something, or is not ours."""
    name = word.partition("(")[0]
    if name in PLANTED:
        return None
    if name.endswith((".py", ".md")) or name.startswith(OURS):
        places = (ROOT, SOURCE, ROOT / "tests", ROOT / "docs")
        return None if any((place / name).exists() for place in places) else "no such file"
    first, *rest = name.split(".")
    if first in FOREIGN or (rest and rest[-1] in WRITTEN_BY_RUNS):
        return None
    if first == "cclf":
        return _missing_in_package(rest)
    if first in CLASSES:
        return _missing_in(getattr(importlib.import_module(CLASSES[first]), first), rest)
    if first in MODULES:
        return _missing_in(importlib.import_module(MODULES[first]), rest)
    return f"cclf has no class or module {first}"


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
    found = {word: missing(word) for word in code_words(page.read_text()) if is_name(word)}
    lost = {word: why for word, why in found.items() if why}
    assert not lost, f"{page.name} names code that is not there: {lost}"


def test_names_that_lead_nowhere_are_found():
    gone = ["Sac._critic_step", "cclf.nowhere", "cclf.equations.q_lost", "doctor.judges"]
    assert all(missing(word) for word in [*gone, "Sack.update", "tests/test_no.py"])
    there = ["Sac.update(batch, noise)", "cclf.framework.Framework", "Appraisal.bonus", "Appraisal"]
    assert not any(missing(word) for word in [*there, "doctor.judge", "torch.nope", "eval.csv"])
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


@pytest.mark.parametrize("name", ["deviations.md", "atari.md"])
def test_fields_in_the_documentation_are_fields_of_the_config(name):
    kinds = [kind for kind in vars(config).values() if dataclasses.is_dataclass(kind)]
    fields = {field.name for kind in kinds for field in dataclasses.fields(kind)}
    named = {word for cell in columns(ROOT / "docs" / name, "field") for word in code_words(cell)}
    assert len(named) > 6
    assert named <= fields, f"{name} names fields that are not in cclf.config: {sorted(named - fields)}"


def test_the_functions_beside_the_papers_equations_are_there():
    page = ROOT / "docs" / "paper.md"
    cells = columns(page, "function in `cclf.equations`")
    named = {word for cell in cells for word in code_words(cell)}
    assert len(named) > 10
    assert not [word for word in named if not hasattr(equations, word)]
    assert columns(page, "equation") == [f"({number})" for number in range(1, 10)]


def test_the_two_profiles_of_minigrid_differ_as_the_documentation_says():
    paper, released = (presets.resolve("minigrid/DoorKey-6x6", profile=p).learning_values() for p in ("paper", "released"))
    assert [key for key in paper if paper[key] != released[key]] == ["algorithm.entropy_coefficient"]
    assert paper["method.contrastive_reduction"] == "weighted-mean"
    words = (ROOT / "docs" / "deviations.md").read_text()
    assert "`paper` and `released` differ in the entropy coefficient alone" in words
    assert "| contrastive loss (8) | Σ c·l / Σ c under `paper`, too (`contrastive_reduction`) |" in words


def test_how_often_all_pairs_of_crops_would_choose_another_pair():
    origins = torch.randint(16, (5, 100_000, 2), generator=torch.Generator().manual_seed(0))
    with_anchor = equations.overlap(origins[:1], origins[1:], 84).amin(0)
    pairs = itertools.combinations(range(5), 2)
    of_all = torch.stack([equations.overlap(origins[i], origins[j], 84) for i, j in pairs]).amin(0)
    share = f"another pair in {(of_all < with_anchor).double().mean():.0%} of samples".replace("%", " %")
    assert share in " ".join((ROOT / "docs" / "deviations.md").read_text().split())
