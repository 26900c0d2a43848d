"""Exported policies: their outputs and metadata, and that an export with wrong outputs leaves no
file."""

import json
import os
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from markdown_it import MarkdownIt
from safetensors.torch import save

from cclf import __version__, export, load, share
from cclf.algorithms.a2c.networks import grid_windows
from cclf.algorithms.sac import sac
from cclf.cli import main
from cclf.commands.train import train_config
from cclf.errors import EXTRAS, ConfigError
from cclf.training.agent import load_agent
from rainbow_inputs import tiny
from test_cli import cclf
from tiny_runs import CPU, create_run_folder, run, tiny_config

CONFIGS = {
    "sac": tiny_config("toy/reach-1d", env={"frame_stack": 3}),
    "drqv2": tiny_config("toy/reach-1d", "drq-v2", base="drqv2", env={"frame_stack": 3}),
    "a2c": tiny_config("minigrid/DoorKey-6x6"),
    "rainbow": tiny("cclf"),
}


@pytest.fixture(scope="module")
def folders(trained):
    return {name: trained(config) for name, config in CONFIGS.items()}


def read(path):
    metadata = {export.METADATA_FILE: ""}
    policy = torch.export.load(path, extra_files=metadata).module()
    return policy, json.loads(metadata[export.METADATA_FILE])


@pytest.mark.quick("sac")
@pytest.mark.parametrize("base", ["sac", "drqv2"])
def test_pt2_on_pixels_is_the_mean_action_on_whole_frames(folders, tmp_path, base):
    done = export.export(folders[base], tmp_path / "policy.pt2")
    assert done.largest_difference <= 1e-5
    policy, metadata = read(done.path)
    agent, config, _ = load_agent(folders[base], CPU, 1)
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


def test_pt2_of_a2c_is_the_logits_on_grids(folders, tmp_path):
    code, out, err = cclf("export", folders["a2c"], "--out", tmp_path / "policy.pt2")
    assert (code, err) == (0, "")
    first, path = out.splitlines()
    shapes = "observation uint8 (batch, 7, 7, 3) -> logits float32 (batch, 7)"
    assert first.startswith(f"{shapes}; largest difference ")
    policy, metadata = read(path)
    agent, _, _ = load_agent(folders["a2c"], CPU, 1)
    grids = np.random.default_rng(0).integers(0, 11, (5, 7, 7, 3), dtype=np.uint8)
    network = agent.policy.policy
    expected = network.actor(network.encoder(torch.from_numpy(grid_windows(grids)))).detach()
    torch.testing.assert_close(policy(torch.from_numpy(grids)), expected, rtol=0, atol=1e-5)
    agent.close()
    assert metadata["output"] == {"name": "logits", "dtype": "float32", "shape": ["batch", 7]}
    assert "frame_stack" not in metadata


def test_pt2_of_rainbow_is_its_q_values_on_stacks(folders, tmp_path):
    done = export.export(folders["rainbow"], tmp_path / "policy.pt2")
    policy, metadata = read(done.path)
    agent, _, _ = load_agent(folders["rainbow"], CPU, 1)
    frames = torch.from_numpy(
        np.random.default_rng(0).integers(0, 256, (5, 2, 25, 25), dtype=np.uint8)
    )
    torch.testing.assert_close(policy(frames), agent.policy.q_network(frames), rtol=0, atol=1e-5)
    assert torch.equal(policy(frames).argmax(1), agent.policy.evaluation_action(frames))
    agent.close()
    assert metadata["output"] == {"name": "q_values", "dtype": "float32", "shape": ["batch", 3]}


@pytest.mark.quick("rainbow")
@pytest.mark.parametrize("name", CONFIGS)
def test_onnx_outputs_equal_those_of_the_policy(folders, tmp_path, name):
    onnx = pytest.importorskip("onnx")
    done = export.export(folders[name], tmp_path / "policy.onnx")
    assert done.largest_difference <= 1e-5
    assert [path.name for path in tmp_path.iterdir()] == ["policy.onnx"], (
        "one file, its weights inside"
    )
    properties = {entry.key: entry.value for entry in onnx.load(str(done.path)).metadata_props}
    assert json.loads(properties["cclf"]) == json.loads(json.dumps(done.metadata))


class WrongByALittle(sac.GreedyPolicy):
    def forward(self, frames):
        return super().forward(frames) + 2e-4


class NotANumber(sac.GreedyPolicy):
    def forward(self, frames):
        return super().forward(frames) * float("nan")


class FixedBatch(sac.GreedyPolicy):
    def forward(self, frames):
        return super().forward(frames)[:1].expand(frames.shape[0], -1)


