"""Exported policies: what they answer, what they carry, and that a wrong one is never left
behind."""

import contextlib
import io
import json
from importlib import util

import numpy as np
import pytest
import torch

from cclf import build
from cclf.bases.a2c.networks import grid_windows
from cclf.bases.sac import export as room
from cclf.cli import main
from cclf.errors import ConfigError
from cclf.runtime import run_folder
from cclf.study import export
from rainbow_inputs import tiny
from tiny_runs import CPU, run, tiny_config

CONFIGS = {
    "sac": tiny_config("toy/reach-1d", env={"frame_stack": 3}),
    "drqv2": tiny_config("toy/reach-1d", "drq-v2", base="drqv2", env={"frame_stack": 3}),
    "a2c": tiny_config("minigrid/DoorKey-6x6"),
    "rainbow": tiny("cclf"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    found = {}
    for name, config in CONFIGS.items():
        with run_folder.claimed_folder(config, out) as found[name]:
            run(config, found[name])
    return found


def read(path):
    metadata = {export.METADATA_FILE: ""}
    policy = torch.jit.load(str(path), _extra_files=metadata)
    return policy, json.loads(metadata[export.METADATA_FILE])


@pytest.mark.parametrize("base", ["sac", "drqv2"])
def test_torchscript_on_pixels_is_the_mean_action_on_whole_frames(folders, tmp_path, base):
    done = export.export(folders[base], tmp_path / "policy.pt")
    assert done.largest_difference <= 1e-5
    policy, metadata = read(done.path)
    agent, config, _ = build.load_agent(folders[base], CPU, 1)
    pixels = config.env.frame_pixels
    frames = torch.from_numpy(
        np.random.default_rng(0).integers(0, 256, (5, 9, pixels, pixels), dtype=np.uint8)
    )
    expected = agent.policy.evaluation_action(frames)
    assert expected.std(0).min() > 1e-5, "different frames, different actions"
    torch.testing.assert_close(policy(frames), expected, rtol=0, atol=1e-5)
    agent.close()
    assert (metadata["task"], metadata["method"], metadata["env_steps"]) == (
        "toy/reach-1d",
        CONFIGS[base].method_name,
        60,
    )
    assert (metadata["frame_stack"], metadata["frame_pixels"], metadata["crop_pixels"]) == (
        3,
        pixels,
        config.env.crop_pixels,
    )
    assert metadata["input"] == {
        "name": "observation",
        "dtype": "uint8",
        "shape": ["batch", 9, pixels, pixels],
    }
    assert metadata["output"] == {"name": "action", "dtype": "float32", "shape": ["batch", 1]}
    assert metadata["config"]["algorithm"]["hidden_dim"] == 16


def test_torchscript_of_a2c_is_the_logits_on_grids(folders, tmp_path):
    done = export.export(folders["a2c"], tmp_path / "policy.pt")
    policy, metadata = read(done.path)
    agent, _, _ = build.load_agent(folders["a2c"], CPU, 1)
    grids = np.random.default_rng(0).integers(0, 11, (5, 7, 7, 3), dtype=np.uint8)
    network = agent.policy.policy
    expected = network.actor(network.encoder(torch.from_numpy(grid_windows(grids)))).detach()
    torch.testing.assert_close(policy(torch.from_numpy(grids)), expected, rtol=0, atol=1e-5)
    agent.close()
    assert metadata["output"] == {"name": "logits", "dtype": "float32", "shape": ["batch", 7]}
    assert "frame_stack" not in metadata


def test_torchscript_of_rainbow_is_its_q_values_on_stacks(folders, tmp_path):
    done = export.export(folders["rainbow"], tmp_path / "policy.pt")
    policy, metadata = read(done.path)
    agent, _, _ = build.load_agent(folders["rainbow"], CPU, 1)
    frames = torch.from_numpy(
        np.random.default_rng(0).integers(0, 256, (5, 2, 25, 25), dtype=np.uint8)
    )
    torch.testing.assert_close(
        policy(frames), agent.policy.evaluation_values(frames), rtol=0, atol=1e-5
    )
    assert torch.equal(policy(frames).argmax(1), agent.policy.evaluation_action(frames))
    agent.close()
    assert metadata["output"] == {"name": "q_values", "dtype": "float32", "shape": ["batch", 3]}


@pytest.mark.skipif(
    any(util.find_spec(name) is None for name in export.ONNX_PACKAGES),
    reason="pip install 'cclf[export]'",
)
@pytest.mark.parametrize("name", CONFIGS)
def test_onnx_answers_as_the_policy_does(folders, tmp_path, name):
    import onnx

    done = export.export(folders[name], tmp_path / "policy.onnx")
    assert done.largest_difference <= 1e-5
    assert [path.name for path in tmp_path.iterdir()] == ["policy.onnx"], (
        "one file, its weights inside"
    )
    properties = {entry.key: entry.value for entry in onnx.load(str(done.path)).metadata_props}
    assert json.loads(properties["cclf"]) == json.loads(json.dumps(done.metadata))


class WrongByALittle(room.PixelPolicy):
    def forward(self, frames):
        return super().forward(frames) + 2e-4


class NotANumber(room.PixelPolicy):
    def forward(self, frames):
        return super().forward(frames) * float("nan")


class FixedBatch(room.PixelPolicy):
    def forward(self, frames):
        return super().forward(frames)[:1].expand(frames.shape[0], -1)


@pytest.mark.parametrize("wrong", [WrongByALittle, NotANumber, FixedBatch])
def test_a_policy_that_answers_otherwise_is_not_left_behind(folders, tmp_path, monkeypatch, wrong):
    monkeypatch.setattr(room, "PixelPolicy", wrong)
    (tmp_path / "policy.pt").write_text("the one before")
    with pytest.raises(ConfigError, match="no file is left"):
        export.export(folders["sac"], tmp_path / "policy.pt")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "policy.pt": "the one before"
    }


def cclf(*words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in words])
    return code, out.getvalue(), err.getvalue()


def test_the_command_prints_shapes_difference_and_path(folders, tmp_path):
    code, out, err = cclf("export", folders["a2c"], "--out", tmp_path / "policy.pt")
    assert (code, err) == (0, "")
    first, path = out.splitlines()
    assert first.startswith(
        "observation uint8 (batch, 7, 7, 3) -> logits float32 (batch, 7); largest difference "
    )
    assert path == str(tmp_path / "policy.pt")


def test_the_command_says_what_is_wrong(folders, tmp_path, monkeypatch):
    for words, expected in (
        ([tmp_path, "--out", tmp_path / "policy.pt"], "is not a run folder"),
        ([folders["sac"], "--out", tmp_path / "policy.pth"], ".pt (TorchScript) or .onnx"),
        ([folders["sac"], "--out", tmp_path / "no" / "policy.pt"], "there is no folder"),
    ):
        code, out, err = cclf("export", *words)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert expected in err
    monkeypatch.setattr(export, "ONNX_PACKAGES", ("no_such_package",))
    code, out, err = cclf("export", folders["sac"], "--out", tmp_path / "policy.onnx")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "pip install 'cclf[export]'" in err
    assert list(tmp_path.iterdir()) == []
