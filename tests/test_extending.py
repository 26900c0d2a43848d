"""Packages that extend this one: the examples of docs/extending.md, and invalid entry points."""

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from glob import glob
from pathlib import Path

import numpy as np
import pytest

import cclf
from cclf import cli, presets
from cclf.algorithms.registry import algorithms, make_agent
from cclf.envs import toy
from cclf.envs.make import make_env
from cclf.envs.registry import suites
from cclf.storage.run_folder import read_checkpoint
from cclf.training.agent import make_default_agent
from tiny_runs import CPU, rows, tiny_config, tiny_options

SOURCE = Path(cclf.__file__).parents[1]
PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
EXAMPLES = PAGE.parents[1] / "examples"
# The files of each example, by the name that tests give to it.
FILES = {
    f"{name}/{path.relative_to(EXAMPLES / folder)}": path.read_text()
    for name, folder in {"base": "q_table", "method": "bold_sac", "suite": "corridor"}.items()
    for path in sorted((EXAMPLES / folder).rglob("*"))
    if path.suffix in (".py", ".toml")
}
COMMANDS = dict(
    re.findall(r"^<!-- test: commands (\w+) -->\n```sh\n(.*?)^```", PAGE.read_text(), re.S | re.M)
)
# In the middle of an episode, after half of them.
QUICK = [
    "--env-steps",
    "626",
    "--eval-every-env-steps",
    "313",
    "--log-every-agent-steps",
    "50",
    "--no-tensorboard",
]


def install(site: Path, name: str, entry_points: str, files: dict[str, str]) -> None:
    """Install a package as pip does: its modules, and a metadata folder with its entry points."""
    for path, text in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
    facts = site / f"{name.replace('-', '_')}-0.1.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
    (facts / "entry_points.txt").write_text(entry_points)


def install_from_page(site: Path, folder: str) -> None:
    """Install the files that the page shows under `folder`, as pip does."""
    files = {
        name.removeprefix(f"{folder}/"): text
        for name, text in FILES.items()
        if name.startswith(f"{folder}/")
    }
    project = tomllib.loads(files.pop("pyproject.toml"))["project"]
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    install(site, project["name"], "\n".join(lines), files)