@pytest.mark.quick("WrongByALittle")
@pytest.mark.parametrize("wrong", [WrongByALittle, NotANumber, FixedBatch])
def test_export_with_other_outputs_is_refused_and_leaves_no_file(
    folders, tmp_path, monkeypatch, wrong
):
    monkeypatch.setattr(sac, "GreedyPolicy", wrong)
    (tmp_path / "policy.pt2").write_text("the one before")
    with pytest.raises(ConfigError, match="no file is written"):
        export.export(folders["sac"], tmp_path / "policy.pt2")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "policy.pt2": "the one before"
    }


def test_export_of_a_wrong_path_is_one_line(folders, tmp_path, monkeypatch):
    for words, expected in (
        ([tmp_path, "--out", tmp_path / "policy.pt2"], "is not a run folder"),
        ([folders["sac"], "--out", tmp_path / "policy.pth"], ".pt2 (torch.export) or .onnx"),
        ([folders["sac"], "--out", tmp_path / "no" / "policy.pt2"], "there is no folder"),
    ):
        code, out, err = cclf("export", *words)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert expected in err
    monkeypatch.setitem(EXTRAS, "export", ("no_such_package",))
    code, out, err = cclf("export", folders["sac"], "--out", tmp_path / "policy.onnx")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "pip install 'cclf[export]'" in err
    assert list(tmp_path.iterdir()) == []


# --- a folder to share


@pytest.fixture(scope="module")
def shared(folders, tmp_path_factory):
    """The folder that `--card` writes, by base algorithm."""
    out = tmp_path_factory.mktemp("shared")
    for name, folder in folders.items():
        share.write(folder, out / name)
    return {name: out / name for name in folders}


@pytest.mark.parametrize("base", CONFIGS)
def test_a_shared_agent_plays_as_the_run_does(folders, shared, base):
    run, agent = load(folders[base], device="cpu"), load(shared[base], device="cpu")
    assert agent.env_steps == run.env_steps > 0
    assert agent.config == run.config
    assert agent.evaluate(2).returns == run.evaluate(2).returns
    assert {path.name for path in shared[base].iterdir()} == {
        *("README.md", "config.json", "model.safetensors")
    }


def test_commands_accept_a_shared_agent(shared, tmp_path, capsys):
    for name in shared["sac"].iterdir():  # a hub's cache is made of links
        (tmp_path / name.name).symlink_to(name)
    assert main(["evaluate", str(tmp_path), "--episodes", "1", "--device", "cpu"]) == 0
    assert "over 1 episodes at 60 env steps" in capsys.readouterr().out
    assert main(["export", str(tmp_path), "--out", str(tmp_path / "policy.pt2")]) == 0


