"""Damaged checkpoints: found out, one line says so, the one before is used, and nothing in them is
ever run."""

import json
import os
import pickle
import random
import shutil

import pytest

from cclf.errors import DataError
from cclf.storage import checkpoint, checkpoint_files
from rainbow_inputs import tiny_cclf
from tiny_runs import differing, run, tables, tiny_config

CONFIGS = {
    "sac": tiny_config(),
    "drqv2": tiny_config(method="drq-v2+cclf", base="drqv2"),
    "rainbow": tiny_cclf(env_steps=60, eval_every_env_steps=30, final_eval_episodes=0),
}


# A replay of SAC by default; those of the others are slow.
OTHERS = [pytest.param(name, marks=pytest.mark.slow("[sac]")) for name in ("drqv2", "rainbow")]


@pytest.fixture(scope="module", params=["sac", *OTHERS])
def base(request):
    return request.param


@pytest.fixture(scope="module")
def two(tmp_path_factory, trained, base):
    """A run with two checkpoints, and the states in them: newest, the one before."""
    folder = tmp_path_factory.mktemp("two") / "run"
    shutil.copytree(trained(CONFIGS[base]), folder)
    newest = checkpoint.load(folder / "checkpoint")
    shutil.copytree(folder / "checkpoint", folder / "before")
    shutil.rmtree(folder / "before" / "00000002")
    before = checkpoint.load(folder / "before")
    assert (newest["agent_steps"], before["agent_steps"]) == (60, 30)
    return folder, newest, before


