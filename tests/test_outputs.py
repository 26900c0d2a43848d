"""Outputs that cannot be written, words that are no task, times and cells: one line each, and
nothing wrong on the way."""

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cclf import cli
from cclf.commands.train import train_config
from cclf.data.types import EnvStep
from cclf.errors import ConfigError
from cclf.runtime import evaluate as evaluation
from cclf.runtime import run_folder
from cclf.runtime.workers import LocalEnvs
from cclf.study import evaluations, tabular
from tiny_rows import row, write_run
from tiny_runs import CPU, run, tiny_config


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    config = tiny_config(env_steps=30)
    with run_folder.claimed_folder(config, tmp_path_factory.mktemp("runs")) as folder:
        run(config, folder)
    return folder


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    out = tmp_path_factory.mktemp("written")
    for seed in (1, 2):
        write_run(out / "runs", seed=seed, evaluations={1_000: 0.1, 2_000: 0.5})
    return out / "runs"


def commands(finished, results):
    train = ["--tasks", "toy/reach-1d", "--methods", "cclf", "--seeds", "1"]
    return {
        "results": ["results", results, "--out"],
        "plot": ["plot", results, "--out"],
        "report": ["report", results, "--out"],
        "report tables": ["report", results, "--tables"],
        "inspect": ["inspect", finished, "--samples", "8", "--out"],
        "export": ["export", finished, "--out"],
        "play": ["play", finished, "--out"],
        "sweep": ["sweep", *train, "--out"],
        "demo": ["demo", "--out"],
        "reproduce": ["reproduce", "minigrid", "--out"],
        "reproduce cost": ["reproduce", "cost", "--out"],
    }


SUFFIXES = {"plot": ".svg", "report": ".html", "inspect": ".html", "export": ".pt", "play": ".mp4"}
NAMES = (
    "results",
    "plot",
    "report",
    "report tables",
    "inspect",
    "export",
    "play",
    "sweep",
    "demo",
    "reproduce",
    "reproduce cost",
)


@pytest.mark.parametrize("name", NAMES)
def test_an_output_below_a_file_is_one_line_before_the_work(
    name, finished, results, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    words = [str(word) for word in commands(finished, results)[name]]
    assert cli.main([*words, f"file/out{SUFFIXES.get(name, '')}"]) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1, said.err
    assert "cannot write" in said.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"], "nothing was begun"


@pytest.mark.parametrize("name", ["plot", "report", "inspect", "export", "play"])
def test_a_folder_in_the_place_of_an_output_is_one_line(
    name, finished, results, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    out = Path(f"out{SUFFIXES[name]}")
    out.mkdir()
    assert cli.main([*(str(word) for word in commands(finished, results)[name]), str(out)]) == 2
    assert "cannot write" in capsys.readouterr().err


FULL = """
import resource, sys
from cclf import cli
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, 2_000))  # as a full disk: a write ends in the middle
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_full_disk_is_one_line(finished, results, tmp_path):
    name = "export"  # PyTorch's own writer ended the process
    words = [str(word) for word in commands(finished, results)[name]]
    done = subprocess.run(
        [sys.executable, "-c", FULL, *words, str(tmp_path / f"out{SUFFIXES[name]}")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.strip().count("\n") == 0, done.stderr
    assert "cannot write" in done.stderr


# --- words
# ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["--out", "toy/reach-1d"],
        ["--out", "toy/reach-1d", "--seed", "2"],
        ["--seed", "2", "--no-video", "--out", "toy/reach-1d"],
        ["--with-tasks", "toy/reach-1d"],
    ],
)
def test_the_value_of_an_option_is_no_task(words):
    with pytest.raises(ConfigError, match="needs a task"):
        train_config(words)


@pytest.mark.parametrize(
    "words",
    [
        ["toy/reach-1d", "--out", "toy/reach"],
        ["--out", "toy/reach", "toy/reach-1d"],
        ["--no-video", "toy/reach-1d"],
        ["--dry-run", "toy/reach-1d", "--out=toy/reach"],
        ["--seed", "3", "toy/reach-1d", "--with-seeds", "1", "2"],
        ["--frame_stack", "2", "toy/reach-1d"],
    ],
)
def test_the_task_may_stand_anywhere(words):
    assert train_config(words).config.task == "toy/reach-1d"


def test_a_further_task_takes_the_place_of_the_task_and_not_of_an_option():
    from cclf.commands.train import all_configs

    words = ["--out", "toy/reach", "toy/reach", "--with-tasks", "toy/reach-1d"]
    assert [config.task for config in all_configs(train_config(words), words)] == [
        "toy/reach",
        "toy/reach-1d",
    ]


def test_games_of_other_frames_are_refused_together(tmp_path, capsys):
    assert (
        cli.main(["train", "toy/catch", "--with-tasks", "atari/Pong", "--out", str(tmp_path)]) == 2
    )
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "train them apart" in said


# --- times
# ------------------------------------------------------------------------------------------------------------------


class Endless:
    """Without a time limit, and with an end at 30 steps for the sake of the test."""

    def reset(self, _seed):
        self.steps = 0
        return np.zeros((3, 8, 8), np.uint8)

    def step(self, _action):
        self.steps += 1
        return EnvStep(np.zeros((3, 8, 8), np.uint8), 1.0, self.steps == 30, False)

    def close(self):
        pass


class Still:
    def evaluation_action(self, observation):
        return observation.float().flatten(1)[:, :1]


def test_a_long_evaluation_episode_says_so_once(monkeypatch, capsys):
    monkeypatch.setattr(evaluation, "LONG_EPISODE_AGENT_STEPS", 10)
    result = evaluation.finish(evaluation.evaluate(LocalEnvs([Endless()]), Still(), [1], 1, CPU))
    assert result.returns == [30.0]
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "10 agent steps" in said
    assert "time limit" in said


def test_a_run_without_a_time_limit_says_so_at_its_start():
    from types import SimpleNamespace

    from cclf import build
    from cclf.training import announcement

    config = tiny_config()
    learner = build.make_learner(config, CPU)
    assert "time limit" not in "\n".join(announcement(config, learner, CPU))
    learner.env = SimpleNamespace(spec=learner.env.spec._replace(max_episode_agent_steps=None))
    assert "toy/reach-1d has no time limit" in "\n".join(announcement(config, learner, CPU))


# --- cells
# ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["=1+1", "@SUM(A1)", "+cmd", "-cmd"])
@pytest.mark.parametrize("field", ["task", "method", "profile", "device", "commit"])
def test_names_that_begin_as_formulas_are_refused(field, name):
    with pytest.raises(ConfigError, match="formula"):
        evaluations.refuse_odd_names([row()._replace(**{field: name})])
    evaluations.refuse_odd_names([row("re3+cclf", value=-1.0)])


def test_cells_of_tables_are_inert(tmp_path):
    table = tabular.Table(
        "origin", "", ("fact",), [], ("fact", "value"), [("=1+1", -1.5), ("cpu", "@x")]
    )
    with tabular.write_csv(table, tmp_path).open(newline="") as file:
        assert list(csv.reader(file)) == [["fact", "value"], ["'=1+1", "-1.5"], ["cpu", "'@x"]]
