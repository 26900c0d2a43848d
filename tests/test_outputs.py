"""Outputs that cannot be written, command lines without a task, time limits, and formulas in cells."""

import csv
import re
import resource
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from cclf import cli
from cclf.algorithms.registry import make_learner
from cclf.analysis import render, report, runs
from cclf.analysis.table import Cell, Entry, Table
from cclf.commands import reproduce
from cclf.commands.train import train_config
from cclf.errors import ConfigError
from cclf.training import evaluation as evaluation
from cclf.training.workers import LocalPool
from cclf.types import EnvStep
from tiny_rows import row, write_run
from tiny_runs import CPU, tiny_config


@pytest.fixture(scope="module")
def finished(trained):
    return trained(tiny_config(env_steps=30))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    out = tmp_path_factory.mktemp("written")
    for seed in (1, 2):
        write_run(out / "runs", seed=seed, evaluations={1_000: 0.1, 2_000: 0.5})
    return out / "runs"


# By command: its words, where RUN and RUNS are folders, and the suffix of its output.
COMMANDS = {
    "results": ("results RUNS", ""),
    "plot": ("plot RUNS", ".svg"),
    "report": ("report RUNS", ".html"),
    "report tables": ("report RUNS --tables", ""),
    "inspect": ("inspect RUN --samples 8", ".html"),
    "export": ("export RUN", ".pt2"),
    "play": ("play RUN", ".mp4"),
    "sweep": ("sweep --tasks toy/reach-1d --methods cclf --seeds 1", ""),
    "demo": ("demo", ""),
    "reproduce": ("reproduce minigrid", ""),
}


@pytest.fixture
def arguments(finished, results):
    """The words of a command with the paths of these folders."""
    paths = {"RUNS": str(results), "RUN": str(finished)}
    return lambda words: [paths.get(word, word) for word in words.split()]


def assert_not_written(capsys, code, path):
    printed, error = capsys.readouterr()
    assert (code, printed, error.count("\n")) == (2, "", 1), error
    assert error.startswith(f"cclf: cannot write {path}")


