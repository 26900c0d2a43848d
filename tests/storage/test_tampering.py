"""Files of a run folder changed on purpose, with checksums made to fit: the state that they say, or
one line, never a traceback.

Damage that a checksum finds is in test_damage.py. Here a stranger has changed what is inside and
signed it.
"""

import copy
import json
import math
import os
import random
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes

from cclf import cli
from cclf.commands.train import run_training
from cclf.errors import ConfigError
from cclf.inspection.load import inspect_run
from cclf.storage import checkpoint, checkpoint_files, manifest, run_folder
from cclf.storage.failure import NonFiniteError
from cclf.training.signals import StopSignal
from rainbow_inputs import tiny_cclf
from tiny_runs import CPU, flat, make_training, run, tiny_config

A2C = {
    "num_envs": 2,
    "rollout_steps": 4,
    "contrastive_hidden_dim": 8,
    "re3_window_observations": 20,
}
CONFIGS = {
    "sac": tiny_config(env_steps=60, eval_every_env_steps=20, algorithm={"warmup_agent_steps": 10}),
    "a2c": tiny_config(
        "minigrid/DoorKey-5x5", "re3+cclf", algorithm=A2C, env_steps=64, eval_every_env_steps=16
    ),
    "rainbow": tiny_cclf(env_steps=60, eval_every_env_steps=20, final_eval_episodes=0),
}
ODD_VALUES = (
    "x",
    "",
    [],
    [1],
    None,
    {},
    {"a": {"b": 1}},
    10**30,
    -(10**30),
    -1,
    0,
    3,
    1.5,
    math.nan,
    math.inf,
    True,
    False,
)
ODD_VALUES += (10**400, [[]], "../../x", 2**31, 2**63)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Of each base algorithm a run stopped on its way, as a command leaves it."""
    out, found = tmp_path_factory.mktemp("runs"), {}
    for name, config in CONFIGS.items():
        with run_folder.create_run_folder(config, out / name) as folder:
            learner, finished = run(config, folder, stop_at=40)
            assert not finished
            manifest.write_manifest(config, learner, CPU, folder, 0)
        found[name] = folder.relative_to(out)
    return out, found


# --- changes
# --------------------------------------------------------------------------------------------------------------


def places(tree):
    """Every (container, key) inside."""
    found = []
    items = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    for key, value in items:
        found.append((tree, key))
        found += places(value)
    return found


def deep(depth=50_000):
    return "[" * depth + "]" * depth


def change_json(text, rng):
    """The new text, and what was done."""
    tree = json.loads(text)
    kind = rng.choice(
        ("value", "value", "value", "value", "drop", "add", "rename", "swap", "whole", "deep")
    )
    container, key = rng.choice(places(tree))
    where = f"{kind} {key!r}"
    if kind == "value":
        container[key] = value = copy.deepcopy(rng.choice(ODD_VALUES))
        where += f" = {str(value)[:40]!r}"
    elif kind == "drop":
        del container[key]
    elif kind == "add":
        container.insert(0, 1) if isinstance(container, list) else container.update(surplus=1)
    elif kind == "rename" and isinstance(container, dict):
        container[f"{key}_"] = container.pop(key)
    elif kind == "swap":
        other, other_key = rng.choice(places(tree))
        value, where = copy.deepcopy(other[other_key]), f"{where} = that of {other_key!r}"
        container[key] = value
    elif kind == "whole":
        return json.dumps(rng.choice(ODD_VALUES)), "another document"
    elif kind == "deep":
        return json.dumps(tree).replace(
            json.dumps(container[key]), deep(), 1
        ), f"deep nesting at {key!r}"
    return json.dumps(tree), where


def other_tensor(value, rng):
    kind = rng.choice(
        ("dtype", "dimension", "shorter", "longer", "one row", "empty", "scalar", "flat", "number")
    )
    if kind == "dtype":
        kinds = (torch.float64, torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool)
        return value.to(rng.choice([k for k in kinds if k != value.dtype])), kind
    if kind == "number":
        number = (
            rng.choice((-1, 0, 100, math.nan, math.inf))
            if value.is_floating_point()
            else rng.choice((-1, 0, 1, 100))
        )
        if value.dtype == torch.uint8:
            number = abs(number)
        changed = value.clone()
        if changed.numel():
            changed.view(-1)[rng.randrange(changed.numel())] = number
        return changed, f"{kind} {number}"
    if kind == "shorter":
        return value[: len(value) // 2] if value.ndim else value[None], kind
    if kind == "longer":
        return torch.cat([value, value]) if value.ndim else value.repeat(2), kind
    if kind == "one row":
        return value[:1] if value.ndim else value[None], kind
    if kind == "empty":
        return value.new_zeros((0, *value.shape[1:])), kind
    if kind == "scalar":
        return (value.flatten()[0] if value.numel() else value.new_zeros(())), kind
    return value.flatten() if kind == "flat" else value[..., None], kind


def change_tensors(data, rng):
    tensors = tensors_from_bytes(data)
    name, kind = (
        rng.choice(sorted(tensors)),
        rng.choice(("tensor",) * 6 + ("drop", "add", "rename", "swap")),
    )
    if kind == "tensor":
        tensors[name], kind = other_tensor(tensors[name], rng)
    elif kind == "drop":
        del tensors[name]
    elif kind == "add":
        tensors["/surplus"] = torch.zeros(3)
    elif kind == "rename":
        tensors[f"{name}_"] = tensors.pop(name)
    else:
        tensors[name] = tensors[rng.choice(sorted(tensors))]
    plain = {key: value.clone().contiguous() for key, value in tensors.items()}
    return tensors_to_bytes(plain), f"{kind} of {name}"


def change_csv(text, rng):
    lines = [line.split(",") for line in text.splitlines()]
    row = rng.randrange(len(lines))
    column = rng.randrange(len(lines[row]))
    values = ("x", "", "nan", "inf", "-1", str(10**30), "1e400", '"', "\0", "é", "=1+1", "0")
    lines[row][column] = value = rng.choice(values)
    if rng.random() < 0.2:
        lines[row] = lines[row][:column]
    return "\n".join(map(",".join, lines)) + "\n", f"line {row} column {column} = {value!r}"


def sign(folder):
    """Make the checksums of every checkpoint fit its files."""
    for own in sorted(folder.glob("checkpoint/0*")):
        try:
            state = json.loads((own / "state.json").read_text())
            chunks = state["learner"]["replay"]["frames"]["__frames__"]["chunks"]
            for chunk in chunks:
                chunk["sha256"] = checkpoint_files.checksum(
                    (folder / "checkpoint/frames" / chunk["file"]).read_bytes()
                )
            (own / "state.json").write_text(json.dumps(state))
        except (KeyError, TypeError, RecursionError, ValueError, OSError):
            chunks = []
        found = {name: (own / name).read_bytes() for name in ("state.json", "tensors.safetensors")}
        for path in (folder / "checkpoint").glob("frames/*"):
            found[f"frames/{path.name}"] = path.read_bytes()
        (own / "index.json").write_bytes(
            checkpoint_files.index_bytes(
                {name: checkpoint_files.checksum(found[name]) for name in found}
            )
        )


# --- what a user does
# ------------------------------------------------------------------------------------------------------


def resume(config, folder, _tmp):
    """What was loaded is what the files say, and training goes on from it."""
    with run_folder.create_run_folder(config, folder.parents[3]) as own:
        training, learner, agent = make_training(config, own, CPU)
        try:
            training.resume()
            assert training.resumed
            if not training.finished:
                said = checkpoint.load(own / "checkpoint")
                tables = {
                    name: {**known._asdict()} for name, known in training.table_records.items()
                }
                assert tables == said.pop("tables", {}), "silently other tables"
                loaded = flat(training.state_dict())
                assert loaded.keys() == flat(said).keys(), (
                    f"silently another state: {loaded.keys() ^ flat(said).keys()}"
                )
                assert same(training.state_dict(), said) == [], (
                    f"silently another state: {same(training.state_dict(), said)}"
                )
                for _ in range(3):
                    training.learner.step(training.env_steps)
                training.averages.mean_and_reset()
                training.state_dict()
        finally:
            agent.close()
            learner.close()


def same(one, two):
    """Names of the leaves that differ, also in kind or shape; not a number is equal to itself."""
    one, two = flat(one), flat(two)

    def equal(a, b):
        if hasattr(a, "shape") != hasattr(b, "shape"):
            return False
        if not hasattr(a, "shape"):
            return repr(a) == repr(b)
        a, b = torch.as_tensor(a), torch.as_tensor(b)
        return (
            a.dtype == b.dtype
            and a.shape == b.shape
            and np.array_equal(a.numpy(), b.numpy(), equal_nan=a.is_floating_point())
        )

    return [name for name in one if not equal(one[name], two[name])]


def command(*words):
    """A command line in this process: done, or refused in one line."""

    def play(_config, folder, tmp):
        filled = [word.format(run=folder, runs=folder.parents[3], out=tmp) for word in words]
        code = cli.main(filled)
        assert code in (0, 2), f"exit code {code}"

    return play


def inspect(_config, folder, _tmp):
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


def tampered(folder, name, rng):
    """Change one file of this kind; what was done."""
    newest = sorted(folder.glob("checkpoint/0*"))[-1]
    paths = {
        "state.json": newest / name,
        "tensors.safetensors": newest / name,
        "index.json": newest / name,
    }
    frames = sorted(folder.glob("checkpoint/frames/*"))
    path = rng.choice(frames) if name == "frames" else paths.get(name, folder / name)
    if path.suffix == ".safetensors":
        data, told = change_tensors(path.read_bytes(), rng)
        path.write_bytes(data)
    else:
        text, told = (change_csv if path.suffix == ".csv" else change_json)(path.read_text(), rng)
        path.write_text(text)
    if name in ("state.json", "tensors.safetensors", "frames"):
        sign(folder)
    return told


def tamper_many(runs, tmp_path, count, slow, capsys):
    out, folders = runs
    outcomes, wrong = {"went on": 0, "refused": 0}, []
    for number in range(count):
        rng = random.Random(number)
        base, name = list(folders)[number % len(folders)], rng.choice(list(ACTIONS))
        if name == "frames" and base == "a2c":
            name = "state.json"
        action = rng.choice([each for each in ACTIONS[name] if slow or each not in SLOW])
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
        shutil.copytree(out / base, tmp_path / "runs" / base)
        folder = tmp_path / "runs" / folders[base]
        told = tampered(folder, name, rng)
        label = f"{number}: {base} {name}: {told}: {getattr(action, '__name__', action)}"
        try:
            action(CONFIGS[base], folder, tmp_path)
            outcomes["went on"] += 1
        except (ConfigError, NonFiniteError):
            outcomes["refused"] += 1
        except Exception as error:
            wrong.append(f"{label}: {type(error).__name__}: {str(error)[:160]}")
        capsys.readouterr()
    assert not wrong, f"{len(wrong)} of {count}\n" + "\n".join(wrong)
    assert min(outcomes.values()) > count / 20, outcomes


def test_tampered_files_give_their_state_or_one_line(runs, tmp_path, capsys):
    tamper_many(runs, tmp_path, 25, False, capsys)


@pytest.mark.slow("test_tampered_files_give_their_state_or_one_line")
def test_two_thousand_tampered_files_give_their_state_or_one_line(runs, tmp_path, capsys):
    tamper_many(runs, tmp_path, 2_000, True, capsys)


# --- other things in a file's place
# ------------------------------------------------------------------------------------------


def plant(kind, path):
    """Something that is no file where `path` was."""
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "endless device":
        path.symlink_to("/dev/zero")
    elif kind == "link to nothing":
        path.symlink_to(path.with_name("nowhere"))
    else:
        path.write_bytes(b"\xff\xfe\0")


PLANTED = ("folder", "pipe", "endless device", "link to nothing", "no text")
PLACES = (
    "config.json",
    "manifest.json",
    "train.csv",
    "eval.csv",
    "final.csv",
    "lock",
    "config.json.tmp",
    "checkpoint",
)
PLACES += (
    "checkpoint/00000002",
    "checkpoint/00000002/state.json",
    "checkpoint/00000002/index.json",
    "checkpoint/frames",
)


def go_on(_config, folder, _tmp):
    """Without workers the same command to its end, from the words in its config."""
    run_training([_config], folder.parents[3], StopSignal())


def plant_all(runs, tmp_path, kind, places, action):
    out, folders = runs
    for place in places:
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
        shutil.copytree(out / "sac", tmp_path / "runs" / "sac")
        folder = tmp_path / "runs" / folders["sac"]
        plant(kind, folder / place)
        try:
            action(CONFIGS["sac"], folder, tmp_path)
        except ConfigError:
            pass
        except Exception as error:
            raise AssertionError(f"{kind} as {place}") from error


@pytest.mark.quick("evaluate-pipe", "results-pipe", "results-no text")
@pytest.mark.timeout(120)  # what would be waited for without end
@pytest.mark.parametrize("kind", PLANTED)
@pytest.mark.parametrize("action", [evaluate, results], ids=["evaluate", "results"])
def test_what_is_no_file_is_one_line_and_never_waited_for(runs, tmp_path, kind, action):
    plant_all(runs, tmp_path, kind, PLACES, action)


@pytest.mark.timeout(120)
def test_a_run_never_waits_for_a_pipe(runs, tmp_path):
    places = (
        "train.csv",
        "lock",
        "config.json.tmp",
        "checkpoint/00000002/index.json",
    )
    plant_all(runs, tmp_path, "pipe", places, go_on)


@pytest.mark.slow("test_a_run_never_waits_for_a_pipe")
@pytest.mark.parametrize("kind", PLANTED)
def test_a_run_goes_on_or_is_refused_in_one_line(runs, tmp_path, kind):
    plant_all(runs, tmp_path, kind, (*PLACES, "train.csv.tmp"), go_on)


def test_a_link_never_leads_out_of_the_run_folder(runs, tmp_path):
    """Whoever trains on in a stranger's folder must not lose a file elsewhere."""
    out, folders = runs
    for place in ("lock", "config.json.tmp"):
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
        shutil.copytree(out / "sac", tmp_path / "runs" / "sac")
        folder, dear = tmp_path / "runs" / folders["sac"], tmp_path / "dear.txt"
        dear.write_text("dear")
        (folder / place).unlink(missing_ok=True)
        (folder / place).symlink_to(dear)
        with pytest.raises(ConfigError):
            go_on(CONFIGS["sac"], folder, tmp_path)
        assert dear.read_text() == "dear"
