"""Figures do not depend on matplotlib settings of a file or of the calling program."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import cclf
from cclf import cli
from cclf.analysis import load
from tiny_rows import runs_of

SOURCE = Path(cclf.__file__).parent
HOSTILE: dict[str, Callable[[Path], object]] = {
    "none": lambda _: None,
    "other colours": lambda path: path.write_text("axes.facecolor: red\nlines.linewidth: 9\n"),
    "usetex": lambda path: path.write_text("text.usetex: True\n"),
    "noise": lambda path: path.write_bytes(b"\xff\xfe\x00"),
    "pipe": os.mkfifo,
    "endless device": lambda path: path.symlink_to("/dev/zero"),
}
# Each plot in a process of its own, in which matplotlib was not imported before.
PLOTS = """
import os, sys
from cclf import cli
from cclf.analysis import curves, figures, load, runs
assert "matplotlib" not in sys.modules
results, *folders = sys.argv[1:]
for folder in folders:
    if os.fork() == 0:
        os.chdir(folder)
        os._exit(cli.main(["plot", results, "--out", "curves.svg"]))
    os.wait()
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    rows = [
        one
        for env_steps in (200_000, 400_000)
        for method, values in (("cclf", [0.9, 0.8, 0.7]), ("re3", [0.5, 0.4, 0.6]))
        for one in runs_of(method, values, env_steps=env_steps)
    ]
    load.write_results(rows, folder)
    return folder


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (2**34, 2**34))


@pytest.mark.slow("test_settings_of_the_calling_program_change_no_figure")
def test_matplotlibrc_in_the_working_directory_changes_no_figure(
    results: Path, tmp_path: Path
) -> None:
    folders = {name: tmp_path / name for name in HOSTILE}
    for name, plant in HOSTILE.items():
        folders[name].mkdir()
        plant(folders[name] / "matplotlibrc")
    done = subprocess.run(
        [sys.executable, "-c", PLOTS, str(results), *map(str, folders.values())],
        env=os.environ | {"PYTHONPATH": str(SOURCE.parent)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        preexec_fn=limit_memory,
    )
    assert done.stderr == ""
    drawn = {name: (folder / "curves.svg").read_bytes() for name, folder in folders.items()}
    assert [name for name in HOSTILE if drawn[name] != drawn["none"]] == []


@pytest.mark.parametrize("words", [["plot"], ["report"]])
def test_settings_of_the_calling_program_change_no_figure(
    results: Path, tmp_path: Path, words: list[str]
) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    suffix = ".html" if words == ["report"] else ".svg"
    plain, changed = tmp_path / f"plain{suffix}", tmp_path / f"changed{suffix}"
    arguments = [words[0], str(results), *words[1:], "--out"]
    assert cli.main([*arguments, str(plain)]) == 0
    others = {
        "axes.facecolor": "red",
        "axes.grid": True,
        "font.size": 20.0,
        "lines.linewidth": 9.0,
        "savefig.facecolor": "blue",
        "svg.fonttype": "none",
        "svg.hashsalt": "other",
        "text.usetex": True,
        "xtick.direction": "in",
    }
    with matplotlib.rc_context(others):
        assert cli.main([*arguments, str(changed)]) == 0
        assert matplotlib.rcParams["axes.facecolor"] == "red"
    assert changed.read_bytes() == plain.read_bytes()


def test_broken_variable_of_matplotlib_is_one_line(results: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cclf.cli", "plot", str(results), "--out", str(tmp_path / "p.svg")],
        env=os.environ | {"PYTHONPATH": str(SOURCE.parent), "MPLBACKEND": "nonsense"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("cclf: cannot import matplotlib: ")
    assert done.stderr.count("\n") == 1