@pytest.mark.parametrize("base", CONFIGS)
def test_code_and_command_of_a_card_are_those_of_the_run(shared, monkeypatch, capsys, base):
    text = (shared[base] / "README.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(shared[base])
    exec(compile(code, "README.md", "exec"), {})
    assert float(capsys.readouterr().out) == load(shared[base]).evaluate(2).mean
    (line,) = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert max(map(len, line.splitlines())) <= 80
    asked = train_config(shlex.split(line.replace("\\\n", " "))[2:]).config
    assert asked.run_name() == CONFIGS[base].run_name()
    assert asked.run.env_steps == CONFIGS[base].run.env_steps
    assert "--device" not in line, "where it was trained is no setting"


def test_card_shows_returns_code_and_machine(tmp_path):
    config = tiny_config("toy/reach-1d", "drq", env={"frame_stack": 2}, env_steps=30)
    with create_run_folder(config, tmp_path) as folder:
        run(config, folder)
    (folder / "manifest.json").write_text('{"commit": "0123abc", "device": "H2|00", "torch": "2"}')
    (folder / "episode-30.mp4").write_bytes(b"a film")
    header = "env_steps,agent_steps,updates,return_mean,return_std,episodes,wall_seconds,returns\n"
    (folder / "eval.csv").write_text(f"{header}10,10,1,2,1,2,0,1 3\n30,30,11,5,0,2,0,5 5\n")
    out = tmp_path / "out"
    assert main(["export", str(folder), "--card", "--out", str(out)]) == 0
    text = (out / "README.md").read_text()
    assert "| return | **5 [5, 5]** (2 episodes at 30 environment steps) |" in text
    assert "| 10 | 1 | 2 [1, 3] | 2 |\n| 30 | 11 | 5 [5, 5] | 2 |\n" in text
    assert f"| code | cclf {__version__}, commit 0123abc |" in text
    assert "| trained on | H2\\|00, torch 2 |" in text
    assert "| observes | frames of 20 x 20 pixels, frame stack 2, action repeat 1 |" in text
    assert (out / "replay.mp4").read_bytes() == b"a film"
    (folder / "final.csv").write_text(f"{header}30,30,11,7,1,2,0,6 8\n")
    assert main(["export", str(folder), "--card", "--out", str(out)]) == 0, "its own card"
    assert 'value: "7.00 +/- 1.00"' in (out / "README.md").read_text(), "the final evaluation"


def test_card_has_the_metadata_of_the_hub(shared):
    yaml = pytest.importorskip("yaml")
    _, front, _ = (shared["sac"] / "README.md").read_text().split("---\n", 2)
    facts = yaml.safe_load(front)
    assert (facts["library_name"], facts["pipeline_tag"]) == ("cclf", "reinforcement-learning")
    assert {"reinforcement-learning", "cclf", "sac", "toy", "reach-1d"} <= set(facts["tags"])
    (result,) = facts["model-index"][0]["results"]
    assert result["dataset"]["name"] == "toy/reach-1d"
    assert re.fullmatch(r"-?\d+\.\d\d \+/- \d+\.\d\d", result["metrics"][0]["value"])


def test_card_of_a_run_that_imports_a_module_names_the_module(monkeypatch):
    monkeypatch.setattr(share, "train_command", lambda _: "cclf train")
    config = CONFIGS["sac"]
    own = replace(config.algorithm, encoder="planted:small", conv_filters=32)
    with_encoder = replace(config, algorithm=own)

    def card(config):
        rows = [share.CardEvaluation(1, 1, np.zeros(2))]
        return share.render_card(config, {"task": config.task}, rows)

    for text in map(card, (with_encoder, replace(config, task="gym/planted:Planted-v0"))):
        commands = re.findall("`cclf (evaluate|play|export) .( --trust-imports)?[` ]", text)
        assert [word for word, trust in commands if trust] == ["evaluate", "play", "export"]
        assert ", trust_imports=True" in text
        assert "imports the Python module `planted`, which is not in this folder" in text
        assert "no code" not in text
    assert "`cclf train --from config.json --trust-imports`" in card(with_encoder)
    plain = card(config)
    assert "loading them runs no code" in " ".join(plain.split())
    assert not re.search("trust.imports", plain)


def test_card_of_a_long_run_has_few_rows():
    rows = [share.CardEvaluation(step, step, np.zeros(2)) for step in range(125)]
    card = share.render_card(CONFIGS["sac"], {}, rows)
    steps = [int(step) for step in re.findall(r"^\| (\d+) \| \d+ \|", card, re.MULTILINE)]
    assert len(steps) <= 12
    assert steps[-1] == 124


def links_of(text):
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    inner = [one for token in tokens for one in token.children or []]
    return [one.content for one in inner if one.type in ("link_open", "image")]


HOSTILE = (
    "![](https://evil.example/t.png) [click](javascript:alert(1)) www.evil.example a@b.example"
)


def test_text_of_a_run_makes_no_link_in_its_card(folders, tmp_path):
    run_copy = tmp_path / "run"
    shutil.copytree(folders["sac"], run_copy)
    facts = dict.fromkeys(("commit", "device", "torch", "cclf"), HOSTILE)
    (run_copy / "manifest.json").write_text(json.dumps(facts | {"torch": "\ud800\n# x"}))
    assert main(["export", str(run_copy), "--card", "--out", str(tmp_path / "card")]) == 0
    text = (tmp_path / "card" / "README.md").read_text()
    assert links_of(text) == []
    assert "torch \\# x |" in text, "on the line of its fact"


@pytest.mark.parametrize(
    ("out", "name"),
    [("project", "README.md"), (".", "model.safetensors"), ("project", ".gitattributes")],
)
def test_card_leaves_a_folder_of_others_as_it_was(
    folders, tmp_path, monkeypatch, capsys, out, name
):
    project = tmp_path / out
    project.mkdir(exist_ok=True)
    (project / name).write_text("MY PROJECT")
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(folders["sac"]), "--card", "--out", out]) == 2
    assert re.fullmatch("cclf: cannot write .*: it holds files .*\n", capsys.readouterr().err)
    assert [path.name for path in project.iterdir()] == [name]
    assert (project / name).read_text() == "MY PROJECT"


