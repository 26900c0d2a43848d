"""The command line: outputs, exit codes and files. Tests call `cli.main` in this process, except
for signals and imports."""

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cclf import presets
from cclf.algorithms.registry import algorithms, make_learner
from cclf.algorithms.sac.presets import METHODS as SAC_METHODS
from cclf.cli import COMMANDS, main
from cclf.commands import train as training
from cclf.config import PIECES
from cclf.envs.registry import known_tasks
from cclf.errors import ConfigError
from cclf.storage import checkpoint
from cclf.storage.manifest import manifest as make_manifest
from cclf.training.signals import StopSignal
from cclf.training.trainer import RunResult
from tiny_runs import CPU, rows, tiny_config, tiny_options

EVAL_COLUMNS = {
    "env_steps",
    "agent_steps",
    "updates",
    "return_mean",
    "return_std",
    "episodes",
    "wall_seconds",
}


def cclf(*words):
    """Exit code, standard output, standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(word) for word in words])
        except SystemExit as exit_:
            code = exit_.code or 0
    return code, out.getvalue(), err.getvalue()


def contents(folder):
    """Every file below a folder, byte for byte."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def assert_refused(result, *words):
    code, out, err = result
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1, f"one line on standard error, not {err!r}"
    assert err.endswith("\n")
    assert "Traceback" not in err
    for word in words:
        assert word in err


# --- listings and help
# -------------------------------------------------------------------------------------------------


def test_commands_without_training_do_not_import_torch():
    """In one process: each command may import further modules, so those that import least come
    first."""
    script = """
import sys
from cclf.cli import main
for words, absent in (
    ("--help", "torch numpy tyro rich"),
    ("--version", "torch numpy tyro rich"),
    ("nonsense", "torch numpy tyro rich"),
    ("methods --json", "torch numpy gymnasium"),
    ("tasks", "torch numpy gymnasium"),
    ("train toy/reach --dry-run", "torch"),
    ("train --help", "torch"),
):
    main(words.split())
    assert not (found := set(absent.split()) & set(sys.modules)), (words, found)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.quick("set_by_user0-2000")
@pytest.mark.parametrize(("set_by_user", "spins"), [({}, "2000"), ({"GOMP_SPINCOUNT": "7"}, "7")])
def test_openmp_spin_count_is_limited_unless_set(set_by_user, spins):
    """Spinning threads make an update thirty times slower if another process is busy. OpenMP prints
    its settings."""
    script = """
