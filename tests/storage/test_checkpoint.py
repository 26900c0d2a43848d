"""Checkpoints restore the exact state, contain no code, and are complete at whatever moment the
process is killed."""

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
from tiny_runs import Killed, same_state, tiny_config

TIED = torch.rand(3)
STATE = {
    "weights": {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(0.1, dtype=torch.float64)},
    "tied": {"a": TIED, "b": TIED, "c": TIED[:2]},
    "frames": torch.randint(256, (4, 3, 5, 5), dtype=torch.uint8),
    "array": np.array([1.5, -0.0, np.nan]),
    "flags": np.array([True, False]),
    "empty": {},
    "nothing": None,
    "counters": {"steps": 10**12, "large": 2**100, "rate": 0.1, "name": "x", "on": True},
    "returns": [1.0, 2.5],
    "scalar": np.float64(1 / 3),
}


def test_loaded_state_equals_the_saved_one(tmp_path):
    assert checkpoint.load(tmp_path / "checkpoint") is None
    Checkpoints(tmp_path / "checkpoint").save(STATE)
    assert same_state(STATE, checkpoint.load(tmp_path / "checkpoint"))


@settings(max_examples=25)
@given(
    hnp.arrays(
        st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.bool_]),
        hnp.array_shapes(min_side=0),
    )
)
def test_any_array_is_loaded_as_saved(tmp_path_factory, array):
    folder = tmp_path_factory.mktemp("arrays") / "checkpoint"
    tensor = torch.from_numpy(array.copy())
    transposed = tensor.T if array.ndim == 2 else 0
    state = {"array": array, "tensor": tensor, "transposed": transposed}
    Checkpoints(folder).save(state)
    assert same_state(state, checkpoint.load(folder))


def test_checkpoint_of_a_run_consists_of_safetensors_and_json(trained):
    """No pickle anywhere, so loading one can never run code."""
    folder = trained(tiny_config()) / "checkpoint"
    newest = folder / "00000002"
    expected = {"state.json", "tensors.safetensors", "index.json"}
    assert {path.name for path in newest.iterdir()} == expected
    tree = json.loads((newest / "state.json").read_text())
    assert {"learner", "agent_steps", "wall_seconds"} <= set(tree)
    with safe_open(newest / "tensors.safetensors", framework="pt") as file:
        keys = [*file.keys()]
    assert any("critic" in key for key in keys)
    assert not any("frames" in key for key in keys), "frames have files of their own"
    for path in (path for path in folder.rglob("*") if path.is_file()):
        assert path.suffix in (".json", ".safetensors")
        # the first bytes of a pickle and of a zip file
        assert not path.read_bytes().startswith((b"\x80", b"PK"))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("one_object", [True, False])
def test_only_the_last_two_checkpoints_are_kept(tmp_path, one_object):
    folder = tmp_path / "checkpoint"
    store = Checkpoints(folder)
    for number in range(1, 5):
        (store if one_object else Checkpoints(folder)).save({"number": number, "t": torch.ones(2)})
        assert checkpoint.load(folder)["number"] == number
        expected = [f"{serial:08d}" for serial in (number - 1, number) if serial]
        assert (names(folder), names(tmp_path)) == (expected, ["checkpoint"])


class KilledSaves:
    """Counts the operations on files, and kills the process before the operation `killed_at`."""

    OPERATIONS = (
        (os, "rename"),
        (os, "fsync"),
        (shutil, "rmtree"),
        (checkpoint, "fsync_write"),
        (replay_chunks, "fsync_write"),
        (Path, "unlink"),
    )

    def __init__(self, monkeypatch):
        self.count, self.killed_at = 0, None
        for module, name in self.OPERATIONS:
            monkeypatch.setattr(module, name, self._counted(getattr(module, name)))

    def _counted(self, original):
        def operation(*args, **kwargs):
            if self.count == self.killed_at:
                raise Killed
            self.count += 1
            return original(*args, **kwargs)

        return operation

    def save(self, folder, number, killed_at=None):
        """Returns whether the save was completed."""
        self.count, self.killed_at = 0, killed_at
        try:
            Checkpoints(folder).save(numbered_state(number))
        except Killed:
            return False
        finally:
            self.killed_at = None
        return True


def numbered_state(number):
    """A state with a ring buffer of three frames, into which `number` frames were written, and
    another tensor."""
    frames = torch.zeros(min(number, 3), 1, 2, 2, dtype=torch.uint8)
    for n in range(number):
        frames[n % 3] = n + 1
    replay = {"frames": frames, "written": number}
    return {"number": number, "t": torch.full((3,), number), "learner": {"replay": replay}}


def number_in(folder):
    state = checkpoint.load(folder)
    assert same_state(state, numbered_state(state["number"])), "parts of two states"
    return state["number"]


