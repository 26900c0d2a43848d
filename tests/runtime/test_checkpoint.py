"""Checkpoints: exact, free of code, and whole at every moment, wherever the process is killed."""

import json
import os
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors import safe_open

from cclf.runtime import checkpoint
from tiny_runs import differing, run, tiny_config

STATE = {
    "weights": {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(0.1, dtype=torch.float64)},
    "frames": torch.randint(256, (4, 3, 5, 5), dtype=torch.uint8),
    "array": np.array([1.5, -0.0, np.nan]),
    "keys": np.arange(5, dtype=np.int64),
    "flags": np.array([True, False]),
    "empty": {},
    "nothing": None,
    "counters": {"steps": 10**12, "large": 2**100, "rate": 0.1, "name": "x", "on": True, "returns": [1.0, 2.5]},
    "scalar": np.float64(1 / 3),
}


def same(one, two):
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, torch.Tensor):
        return isinstance(two, torch.Tensor) and same(one.numpy(), two.numpy())
    if isinstance(one, np.ndarray):
        return (
            isinstance(two, np.ndarray) and one.dtype == two.dtype and np.array_equal(one, two, equal_nan=one.dtype.kind == "f")
        )
    return one == two and type(two) is type(one.item() if isinstance(one, np.generic) else one)


def test_what_is_loaded_is_what_was_saved(tmp_path):
    checkpoint.save(tmp_path / "checkpoint", STATE)
    assert same(STATE, checkpoint.load(tmp_path / "checkpoint"))


@settings(max_examples=25)
@given(hnp.arrays(st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.bool_]), hnp.array_shapes(min_side=0)))
def test_any_array_comes_back(tmp_path_factory, array):
    folder = tmp_path_factory.mktemp("arrays") / "checkpoint"
    state = {
        "array": array,
        "tensor": torch.from_numpy(array.copy()),
        "turned": torch.from_numpy(array.copy()).T if array.ndim == 2 else 0,
    }
    checkpoint.save(folder, state)
    assert same(state, checkpoint.load(folder))


def test_tied_tensors_are_allowed(tmp_path):
    tied = torch.rand(3)
    checkpoint.save(tmp_path / "checkpoint", {"a": tied, "b": tied, "c": tied[:2]})
    assert same({"a": tied, "b": tied, "c": tied[:2]}, checkpoint.load(tmp_path / "checkpoint"))


def test_a_checkpoint_is_safetensors_and_json_and_nothing_else(tmp_path):
    """Of a real run: no pickle anywhere, so loading one can never run code."""
    run(tiny_config(), tmp_path)
    folder = tmp_path / "checkpoint"
    assert sorted(path.name for path in folder.iterdir()) == ["state.json", "tensors.safetensors"]
    tree = json.loads((folder / "state.json").read_text())
    assert {"learner", "agent_steps", "wall_seconds"} <= set(tree)
    with safe_open(folder / "tensors.safetensors", framework="pt") as file:
        assert any("critic" in key for key in file.keys())  # noqa: SIM118 (it is no dict)
    for path in folder.iterdir():
        head = path.read_bytes()[:2]
        assert head[:1] != b"\x80", "a pickle begins so"
        assert head != b"PK", "a zip of torch.save begins so"


def test_there_is_none_where_nothing_was_saved(tmp_path):
    assert checkpoint.load(tmp_path / "checkpoint") is None


def test_a_save_replaces_the_one_before_and_leaves_nothing_beside_it(tmp_path):
    for number in range(3):
        checkpoint.save(tmp_path / "checkpoint", {"number": number, "t": torch.full((2,), number)})
        assert checkpoint.load(tmp_path / "checkpoint")["number"] == number
        assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


class Killed(BaseException):
    pass


class Executioner:
    """Counts the operations on files and kills the process, so to speak, before number `doomed`."""

    OPERATIONS = ((os, "rename"), (os, "fsync"), (shutil, "rmtree"), (checkpoint, "save_file"))

    def __init__(self, monkeypatch):
        self.count, self.doomed = 0, None
        for module, name in self.OPERATIONS:
            monkeypatch.setattr(module, name, self._watched(getattr(module, name)))

    def _watched(self, original):
        def operation(*args, **kwargs):
            if self.count == self.doomed:
                raise Killed
            self.count += 1
            return original(*args, **kwargs)

        return operation

    def save(self, folder, number, doomed):
        """Whether the save came through."""
        self.count, self.doomed = 0, doomed
        try:
            checkpoint.save(folder, {"number": number, "t": torch.full((3,), number)})
        except Killed:
            return False
        finally:
            self.doomed = None
        return True


def number_in(folder):
    state = checkpoint.load(folder)
    assert state["t"].tolist() == [state["number"]] * 3, "half of one, half of another"
    return state["number"]


def test_a_kill_at_any_moment_leaves_the_old_or_the_new_one(tmp_path, monkeypatch):
    """Once, and once more in the save after it: at every pair of moments a whole checkpoint is found."""
    executioner = Executioner(monkeypatch)
    executioner.save(tmp_path / "count" / "checkpoint", 0, None)
    executioner.save(tmp_path / "count" / "checkpoint", 0, None)
    moments = executioner.count
    assert moments >= 6
    for first in range(moments + 1):
        for second in range(moments + 1):
            folder = tmp_path / f"{first}-{second}" / "checkpoint"
            executioner.save(folder, 1, None)
            executioner.save(folder, 2, first)
            found = number_in(folder)
            assert found in (1, 2)
            executioner.save(folder, 3, second)
            assert number_in(folder) in (found, 3), f"killed at {first}, then at {second}"
            assert executioner.save(folder, 4, None)
            assert number_in(folder) == 4
            assert [path.name for path in folder.parent.iterdir()] == ["checkpoint"]


def test_a_kill_between_the_renames_costs_nothing(tmp_path):
    """What that moment leaves: the old one moved aside, the new one not yet in place."""
    run(tiny_config(), tmp_path / "a", stop_at=45)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    folder = tmp_path / "b" / "checkpoint"
    os.rename(folder, folder.with_name("checkpoint.old"))
    (folder.with_name("checkpoint.tmp")).mkdir()
    learners = [run(tiny_config(), tmp_path / name)[0] for name in "ab"]
    assert differing(*(learner.state_dict() for learner in learners)) == []


def test_a_failed_save_raises_and_keeps_the_old_one(tmp_path):
    checkpoint.save(tmp_path / "checkpoint", {"number": 1, "t": torch.ones(3)})
    with pytest.raises(TypeError):
        checkpoint.save(tmp_path / "checkpoint", {"number": 2, "t": object()})
    assert number_in(tmp_path / "checkpoint") == 1
