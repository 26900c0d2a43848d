"""A run folder from an unknown source: no code in it runs, and no module that it names is imported
without consent."""

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import cclf
from cclf import cli, presets
from cclf.analysis import load, variants
from cclf.storage.run_folder import read_config
from cclf.sweep import child
from cclf.sweep.plan import Job, make_run_spec
from cclf.training import subprocesses
from tiny_runs import tiny_config, tiny_options

SOURCE = Path(cclf.__file__).parent
PLANTED = (
    "cclf",
    "json",
    "signal",
    "socket",
    "tempfile",
    "multiprocessing",
    "numpy",
    "torch",
    "sitecustomize",
    "tyro",
    "ray",
)
TINY = tiny_config(method="rad", eval_workers=1, eval_episodes=1)


def plant(folder: Path, marks: Path) -> None:
    """Modules that leave a mark where they are imported."""
    folder.mkdir(parents=True, exist_ok=True)
    marks.mkdir()
    for name in PLANTED:
        (folder / f"{name}.py").write_text(
            f"open({str(marks / name)!r}, 'w')\nraise SystemExit('planted')\n"
        )


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """Stays empty unless a planted module runs."""
    return tmp_path / "marks"


def as_installed(tmp_path: Path, folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """The program as its console script starts it, with `folder` as the working directory."""
    script = tmp_path / "bin" / "cclf"
    script.parent.mkdir(exist_ok=True)
    script.write_text(
        "import sys\nfrom cclf.cli import main\nif __name__ == '__main__':\n    sys.exit(main())\n"
    )
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PYTHONSAFEPATH")
    }
    environment["PYTHONPATH"] = str(SOURCE.parent)
    command = [sys.executable, str(script), *words]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_sweeps_child_does_not_see_the_working_directory(
    tmp_path: Path, marks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path / "here", marks)
    monkeypatch.chdir(tmp_path / "here")
    job = Job((make_run_spec(presets.resolve("toy/reach-1d", "rad"), tmp_path, ("--dry-run",)),))
    code = child.Child(job, {}).process.wait(60)
    assert (code, os.listdir(marks)) == (0, []), (job.first.folder / child.LOG).read_text()


RUNS = tiny_options(TINY)[5:]  # but for task, method and seed


@pytest.mark.slow("test_a_sweeps_child_does_not_see_the_working_directory")
@pytest.mark.parametrize(
    "words",
    [
        [
            "sweep",
            "--tasks",
            "toy/reach-1d",
            "--methods",
            "rad",
            "--seeds",
            "2",
            "--out",
            "OUT",
            "--",
            *RUNS,
        ],
        [
            "sweep",
            "--backend",
            "ray",
            "--tasks",
            "toy/reach-1d",
            "--methods",
            "rad",
            "--seeds",
            "2",
            "--out",
            "OUT",
            "--",
            *RUNS,
        ],
        ["doctor", "--stress", "1"],
        ["bench", "minigrid", "--seconds", "0.1", "--processes", "1", "--methods", "a2c"],
    ],
    ids=["sweep", "ray", "doctor", "bench"],
)
def test_no_process_that_is_started_sees_the_working_directory(
    tmp_path: Path, marks: Path, words: list[str]
) -> None:
    plant(tmp_path / "here", marks)
    done = as_installed(
        tmp_path,
        tmp_path / "here",
        *(str(tmp_path / "out") if word == "OUT" else word for word in words),
    )
    assert (done.returncode, os.listdir(marks)) == (0, []), done.stderr


def test_search_path_of_the_user_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, other = tmp_path / "here", tmp_path / "other"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", ["", str(here), str(other)])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", str(other)]))
    assert subprocesses.child_sys_path() == [str(other)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([".", str(other)]))
    assert subprocesses.child_sys_path() == [str(here), str(other)]
    monkeypatch.delenv("PYTHONPATH")
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "train.py", raising=False)
    assert subprocesses.child_sys_path() == [str(here), str(other)], (
        "the folder of the script that runs"
    )


