"""The examples that are programs and notebooks. tests/test_extending.py has those that are plug-ins."""

import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cclf
from cclf.config import MethodConfig
from test_api import TINY_SIZES

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(path.name for path in EXAMPLES.glob("*.ipynb"))


def load_example(path: str) -> Any:
    spec = importlib.util.spec_from_file_location(Path(path).stem, EXAMPLES / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_agent_acts_in_a_plain_and_in_a_vectorized_gymnasium_loop() -> None:
    example = load_example("act_in_gymnasium.py")
    agent = cclf.load("pretrained/Pendulum-v1", device="cpu")
    total = example.play_one(agent, example.make_one(), seed=4)
    assert total > -600.0, "random actions get about -1,200"
    # The first of several environments has the same seed.
    first, second = example.play_several(agent, example.make_several(2), steps=200, seed=4)
    assert first == pytest.approx(total, rel=1e-3)
    assert first != second


class Trial:
    """The used part of an Optuna trial: it suggests the middle of each range, and may prune at the
    first report."""

    def __init__(self, prunes: bool):
        self.prunes, self.suggested = prunes, ""
        self.reported: list[tuple[float, int]] = []

    def suggest_float(self, name: str, low: float, high: float, *, log: bool) -> float:
        self.suggested = name
        return float(np.sqrt(low * high)) if log else (low + high) / 2

    def report(self, value: float, step: int) -> None:
        self.reported.append((value, step))

    def should_prune(self) -> bool:
        return self.prunes


def test_optuna_prunes_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class TrialPruned(Exception):  # noqa: N818 (Optuna's name)
        pass

    optuna = types.SimpleNamespace(Trial=Trial, TrialPruned=TrialPruned)
    monkeypatch.setitem(sys.modules, "optuna", optuna)
    example = load_example("optuna_pruning.py")
    sizes = {name: size for name, size in TINY_SIZES.items() if name != "env_steps"}
    options = sizes | {"env_steps": 60, "eval_every_env_steps": 30, "out": tmp_path}
    whole = Trial(prunes=False)
    assert example.objective(whole, **options) == pytest.approx(whole.reported[-1][0])
    assert [step for _, step in whole.reported] == [30, 60]
    pruned = Trial(prunes=True)
    with pytest.raises(TrialPruned):
        example.objective(pruned, **options | {"out": tmp_path / "pruned"})
    assert [step for _, step in pruned.reported] == [30]


def test_own_curiosity_plans_pairs_of_itself_and_its_shuffled_control(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES / "own_curiosity")  # as where the file is run as a program
    assert cclf.Framework(3, MethodConfig(curiosity="own_curiosity:Sharp-shuffled"))
    example = load_example("own_curiosity/own_curiosity.py")
    assert example.main(["--dry-run", "--out", str(tmp_path)]) == 0
    assert "10 runs, 0 finished" in capsys.readouterr().out
    code = (EXAMPLES / "own_curiosity" / "own_curiosity.py").read_text()
    assert len(code.splitlines()) <= 42


@pytest.mark.slow("test_own_curiosity_plans_pairs_of_itself_and_its_shuffled_control")
def test_own_curiosity_ends_with_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES / "own_curiosity")  # as where the file is run as a program
    example = load_example("own_curiosity/own_curiosity.py")
    assert example.main(["--seeds", "2", "--out", str(tmp_path)]) == 0
    assert "95 %" in capsys.readouterr().out


# --- notebooks


def code_cells(name: str) -> list[str]:
    cells = json.loads((EXAMPLES / name).read_text())["cells"]
    assert not [cell for cell in cells if cell.get("outputs")], "outputs are stripped"
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_cells_of_a_notebook_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, with smaller networks and budgets."""
    whole = cclf.train

    def smaller(*words: Any, **options: Any) -> cclf.Run:
        idle = {"conv_layers", "conv_filters"} if "observe" in options else set()
        sizes = {name: size for name, size in TINY_SIZES.items() if name not in idle}
        return whole(*words, **options | sizes)

    pandas = types.SimpleNamespace(DataFrame=Table, __spec__="found")
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    monkeypatch.setattr(cclf, "train", smaller)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    shown: dict[str, Any] = {"__name__": "notebook"}
    before = {*sys.modules}
    try:
        for cell in code_cells(name):
            exec(compile(cell, name, "exec"), shown)
    finally:
        for module in ("thermostat", "sharp"):
            if module not in before:
                sys.modules.pop(module, None)
    assert shown["run"].finished


class Table(list[dict[str, Any]]):
    """The used part of a DataFrame."""

    def __getitem__(self, columns: Any) -> Any:
        return [[row[column] for column in columns] for row in self]


@pytest.mark.slow("test_cells_of_a_notebook_run")
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_runs_in_a_kernel_as_written(name: str, tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(EXAMPLES / name, as_version=4)
    nbformat.validate(notebook)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=1_800, resources=resources).execute()
    images = [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if {"image/png", "text/html"} & {*output.get("data", {})}
    ]
    assert len(images) >= (0 if name == "own_curiosity.ipynb" else 2)