class Bomb:
    """Whoever unpickles it makes the file `path`."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


def flipped(data, rng):
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]


def blanked(data, rng):
    place = rng.randrange(len(data))
    length = rng.randrange(1, 512)
    blank = data[:place] + bytes(len(data[place : place + length])) + data[place + length :]
    return blank if blank != data else b"\0" + data


MUTATIONS = {
    "flipped": flipped,
    "blanked": blanked,
    "truncated": lambda data, rng: data[: rng.randrange(len(data))],
    "empty": lambda *_: b"",
    "longer": lambda data, rng: data + rng.randbytes(rng.randrange(1, 64)),
    "inserted": lambda data, rng: (
        data[: (place := rng.randrange(len(data)))] + rng.randbytes(1) + data[place:]
    ),
    "noise": lambda data, rng: rng.randbytes(len(data)),
    "pickle": lambda *_: pickle.dumps(Bomb("/nowhere/at/all")),
    "other JSON": lambda *_: b'{"sha256": {}}',
    "deep JSON": lambda *_: b"[" * 100_000,
    "spaced": lambda data, _: data + b" ",  # JSON of the same meaning
    "missing": lambda *_: None,
}


def expected_after(path, newest, before):
    """What must be loaded when this file is damaged: None is a refusal."""
    if path.parent.name == "00000002" or path.name.startswith("frames-00000002"):
        return before
    # the frames of the first are shared: both need them
    return newest if path.parent.name == "00000001" else None


def loaded(folder):
    """The state, or what was said instead. Anything but a DataError would be a crash."""
    try:
        return checkpoint.load(folder), None
    except DataError as error:
        return None, str(error)


def mutate_many(two, count, capsys):
    folder, newest, before = two
    rng = random.Random(0)
    files = sorted(path for path in (folder / "checkpoint").rglob("*") if path.is_file())
    assert len(files) == 8
    outcomes = dict.fromkeys(("newest", "before", "refused"), 0)
    for number in range(count):
        path, kind = files[number % len(files)], rng.choice(list(MUTATIONS))
        data = path.read_bytes()
        mutated = MUTATIONS[kind](data, rng)
        assert mutated != data
        path.unlink() if mutated is None else path.write_bytes(mutated)
        expected = expected_after(path, newest, before)
        state, refusal = loaded(folder / "checkpoint")
        path.write_bytes(data)
        said = capsys.readouterr().err
        if expected is None:
            assert "no checkpoint in" in refusal, f"{path} {kind}: loaded though damaged"
            outcomes["refused"] += 1
            continue
        assert refusal is None, f"{path} {kind}"
        assert differing(state, expected) == [], f"{path} {kind}: silently wrong"
        assert said.count("\n") == (expected is before), f"{path} {kind}: {said}"
        assert expected is newest or "checkpoint 00000002 is damaged" in said
        outcomes["newest" if expected is newest else "before"] += 1
    assert min(outcomes.values()) > count / 16, outcomes


def test_mutated_files_are_found_out(two, capsys):
    mutate_many(two, 256, capsys)


@pytest.mark.slow("test_mutated_files_are_found_out")
def test_a_thousand_mutated_files_are_found_out(two, capsys):
    mutate_many(two, 2_000, capsys)


@pytest.mark.parametrize("name", ["state.json", "tensors.safetensors", "index.json", "frames"])
@pytest.mark.parametrize("checksums", ["as they were", "made to fit"])
def test_a_planted_pickle_is_refused_and_never_run(two, tmp_path, name, checksums):
    folder = tmp_path / "checkpoint"
    shutil.copytree(two[0] / "checkpoint", folder)
    bomb = pickle.dumps(Bomb(tmp_path / "exploded"))
    for serial in ("00000001", "00000002"):
        target = (
            next(folder.glob(f"frames/frames-{serial}*"))
            if name == "frames"
            else folder / serial / name
        )
        target.write_bytes(bomb)
    if checksums == "made to fit" and name != "index.json":
        for own in folder.glob("0*"):
            listed = json.loads((own / "index.json").read_text())["sha256"]
            found = {
                key: (own / key if "/" not in key else folder / key).read_bytes() for key in listed
            }
            (own / "index.json").write_bytes(
                checkpoint_files.index_bytes(
                    {key: checkpoint_files.checksum(found[key]) for key in found}
                )
            )
    with pytest.raises(DataError, match="no checkpoint in"):
        checkpoint.load(folder)
    assert not (tmp_path / "exploded").exists()
    pickle.loads(bomb)
    assert (tmp_path / "exploded").exists(), "the bomb was a real one"


def test_an_index_cannot_lead_out_of_the_folder(two, tmp_path):
    """Names in a table are names of files beside each other, whatever is written there."""
    folder = tmp_path / "checkpoint"
    shutil.copytree(two[0] / "checkpoint", folder)
    own = folder / "00000002"
    chunk = next(folder.glob("frames/frames-00000002*"))
    shutil.move(chunk, tmp_path / chunk.name)
    listed = json.loads((own / "index.json").read_text())["sha256"]
    listed[f"frames/../../{chunk.name}"] = listed.pop(f"frames/{chunk.name}")
    state = (own / "state.json").read_text().replace(chunk.name, f"../../{chunk.name}")
    (own / "state.json").write_text(state)
    listed["state.json"] = checkpoint_files.checksum(state.encode())
    (own / "index.json").write_bytes(checkpoint_files.index_bytes(listed))
    assert checkpoint.load(folder)["agent_steps"] == 30


def test_a_run_goes_on_from_the_one_before_to_the_same_end(base, two, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(two[0], folder)
    path = folder / "checkpoint" / "00000002" / "tensors.safetensors"
    path.write_bytes(flipped(path.read_bytes(), random.Random(0)))
    _, finished = run(CONFIGS[base], folder)
    assert finished
    assert capsys.readouterr().err.count("is damaged") == 1
    assert tables(folder) == tables(two[0])
    ours, theirs = checkpoint.load(folder / "checkpoint"), dict(two[1])
    assert differing(ours["learner"], theirs["learner"]) == []
    kept = sorted(path.name for path in (folder / "checkpoint").glob("0*"))
    assert kept == ["00000001", "00000003"], "the damaged one goes, the good one before stays"
