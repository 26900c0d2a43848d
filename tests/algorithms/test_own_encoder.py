"""A user-defined encoder in SAC and DrQ-v2: its input, the errors for invalid encoders, and that a
run folder holds all that the commands need."""

import json
import re
import sys
from contextlib import closing
from dataclasses import replace
from functools import partial

import pytest
import torch

import cclf
import own_encoders
from cclf import cli, plugins, presets
from cclf.algorithms.common.pixel_encoder import CustomEncoder
from cclf.algorithms.registry import make_learner
from cclf.analysis.variants import run_key
from cclf.config import Config
from cclf.errors import ConfigError
from cclf.storage.run_folder import read_checkpoint
from tiny_runs import CPU, differing, run, tables, tiny_config, tiny_options

METHODS = {"sac": "cclf", "drqv2": "drq-v2+cclf"}
both = pytest.mark.parametrize("base", list(METHODS))


def with_encoder(base: str = "sac", encoder: str = "", **more) -> Config:
    config = tiny_config(method=METHODS[base], base=base, **more)
    standard = presets.resolve(config.task, base_name=base).algorithm
    settings = replace(config.algorithm, encoder=encoder, conv_layers=standard.conv_layers)
    if encoder:  # a custom encoder ignores the sizes of the built-in one
        settings = replace(settings, conv_filters=standard.conv_filters)
    return replace(config, algorithm=settings)


