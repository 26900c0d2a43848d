"""Agents by name: those of this package, and those of the Hugging Face Hub, which a local fake of
huggingface_hub replaces."""

import hashlib
import json
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cclf
from cclf import cli, share
from cclf.agents import FILES, PRETRAINED, find_agent
from tiny_runs import tiny_config

CARDS = {path.parent.name: json.loads(path.read_text()) for path in PRETRAINED.glob("*/card.json")}
TINY = tiny_config(method="rad", env_steps=30)


def refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    line = capsys.readouterr().err
    assert message in line
    assert line.count("\n") == 1


# --- pretrained


def test_pretrained_folders_are_small_and_match_their_checksums() -> None:
    assert len(CARDS) == len([*PRETRAINED.iterdir()]) >= 5
    assert sum(path.stat().st_size for path in PRETRAINED.rglob("*")) < 5_000_000
    page = (Path(__file__).parents[1] / "docs" / "usage.md").read_text()
    for name, card in CARDS.items():
        result = f"{card['return_mean']:.4g} ± {card['return_std']:.2g}"
        row = f"| `pretrained/{name}` | {card['method']} | {card['env_steps']:,} | {result} |"
        assert row in page
        files = {path.name for path in (PRETRAINED / name).iterdir()}
        assert files == {"card.json", *card["sha256"]} == {"card.json", *FILES[:2]}
        for file, sha256 in card["sha256"].items():
            content = (PRETRAINED / name / file).read_bytes()
            assert hashlib.sha256(content).hexdigest() == sha256, (name, file)


@pytest.mark.quick("DoorKey-6x6", "CartPole-v1")
@pytest.mark.parametrize("name", sorted(CARDS))
def test_pretrained_agent_reaches_the_return_of_its_card(name: str) -> None:
    card, agent = CARDS[name], cclf.load(f"pretrained/{name}", device="cpu")
    assert (agent.config.task, agent.config.method_name) == (card["task"], card["method"])
    assert agent.env_steps == card["env_steps"]
    returns = agent.evaluate(10, seed=card["seed"]).returns
    error = card["return_std"] / np.sqrt(len(returns))
    assert abs(np.mean(returns) - card["return_mean"]) < 4 * error + 1e-6


def test_commands_take_a_pretrained_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # where the video is written, not into the package
    assert cli.main(["play", "pretrained/DoorKey-6x6"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "episode.mp4"
    assert (tmp_path / "episode.mp4").stat().st_size > 1_000
    assert cli.main(["evaluate", "pretrained/DoorKey-6x6", "--episodes", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["return_mean"] > 0.5
    refused(["play", "pretrained/DorKey-6x6"], "did you mean pretrained/DoorKey-6x6?", capsys)
    refused(
        ["play", "pretrained/DoorKey-6x6", "--out", "a.avi"], "must end in .mp4 or .gif", capsys
    )


def test_inspect_of_an_exported_agent_asks_for_its_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", "pretrained/DoorKey-6x6"]) == 2
    assert "is an exported agent, which has no checkpoint" in capsys.readouterr().err


def test_a_folder_of_the_user_comes_before_the_pretrained_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = Path("pretrained/DoorKey-6x6")
    own.mkdir(parents=True)
    assert find_agent(own) == own


# --- the Hugging Face Hub


class Hub(types.SimpleNamespace):
    """The used part of huggingface_hub, with a local folder as the hub. Downloads are links, as in
    its cache."""

    def __init__(self, folder: Path):
        super().__init__(folder=folder, __spec__="found")

    def create_repo(self, repo_id: str, *, exist_ok: bool) -> None:
        (self.folder / repo_id).mkdir(parents=True, exist_ok=exist_ok)

    def upload_folder(self, *, repo_id: str, folder_path: str, commit_message: str) -> None:
        shutil.copytree(folder_path, self.folder / repo_id, dirs_exist_ok=True)
        self.message = commit_message

    def snapshot_download(
        self, repo_id: str, *, revision: str | None, allow_patterns: list[str]
    ) -> str:
        source = self.folder / repo_id
        if revision is not None or not source.exists():
            raise LookupError(f"404 Client Error.\n\nRepository {repo_id} {revision} Not Found")
        snapshot = self.folder / "cache" / repo_id
        snapshot.mkdir(parents=True, exist_ok=True)
        for path in source.iterdir():
            if path.name in allow_patterns:
                (snapshot / path.name).unlink(missing_ok=True)
                (snapshot / path.name).symlink_to(path)
        return str(snapshot)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    stand_in = Hub(tmp_path / "hub")
    monkeypatch.setitem(sys.modules, "huggingface_hub", stand_in)
    return stand_in


@pytest.fixture(scope="module")
def exported(trained: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exported") / "agent"
    share.write(trained(TINY), out)
    return out


@pytest.mark.parametrize("source", ["run folder", "exported agent"])
def test_a_pushed_agent_is_loaded_from_the_hub(
    source: str,
    hub: Hub,
    trained: Any,
    exported: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = trained(TINY) if source == "run folder" else exported
    assert cli.main(["push", str(folder), "hf:me/reach"]) == 0
    assert capsys.readouterr().out == "https://huggingface.co/me/reach\n"
    assert {path.name for path in (hub.folder / "me" / "reach").iterdir()} <= {*FILES}
    agent = cclf.load("hf:me/reach", device="cpu")
    assert agent.evaluate(2) == cclf.load(folder, device="cpu").evaluate(2)
    monkeypatch.chdir(hub.folder)  # where files are written, not into the cache of the hub
    assert cli.main(["play", "hf:me/reach"]) == 0
    assert capsys.readouterr().out.endswith("\nepisode.mp4\n")
    assert (hub.folder / "episode.mp4").exists()


def test_pickles_are_neither_pushed_nor_downloaded(
    hub: Hub, tmp_path: Path, exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(exported, tmp_path / "with-pickle")
    (folder / "agent.pkl").touch()
    refused(["push", str(folder), "hf:me/reach"], "agent.pkl, a pickle", capsys)
    assert not hub.folder.exists()
    hub.create_repo("me/pickled", exist_ok=True)
    (hub.folder / "me" / "pickled" / "agent.pkl").touch()
    refused(["evaluate", "hf:me/pickled"], "has no config.json and no model.safetensors", capsys)
    assert not [*(hub.folder / "cache").rglob("*.pkl")]


@pytest.mark.usefixtures("hub")
def test_hub_errors_are_one_line(
    tmp_path: Path,
    trained: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    refused(["play", "hf:me/nothing@v1"], "404 Client Error. Repository me/nothing v1", capsys)
    folder = str(trained(TINY))
    for wrong in ("me/reach", "hf:reach", "hf:../../reach", "hf:a/b/c"):
        refused(["push", folder, wrong], "must have the form hf:USER/NAME", capsys)
    refused(["push", str(tmp_path), "hf:me/reach"], "is not a run folder", capsys)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    refused(["push", folder, "hf:me/reach"], "pip install 'cclf[hub]'", capsys)
