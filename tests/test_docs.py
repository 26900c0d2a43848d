"""The documentation agrees with the code: links, names of fields, columns and functions, and
commands."""

import contextlib
import dataclasses
import itertools
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import torch

import cclf
from cclf import cli, config, equations, presets
from cclf.algorithms.a2c.a2c import A2C, PREDICTION_METRICS
from cclf.algorithms.drqv2.drqv2 import DrQv2
from cclf.algorithms.mrq.mrq import MrQ
from cclf.algorithms.rainbow.rainbow import RainbowLoss
from cclf.algorithms.registry import find_algorithm
from cclf.algorithms.sac.sac import SAC
from cclf.analysis.runs import ResultRow
from cclf.commands.train import train_config
from cclf.storage.tables import EVAL_COLUMNS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.glob("*.md")), *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING"))]
HISTORY = [ROOT / "CHANGELOG.md", ROOT / "benchmarks" / "HISTORY.md"]
COMMAND = re.compile(r"(?:^    |`)(?:\.venv/bin/)?(cclf [a-z][^`#\n]*)", re.MULTILINE)


def by_name(path):
    return path.name


def prose(text):
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def code_words(text):
    """The words in backticks, without blocks of code."""
    return re.findall(r"`([^`\n]+)`", prose(text))


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


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


@pytest.mark.parametrize("page", [*PAGES, *HISTORY], ids=by_name)
def test_every_link_leads_to_a_file_and_a_heading(page):
    links = re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text()))
    lost = []
    for link in links:
        name, _, anchor = link.partition("#")
        if "://" in name:
            continue
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(link)
    assert not lost, f"{page.name} links to what is not there: {lost}"


def test_sources_and_tests_name_documents_that_exist():
    lost = [
        f"{path.relative_to(ROOT)}: {name}"
        for folder in ("src", "tests", "examples", "scripts")
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r"docs/[\w-]+\.md", path.read_text())
        if not (ROOT / name).exists()
    ]
    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_commands_name_options_that_exist(page, capsys):
    """Every `cclf COMMAND --option` of a page: the command's help names the option."""
    helps, unknown = {}, []
    for line in COMMAND.findall(page.read_text()):
        words = shlex.split(line.split(" -- ")[0].rstrip("\\").replace("…", ""), comments=True)[1:]
        options = [word for word in words if word.startswith("--")]
        if not options or not words[0].isalpha():
            continue
        task = words[1:2] if words[0] == "train" and "/" in "".join(words[1:2]) else []
        base = words[words.index("--base") :][:2] if "--base" in words else []
        base = [] if {"q-table", "bold-sac", "NAME"} & set(base) else base
        kind = words[1:2] if words[0] == "bench" else []
        call = (words[0], *kind, *(task if task and "MODULE" not in task[0] else []), *base)
        if call not in helps:
            with contextlib.suppress(SystemExit):
                cli.main([*call, "--help"])
            helps[call] = capsys.readouterr().out
        unknown += [f"{line}: {word}" for word in options if word not in helps[call]]
    assert unknown == []


@pytest.mark.parametrize(("name", "base"), [("method.md", "sac"), ("algorithms.md", "rainbow")])
def test_fields_in_tables_are_fields_of_the_config(name, base):
    kinds = [kind for kind in vars(config).values() if dataclasses.is_dataclass(kind)]
    fields = {
        field.name
        for kind in (*kinds, find_algorithm(base).settings_type)
        for field in dataclasses.fields(kind)
    }
    named = {word for cell in columns(DOCS / name, "field") for word in code_words(cell)}
    assert len(named) > 6
    assert named <= fields, f"{name} names fields that a run of {base} does not have"


def test_functions_of_the_equations_exist():
    page = DOCS / "method.md"
    cells = columns(page, "function in `cclf.equations`")
    named = {word for cell in cells for word in code_words(cell)}
    assert len(named) > 10
    assert not [word for word in named if not hasattr(equations, word)]
    assert columns(page, "equation") == [f"({number})" for number in range(1, 10)]