def run_in_shell(commands: str, site: Path, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run commands of the page in `folder`, with the packages of `site` installed."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SOURCE), str(site)])}
    script = f'set -e\ncclf() {{ "{sys.executable}" -P -m cclf.cli "$@"; }}\n{commands}'
    return subprocess.run(
        ["sh", "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def run_in(folder: Path, path: str) -> Path:
    (found,) = folder.glob(f"{path}/seed-1-*")
    return found


def final_return(run: Path) -> float:
    return float(rows(run / "eval.csv")[-1]["return_mean"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    for folder in ("base", "method", "suite"):
        install_from_page(site, folder)
    return site


@pytest.fixture(scope="module")
def base_runs(site: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder, said = tmp_path_factory.mktemp("base"), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        patch.chdir(folder)
        with installed(patch, site):
            for line in COMMANDS["base"].splitlines():
                words = shlex.split(line)[1:]
                assert cli.main([path for word in words for path in glob(word) or [word]]) == 0
    return folder, said.getvalue()


def test_q_table_of_the_page_learns_to_catch(base_runs: tuple[Path, str]) -> None:
    folder, said = base_runs
    assert final_return(run_in(folder, "runs/toy/catch/q-learning")) == toy.CATCH_BALLS
    assert f"(return {toy.CATCH_BALLS})" in PAGE.read_text()
    assert "return 3 ± 0 over 10 episodes at 2,000 env steps" in said


@pytest.mark.slow("envs/test_gym_game.py::test_cartpole_from_the_command_line")
def test_gymnasium_environment_of_the_page_is_trained_by_rainbow(tmp_path: Path) -> None:
    pytest.importorskip("pygame")
    shutil.copy(EXAMPLES / "three_torques.py", tmp_path)
    done = run_in_shell(COMMANDS["gym"], tmp_path, tmp_path)
    assert done.returncode == 0, done.stderr
    first = next(line for line in done.stderr.splitlines() if line.startswith("gym/"))
    assert "has vectors: learning from rendered frames" in first
    assert "imports the Python module three_torques" in first
    assert "over 1 episodes at 400 env steps" in done.stdout


def test_encoder_of_the_page_is_trained_and_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands of the page, with a smaller budget."""
    shutil.copy(EXAMPLES / "my_encoders.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    path, *commands = (
        shlex.split(line, comments=True)[1:] for line in COMMANDS["encoder"].splitlines()
    )
    assert path == ["PYTHONPATH=."], "the command does not search the working directory"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_encoders", raising=False)
    train, evaluate = commands
    quick = ["--env-steps", "60", "--eval-every-env-steps", "60", "--eval-episodes", "1"]
    small = ["--warmup-agent-steps", "50", "--batch-size", "8", "--no-video", "--no-tensorboard"]
    assert cli.main([*train, *quick, *small]) == 0
    assert "encoder my_encoders:strided imports the Python module" in capsys.readouterr().err
    run = str(run_in(tmp_path, str(Path(evaluate[1]).parent)))
    assert cli.main([run if word == evaluate[1] else word for word in evaluate]) == 0


def test_methods_without_cclf_are_compared_with_the_first(
    base_runs: tuple[Path, str],
) -> None:
    folder, said = base_runs
    assert re.search(r"  q-learning  [^\n]+\n  short-sighted", said), "no difference from itself"
    assert re.search(r"  short-sighted  [^\n]+\n +discount=0.0 *\n", said)
    assert {path.stem for path in (folder / "results").glob("*.csv")} == {
        "q-learning",
        "short-sighted",
    }
    assert rows(folder / "results" / "q-learning.csv")[-1]["profile"] == "released"


def test_runs_of_an_uninstalled_package_are_collected(
    base_runs: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = base_runs
    assert cli.main(["results", str(folder / "runs"), "--out", str(tmp_path)]) == 0
    assert rows(tmp_path / "q-learning.csv") == rows(folder / "results" / "q-learning.csv")
    assert cli.main(["evaluate", str(run_in(folder, "runs/toy/catch/q-learning"))]) == 2
    said = capsys.readouterr().err
    assert "unknown base algorithm 'q-table'" in said
    assert "install the package that adds it" in said


def test_methods_of_one_name_of_two_algorithms_are_not_mixed(
    base_runs: tuple[Path, str], tmp_path: Path
) -> None:
    shutil.copytree(
        base_runs[0] / "runs" / "toy" / "catch" / "q-learning", tmp_path / "runs" / "first"
    )
    shutil.copytree(tmp_path / "runs" / "first", tmp_path / "runs" / "second")
    (path,) = (tmp_path / "runs" / "second").glob("*/config.json")
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"base": "another", "seed": 2}))
    assert cli.main(["results", str(tmp_path / "runs"), "--out", str(tmp_path / "results")]) == 0
    (table,) = (tmp_path / "results").glob("*.csv")
    assert {row["method"] for row in rows(table)} == {
        "q-learning, base=another",
        "q-learning, base=q-table",
    }


def test_default_agent_evaluates_like_the_agent_of_sac() -> None:
    config = tiny_config(eval_episodes=3)
    own = make_agent(config, CPU)
    env = make_env(config, 0)
    plain = make_default_agent(env, own.policy, config.env.frame_stack, CPU)
    assert plain.evaluate([1, 2, 3]).returns == own.evaluate([1, 2, 3]).returns
    for agent in (own, plain):
        agent.close()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder; its packages are installed in this process while a test runs."""
    with installed(monkeypatch, tmp_path):
        yield tmp_path


@contextlib.contextmanager
def installed(monkeypatch: pytest.MonkeyPatch, site: Path) -> Iterator[None]:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(site)
    for known in (algorithms, suites):
        known.cache_clear()
    yield
    for known in (algorithms, suites):
        known.cache_clear()
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("broken", "q_table", "corridor", "bold_sac"):
            del sys.modules[name]


REFUSED = {
    "toy/reach --base q-table": "--base q-table conflicts with toy/reach, which is continuous",
    "toy/catch --base q-table --method cclf": "unknown method 'cclf'",
    "toy/catch --base q-table --reward": "reward",
    "toy/catch --base q-table --negatives distinct": "negatives=distinct conflicts with q-table",
    "toy/catch --base q-table --frame-stack 3": "conflicts with q-table, which uses the whole",
    "toy/catch --base q-table --eval-workers 2": "eval_workers=2 conflicts with q-table",
    "toy/catch --base q-table --epsilon 2": "epsilon=2.0 must lie in [0, 1]",
}


@pytest.mark.parametrize("words", REFUSED)
def test_options_without_effect_for_a_plugin_algorithm_are_refused(
    words: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install_from_page(here, "base")
    assert cli.main(["train", *words.split(), "--dry-run"]) == 2
    assert REFUSED[words] in capsys.readouterr().err


def test_method_of_the_page_trains_with_the_update_of_sac(here: Path) -> None:
    """Its bytes equal those of the same settings as a method of SAC."""
    install_from_page(here, "method")
    words = tiny_options(tiny_config(env_steps=30))
    sizes = words[words.index("--seed") :]
    named = ["toy/reach-1d", "--base", "bold-sac", "--method", "bold", *sizes]
    options = ["toy/reach-1d", "--method", "cclf", "--bonus-temperature", "0.5", "--views", "8"]
    for words in (named, [*options, *sizes]):
        assert cli.main(["train", *words, "--out", str(here / "runs")]) == 0
    ours, theirs = (run_in(here, f"runs/toy/reach-1d/{method}") for method in ("bold", "cclf"))
    assert (ours / "train.csv").read_bytes() == (theirs / "train.csv").read_bytes()
    assert json.loads((ours / "config.json").read_text())["base"] == "bold-sac"
    slow = presets.resolve("toy/reach-1d", "bold-slow", base_name="bold-sac")
    assert slow.algorithm.learning_rate == 1e-4
    assert slow.method.bonus_temperature == 0.5
    assert cli.main(["evaluate", str(ours), "--episodes", "1", "--device", "cpu"]) == 0


def test_commands_that_a_plugin_algorithm_lacks_are_refused(
    base_runs: tuple[Path, str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install_from_page(here, "base")
    run = str(run_in(base_runs[0], "runs/toy/catch/q-learning"))
    assert cli.main(["export", run, "--out", str(here / "policy.pt2")]) == 2
    assert "q-table has no export" in capsys.readouterr().err


@pytest.mark.slow("test_q_table_of_the_page_learns_to_catch")
def test_plugin_algorithm_trains_on_a_plugin_task_and_resumes_exactly(
    site: Path, here: Path
) -> None:
    """In two processes as in one."""
    half = ["313" if word == "626" else word for word in QUICK]
    words = "train corridor/short --base q-table"
    done = run_in_shell(
        f"cclf {words} {' '.join(half)}\ncclf {words} {' '.join(QUICK)}", site, here
    )
    assert done.returncode == 0, done.stderr
    assert "resuming at 313 env steps" in done.stderr
    for folder in ("base", "suite"):
        install_from_page(here, folder)
    assert cli.main([*words.split(), *QUICK, "--out", str(here / "whole")]) == 0
    resumed, whole = (run_in(here, f"{out}/corridor/short/q-learning") for out in ("runs", "whole"))
    assert (resumed / "train.csv").read_bytes() == (whole / "train.csv").read_bytes()
    for ours, theirs in zip(rows(resumed / "eval.csv"), rows(whole / "eval.csv"), strict=True):
        assert ours | {"wall_seconds": ""} == theirs | {"wall_seconds": ""}
    state, same = (read_checkpoint(run)["learner"] for run in (resumed, whole))
    assert state["algorithm"].pop("values").equal(same["algorithm"].pop("values"))
    assert np.array_equal(state["env"].pop("stack"), same["env"].pop("stack"))
    assert state == same
    assert final_return(resumed) > 0.3, "straight to the end"


def test_plugin_suite_is_listed_with_the_default_algorithm_of_its_kind(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install_from_page(here, "suite")
    assert cli.main(["tasks"]) == cli.main(["train", "corridor/short", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"corridor/short +1 +walk right to the end", printed)
    assert "base rainbow" in printed


@pytest.mark.slow("test_plugin_suite_is_listed_with_the_default_algorithm_of_its_kind")
def test_every_command_of_the_page_works_with_a_plugin_suite(site: Path, tmp_path: Path) -> None:
    done = run_in_shell(COMMANDS["suite"], site, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "4 of 4 runs done" in done.stderr
    report = (tmp_path / "report.html").read_text()
    assert "corridor/short" in report
    assert "short-sighted" in report


BASE = FILES["base/q_table/__init__.py"]
SUITE = FILES["suite/corridor/__init__.py"]
BAD = {
    "no Base": ("bases", "ALGORITHM = 3\n", "no BaseAlgorithm but 3"),
    "a name that is taken": (
        "bases",
        BASE.replace('"q-table"', '"sac"'),
        "name sac is taken already",
    ),
    "an import that fails": (
        "bases",
        "import nowhere_at_all\n",
        "cannot be imported: ModuleNotFoundError: No module named",
    ),
    "code that fails": ("bases", "ALGORITHM = 1 / 0\n", "cannot be imported: ZeroDivisionError"),
    "code that leaves": (
        "bases",
        "raise SystemExit('planted')\n",
        "cannot be imported: SystemExit: planted",
    ),
    "nothing of that name": ("bases", "\n", "cannot be imported: AttributeError"),
    "no updates_at": (
        "bases",
        BASE.replace("updates_at", "updates"),
        "whose settings lack updates_at",
    ),
    "settings of another class": (
        "bases",
        BASE.replace("QTableConfig(AlgorithmSettings)", "QTableConfig"),
        "whose settings QTableConfig are no subclass of AlgorithmSettings",
    ),
    "no base": (
        "bases",
        BASE.replace("base: ClassVar", "bass: ClassVar"),
        "whose settings lack base",
    ),
    "settings that are no dataclass": (
        "bases",
        BASE.replace("@dataclass(frozen=True)\n", ""),
        "@dataclass(frozen=True)",
    ),
    "another name in its settings": (
        "bases",
        BASE.replace('base: ClassVar = "q-table"', 'base: ClassVar = "q"'),
        "say base='q'",
    ),
    "no such kind of task": (
        "bases",
        BASE.replace('("discrete",)', '("discreet",)'),
        "supports discreet: use some of",
    ),
    "no Suite": ("suites", "SUITE = 'corridor'\n", "no Suite but 'corridor'"),
    "a suite that is taken": (
        "suites",
        SUITE.replace("corridor", "toy"),
        "name toy is taken already",
    ),
    "a suite that fails": (
        "suites",
        "raise RuntimeError('no licence')\n",
        "cannot be imported: RuntimeError: no licence",
    ),
    "no such play of a suite": (
        "suites",
        SUITE.replace('"discrete"', '"discreet"'),
        "which has tasks of the kind 'discreet': use one of",
    ),
    "a task of another suite": (
        "suites",
        SUITE.replace("corridor/short", "hall/short"),
        "'hall/short' is not called corridor/",
    ),
    "no task": (
        "suites",
        SUITE.replace('(Task("corridor/short", "walk right to the end"),)', "()"),
        "has no task",
    ),
    "no make_learner": (
        "bases",
        BASE.replace("def make_learner(", "def make_lerner("),
        "make_learner",
    ),
    "no maker": (
        "suites",
        SUITE.replace("corridor.game:make", "corridor.game"),
        "is not module:function",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_entry_point_is_one_line(
    case: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, code, expected = BAD[case]
    name = {"bases": "ALGORITHM", "suites": "SUITE"}[kind]
    install(
        here, "their-package", f"[cclf.{kind}]\nx = broken:{name}\n", {"broken/__init__.py": code}
    )
    assert cli.main(["methods"]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert f"their-package adds broken:{name} to cclf.{kind}" in line
    assert expected in line
    assert "uninstall their-package" in line


def test_missing_factory_of_a_suite_is_one_line(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("base", "suite"):
        install_from_page(here, folder)
    game = here / "corridor" / "game.py"
    game.write_text(game.read_text().replace("def make(", "def make_it("))
    words = [
        "train",
        "corridor/short",
        "--base",
        "q-table",
        "--no-tensorboard",
        "--out",
        str(here / "runs"),
    ]
    assert cli.main(words) == 2
    assert (
        "the suite corridor is made by corridor.game:make, which is not there"
        in capsys.readouterr().err
    )


def test_tasks_are_listed_although_their_default_algorithm_refuses_them(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Frames of 8 pixels are too small for the first base algorithm that plays discrete actions."""
    install_from_page(here, "suite")
    suite = here / "corridor" / "__init__.py"
    suite.write_text(suite.read_text().replace("32", "8"))
    assert cli.main(["tasks"]) == 0
    assert "corridor/short" in capsys.readouterr().out
    assert cli.main(["train", "corridor/short", "--dry-run"]) == 2
    assert "frame_pixels=8: use 25 or more" in capsys.readouterr().err