import ctypes, importlib.util, pathlib
from cclf.cli import main
main(["--version"])
[openmp] = (pathlib.Path(importlib.util.find_spec("torch").origin).parent / "lib").glob("libgomp*")
ctypes.CDLL(str(openmp))
"""
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    environment |= {"OMP_DISPLAY_ENV": "verbose", **set_by_user}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    )
    assert f"GOMP_SPINCOUNT = '{spins}'" in done.stderr


def test_help_and_version():
    code, out, err = cclf("--help")
    assert (code, err) == (0, "")
    assert out.startswith("usage: cclf COMMAND")
    for command in COMMANDS:
        assert f"cclf {command}" in out
    assert max(len(line) for line in out.splitlines()) <= 80
    assert cclf("-h")[1] == out
    assert cclf()[0] == 2
    assert cclf("--version")[:2] == (0, "0.2.0\n")


def test_help_of_train_shows_the_defaults_of_the_task():
    assert "0.0002" in cclf("train", "dmc/cheetah-run", "--profile", "paper", "--help")[1]


def test_methods_as_one_json_document():
    code, out, err = cclf("methods", "--json")
    assert (code, err) == (0, "")
    documents = json.loads(out)
    sac = {document["name"]: document for document in documents if document["base"] == "sac"}
    assert set(sac) == set(SAC_METHODS)
    assert sac["cclf"]["difference_from_cclf"] == {}
    assert sac["cclf"]["pieces"] == list(PIECES)
    assert sac["drq"]["pieces"] == []
    assert sac["drq"]["difference_from_cclf"]["contrastive"] is False
    assert {document["base"] for document in documents} == set(algorithms())


def test_tasks_as_one_json_document():
    code, out, err = cclf("tasks", "--json")
    assert (code, err) == (0, "")
    documents = {document["name"]: document for document in json.loads(out)}
    assert set(documents) == set(known_tasks())
    assert documents["dmc/cartpole-swingup"]["action_repeat"] == 8


def test_listings_for_people(monkeypatch):
    code, out, err = cclf("tasks")
    assert (code, err) == (0, "")
    assert "dmc/walker-walk" in out
    assert "gym/<id>" in out
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = cclf("methods")
    assert (code, err) == (0, "")
    assert "views=2" in out
    assert "  rad  SAC on one random crop\n" in out
    assert all(f"  {method}" in out for base in algorithms().values() for method in base.methods)


def test_dry_run_prints_the_resolved_config_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = "train dmc/cheetah-run --method drq --seed 3 --profile paper --batch-size 64"
    code, out, err = cclf(*words.split(), "--out", tmp_path / "runs", "--dry-run", "--json")
    assert (code, err) == (0, "")
    config = presets.from_dict(json.loads(out))
    names = (config.task, config.method_name, config.seed, config.profile)
    assert names == ("dmc/cheetah-run", "drq", 3, "paper")
    settings = config.algorithm
    assert (settings.batch_size, settings.learning_rate) == (64, 2e-4)
    assert not config.method.contrastive
    assert list(tmp_path.iterdir()) == []


def test_dry_run_marks_the_settings_that_differ_from_the_default():
    code, out, err = cclf("train", "toy/reach", "--method", "drq", "--batch-size", "7", "--dry-run")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "toy/reach  drq  base sac  profile released  seed 1"
    marked = [line.split() for line in lines if line.startswith("  *")]
    assert marked == [["*", "batch_size", "7", "(default:", "64)"]]
    assert "    learning_rate                   0.001" in lines
    assert "bonus_temperature" not in out, "it has no effect in this run"
    words = ("train", "toy/catch", "--with-seeds", "2", "--dry-run")
    assert "also toy/catch seed 2" in cclf(*words)[1]
    assert_refused(cclf("train", "toy/reach", "--json"), "--json", "add --dry-run")


def test_options_may_stand_before_the_task():
    after = cclf("train", "toy/reach", "--method", "rad", "--seed", "2", "--dry-run")
    assert cclf("train", "--method", "rad", "--seed", "2", "--dry-run", "toy/reach") == after


def test_tiny_options_of_these_tests_give_the_tiny_config():
    config = tiny_config()
    assert (
        presets.from_dict(
            json.loads(cclf("train", *tiny_options(config), "--dry-run", "--json")[1])
        )
        == config
    )


# --- a run
# -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished tiny run with everything that is written by default: its config, --out, folder and
    outputs."""
    out = tmp_path_factory.mktemp("finished")
    config = tiny_config(video=True, tensorboard=True)
    result = cclf("train", *tiny_options(config), "--out", out)
    return config, out, out / config.run_name(), result


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of it that a test may change: config, --out and folder."""
    config, out, _, _ = finished
    shutil.copytree(out, tmp_path / "copy")
    return config, tmp_path / "copy", tmp_path / "copy" / config.run_name()


def test_run_folder_has_the_files_of_the_contract(finished):
    config, out, folder, (code, stdout, stderr) = finished
    assert code == 0
    assert stdout.splitlines()[-1] == str(folder), "the path is printed last"
    assert "60 env steps = 60 agent steps x 1" in stderr
    assert {path.name for path in folder.iterdir()} == {
        *(
            "config.json",
            "manifest.json",
            "train.csv",
            "eval.csv",
            "checkpoint",
            "episode-60.mp4",
            "tensorboard",
            "lock",
        ),
    }
    written = presets.from_dict(json.loads((folder / "config.json").read_text()))
    assert written == config.resolve_precision(gpu=False)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert {
        "commit",
        "python",
        "torch",
        "numpy",
        "mujoco",
        "dm_control",
        "machine",
        "system",
        "renderer",
        "device",
    } <= set(manifest)
    assert manifest["device"] == "cpu"
    assert manifest["threads"] == 1
    assert [row["env_steps"] for row in rows(folder / "train.csv")] == [
        "10",
        "20",
        "30",
        "40",
        "50",
        "60",
    ]
    evaluation = rows(folder / "eval.csv")
    assert set(evaluation[0]) >= EVAL_COLUMNS
    assert [row["env_steps"] for row in evaluation] == ["30", "60"]
    for row in evaluation:
        returns = [float(value) for value in row["returns"].split()]
        assert len(returns) == int(row["episodes"]) == 2
        assert float(row["return_mean"]) == pytest.approx(sum(returns) / 2)
    assert (folder / "episode-60.mp4").stat().st_size > 1_000
    assert [path.name for path in out.iterdir()] == ["toy"], "only the folder of the run"


def test_finished_run_prints_the_next_commands(finished):
    _, _, folder, (_, _, stderr) = finished
    assert stderr.splitlines()[-3:] == [
        f"next: cclf evaluate {folder}",
        f"      cclf play {folder}",
        f"      cclf inspect {folder}",
    ]


def test_next_commands_are_possible_for_the_run():
    def commands(config, folder="runs/seed-1"):
        return training.next_commands(config, Path(folder))

    without_curiosity = tiny_config(method="drq")
    assert [line.split()[1] for line in commands(without_curiosity)] == ["evaluate", "play"]
    state = presets.resolve("gym/Pendulum-v1", "cclf", observe="state", make_env=False)
    assert [line.split()[1] for line in commands(state)] == ["evaluate", "play"], "no pictures"
    assert commands(without_curiosity, "my runs/seed-1")[1].endswith("play 'my runs/seed-1'")
    imported = replace(tiny_config(), task="gym/my_module:Env-v0")
    assert "--trust-imports" in commands(imported)[1]


def test_next_commands_name_the_folder_of_the_run(monkeypatch, capsys):
    """On a GPU a precision is chosen, so it is not the folder of the config of the command line."""

    def train_runs(configs, out, *_):
        folders = (out.absolute() / f"bf16/seed-{config.seed}" for config in configs)
        return (RunResult(folder, "done") for folder in folders)

    monkeypatch.setattr("cclf.training.trainer.train_runs", train_runs)
    configs = [tiny_config(seed=1), tiny_config(seed=2)]
    assert training.run_training(configs[:1], Path("runs"), StopSignal()) == 0
    assert capsys.readouterr().err.startswith("next: cclf evaluate runs/bf16/seed-1\n")
    assert training.run_training(configs, Path("runs"), StopSignal()) == 0
    assert capsys.readouterr().err == "next: cclf report runs\n"


def test_manifest_names_commit_and_renderer(monkeypatch):
    monkeypatch.delenv("CCLF_COMMIT")
    pytest.importorskip("dm_control")
    config = tiny_config("dmc/cartpole-swingup", env={"frame_pixels": 32, "crop_pixels": 28})
    learner = make_learner(config, CPU)
    manifest = make_manifest(config, learner, CPU)
    learner.close()
    assert len(manifest["renderer"]) > 2
    described = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
        cwd=os.path.dirname(__file__),
    )
    if described.returncode == 0:
        assert manifest["commit"].removesuffix("-dirty") == described.stdout.strip()
    assert manifest["env_steps_per_agent_step"] == 8


def test_finished_run_only_continues_with_a_larger_budget(copied):
    config, out, folder = copied
    before = contents(out)
    words = ("train", *tiny_options(config), "--out", out)
    code, stdout, stderr = cclf(*words)
    assert (code, stdout.splitlines()[-1]) == (0, str(folder))
    assert "finished before" in stderr
    assert cclf(*words, "--env-steps", "30")[0] == 0
    assert contents(out) == before
    code, stdout, stderr = cclf(*words, "--env-steps", "65")
    assert (code, stdout.splitlines()[-1]) == (0, str(folder)), "the budget is no part of the name"
    assert "resuming at 60 env steps" in stderr
    assert [row["env_steps"] for row in rows(folder / "eval.csv")] == ["30", "60", "65"]
    assert json.loads((folder / "config.json").read_text())["run"]["env_steps"] == 65


@pytest.mark.quick("minigrid/Empty-16x16-re3+cclf")
@pytest.mark.parametrize(
    ("task", "method"), [("minigrid/Empty-16x16", "re3+cclf"), ("gym/Pendulum-v1", "drq")]
)
def test_other_suites_train_and_are_evaluated(tmp_path, task, method):
    pytest.importorskip("minigrid")
    pytest.importorskip("pygame")
    pixels = {"frame_pixels": 24, "crop_pixels": 20} if task.startswith("gym") else {}
    config = tiny_config(
        task, method, env=pixels, env_steps=32, eval_every_env_steps=100, eval_episodes=1
    )
    code, stdout, _ = cclf("train", *tiny_options(config), "--out", tmp_path)
    assert code == 0
    folder = tmp_path / config.run_name()
    assert stdout.splitlines()[-1] == str(folder)
    assert [row["env_steps"] for row in rows(folder / "eval.csv")] == ["32"]
    code, stdout, _ = cclf("evaluate", folder, "--episodes", "1", "--json")
    assert code == 0
    assert len(json.loads(stdout)["returns"]) == 1


# --- bad input
# ---------------------------------------------------------------------------------------------------------

INVALID = {
    "command": (["trian"], ["unknown command 'trian'; did you mean train?"]),
    "no task": (["train"], ["train needs a task"]),
    "task": (["train", "toy/raech"], ["unknown task 'toy/raech'; did you mean toy/reach?"]),
    "dmc task": (["train", "dmc/cartpole-swingpu"], ["did you mean dmc/cartpole-swingup?"]),
    "task without a suite": (["train", "cartpole-swingup"], ["did you mean dmc/cartpole-swingup?"]),
    "function without a suite": (["train", "my_envs:make"], ["did you mean gym/my_envs:make?"]),
    "MiniGrid id": (
        ["train", "MiniGrid-DoorKey-6x6-v0"],
        ["did you mean minigrid/DoorKey-6x6?"],
    ),
    "suite without a task": (["train", "dmc/"], ["unknown task 'dmc/'"]),
    "task unlike any other": (["train", "zzz/zzz"], ["unknown task 'zzz/zzz'"]),
    "gym id": (["train", "gym/Pendulm-v1"], ["did you mean Pendulum-v1?"]),
    "gym actions": (["train", "gym/CartPole-v1", "--base", "sac"], ["which is discrete"]),
    "gym id without suite": (["train", "CartPole-v1"], ["did you mean gym/CartPole-v1?"]),
    "method not for discrete state": (
        ["train", "gym/CartPole-v1", "--observe", "state", "--method", "cclf"],
        ["this task is learned with mrq, which has mr-q, dr-q"],
    ),
    "folder that does not exist": (["evaluate", "runs/none"], ["it does not exist"]),
    "minigrid task": (["train", "minigrid/Emty-16x16"], ["Emty-16x16"]),
    "method": (
        ["train", "toy/reach", "--method", "dqr"],
        ["unknown method 'dqr'; did you mean drq?"],
    ),
    "method of another base": (
        ["train", "toy/reach", "--method", "re3"],
        ["it is a method of a2c"],
    ),
    "method without a name": (["train", "toy/reach", "--method"], ["--method"]),
    "profile": (
        ["train", "toy/reach", "--profile", "papr"],
        ["unknown profile 'papr'; did you mean paper?"],
    ),
    "option": (["train", "toy/reach", "--bacth-size", "3"], ["--bacth-size"]),
    "option as elsewhere": (
        ["train", "toy/reach", "--buffer-size", "9"],
        ["did you mean --replay-capacity-transitions?"],
    ),
    "option of another base": (["train", "toy/reach", "--num-envs", "3"], ["--num-envs"]),
    "value": (["train", "toy/reach", "--batch-size", "many"], ["--batch-size", "many"]),
    "choice": (["train", "toy/reach", "--selection", "best"], ["--selection", "best"]),
    "word too many": (["train", "toy/reach", "again"], ["again"]),
    "seed": (["train", "toy/reach", "--seed", "-1"], ["seed=-1"]),
    "threads": (["train", "toy/reach", "--threads", "-1"], ["threads=-1"]),
    "budget": (["train", "toy/reach", "--env-steps", "0"], ["env_steps=0"]),
    "rate": (["train", "toy/reach", "--learning-rate", "-1"], ["learning_rate=-1.0"]),
    "division by zero": (
        ["train", "toy/reach", "--actor-every-updates", "0"],
        ["actor_every_updates=0"],
    ),
    "device": (["train", "toy/reach", "--device", "gpu"], ["unknown device 'gpu'"]),
    "device not there": (
        ["train", "toy/reach", "--device", "cuda:99"],
        ["'cuda:99' is not available"],
    ),
    "device not supported": (["train", "toy/reach", "--device", "meta"], ["not supported"]),
    "replay device": (
        ["train", "toy/reach", "--device", "cpu", "--replay-device", "cuda"],
        ["replay_device=cuda", "device=cpu"],
    ),
    "crop": (["train", "toy/reach", "--crop-pixels", "30"], ["crop_pixels=30", "frame_pixels=20"]),
    "layers": (["train", "toy/reach", "--conv-layers", "9"], ["conv_layers=9", "crop_pixels=16"]),
    "piece without contrastive": (
        ["train", "toy/reach", "--method", "drq", "--reward"],
        ["contrastive=False", "reward"],
    ),
    "piece without pair": (
        ["train", "toy/reach", "--method", "curl", "--reward"],
        ["reward", "views=1"],
    ),
    "selection of one": (
        ["train", "toy/reach", "--views", "2"],
        ["selection=curiosity", "views=2"],
    ),
    "memory": (
        [
            "train",
            "toy/reach",
            "--env-steps",
            "10000000000",
            "--replay-capacity-transitions",
            "1000000000",
        ],
        ["GB", "--replay-capacity-transitions"],
    ),
    "evaluate nothing": (["evaluate"], ["cclf evaluate"]),
    "evaluate nowhere": (["evaluate", "nowhere"], ["nowhere", "does not exist"]),
    "listing": (["methods", "--jsn"], ["--jsn"]),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_input_is_one_line_and_exit_code_2(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    words, expected = INVALID[name]
    assert_refused(cclf(*words), *expected)
    assert list(tmp_path.iterdir()) == [], "nothing is written"


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            "train toy/reach --bacth-size 3",
            "unknown option --bacth-size; did you mean --batch-size?",
        ),
        ("evaluate", "evaluate needs RUN"),
        (
            "evaluate x --episodes some",
            "--episodes: invalid literal for int() with base 10: 'some'",
        ),
        ("compare toy/reach", "compare needs --method METHOD"),
        ("report runs more", "Unrecognized options: more"),
    ],
)
def test_invalid_options_are_named_in_any_terminal(words, line, encoding, monkeypatch, capsys):
    """tyro draws boxes and uses colors if standard output is a terminal."""

    class Terminal(io.TextIOWrapper):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdout", Terminal(io.BytesIO(), encoding=encoding))
    monkeypatch.setenv("TERM", "xterm")
    assert main(words.split()) == 2
    command = words.split()[0]
    assert capsys.readouterr().err == f"cclf: {line} (see: cclf {command} --help)\n"


def test_errors_of_libraries_become_one_line_too(monkeypatch):
    def broken(*_, **__):
        raise ConfigError("first line\n  second line\n")

    monkeypatch.setattr(presets, "resolve", broken)
    assert cclf("train", "toy/reach") == (2, "", "cclf: first line second line\n")


def test_file_in_the_place_of_the_out_folder_is_refused(tmp_path):
    """Permissions do not restrict root, so the test uses a file."""
    (tmp_path / "runs").write_text("mine")
    assert_refused(
        cclf("train", *tiny_options(tiny_config()), "--out", tmp_path / "runs"),
        "cannot use the run folder",
    )
    assert contents(tmp_path) == {"runs": b"mine"}


def test_run_folder_of_another_config_is_refused_by_key(copied):
    config, out, folder = copied
    values = json.loads((folder / "config.json").read_text())
    values["algorithm"]["discount"] = 0.5
    values["method"]["reward"] = False
    (folder / "config.json").write_text(json.dumps(values))
    before = contents(out)
    assert_refused(
        cclf("train", *tiny_options(config), "--out", out, "--env-steps", "90"),
        *(
            "another config",
            "algorithm.discount (0.5 there, 0.99 now)",
            "method.reward (False there, True now)",
        ),
    )
    assert contents(out) == before


@pytest.mark.quick("{")
@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"task": 1, "surprise": 2}'])
def test_run_folder_with_a_broken_config_is_refused(copied, text):
    config, out, folder = copied
    (folder / "config.json").write_text(text)
    before = contents(out)
    assert_refused(
        cclf("train", *tiny_options(config), "--out", out, "--env-steps", "90"), str(folder)
    )
    assert_refused(cclf("evaluate", folder), str(folder))
    assert contents(out) == before


# --- evaluate
# ----------------------------------------------------------------------------------------------------------


def test_evaluate_prints_a_line_or_one_json_document(finished):
    folder = finished[2]
    before = contents(folder)
    code, out, err = cclf("evaluate", folder, "--episodes", "3", "--json")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert facts["run"] == str(folder)
    assert (facts["env_steps"], facts["episodes"], len(facts["returns"])) == (60, 3, 3)
    assert facts["return_mean"] == pytest.approx(sum(facts["returns"]) / 3)
    code, out, err = cclf("evaluate", folder, "--episodes", "3")
    assert (code, err) == (0, "")
    assert out.count("\n") == 1
    assert out.startswith(f"return {facts['return_mean']:.4g} ± ")
    assert "3 episodes at 60 env steps" in out
    assert contents(folder) == before
    seeded = cclf("evaluate", folder, "--episodes", "3", "--seed", "1", "--json")[1]
    assert json.loads(seeded)["returns"] != facts["returns"]


def test_play_writes_a_video_of_the_episodes_of_evaluate(finished, tmp_path):
    import imageio.v2 as imageio

    video = tmp_path / "episode.mp4"
    code, out, err = cclf("play", finished[2], "--episodes", "2", "--out", video)
    assert (code, err) == (0, "")
    *lines, path = out.splitlines()
    assert path == str(video)
    returns = json.loads(cclf("evaluate", finished[2], "--episodes", "2", "--json")[1])["returns"]
    assert [line.split(" in ")[0] for line in lines] == [
        f"episode {n + 1}: return {r:.4g}" for n, r in enumerate(returns)
    ]
    steps = sum(int(line.split()[-2]) for line in lines)
    assert sum(1 for _ in imageio.get_reader(video)) == steps


def test_evaluate_and_play_refuse_bad_input(finished, copied, tmp_path):
    for words, message in (
        (["play", tmp_path / "none", "--out", tmp_path / "a.mp4"], "is not a run folder"),
        (["play", finished[2], "--out", tmp_path / "a.avi"], "a.avi"),
        (["play", finished[2], "--episodes", "0"], "--episodes 0"),
        (["evaluate", finished[2], "--seed", "-1"], "--seed -1"),
        (["evaluate", finished[2], "--device", "gpu"], "unknown device 'gpu'"),
    ):
        assert_refused(cclf(*words), message)
    shutil.rmtree(copied[2] / "checkpoint")
    assert_refused(cclf("evaluate", copied[2]), "no checkpoint")


# --- signals
# -----------------------------------------------------------------------------------------------------------

LONG = tiny_config(method="rad", env_steps=160, eval_every_env_steps=50, log_every_agent_steps=5)


# PyTorch's compiler takes a second of every start that imports it.
PROGRAM = """
import sys
from cclf.cli import main
code = main()
assert not {"torch._dynamo", "torch._inductor"} & set(sys.modules)
sys.exit(code)
"""


def start(out):
    command = [sys.executable, "-c", PROGRAM, "train", *tiny_options(LONG), "--out", str(out)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_step(folder, env_steps, process):
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError, IndexError, ValueError, TypeError):
            if int(rows(folder / "train.csv")[-1]["env_steps"]) >= env_steps:
                return
        time.sleep(0.02)
    process.kill()
    raise AssertionError(f"the run never got to step {env_steps}: {process.communicate()}")


@pytest.mark.quick("15")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_saves_the_run_and_the_same_command_resumes(tmp_path, number):
    """That it ends with the same bytes is tested in test_reliability.py."""
    process = start(tmp_path)
    folder = tmp_path / LONG.run_name()
    wait_for_step(folder, 65, process)  # after the first checkpoint
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 75, stderr
    assert stdout == ""
    assert "run the same command to go on" in stderr.splitlines()[-1]
    assert "stopping after this update" in stderr.splitlines()[-2], "at once"
    saved = checkpoint.load(folder / "checkpoint")["agent_steps"]
    assert 65 <= saved < 160
    code, stdout, stderr = cclf("train", *tiny_options(LONG), "--out", tmp_path)
    assert (code, stdout.splitlines()[-1]) == (0, str(folder))
    assert f"resuming at {saved} env steps" in stderr
    assert [int(row["env_steps"]) for row in rows(folder / "train.csv")] == [*range(5, 165, 5)]


def test_ctrl_c_while_a_command_starts_leaves_one_line_and_no_traceback():
    script = """
import sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == "cclf.presets":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
from cclf.cli import main
sys.exit(main(["tasks"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "cclf: interrupted\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signal_before_the_options_are_read_stops_a_run(monkeypatch, number):
    heard, read = [], training.train_config

    def interrupted(arguments):
        os.kill(os.getpid(), number)
        return read(arguments)

    monkeypatch.setattr(training, "train_config", interrupted)
    monkeypatch.setattr(
        training, "run_training", lambda _, __, stop: heard.append(stop.requested) or 75
    )
    before = signal.signal(number, signal.SIG_IGN)  # what killed it before
    try:
        assert cclf("train", *tiny_options(LONG))[0] == 75
    finally:
        signal.signal(number, before)
    assert heard == [True]