def test_card_is_written_into_an_empty_folder_but_not_with_a_pipe_as_video(
    folders, tmp_path, capsys
):
    run_copy, out = tmp_path / "run", tmp_path / "out"
    shutil.copytree(folders["sac"], run_copy)
    os.mkfifo(run_copy / "episode-60.mp4")
    out.mkdir()
    assert main(["export", str(run_copy), "--card", "--out", str(out)]) == 2
    assert "episode-60.mp4: " in capsys.readouterr().err
    assert list(out.iterdir()) == []
    (run_copy / "episode-60.mp4").unlink()
    assert main(["export", str(run_copy), "--card", "--out", str(out)]) == 0


def test_card_that_cannot_be_written_is_one_line(folders, tmp_path, capsys):
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_text(json.dumps(CONFIGS["sac"].to_dict()))
    cases = [
        ([folders["sac"], "--out", folders["a2c"]], "it is a run folder"),
        (
            [folders["sac"], "--out", tmp_path / "policy.pt2"],
            "--card writes a folder, not the file",
        ),
        ([bare, "--out", tmp_path / "x"], "has no evaluation yet"),
    ]
    for words, line in cases:
        assert main(["export", "--card", *map(str, words)]) == 2
        said = capsys.readouterr().err
        assert line in said
        assert said.count("\n") == 1
    assert not (tmp_path / "x").exists()


DAMAGE = {
    "half of it": lambda data: data[:-4],
    "no weights": lambda _: b"",
    "no steps": lambda data: data.replace(b'"env_steps":"60"', b'"env_stops":"60"'),
    "another network": lambda _: save(
        {"actor.weight": torch.zeros(2)}, metadata={"env_steps": "60"}
    ),
}


def test_damaged_shared_weights_are_one_line(shared, tmp_path, capsys):
    shutil.copytree(shared["sac"], tmp_path, dirs_exist_ok=True)
    weights = tmp_path / "model.safetensors"
    data = weights.read_bytes()
    for damage in DAMAGE.values():
        weights.write_bytes(damage(data))
        assert main(["evaluate", str(tmp_path), "--device", "cpu"]) == 2
        assert capsys.readouterr().err.count("\n") == 1


# --- docs/usage.md

PAGE = (Path(__file__).parents[2] / "docs" / "usage.md").read_text()
CODE = dict(
    re.findall(r"^<!-- test: (\w+) -->\n```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
)


def run_page(folder, names, tmp_path, monkeypatch):
    """The names that the code of the page defines, executed in the folder of an exported policy."""
    out = tmp_path / ("policy.onnx" if "onnx" in names else "policy.pt2")
    export.export(folder, out)
    monkeypatch.chdir(tmp_path)
    found = {}
    for name in names:
        exec(compile(CODE[name], "usage.md", "exec"), found)
    return found


@pytest.mark.quick("pt2-drqv2")
@pytest.mark.parametrize("base", ["sac", "drqv2"])
@pytest.mark.parametrize("file", ["pt2", "onnx"])
def test_the_page_stacks_frames_and_scales_actions_as_the_run_does(
    folders, tmp_path, monkeypatch, base, file
):
    page = run_page(folders[base], [file, "control"], tmp_path, monkeypatch)
    agent = load(folders[base], device="cpu")
    random = np.random.default_rng(0)
    for step in range(8):
        is_first = step % 4 == 0  # two episodes, each longer than the stack
        frame = random.integers(0, 256, (3, 20, 20), dtype=np.uint8)
        if is_first:
            agent.reset()
        given = page["act"](frame, is_first, low=-2.0, high=6.0)
        assert given == pytest.approx(2.0 + 4.0 * agent.act(frame), abs=1e-4)


def test_the_page_plays_games_as_the_run_does(folders, tmp_path, monkeypatch):
    page = run_page(folders["rainbow"], ["pt2", "game"], tmp_path, monkeypatch)
    given, predict = [], page["predict"]
    page["predict"] = lambda stacks: given.append(stacks[0]) or predict(stacks)
    agent = load(folders["rainbow"], device="cpu")
    first, second = np.random.default_rng(0).integers(0, 256, (2, 1, 25, 25), dtype=np.uint8)
    for _ in range(2):  # episodes
        agent.reset()
        assert page["act"](first, True) == agent.act(first)
        assert page["act"](second, False) == agent.act(second)
        assert np.array_equal(given[-2], np.concatenate([np.zeros_like(first), first]))
        assert np.array_equal(given[-1], np.concatenate([first, second]))


def test_the_page_loads_a_shared_agent(folders, tmp_path, monkeypatch, capsys):
    share.write(folders["sac"], tmp_path / "agent")
    monkeypatch.chdir(tmp_path)
    exec(compile(CODE["shared"], "usage.md", "exec"), {})
    assert float(capsys.readouterr().out) == load(folders["sac"]).evaluate(2).mean