def test_python_processes_are_started_by_one_function() -> None:
    """A new child interpreter goes through `subprocesses`, or it would see the working directory."""
    found = {path.relative_to(SOURCE).as_posix(): path.read_text() for path in SOURCE.rglob("*.py")}
    assert {name for name, text in found.items() if "sys.executable" in text} == {
        "training/subprocesses.py",
        "sweep/child.py",
    }
    assert re.findall(r".*sys\.executable.*", found["sweep/child.py"]) == [
        '    os.execv(sys.executable, subprocesses.python_command("-m", "cclf.cli", "train", *arguments))'
    ]


# --- modules that a config names
# ---------------------------------------------------------------------------------------

MODULE = """
    import sys
    from pathlib import Path
    import gymnasium
    import numpy as np

    Path(__file__).with_name("imported").touch()

    class Square(gymnasium.Env):
        metadata = {"render_modes": ["rgb_array"]}
        observation_space = gymnasium.spaces.Box(0, 255, (100, 100, 3), np.uint8)
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

        def __init__(self, render_mode=None):
            self.steps = 0

        def reset(self, seed=None, options=None):
            self.steps = 0
            return np.zeros((100, 100, 3), np.uint8), {}

        def step(self, action):
            self.steps += 1
            return np.full((100, 100, 3), self.steps, np.uint8), 1.0, self.steps == 5, False, {}

        def render(self):
            return np.zeros((100, 100, 3), np.uint8)

    gymnasium.register("Square-v0", entry_point=Square, max_episode_steps=5)
"""
TASK = "gym/strange_module:Square-v0"


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a file that exists once the module of TASK was imported."""
    pytest.importorskip("gymnasium")
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "strange_module.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "strange_module", raising=False)
    return folder / "imported"


@pytest.mark.parametrize("command", ["evaluate", "play", "export"])
def test_config_does_not_import_modules_without_trust(
    command: str,
    tmp_path: Path,
    imported: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    run.mkdir()
    config = presets.resolve(TASK, "cclf", make_env=False)
    (run / "config.json").write_text(json.dumps(config.to_dict()))
    assert cli.main([*command.split(), str(run)]) == 2
    error = capsys.readouterr().err
    assert "imports the Python module 'strange_module'" in error
    assert "--trust-imports" in error
    assert error.count("\n") == 1
    assert not imported.exists()
    assert cli.main([*command.split(), str(run), "--trust-imports"]) == 2, "it has no checkpoint"
    assert "--trust-imports" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["config.json", "failed.json"])
def test_a_run_that_names_no_base_imports_nothing_to_find_one(
    name: str, tmp_path: Path, imported: Path
) -> None:
    """Version 0.1 wrote no base algorithm, which follows from the task."""
    run = tmp_path / "run"
    run.mkdir()
    config = presets.resolve(TASK, "cclf", make_env=False).to_dict()
    del config["base"]
    note = {"task": TASK, "method": "cclf", "seed": 1, "profile": "released", "exit_code": 1}
    (run / name).write_text(json.dumps(config if name == "config.json" else note))
    assert variants.run_key(load.read_run_config(run)).task == TASK
    if name == "config.json":
        assert read_config(run).base == "sac"
    assert not imported.exists()


@pytest.mark.slow("test_config_does_not_import_modules_without_trust")
def test_a_trusted_module_is_imported_also_in_workers(
    tmp_path: Path,
    imported: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Training needs no consent, since its command names the task; commands that read a run import
    nothing."""
    config = tiny_config(
        TASK,
        env_steps=40,
        eval_every_env_steps=40,
        eval_episodes=1,
        eval_workers=1,
        final_eval_episodes=1,
    )
    assert cli.main(["train", *tiny_options(config), "--out", str(tmp_path / "runs")]) == 0
    folder = capsys.readouterr().out.strip()
    imported.unlink()
    monkeypatch.delitem(sys.modules, "strange_module")
    assert (
        cli.main(
            [
                "inspect",
                folder,
                "--samples",
                "4",
                "--device",
                "cpu",
                "--out",
                str(tmp_path / "page.html"),
            ]
        )
        == 0
    )
    assert cli.main(["evaluate", folder, "--episodes", "1", "--device", "cpu"]) == 2
    assert not imported.exists()
    capsys.readouterr()
    assert (
        cli.main(["evaluate", folder, "--episodes", "1", "--device", "cpu", "--trust-imports"]) == 0
    )
    assert "return 5" in capsys.readouterr().out
    assert imported.exists()