@pytest.mark.parametrize(("code", "queued"), [(0, ""), (75, "requeue 7_3\n"), (2, "")])
def test_slurm_script_requeues_only_a_run_that_was_stopped(tmp_path, code, queued):
    text = (DOCS / "install.md").read_text()
    (script,) = re.findall(r"^<!-- test: slurm -->\n```bash\n(.*?)^```", text, re.DOTALL | re.M)
    calls = tmp_path / "calls"
    stubs = {
        "srun": f'echo "$@" > {tmp_path}/run; exit {code}',
        "scontrol": f'echo "$@" >> {calls}',
    }
    for name, line in stubs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": "/home/me"}
    environment |= {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_JOB_ID": "7"}
    done = subprocess.run(["bash", "-c", script], env=environment, check=False)
    assert done.returncode == code
    assert (calls.read_text() if calls.exists() else "") == queued
    asked = train_config((tmp_path / "run").read_text().split()[2:])
    assert (asked.config.seed, asked.options.out) == (3, Path("/home/me/runs"))


def test_every_column_of_a_table_is_explained():
    """In docs/protocol.md, under the heading of its file."""
    explained = {
        word for cell in columns(DOCS / "protocol.md", "column") for word in code_words(cell)
    }
    written = {*EVAL_COLUMNS, "episode_return", "gradient_norm", "priority_entropy_share"}
    written |= set(ResultRow._fields)
    for algorithm in (SAC, DrQv2, MrQ, A2C, RainbowLoss):
        written |= set(algorithm.metric_names)
    written |= set(PREDICTION_METRICS)
    assert explained == written


def test_one_version_in_package_citation_and_changelog():
    assert f"\nversion: {cclf.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert next(heading for heading in headings if heading != "Unreleased") == cclf.__version__


def test_profiles_of_minigrid_differ_in_the_entropy_coefficient_only():
    paper, released = (
        presets.resolve("minigrid/DoorKey-6x6", profile=p).hashed_fields()
        for p in ("paper", "released")
    )
    assert [key for key in paper if paper[key] != released[key]] == [
        "algorithm.entropy_coefficient"
    ]
    assert paper["method.contrastive_reduction"] == "weighted-mean"


def test_figures_of_the_readme_exist_for_light_and_dark_screens():
    text = (ROOT / "README.md").read_text()
    dark, light = (
        re.findall(f'{word}="(docs/figures/[^"]+)"', text) for word in ("srcset", "img .*?src")
    )
    assert light
    with_dark = [path for path in light if "-light." in path]
    assert dark == [path.replace("-light.", "-dark.") for path in with_dark]
    assert all((ROOT / path).stat().st_size > 1_000 for path in (*light, *dark))


def test_every_cell_about_another_library_names_its_file():
    """At the commit that was read."""
    text = (DOCS / "comparison.md").read_text()
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert len(tables) == 2
    commits, bare = [], []
    for table in tables:
        _, _, *lines, last = (line.split("|")[1:-1] for line in table.splitlines())
        assert last[0].strip() == "last commit read"
        commits += [cell.split(",")[0].strip() for cell in last[2:]]
        cells = [cell for line in lines for cell in line[2:] if cell.strip()]
        bare += [cell for cell in cells if "([file](https://github.com/" not in cell]
    assert bare == [], "cells without a file"
    read = re.findall(r"https://github\.com/[^/]+/[^/]+/(?:blob|tree)/(\w+)", text)
    assert len(read) > 40
    assert [name for name in read if not name.startswith(tuple(commits))] == []


def test_share_of_samples_in_which_all_pairs_of_crops_select_another_pair():
    origins = torch.randint(16, (5, 100_000, 2), generator=torch.Generator().manual_seed(0))
    with_anchor = equations.overlap(origins[:1], origins[1:], 84).amin(0)
    pairs = itertools.combinations(range(5), 2)
    of_all = torch.stack([equations.overlap(origins[i], origins[j], 84) for i, j in pairs]).amin(0)
    share = f"{(of_all < with_anchor).double().mean():.0%}".replace("%", " %")
    words = " ".join((DOCS / "method.md").read_text().split())
    assert f"another pair in {share} of samples" in words


def test_documents_are_short():
    lines = {page.name: page.read_text().count("\n") for page in DOCS.glob("*.md")}
    assert sum(lines.values()) <= 2_000, lines