@pytest.mark.quick("4")
@pytest.mark.parametrize("every", [1, 4])
def test_kill_at_any_moment_leaves_the_old_or_the_new_checkpoint(tmp_path, monkeypatch, every):
    """The process is killed in one save and again in the next: at each pair of moments, or at every
    fourth one."""
    saves = KilledSaves(monkeypatch)
    (tmp_path / "count").mkdir()
    for _ in range(2):
        saves.save(tmp_path / "count" / "checkpoint", 0)
    moments = saves.count
    assert moments >= 6
    for first in range(moments + 1):
        for second in range(first % every, moments + 1, every):
            folder = tmp_path / f"{first}-{second}" / "checkpoint"
            folder.parent.mkdir()
            saves.save(folder, 1)
            saves.save(folder, 2, first)
            found = number_in(folder)
            assert found in (1, 2)
            saves.save(folder, 3, second)
            assert number_in(folder) in (found, 3), f"killed at {first}, then at {second}"
            assert saves.save(folder, 4)
            assert number_in(folder) == 4
            assert len([name for name in names(folder) if name != "frames"]) == 2
            assert names(folder.parent) == ["checkpoint"]


def test_failed_save_raises_and_leaves_only_the_old_checkpoint(tmp_path):
    Checkpoints(tmp_path / "checkpoint").save(numbered_state(1))
    with pytest.raises(TypeError):
        Checkpoints(tmp_path / "checkpoint").save(numbered_state(2) | {"t": object()})
    assert number_in(tmp_path / "checkpoint") == 1
    assert names(tmp_path / "checkpoint") == ["00000001", "frames"]
    assert len(names(tmp_path / "checkpoint" / "frames")) == 1, "the disk may be full"


# --- the frames of a replay


class Ring:
    """The ring buffer of a replay."""

    def __init__(self, slots):
        self.frames, self.written = torch.zeros(slots, 1, 3, 3, dtype=torch.uint8), 0

    def add(self, count, random):
        for _ in range(count):
            frame = random.integers(0, 256, (1, 3, 3), dtype=np.uint8)
            self.frames[self.written % len(self.frames)] = torch.from_numpy(frame)
            self.written += 1

    def state(self):
        frames = self.frames[: self.written].clone()
        return {"learner": {"replay": {"frames": frames, "written": self.written}}}


@settings(max_examples=10)
@given(
    slots=st.integers(1, 12),
    additions=st.lists(st.integers(0, 30), min_size=1, max_size=8),
    restarts=st.integers(0, 255),
    chunk_frames=st.integers(1, 6),
)
def test_any_ring_is_loaded_from_its_chunks_as_saved(
    tmp_path_factory, slots, additions, restarts, chunk_frames
):
    """Any number of frames is added between the checkpoints, and a new process may start after each
    of them."""
    folder = tmp_path_factory.mktemp("ring") / "checkpoint"
    ring, random, store = Ring(slots), np.random.default_rng(0), Checkpoints(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay_chunks, "CHUNK_FRAMES", chunk_frames)
        for turn, count in enumerate(additions):
            before = ring.state()
            ring.add(count, random)
            store.save(ring.state())
            assert same_state(checkpoint.load(folder), ring.state())
            if turn:  # the checkpoint before it needs its frames too
                copy = shutil.copytree(folder, folder.with_name(f"older{turn}"))
                shutil.rmtree(sorted(copy.glob("0*"))[1])
                assert same_state(checkpoint.load(copy), before)
            if restarts >> turn & 1:
                store = Checkpoints(folder)
                store.load()


def test_frame_is_written_once(tmp_path):
    folder, ring, random = tmp_path / "checkpoint", Ring(50), np.random.default_rng(0)
    store, written_at = Checkpoints(folder), {}
    for _ in range(12):
        ring.add(10, random)
        store.save(ring.state())
        for path in (folder / "frames").iterdir():
            now = path.stat().st_mtime_ns
            assert written_at.setdefault(path.name, now) == now
            assert len(load_file(path)["frames"]) == 10, "the new ones alone"
        assert len(names(folder / "frames")) <= 6, "50 slots, and the checkpoint before"
    assert len(written_at) == 12


def test_larger_ring_that_renumbers_its_frames_is_written_again(tmp_path):
    """A run continues with a larger budget: the numbers of the files of the full ring no longer
    match."""
    folder, random = tmp_path / "checkpoint", np.random.default_rng(0)
    old, new = Ring(5), Ring(20)
    old.add(7, random)
    store = Checkpoints(folder)
    store.save(old.state())
    new.frames[:5], new.written = old.frames.roll(-2, 0), 5
    new.add(4, random)  # its count is 9 frames, more than the 7 of the old one
    store.save(new.state())
    assert same_state(checkpoint.load(folder), new.state())


def test_files_without_checksums_are_not_read(tmp_path):
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
