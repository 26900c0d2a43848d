"""Files of a run folder that were changed on purpose, with matching checksums: a command uses their
content or prints one line, never a traceback. test_damage.py tests damage that a checksum detects.
"""

import copy
import json
import math
import os
import random
import shutil

import pytest
import torch
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes

from cclf import cli
from cclf.commands.train import run_training
from cclf.errors import ConfigError
from cclf.inspection.load import inspect_run
from cclf.storage import checkpoint, manifest
from cclf.storage.checkpoint_files import checksum, index_bytes
from cclf.storage.failure import NonFiniteError
from cclf.training.signals import StopSignal
from rainbow_inputs import tiny_cclf
from tiny_runs import CPU, create_run_folder, make_training, run, same_state, tiny_config

A2C = {"num_envs": 2, "rollout_steps": 4, "contrastive_hidden_dim": 8}
OFTEN = {"env_steps": 60, "eval_every_env_steps": 20}
CONFIGS = {
    "sac": tiny_config(algorithm={"warmup_agent_steps": 10}, **OFTEN),
    "a2c": tiny_config(
        "minigrid/DoorKey-5x5",
        "re3+cclf",
        algorithm=A2C | {"re3_window_observations": 20},
        env_steps=64,
        eval_every_env_steps=16,
    ),
    "rainbow": tiny_cclf(**OFTEN, final_eval_episodes=0),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A stopped run of each base algorithm: the output folder, and the run folder in it."""
    out, folders = tmp_path_factory.mktemp("runs"), {}
    for name, config in CONFIGS.items():
        with create_run_folder(config, out / name) as folder:
            learner, finished = run(config, folder, stop_at=40)
            assert not finished
            manifest.write_manifest(config, learner, CPU, folder, 0)
        folders[name] = folder.relative_to(out)
    return out, folders


# --- changes, each determined by a random generator

ODD_VALUES = ("x", "", [], [1], None, {}, {"a": {"b": 1}}, 10**30, -(10**30), -1, 0, 3, 1.5)
ODD_VALUES += (math.nan, math.inf, True, False, 10**400, [[]], "../../x", 2**31, 2**63)
ODD_CELLS = ("x", "", "nan", "inf", "-1", str(10**30), "1e400", '"', "\0", "é", "=1+1", "0")


def places(tree):
    """Every (container, key) of a JSON document."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    found = []
    for key, value in items:
        found.append((tree, key))
        found += places(value) if isinstance(value, (dict, list)) else []
    return found


def change_json(text, rng):
    tree = json.loads(text)
    container, key = rng.choice(places(tree))
    kind = rng.choice(("value", "value", "value", "drop", "rename", "swap", "deep"))
    if kind == "deep":
        deep = "[" * 50_000 + "]" * 50_000
        return json.dumps(tree).replace(json.dumps(container[key]), deep, 1)
    if kind == "value":
        container[key] = copy.deepcopy(rng.choice(ODD_VALUES))
    elif kind == "swap":
        other, other_key = rng.choice(places(tree))
        container[key] = copy.deepcopy(other[other_key])
    else:
        value = container.pop(key)
        if kind == "rename" and isinstance(container, dict):
            container[f"{key}_"] = value
    return json.dumps(tree)


def with_odd_number(tensor):
    changed = tensor.clone()
    if changed.numel():
        odd = math.nan if tensor.is_floating_point() else 100
        changed.view(-1)[changed.numel() // 2] = odd
    return changed


TENSOR_CHANGES = (
    with_odd_number,
    lambda tensor: tensor.to(torch.int64 if tensor.is_floating_point() else torch.float32),
    lambda tensor: tensor.double(),
    lambda tensor: tensor[..., None],
    lambda tensor: tensor.flatten(),
    lambda tensor: tensor.new_zeros(()),
    lambda tensor: tensor[: len(tensor) // 2] if tensor.ndim else tensor[None],
    lambda tensor: torch.cat([tensor, tensor]) if tensor.ndim else tensor.repeat(2),
    lambda tensor: tensor.new_zeros((0, *tensor.shape[1:])),
)


def change_tensors(data, rng):
    tensors = tensors_from_bytes(data)
    name, other = rng.choice(sorted(tensors)), rng.choice(sorted(tensors))
    kind = rng.choice(("tensor", "tensor", "tensor", "drop", "add", "rename", "swap"))
    if kind == "tensor":
        tensors[name] = rng.choice(TENSOR_CHANGES)(tensors[name])
    elif kind == "add":
        tensors["/surplus"] = torch.zeros(3)
    elif kind == "swap":
        tensors[name] = tensors[other]
    else:
        value = tensors.pop(name)
        if kind == "rename":
            tensors[f"{name}_"] = value
    return tensors_to_bytes({key: value.clone().contiguous() for key, value in tensors.items()})


def change_csv(text, rng):
    lines = [line.split(",") for line in text.splitlines()]
    row = rng.choice(lines)
    column = rng.randrange(len(row))
    row[column] = rng.choice(ODD_CELLS)
    if rng.random() < 0.2:
        del row[column:]
    return "\n".join(map(",".join, lines)) + "\n"


def update_checksums(folder):
    for own in sorted(folder.glob("checkpoint/0*")):
        state = own / "state.json"
        try:
            tree = json.loads(state.read_text())
            for chunk in tree["learner"]["replay"]["frames"]["__frames__"]["chunks"]:
                data = (folder / "checkpoint/frames" / chunk["file"]).read_bytes()
                chunk["sha256"] = checksum(data)
            state.write_text(json.dumps(tree))
        except (KeyError, TypeError, RecursionError, ValueError, OSError):
            pass  # the part that lists the frames was changed
        files = {name: own / name for name in ("state.json", "tensors.safetensors")}
        files |= {f"frames/{path.name}": path for path in folder.glob("checkpoint/frames/*")}
        sums = {name: checksum(path.read_bytes()) for name, path in files.items()}
        (own / "index.json").write_bytes(index_bytes(sums))


def tamper(folder, name, rng):
    """Change one file of this kind."""
    newest = sorted(folder.glob("checkpoint/0*"))[-1]
    path = newest / name if (newest / name).exists() else folder / name
    if name == "frames":
        path = rng.choice(sorted(folder.glob("checkpoint/frames/*")))
    if path.suffix == ".safetensors":
        path.write_bytes(change_tensors(path.read_bytes(), rng))
    else:
        change = change_csv if path.suffix == ".csv" else change_json
        path.write_text(change(path.read_text(), rng))
    if name in ("state.json", "tensors.safetensors", "frames"):
        update_checksums(folder)


# --- commands on a changed run folder


def resume(config, folder, _):
    """Resume from the state in the files, and train on."""
    training, learner, agent = make_training(config, folder, CPU)
    try:
        training.resume()
        assert training.agent_steps > 0
        if not training.finished:
            saved = checkpoint.load(folder / "checkpoint")
            ours = training.state_dict()
            for name in ("tables", "wall_seconds"):
                ours.pop(name, None), saved.pop(name, None)
            assert same_state(ours, saved), "another state, and no error"
            for _ in range(3):
                training.learner.step(training.env_steps)
            training.averages.mean_and_reset()
    finally:
        agent.close()
        learner.close()


def command(*words):
    """A command line in this process, which succeeds or is refused."""

    def call(_, folder, tmp):
        filled = [word.format(run=folder, runs=folder.parents[3], out=tmp) for word in words]
        assert cli.main(filled) in (0, 2)

    return call


def inspect(_, folder, __):
    inspect_run(folder, 8, CPU)


evaluate = command("evaluate", "{run}", "--episodes", "1", "--device", "cpu")
export = command("export", "{run}", "--out", "{out}/policy.pt2")
results = command("results", "{runs}", "--out", "{out}/results")
report = command("report", "{runs}", "--out", "{out}/report.html")
ACTIONS = {
    "config.json": (resume, evaluate, evaluate, inspect, results, export),
    "manifest.json": (results, report),
    "state.json": (resume, resume, resume, evaluate, inspect),
    "tensors.safetensors": (resume, resume, resume, evaluate, inspect, export),
    "frames": (resume, inspect),
    "index.json": (resume, evaluate),
    "eval.csv": (results, report),
    "train.csv": (results, report),
}
SLOW = (export, report)


@pytest.fixture
def copied(runs, tmp_path):
    """Makes the folder of a fresh copy of the stopped run of a base algorithm."""
    out, folders = runs

    def copy_run(base):
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
        shutil.copytree(out / base, tmp_path / "runs" / base)
        return tmp_path / "runs" / folders[base]

    return copy_run


@pytest.mark.quick("25")
@pytest.mark.parametrize("count", [25, 2_000])
def test_tampered_files_give_their_state_or_one_line(copied, tmp_path, capsys, count):
    outcomes, wrong = {"went on": 0, "refused": 0}, []
    for number in range(count):
        rng = random.Random(number)
        base, name = list(CONFIGS)[number % len(CONFIGS)], rng.choice(list(ACTIONS))
        if name == "frames" and base == "a2c":
            name = "state.json"
        action = rng.choice([each for each in ACTIONS[name] if count > 25 or each not in SLOW])
        folder = copied(base)
        tamper(folder, name, rng)
        try:
            action(CONFIGS[base], folder, tmp_path)
            outcomes["went on"] += 1
        except (ConfigError, NonFiniteError):
            outcomes["refused"] += 1
        except Exception as error:
            wrong.append(f"{number}: {base} {name}: {type(error).__name__}: {str(error)[:160]}")
        capsys.readouterr()
    assert wrong == []
    assert min(outcomes.values()) > count / 20, outcomes


# --- something else in place of a file


def plant(kind, path):
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "no text":
        path.write_bytes(b"\xff\xfe\0")
    else:
        path.symlink_to("/dev/zero" if kind == "device" else path.with_name("nowhere"))


def go_on(config, folder, _):
    run_training([config], folder.parents[3], StopSignal())


KINDS = ("folder", "pipe", "device", "dead link", "no text")
FILES = ("config.json", "manifest.json", "train.csv", "eval.csv", "final.csv", "lock", "checkpoint")
NEWEST = "checkpoint/00000002"
PLACES = (*FILES, NEWEST, f"{NEWEST}/state.json", f"{NEWEST}/index.json", "checkpoint/frames")
ONLY_PIPES = ("train.csv", "lock", NEWEST, f"{NEWEST}/index.json")


@pytest.mark.quick("evaluate-pipe", "results-pipe", "results-no text", "train-pipe")
@pytest.mark.timeout(120)  # reading a pipe would block for ever
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("action", [evaluate, results, go_on], ids=["evaluate", "results", "train"])
def test_pipe_or_folder_instead_of_a_file_is_one_line_and_blocks_no_command(
    copied, tmp_path, kind, action
):
    for place in ONLY_PIPES if (action, kind) == (go_on, "pipe") else PLACES:
        folder = copied("sac")
        plant(kind, folder / place)
        try:
            action(CONFIGS["sac"], folder, tmp_path)
        except ConfigError:
            pass
        except Exception as error:
            raise AssertionError(f"{kind} as {place}") from error


def test_link_in_a_run_folder_does_not_lead_writes_elsewhere(copied, tmp_path):
    folder, other = copied("sac"), tmp_path / "other.txt"
    other.write_text("unchanged")
    (folder / "lock").unlink()
    (folder / "lock").symlink_to(other)
    with pytest.raises(ConfigError):
        go_on(CONFIGS["sac"], folder, tmp_path)
    assert other.read_text() == "unchanged"
