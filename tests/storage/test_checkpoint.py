"""Checkpoints: exact, free of code, and whole at every moment, wherever the process is killed."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from cclf.errors import ConfigError
from cclf.storage import checkpoint, replay_chunks
from cclf.storage.checkpoint import Checkpoints
from tiny_runs import Killed, run, tiny_config

STATE = {
    "weights": {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(0.1, dtype=torch.float64)},
    "frames": torch.randint(256, (4, 3, 5, 5), dtype=torch.uint8),
    "array": np.array([1.5, -0.0, np.nan]),
    "keys": np.arange(5, dtype=np.int64),
    "flags": np.array([True, False]),
    "empty": {},
    "nothing": None,
    "counters": {
        "steps": 10**12,
        "large": 2**100,
        "rate": 0.1,
        "name": "x",
        "on": True,
        "returns": [1.0, 2.5],
    },
    "scalar": np.float64(1 / 3),
}


def same(one, two):
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, torch.Tensor):
        return isinstance(two, torch.Tensor) and same(one.numpy(), two.numpy())
    if isinstance(one, np.ndarray):
        return (
            isinstance(two, np.ndarray)
            and one.dtype == two.dtype
            and np.array_equal(one, two, equal_nan=one.dtype.kind == "f")
        )
    return one == two and type(two) is type(one.item() if isinstance(one, np.generic) else one)


def test_what_is_loaded_is_what_was_saved(tmp_path):
    Checkpoints(tmp_path / "checkpoint").save(STATE)
    assert same(STATE, checkpoint.load(tmp_path / "checkpoint"))


@settings(max_examples=25)
@given(
    hnp.arrays(
        st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.bool_]),
        hnp.array_shapes(min_side=0),
    )
)
def test_any_array_comes_back(tmp_path_factory, array):
    folder = tmp_path_factory.mktemp("arrays") / "checkpoint"
    state = {
        "array": array,
        "tensor": torch.from_numpy(array.copy()),
        "turned": torch.from_numpy(array.copy()).T if array.ndim == 2 else 0,
    }
    Checkpoints(folder).save(state)
    assert same(state, checkpoint.load(folder))


def test_tied_tensors_are_allowed(tmp_path):
    tied = torch.rand(3)
    Checkpoints(tmp_path / "checkpoint").save({"a": tied, "b": tied, "c": tied[:2]})
    assert same({"a": tied, "b": tied, "c": tied[:2]}, checkpoint.load(tmp_path / "checkpoint"))


def test_a_checkpoint_is_safetensors_and_json_and_nothing_else(tmp_path):
    """Of a real run: no pickle anywhere, so loading one can never run code."""
    run(tiny_config(), tmp_path)
    files = [path for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    newest = tmp_path / "checkpoint" / "00000002"
    assert {path.name for path in newest.iterdir()} == {
        "state.json",
        "tensors.safetensors",
        "index.json",
    }
    tree = json.loads((newest / "state.json").read_text())
    assert {"learner", "agent_steps", "wall_seconds"} <= set(tree)
    with safe_open(newest / "tensors.safetensors", framework="pt") as file:
        assert any("critic" in key for key in file.keys())  # noqa: SIM118 (it is no dict)
        assert not any("frames" in key for key in file.keys()), "frames have files of their own"  # noqa: SIM118
    assert {path.suffix for path in files} == {".json", ".safetensors"}
    for path in files:
        head = path.read_bytes()[:2]
        assert head[:1] != b"\x80", "a pickle begins so"
        assert head != b"PK", "a zip of torch.save begins so"


def test_there_is_none_where_nothing_was_saved(tmp_path):
    assert checkpoint.load(tmp_path / "checkpoint") is None


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("one_object", [True, False])
def test_the_last_two_are_kept_and_nothing_beside_them(tmp_path, one_object):
    folder = tmp_path / "checkpoint"
    store = Checkpoints(folder)
    for number in range(1, 5):
        (store if one_object else Checkpoints(folder)).save(
            {"number": number, "t": torch.full((2,), number)}
        )
        assert checkpoint.load(folder)["number"] == number
        assert names(folder) == [
            f"{serial:08d}" for serial in range(max(1, number - 1), number + 1)
        ]
        assert names(tmp_path) == ["checkpoint"]


class Executioner:
    """Counts the operations on files and kills the process, so to speak, before number `doomed`."""

    OPERATIONS = (
        (os, "rename"),
        (os, "fsync"),
        (shutil, "rmtree"),
        (checkpoint, "fsync_write"),
        (replay_chunks, "fsync_write"),
        (Path, "unlink"),
    )

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
            Checkpoints(folder).save(state_number(number))
        except Killed:
            return False
        finally:
            self.doomed = None
        return True


def state_number(number):
    """As of a run: a ring of three frames that has seen `number` of them, and something beside
    it."""
    frames = torch.zeros(min(number, 3), 1, 2, 2, dtype=torch.uint8)
    for n in range(number):
        frames[n % 3] = n + 1
    return {
        "number": number,
        "t": torch.full((3,), number),
        "learner": {"replay": {"frames": frames, "written": number}},
    }


def number_in(folder):
    state = checkpoint.load(folder)
    assert same(state, state_number(state["number"])), "half of one, half of another"
    return state["number"]


def test_a_kill_at_any_moment_leaves_the_old_or_the_new_one(tmp_path, monkeypatch):
    """Once, and once more in the save after it: at every pair of moments a whole checkpoint is
    found."""
    executioner = Executioner(monkeypatch)
    (tmp_path / "count").mkdir()
    executioner.save(tmp_path / "count" / "checkpoint", 0, None)
    executioner.save(tmp_path / "count" / "checkpoint", 0, None)
    moments = executioner.count
    assert moments >= 6
    for first in range(moments + 1):
        for second in range(moments + 1):
            folder = tmp_path / f"{first}-{second}" / "checkpoint"
            folder.parent.mkdir()
            executioner.save(folder, 1, None)
            executioner.save(folder, 2, first)
            found = number_in(folder)
            assert found in (1, 2)
            executioner.save(folder, 3, second)
            assert number_in(folder) in (found, 3), f"killed at {first}, then at {second}"
            assert executioner.save(folder, 4, None)
            assert number_in(folder) == 4
            assert len([name for name in names(folder) if name != "frames"]) == 2
            assert names(folder.parent) == ["checkpoint"]


def test_a_failed_save_raises_and_keeps_the_old_one(tmp_path):
    Checkpoints(tmp_path / "checkpoint").save(state_number(1))
    with pytest.raises(TypeError):
        Checkpoints(tmp_path / "checkpoint").save(state_number(2) | {"t": object()})
    assert number_in(tmp_path / "checkpoint") == 1
    assert names(tmp_path / "checkpoint") == ["00000001", "frames"]
    assert len(names(tmp_path / "checkpoint" / "frames")) == 1, (
        "on a full disk what was begun would be in the way"
    )


# --- replay's frames
# -----------------------------------------------------------------------------------------------------


class Ring:
    """What Replay does to its frames, and no more."""

    def __init__(self, slots):
        self.frames, self.written = torch.zeros(slots, 1, 3, 3, dtype=torch.uint8), 0

    def add(self, count, random):
        for _ in range(count):
            self.frames[self.written % len(self.frames)] = torch.from_numpy(
                random.integers(0, 256, (1, 3, 3), dtype=np.uint8)
            )
            self.written += 1

    def state(self):
        return {
            "learner": {"replay": {"frames": self.frames[: self.written], "written": self.written}}
        }


@settings(max_examples=30)
@given(
    slots=st.integers(1, 12),
    additions=st.lists(st.integers(0, 30), min_size=1, max_size=8),
    restarts=st.integers(0, 255),
    chunk_frames=st.integers(1, 6),
)
def test_any_ring_comes_back_from_its_chunks(
    tmp_path_factory, slots, additions, restarts, chunk_frames
):
    """Whatever is added between the checkpoints, and with a new process after any of them."""
    folder = tmp_path_factory.mktemp("ring") / "checkpoint"
    ring, random, store = Ring(slots), np.random.default_rng(0), Checkpoints(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay_chunks, "CHUNK_FRAMES", chunk_frames)
        for turn, count in enumerate(additions):
            before = ring.state()
            before["learner"]["replay"]["frames"] = before["learner"]["replay"]["frames"].clone()
            ring.add(count, random)
            store.save(ring.state())
            assert same(checkpoint.load(folder), ring.state())
            if turn:
                older = sorted(folder.glob("0*"))[0]
                shutil.copytree(
                    folder,
                    folder.with_name(f"older{turn}"),
                    ignore=lambda _, all_, older=older: {
                        name for name in all_ if name[0] == "0" and name != older.name
                    },
                )
                assert same(checkpoint.load(folder.with_name(f"older{turn}")), before), (
                    "the one before needs its frames, too"
                )
            if restarts >> turn & 1:
                store = Checkpoints(folder)
                store.load()


def test_a_frame_is_written_once(tmp_path):
    folder, ring, random = tmp_path / "checkpoint", Ring(50), np.random.default_rng(0)
    store, seen = Checkpoints(folder), {}
    for _ in range(12):
        ring.add(10, random)
        store.save(ring.state())
        for path in (folder / "frames").iterdir():
            assert seen.setdefault(path.name, path.stat().st_mtime_ns) == path.stat().st_mtime_ns, (
                "written again"
            )
            assert len(load_file(path)["frames"]) == 10, "the new ones alone"
        assert len(names(folder / "frames")) <= 6, (
            "what no checkpoint needs is gone: 50 slots and one save more"
        )
    assert len(seen) == 12


def test_a_larger_ring_that_renumbers_its_frames_is_written_anew(tmp_path):
    """A run that goes on with a larger budget: the full ring is cut open, so old files name other
    frames."""
    folder, random = tmp_path / "checkpoint", np.random.default_rng(0)
    old, new = Ring(5), Ring(20)
    old.add(7, random)
    store = Checkpoints(folder)
    store.save(old.state())
    new.frames[:5], new.written = old.frames.roll(-2, 0), 5
    new.add(4, random)  # 9 frames by its count, more than the 7 of the old one
    store.save(new.state())
    assert same(checkpoint.load(folder), new.state())


def test_nothing_without_checksums_is_ever_read(tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    save_file({"/t": torch.ones(3)}, folder / "tensors.safetensors")
    (folder / "state.json").write_text('{"t": {"__tensor__": "/t"}, "n": 1}')
    assert checkpoint.load(folder) is None
    Checkpoints(folder).save({"n": 2})
    assert checkpoint.load(folder) == {"n": 2}
    (folder / "00000001" / "index.json").unlink()
    with pytest.raises(ConfigError, match=r"no checkpoint in .* is valid"):
        checkpoint.load(folder)
