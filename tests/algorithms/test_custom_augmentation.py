"""A user-defined augmentation in SAC and DrQ-v2: a function of views that are already cropped or
shifted."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cclf import cli
from cclf.algorithms.common.pixel_actor_critic import PixelActorCritic
from cclf.algorithms.registry import make_learner
from cclf.algorithms.sac.sac import SAC
from cclf.config import Config
from cclf.storage.run_folder import read_checkpoint
from tiny_runs import CPU, differing, run, tables, tiny_config, tiny_options

MODULE = '''
import torch

def brightness(images, generator):
    """Each view with its own brightness, from a half to one and a half."""
    factor = 0.5 + torch.rand(len(images), 1, 1, 1, generator=generator, device=images.device)
    return (images.float() * factor).clamp(0, 255).to(images.dtype)

def unchanged(images, generator):
    return images

def in_place(images, generator):
    return images.fill_(7)

def smaller(images, generator):
    return images[:, :, 1:, 1:]

def scaled(images, generator):
    return images / 255

def without_generator(images, generator):
    return torch.rand(images.shape).mul(255).to(images.dtype)

def failing(images, generator):
    raise RuntimeError("no such filter")

def nothing(images, generator):
    pass

number = 3
'''
METHODS = {"sac": "cclf", "drqv2": "drq-v2+cclf"}
both = pytest.mark.parametrize("base", list(METHODS))


@pytest.fixture(autouse=True)
def user_module(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.mktemp("code")
    (folder / "my_views.py").write_text(MODULE)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "my_views", raising=False)


def config_with(augmentation: str, base: str = "sac", **more: object) -> Config:
    config = tiny_config(method=METHODS[base], base=base, **more)
    name = augmentation and f"my_views:{augmentation}"
    method = replace(config.method, augmentation=name or config.method.augmentation)
    return replace(config, method=method)


@both
def test_views_equal_the_output_of_the_augmentation(base: str) -> None:
    learners = [make_learner(config_with(name, base), CPU) for name in ("", "in_place")]
    for env_steps in range(12):
        for learner in learners:
            learner.step(env_steps)
    plain, filled = (learner.algorithm for learner in learners)
    assert isinstance(filled, PixelActorCritic)
    batch, noise = learners[1].draw()
    before = batch.observation.clone()
    views = filled.observations.views(batch, noise).materialize()
    assert views.shape == plain.observations.views(batch, noise).materialize().shape
    assert (views == 7).all()
    assert torch.equal(batch.observation, before), "the replay's frames stay as they are"


@pytest.mark.quick("sac")
@both
def test_unchanged_views_learn_as_the_built_in_augmentation(base: str) -> None:
    """The function sees the same crops or shifts, and rows keep their order."""
    learners = [make_learner(config_with(name, base), CPU) for name in ("", "unchanged")]
    for env_steps in range(40):
        for learner in learners:
            learner.step(env_steps)
    states = [learner.algorithm.state_dict() for learner in learners]
    assert learners[0].updates > 5
    assert differing(*states) == []


@pytest.mark.quick("sac")
@both
def test_augmentation_changes_a_run_that_resumes_exactly(base: str, tmp_path: Path) -> None:
    plain, own = config_with("", base), config_with("brightness", base)
    assert plain.run_name() != own.run_name()
    assert own.imported_modules == {"augmentation": "my_views"}
    assert run(plain, tmp_path / "plain")[1]
    assert run(own, tmp_path / "whole")[1]
    assert not run(own, tmp_path / "parts", stop_at=35)[1]
    assert run(own, tmp_path / "parts")[1]
    assert tables(tmp_path / "whole") == tables(tmp_path / "parts")
    assert tables(tmp_path / "whole") != tables(tmp_path / "plain")
    states = [read_checkpoint(tmp_path / name)["learner"] for name in ("whole", "parts")]
    assert differing(*states) == []


def test_bfloat16_kernels_see_the_augmented_views() -> None:
    config = config_with("brightness")
    learner = make_learner(config, CPU)
    for env_steps in range(12):
        learner.step(env_steps)
    batch, noise = learner.draw()
    assert noise.generator is not None
    state, features = noise.generator.get_state(), list[Tensor]()
    for precision in ("fp32", "bf16"):
        noise.generator.set_state(state)
        settings = replace(config.algorithm, precision=precision)
        algorithm = SAC(replace(config, algorithm=settings), batch.action.shape[1], CPU)
        views = algorithm.observations.views(batch, noise)
        features.append(algorithm.critic.encoder(views))
    plain, fast = features
    torch.testing.assert_close(fast, plain, rtol=0.0, atol=0.05)


def train(augmentation: str, out: Path, *words: str, base: str = "sac") -> int:
    options = tiny_options(tiny_config("toy/reach-1d", METHODS[base], base=base))
    return cli.main(["train", *options, "--augmentation", augmentation, "--out", str(out), *words])


@pytest.mark.parametrize(
    ("augmentation", "line"),
    [
        ("brightnes", "augmentation=brightnes is unknown: use one of random-crop, centre-crop"),
        ("random-crob", "did you mean random-crop?"),
        ("my_views.py:brightness", "not the path of a file: e.g. my_views:brightness"),
        ("no_such_module:f", "finds no module 'no_such_module'"),
        ("my_views:bright", "has no bright; did you mean brightness?"),
        ("my_views:number", "is not a function but int"),
        ("my_views:nothing", "returns no torch.Tensor but NoneType"),
        ("my_views:smaller", "it must return the same type and shape"),
        ("my_views:scaled", "returns torch.float32 of shape"),
        ("my_views:without_generator", "draw all its random numbers from the generator"),
        ("my_views:failing", "failed: RuntimeError: no such filter"),
    ],
)
def test_invalid_augmentations_are_rejected_in_one_line(
    augmentation: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(augmentation, tmp_path) == 2
    said = capsys.readouterr().err.splitlines()
    assert line in said[-1]
    assert said[-1].startswith("cclf: ")
    assert not list(tmp_path.rglob("config.json"))


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (
            ("minigrid/DoorKey-6x6", "--method", "a2c"),
            "my_views:brightness conflicts with A2C on grids",
        ),
        (("toy/catch",), "my_views:brightness conflicts with Rainbow"),
        (("gym/Pendulum-v1", "--observe", "state"), "conflicts with SAC on observe=state"),
    ],
)
def test_algorithms_without_image_views_reject_an_augmentation(
    names: tuple[str, ...], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("gymnasium")
    words = ["train", *names, "--augmentation", "my_views:brightness", "--out", str(tmp_path)]
    assert cli.main(words) == 2
    assert line in capsys.readouterr().err.splitlines()[-1]