@pytest.mark.quick(*(name for name in COMMANDS if name != "reproduce"))
@pytest.mark.parametrize("name", COMMANDS)
def test_output_below_a_file_is_refused_before_the_work(
    name, arguments, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    words, suffix = COMMANDS[name]
    option = "" if name == "report tables" else "--out"
    code = cli.main([*arguments(f"{words} {option}"), f"file/out{suffix}"])
    assert_not_written(capsys, code, "file/")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"], "nothing was begun"


@pytest.mark.quick("plot", "play", "demo report.html", "demo curiosity.html")
@pytest.mark.parametrize(
    "name",
    [
        *(name for name, (_, suffix) in COMMANDS.items() if suffix),
        *("demo report.html", "demo curiosity.html", "reproduce report.html"),
    ],
)
def test_folder_in_the_place_of_an_output_is_refused(name, arguments, tmp_path, capsys):
    command, _, file = name.partition(" ")
    words, suffix = COMMANDS[command]
    path = tmp_path / (file or f"out{suffix}")
    path.mkdir()
    code = cli.main([*arguments(words), "--out", str(tmp_path if file else path)])
    assert_not_written(capsys, code, f"{path}: Is a directory")


OLD = "mine, and longer than what a full disk takes " * 9
DOCUMENT = f"{OLD}\n<!-- table origin -->\nold\n<!-- end of table -->\nTHE END\n"
# By output: the words of the command, and the files that are there before. A link to /dev/null
# takes all that is written before the file in question.
FULL_DISK = {
    "report": ("report RUNS --out out/r.html", {"r.html": OLD}),
    "report markdown": (
        "report RUNS --out out/r.html --markdown out/d.md",
        {"r.html": OLD, "d.md": DOCUMENT},
    ),
    "report new markdown": ("report RUNS --out out/r.html --markdown out/d.md", {"r.html": OLD}),
    "report pdf": (
        "report RUNS --out out/r.html --pdf out",
        {"r.html": None, "learning-curves.pdf": OLD},
    ),
    "report png": (
        "report RUNS --out out/r.html --png out",
        {"r.html": None, "learning-curves.png": OLD},
    ),
    "report csv": (
        "report RUNS --out out/r.html --tables out",
        {"r.html": None, "returns-minigrid-entropy-0.01.csv": OLD},
    ),
    "report tex": (
        "report RUNS --out out/r.html --tables out",
        {
            "r.html": None,
            "returns-minigrid-entropy-0.01.csv": None,
            "returns-minigrid-entropy-0.01.tex": OLD,
        },
    ),
    "plot svg": ("plot RUNS --out out/p.svg", {"p.svg": OLD}),
    "plot png": ("plot RUNS --out out/p.png", {"p.png": OLD}),
    "plot new": ("plot RUNS --out out/p.pdf", {}),
    "results": ("results RUNS --out out", {}),
    "results again": ("results RUNS --out out", {}),
    "inspect": ("inspect RUN --samples 8 --out out/i.html", {"i.html": OLD}),
    "export pt": ("export RUN --out out/p.pt2", {"p.pt2": OLD}),
    "export onnx": ("export RUN --out out/p.onnx", {"p.onnx": OLD}),
    "export card": ("export RUN --card --out out", {}),
    "export card again": ("export RUN --card --out out", {}),
    "play": ("play RUN --out out/v.mp4", {"v.mp4": OLD}),
    "play new": ("play RUN --out out/v.mp4", {}),
    "reproduce": ("reproduce minigrid --out out", {"report.html": OLD}),
}


@contextmanager
def full_disk():
    """A file may have no more than 64 bytes: a write of more fails, also one of another process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def contents(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.fixture
def quick_studies(monkeypatch, results):
    """Skip the slow parts of `reproduce`."""
    monkeypatch.setattr(reproduce, "run_sweep", lambda specs, *_: (specs, 0))
    monkeypatch.setattr(reproduce, "_print_verdicts", lambda *_: None)
    build = report.build_report
    monkeypatch.setattr(report, "build_report", lambda _, *methods: build(results, *methods))


@pytest.mark.quick(
    "report",
    "report markdown",
    "report pdf",
    "report csv",
    "plot svg",
    "results",
    "results again",
    "play",
)
@pytest.mark.usefixtures("quick_studies")
@pytest.mark.parametrize("name", FULL_DISK)
def test_output_on_a_full_disk_stays_as_it_was(name, arguments, tmp_path, monkeypatch, capsys):
    if "onnx" in name:
        pytest.importorskip("onnxruntime")
    words, before = FULL_DISK[name]
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    for file, text in before.items():
        if text is None:
            (out / file).symlink_to("/dev/null")
        else:
            (out / file).write_text(text)
    if name.endswith("again"):
        assert cli.main(arguments(words)) == 0
    known = contents(out)
    capsys.readouterr()
    with full_disk():
        code = cli.main(arguments(words))
    error = capsys.readouterr().err
    assert (code, error.count("\n")) == (2, 1), error
    assert re.match("cclf: cannot write out(/[a-z]|:)", error), error
    assert len(error) < 200, error
    assert contents(out) == known


# --- words
# ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "task"),
    [
        ("--out toy/reach-1d --seed 2", None),
        ("--seed 2 --no-video --out toy/reach-1d", None),
        ("--with-tasks toy/reach-1d", None),
        ("toy/reach-1d --out toy/reach", "toy/reach-1d"),
        ("--out toy/reach toy/reach-1d", "toy/reach-1d"),
        ("--no-video toy/reach-1d", "toy/reach-1d"),
        ("--dry-run toy/reach-1d --out=toy/reach", "toy/reach-1d"),
        ("--seed 3 toy/reach-1d --with-seeds 1 2", "toy/reach-1d"),
        ("--frame_stack 2 toy/reach-1d", "toy/reach-1d"),
    ],
)
def test_value_of_an_option_is_not_the_task(words, task):
    if task is not None:
        assert train_config(words.split()).config.task == task
        return
    with pytest.raises(ConfigError, match="needs a task"):
        train_config(words.split())


def test_further_task_replaces_the_task_and_not_the_value_of_an_option():
    from cclf.commands.train import all_configs

    words = ["--out", "toy/reach", "toy/reach", "--with-tasks", "toy/reach-1d"]
    assert [config.task for config in all_configs(train_config(words), words)] == [
        "toy/reach",
        "toy/reach-1d",
    ]


def test_games_with_different_frame_sizes_are_not_trained_together(tmp_path, capsys):
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


class ConstantPolicy:
    def evaluation_action(self, observation):
        return observation.float().flatten(1)[:, :1]


def test_long_evaluation_episode_prints_one_note(monkeypatch, capsys):
    monkeypatch.setattr(evaluation, "LONG_EPISODE_AGENT_STEPS", 10)
    result = evaluation.wait_for_evaluation(
        evaluation.evaluate(LocalPool([Endless()]), ConstantPolicy(), [1], 1, CPU)
    )
    assert result.returns == [30.0]
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "10 agent steps" in said
    assert "time limit" in said


def test_run_without_a_time_limit_prints_a_note_at_its_start():
    from types import SimpleNamespace

    from cclf.training.trainer import run_summary

    config = tiny_config()
    learner = make_learner(config, CPU)
    assert "time limit" not in "\n".join(run_summary(config, learner, CPU))
    learner.env = SimpleNamespace(spec=learner.env.spec._replace(max_episode_agent_steps=None))
    assert "toy/reach-1d does not state a time limit" in "\n".join(
        run_summary(config, learner, CPU)
    )


# --- cells
# ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["task", "method", "profile", "device", "commit"])
def test_names_that_begin_as_formulas_are_refused(field):
    for name in ("=1+1", "@SUM(A1)", "+cmd", "-cmd"):
        with pytest.raises(ConfigError, match="formula"):
            runs.check_names([row()._replace(**{field: name})])
    runs.check_names([row("re3+cclf", value=-1.0)])


def test_formulas_in_csv_files_are_escaped():
    records = [{"fact": "=1+1", "value": -1.5}, {"fact": "cpu", "value": "@x"}]
    table = Table("origin", [Entry((Cell("x"),), record) for record in records], ("fact",))
    lines = list(csv.reader(render.to_csv(table).splitlines()))
    assert lines == [["fact", "value"], ["'=1+1", "-1.5"], ["cpu", "'@x"]]
