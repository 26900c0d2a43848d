"""Damaged checkpoints: damage is detected, a warning names it, the previous checkpoint is used, and
no code in the files is executed."""

import json
import os
import pickle
import random
import shutil

import pytest

from cclf.errors import DataError
from cclf.storage import checkpoint
from cclf.storage.checkpoint_files import checksum, index_bytes
from rainbow_inputs import tiny_cclf
from tiny_runs import differing, run, tables, tiny_config

CONFIGS = {
    "sac": tiny_config(),
    "drqv2": tiny_config(method="drq-v2+cclf", base="drqv2"),
    "rainbow": tiny_cclf(env_steps=60, eval_every_env_steps=30, final_eval_episodes=0),
}
OTHERS = [pytest.param(name, marks=pytest.mark.slow("[sac]")) for name in ("drqv2", "rainbow")]


@pytest.fixture(scope="module", params=["sac", *OTHERS])
def base(request):
    return request.param


@pytest.fixture(scope="module")
def two(tmp_path_factory, trained, base):
    """A run with two checkpoints, and their states: the newest, and the previous one."""
    folder = tmp_path_factory.mktemp("two") / "run"
    shutil.copytree(trained(CONFIGS[base]), folder)
    newest = checkpoint.load(folder / "checkpoint")
    shutil.copytree(folder / "checkpoint", folder / "before")
    shutil.rmtree(folder / "before" / "00000002")
    before = checkpoint.load(folder / "before")
    assert (newest["agent_steps"], before["agent_steps"]) == (60, 30)
    return folder, newest, before


@pytest.fixture
def copied(two, tmp_path):
    return shutil.copytree(two[0] / "checkpoint", tmp_path / "checkpoint")


class Bomb:
    """Unpickling this object makes the folder `path`."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


def flipped(data, rng):
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]


def blanked(data, rng):
    place = rng.randrange(len(data))
    blank = data[:place] + bytes(len(data[place : place + 512])) + data[place + 512 :]
    return blank if blank != data else b"\0" + data


def inserted(data, rng):
    place = rng.randrange(len(data))
    return data[:place] + rng.randbytes(1) + data[place:]


MUTATIONS = {
    "flipped": flipped,
    "blanked": blanked,
    "inserted": inserted,
    "truncated": lambda data, rng: data[: rng.randrange(len(data))],
    "longer": lambda data, rng: data + rng.randbytes(rng.randrange(1, 64)),
    "noise": lambda data, rng: rng.randbytes(len(data)),
    "empty": lambda *_: b"",
    "pickle": lambda *_: pickle.dumps(Bomb("/nowhere/at/all")),
    "other JSON": lambda *_: b'{"sha256": {}}',
    "deep JSON": lambda *_: b"[" * 100_000,
    "spaced": lambda data, _: data + b" ",  # JSON of the same meaning
    "missing": lambda *_: None,
}


@pytest.mark.quick("sac-256")
@pytest.mark.parametrize("count", [256, 2_000])
def test_mutated_file_is_detected(two, capsys, count):
    folder, newest, before = two
    rng, outcomes = random.Random(0), {"newest": 0, "before": 0, "refused": 0}
    files = sorted(path for path in (folder / "checkpoint").rglob("*") if path.is_file())
    assert len(files) == 8
    for number in range(count):
        path, kind = files[number % len(files)], rng.choice(list(MUTATIONS))
        data = path.read_bytes()
        mutated = MUTATIONS[kind](data, rng)
        assert mutated != data
        path.unlink() if mutated is None else path.write_bytes(mutated)
        try:
            state, refusal = checkpoint.load(folder / "checkpoint"), ""
        except DataError as error:
            state, refusal = None, str(error)
        path.write_bytes(data)
        warning = capsys.readouterr().err
        if path.parent.name == "00000002" or path.name.startswith("frames-00000002"):
            outcome, expected = "before", before
        elif path.parent.name == "00000001":
            outcome, expected = "newest", newest
        else:  # both checkpoints need the frames of the first one
            outcome, expected = "refused", None
        outcomes[outcome] += 1
        assert ("no checkpoint in" in refusal) == (expected is None), f"{path} {kind}"
        if expected is not None:
            assert differing(state, expected) == [], f"{path} {kind}: another state, no error"
            assert warning.count("\n") == (expected is before), f"{path} {kind}: {warning}"
            assert ("checkpoint 00000002 is damaged" in warning) == (expected is before)
    assert min(outcomes.values()) > count / 16, outcomes


def update_checksums(folder):
    for own in folder.glob("0*"):
        names = json.loads((own / "index.json").read_text())["sha256"]
        paths = {name: (folder if "/" in name else own) / name for name in names}
        sums = {name: checksum(path.read_bytes()) for name, path in paths.items()}
        (own / "index.json").write_bytes(index_bytes(sums))


@pytest.mark.parametrize("name", ["state.json", "tensors.safetensors", "index.json", "frames"])
@pytest.mark.parametrize("updated", [False, True], ids=["old checksums", "new checksums"])
def test_pickle_in_a_checkpoint_is_refused_and_not_executed(copied, tmp_path, name, updated):
    bomb = pickle.dumps(Bomb(tmp_path / "exploded"))
    for own in copied.glob("0*"):
        path = next(copied.glob(f"frames/frames-{own.name}*")) if name == "frames" else own / name
        path.write_bytes(bomb)
    if updated and name != "index.json":
        update_checksums(copied)
    with pytest.raises(DataError, match="no checkpoint in"):
        checkpoint.load(copied)
    assert not (tmp_path / "exploded").exists()
    pickle.loads(bomb)
    assert (tmp_path / "exploded").exists(), "the test would not notice"


def test_index_cannot_name_files_outside_the_folder(copied, tmp_path):
    own = copied / "00000002"
    chunk = next(copied.glob("frames/frames-00000002*"))
    shutil.move(chunk, tmp_path / chunk.name)
    sums = json.loads((own / "index.json").read_text())["sha256"]
    sums[f"frames/../../{chunk.name}"] = sums.pop(f"frames/{chunk.name}")
    state = (own / "state.json").read_text().replace(chunk.name, f"../../{chunk.name}")
    (own / "state.json").write_text(state)
    sums["state.json"] = checksum(state.encode())
    (own / "index.json").write_bytes(index_bytes(sums))
    assert checkpoint.load(copied)["agent_steps"] == 30


def test_run_with_a_damaged_checkpoint_resumes_from_the_previous_one_exactly(
    base, two, tmp_path, capsys
):
    folder = shutil.copytree(two[0], tmp_path / "run")
    path = folder / "checkpoint" / "00000002" / "tensors.safetensors"
    path.write_bytes(flipped(path.read_bytes(), random.Random(0)))
    _, finished = run(CONFIGS[base], folder)
    assert finished
    assert capsys.readouterr().err.count("is damaged") == 1
    assert tables(folder) == tables(two[0])
    assert differing(checkpoint.load(folder / "checkpoint")["learner"], two[1]["learner"]) == []
    kept = sorted(path.name for path in (folder / "checkpoint").glob("0*"))
    assert kept == ["00000001", "00000003"], "the damaged one is deleted, the one before is not"