@pytest.mark.quick("sac")
@both
def test_custom_copy_of_the_built_in_encoder_learns_the_same(base):
    """Therefore it gets the same crops, and sharing, gradients and target updates are the same."""
    configs = [with_encoder(base), with_encoder(base, "own_encoders:Published")]
    learners = [make_learner(config, CPU) for config in configs]
    published, own = (learner.algorithm.networks for learner in learners)
    assert [CustomEncoder in map(type, each.modules()) for each in (published, own)] == [
        False,
        True,
    ]
    for ours, theirs in zip(own.parameters(), published.parameters(), strict=True):
        ours.data.copy_(theirs.data)
    start = [each.clone() for each in own.parameters()]
    for env_steps in range(40):
        for learner in learners:
            learner.step(env_steps)
    for before, ours, theirs in zip(start, own.parameters(), published.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        assert not torch.equal(before, ours)
    for learner in learners:
        learner.close()


@pytest.mark.quick("sac")
@both
def test_custom_encoder_keeps_its_initial_weights_and_resumes_exactly(base, tmp_path):
    """Also with an encoder that has frozen, lazy and shared modules."""
    config = with_encoder(base, "own_encoders:Mixed")
    learner, _ = run(config, tmp_path / "whole")
    assert not run(config, tmp_path / "parts", stop_at=35)[1]
    assert run(config, tmp_path / "parts")[1]
    states = [read_checkpoint(tmp_path / name) for name in ("whole", "parts")]
    for state in states:
        state.pop("wall_seconds")
        state.pop("tables")
    assert not differing(*states)
    assert tables(tmp_path / "whole") == tables(tmp_path / "parts")
    with closing(make_learner(config, CPU)) as fresh:
        first, last = (
            dict(each.algorithm.networks.named_parameters()) for each in (fresh, learner)
        )
    moved = {name.rpartition("module.")[2] for name in first if not first[name].equal(last[name])}
    assert {"lazy.weight", "twice.weight", "norm.weight"} <= moved
    assert "frozen.weight" not in moved
    biases = [value for name, value in first.items() if name.endswith("lazy.bias")]
    assert all(bias.any() for bias in biases), "nothing set it to zero, as it does our layers"


def trained(function, out):
    """Train by `cclf.train` with networks as small as those of `with_encoder`."""
    config = with_encoder(encoder="a:b")
    settings = ("batch_size", "hidden_dim", "feature_dim", "warmup_agent_steps")
    changes = {name: getattr(config.algorithm, name) for name in settings}
    changes |= {name: value for name, value in vars(config.run).items() if value is not None}
    return cclf.train(config.task, "cclf", encoder=function, out=out, **changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return trained(own_encoders.small, tmp_path_factory.mktemp("runs")).folder


def test_config_stores_the_name_of_a_function(folder):
    stored = json.loads((folder / "config.json").read_text())
    assert stored["algorithm"]["encoder"] == "own_encoders:small"
    assert run_key(stored).profile == "released-own_encoders:small", "tables tell it apart"
    agent = cclf.load(folder, device="cpu", trust_imports=True)
    weights = agent.policy.critic.encoder.convolutions.module[0].weight
    assert weights.shape == (2, 3, 5, 5)
    assert agent.evaluate(episodes=1).mean >= 0.0


def test_load_without_trust_names_the_argument_trust_imports(folder):
    with pytest.raises(ConfigError, match="in Python: trust_imports=True"):
        cclf.load(folder, device="cpu")


@pytest.mark.quick("evaluate {run} --episodes 1", "train --from {run} --dry-run")
@pytest.mark.parametrize(
    "command",
    [
        "evaluate {run} --episodes 1",
        "play {run} --out {out}/video.mp4",
        "export {run} --out {out}/policy.pt2",
        "export {run} --card --out {out}/card",
        "inspect {run} --samples 4 --out {out}/page.html",
        "train --from {run} --dry-run",
    ],
)
def test_commands_accept_the_run_with_trust_imports(command, folder, tmp_path, capsys, monkeypatch):
    words = command.format(run=folder, out=tmp_path).split()
    words += ["--device", "cpu"] if words[0] not in ("export", "train") else []
    monkeypatch.delitem(sys.modules, "own_encoders")
    assert cli.main(words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "imports the Python module 'own_encoders'" in said
    assert "--trust-imports" in said
    assert "own_encoders" not in sys.modules
    assert cli.main([*words, "--trust-imports"]) == 0
    if "--card" in words:
        card = (tmp_path / "card" / "README.md").read_text()
        assert "trust_imports=True" in card
        assert "--encoder own_encoders:small" in card
        (evaluate,) = re.findall("`cclf (evaluate [^`]+)`", card)
        monkeypatch.chdir(tmp_path / "card")
        assert cli.main([*evaluate.split(), "--episodes", "1", "--device", "cpu"]) == 0


@pytest.mark.slow("test_commands_accept_the_run_with_trust_imports")
def test_encoder_that_cannot_be_exported_is_rejected_in_one_line(tmp_path, capsys):
    run = trained(own_encoders.Counted, tmp_path / "runs").folder
    words = ["export", str(run), "--out", str(tmp_path / "policy.pt2"), "--trust-imports"]
    capsys.readouterr()
    assert cli.main(words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "must take any number of images: flatten(1), not view(len(x), -1)" in said
    assert not list(tmp_path.glob("*policy*"))


@pytest.mark.parametrize(
    ("encoder", "line"),
    [
        ("no_such_module:small", "finds no module 'no_such_module'; install it, or name its"),
        ("own_encoders:smal", "has no smal; did you mean small?"),
        ("own_encoders:number", "is not a function but int"),
        ("own_encoders", "must be MODULE:FUNCTION"),
        ("own_encoders.py:small", "not the path of a file: e.g. own_encoders:small"),
        ("./code/own_encoders.py:small", "not the path of a file: e.g. own_encoders:small"),
        ("own_encoders:nothing", "returns no torch.nn.Module but NoneType"),
        ("own_encoders:planes", "returns shape (2, 2, 14, 14) for images of shape (2, 3, 16, 16)"),
        ("own_encoders:infinite", "non-finite values"),
        ("own_encoders:dropping", "remove dropout"),
        ("own_encoders:normalised", "batch normalization"),
        ("own_encoders:half", "parameters of torch.bfloat16"),
        ("own_encoders:fixed", "cannot learn"),
        ("own_encoders:Idle", "the parameter unused.weight, which its features do not depend on"),
        ("own_encoders:of_more_channels", "of 3 channels and 16 pixels failed: RuntimeError"),
    ],
)
def test_invalid_encoders_are_rejected(encoder, line, tmp_path, capsys):
    words = [*tiny_options(with_encoder(encoder="a:b")), "--out", str(tmp_path / "runs")]
    words[words.index("a:b")] = encoder
    assert cli.main(["train", *words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"encoder={encoder}" in said
    assert line in said
    assert not (tmp_path / "runs").exists()


def in_main(in_channels, pixels):
    return own_encoders.small(in_channels, pixels)


lambda_in_main = lambda channels, pixels: in_main(channels, pixels)  # noqa: E731
in_main.__module__ = lambda_in_main.__module__ = "__main__"


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (lambda channels, pixels: own_encoders.small(channels, pixels), "is a lambda"),
        (lambda_in_main, "is a lambda"),
        (in_main, "the script or notebook that runs"),
        (partial(own_encoders.Published, filters=2), "an object (partial), not a function"),
        (own_encoders.small(3, 16), "an object (Sequential), not a function"),
    ],
)
def test_function_that_cannot_be_imported_is_rejected(function, line, tmp_path):
    with pytest.raises(ConfigError, match="could not name it for a later process") as refused:
        cclf.train("toy/reach-1d", encoder=function, out=tmp_path)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_function_that_was_replaced_in_its_module_is_rejected(monkeypatch):
    before = own_encoders.small
    monkeypatch.setattr(own_encoders, "small", own_encoders.planes)
    with pytest.raises(ConfigError, match="own_encoders:small is another function by now"):
        plugins.qualified_name("encoder", before)


@pytest.mark.parametrize(
    ("names", "changes", "line"),
    [
        (
            ("toy/reach",),
            {"conv_layers": 3},
            "conv_layers=3 conflicts with encoder=own_encoders:sm",
        ),
        (("toy/reach",), {"conv_filters": 8, "base": "drqv2"}, "conv_filters=8 conflicts with enc"),
        (("toy/reach",), {"precision": "bf16"}, "precision=bf16 conflicts with encoder=own_encode"),
        (
            ("gym/Pendulum-v1",),
            {"observe": "state"},
            "=own_encoders:small conflicts with observe=st",
        ),
        (("toy/catch",), {}, "unknown option 'encoder'"),
    ],
)
def test_conflicting_options_are_rejected(names, changes, line, tmp_path):
    pytest.importorskip("gymnasium")
    with pytest.raises(ConfigError, match=line):
        cclf.train(*names, encoder="own_encoders:small", out=tmp_path, **changes)


def test_small_frames_are_checked_by_the_custom_encoder():
    """Four published convolutions need 9 pixels."""
    for base in METHODS:
        env = {"frame_pixels": 8, "crop_pixels": 8}
        with pytest.raises(ConfigError, match="none are left"):
            with_encoder(base, env=env)
        config = tiny_config(
            method=METHODS[base], base=base, env={}, algorithm={"encoder": "own_encoders:small"}
        )
        assert replace(config, env=replace(config.env, **env)).env.crop_pixels == 8


def test_run_names_without_custom_encoder_do_not_change():
    config = presets.resolve("dmc/cartpole-swingup", "drq-v2", base_name="drqv2")
    assert config.run_name() == "dmc/cartpole-swingup/drq-v2/seed-1-3cf7d9a8"
    own = replace(config, algorithm=replace(config.algorithm, encoder="own_encoders:small"))
    assert own.run_name() != config.run_name()
    assert not config.imported_modules
    assert own.imported_modules == {"encoder": "own_encoders"}
