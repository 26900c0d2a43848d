"""Missing packages: reported before the work begins, and never an error at the end of a run."""

import re
import sys
from pathlib import Path

import pytest

from cclf.algorithms import registry
from cclf.doctor import diagnose
from cclf.envs.minigrid import VectorMiniGrid
from cclf.errors import EXTRAS, missing_packages
from cclf.storage.loggers import make_loggers
from cclf.training import video
from faulty_envs import REACH
from healthy_machine import healthy
from test_cli import assert_refused, cclf, contents
from tiny_runs import rows, tiny_config, tiny_options

SAC = tiny_config(env_steps=30, video=True)
GRIDS = tiny_config(
    "minigrid/Empty-16x16", "re3+cclf", env_steps=32, eval_every_env_steps=32, video=True
)


def train(out, config):
    return cclf("train", *tiny_options(config), "--out", out)


def hide(monkeypatch, *modules):
    """As if they were not installed: neither found nor imported."""
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)


def test_extras_are_those_of_pyproject():
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    for extra, modules in EXTRAS.items():
        line = re.search(rf"^{extra} = (.*)$", text, re.MULTILINE)[1]
        assert all(module.replace("_", "-") in line for module in modules), extra


@pytest.mark.quick("config0-imageio-video", "config3-tensorboard-tensorboard")
@pytest.mark.parametrize(
    ("config", "module", "extra"),
    [
        (SAC, "imageio", "video"),
        (SAC, "imageio_ffmpeg", "video"),
        (GRIDS, "minigrid", "minigrid"),
        (tiny_config(env_steps=30, tensorboard=True), "tensorboard", "tensorboard"),
    ],
)
def test_run_without_a_package_begins_with_a_warning(tmp_path, monkeypatch, config, module, extra):
    hide(monkeypatch, module)
    code, out, err = train(tmp_path, config)
    folder = tmp_path / config.run_name()
    assert (code, out) == (0, f"{folder}\n"), err
    name = "TensorBoard" if extra == "tensorboard" else "video"
    warning = f"cclf: warning: no {name}, it needs {module}: pip install 'cclf[{extra}]'"
    assert err.splitlines()[0] == warning
    assert not list(folder.glob("*.mp4"))
    assert not (folder / "tensorboard").exists()
    assert len(rows(folder / "eval.csv")) == 1


def raising(error):
    def fail(*_, **__):
        raise error

    return fail


BROKEN = TypeError("TiffWriter.write() got an unexpected keyword argument 'fps'")


@pytest.mark.quick("config0-cclf.training.video-write_video", "config1-Reach-render")
@pytest.mark.parametrize(
    ("config", "owner", "name"),
    [
        (SAC, video, "write_video"),
        (SAC, type(REACH()), "render"),
        (GRIDS, VectorMiniGrid, "render"),
    ],
)
def test_failed_video_is_a_warning(tmp_path, monkeypatch, config, owner, name):
    monkeypatch.setattr(owner, name, raising(BROKEN))
    code, out, err = train(tmp_path, config)
    folder = tmp_path / config.run_name()
    assert (code, out) == (0, f"{folder}\n"), err
    assert [
        line for line in err.splitlines() if "warning: no video" in line and str(BROKEN) in line
    ]
    assert "Traceback" not in err
    assert not list(folder.glob("*.mp4"))
    assert "finished before" in train(tmp_path, config)[2]


def test_incomplete_video_is_removed(tmp_path, monkeypatch):
    def half(path, _):
        Path(path).write_bytes(b"half")
        raise BROKEN

    monkeypatch.setattr(video, "write_video", half)
    assert train(tmp_path, SAC)[0] == 0
    assert not list((tmp_path / SAC.run_name()).glob("*.mp4"))


@pytest.mark.parametrize(
    ("words", "module", "extra"),
    [
        (["demo", "--out", "OUT"], "matplotlib", "report"),
        (["demo", "--out", "OUT"], "minigrid", "minigrid"),
        (["plot", "RUN", "--out", "OUT.svg"], "matplotlib", "report"),
        (["report", "RUN", "--out", "OUT.html"], "matplotlib", "report"),
        (["reproduce", "minigrid", "--budget", "small", "--out", "OUT"], "matplotlib", "report"),
        (["inspect", "RUN", "--out", "OUT.html"], "matplotlib", "report"),
        (["inspect", "RUN", "--out", "OUT.html"], "minigrid", "minigrid"),
        (["play", "RUN", "--out", "OUT.mp4"], "imageio_ffmpeg", "video"),
        (["play", "RUN", "--out", "OUT.mp4"], "minigrid", "minigrid"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else value,
)
def test_command_without_its_package_fails_before_it_begins(
    grid_run, tmp_path, monkeypatch, words, module, extra
):
    hide(monkeypatch, module)
    monkeypatch.setattr(registry, "make_agent", raising(AssertionError("it has begun")))
    places = {"RUN": str(grid_run), "OUT": str(tmp_path / "out")}
    words = [re.sub("RUN|OUT", lambda found: places[found[0]], word) for word in words]
    assert_refused(cclf(*words), f"needs {module}", f"pip install 'cclf[{extra}]'")
    assert contents(tmp_path) == {}


@pytest.fixture(scope="module")
def grid_run(trained):
    return trained(
        tiny_config("minigrid/Empty-16x16", "re3+cclf", env_steps=32, eval_every_env_steps=32)
    )


def test_doctor_names_missing_modules_and_their_extra(monkeypatch):
    hide(monkeypatch, "imageio_ffmpeg", "matplotlib")
    missing = missing_packages(("video", "report", "tensorboard"))
    findings = {finding.name: finding for finding in diagnose(healthy(missing_extras=missing))}
    install = "imageio_ffmpeg, matplotlib: pip install 'cclf[video,report]'"
    assert findings["extras"].value == f"not installed: {install}"
    assert findings["extras"].status == "note"


def test_tensorboard_that_cannot_be_imported_is_a_warning(tmp_path, monkeypatch, capsys):
    hide(monkeypatch, "torch.utils.tensorboard")
    assert make_loggers(tiny_config(tensorboard=True), tmp_path, 0) == []
    assert capsys.readouterr().err.startswith("cclf: warning: no TensorBoard: ")
