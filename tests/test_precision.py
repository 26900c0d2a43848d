"""`precision=auto`: which precision a run gets, and that the same command resumes in it."""

from pathlib import Path

import pytest

from cclf import cli, presets
from cclf.algorithms.common.off_policy_base import PACKED_CHANNELS
from cclf.config import Config
from cclf.errors import ConfigError
from cclf.kernels.first_convolution import CHANNELS
from cclf.sweep.plan import make_run_spec, resolve_precision

CARTPOLE = presets.resolve("dmc/cartpole-swingup", "cclf")


def in_precision(config: Config, precision: str) -> Config:
    return presets.with_changes(config, {"precision": precision})


@pytest.mark.parametrize(
    ("config", "fast"),
    [
        (CARTPOLE, "bf16"),
        (presets.resolve("dmc/walker-walk", "sac-pixel"), "bf16"),
        (presets.resolve("dmc/finger-spin", base_name="drqv2"), "bf16"),
        (presets.resolve("gym/Pendulum-v1", "drq"), "bf16"),
        (presets.resolve("atari/Pong", "curl"), "tf32"),
        # not compared with float32, or not possible
        (presets.resolve("dmc/cartpole-swingup", size="small"), "fp32"),
        (presets.resolve("toy/reach"), "fp32"),
        (presets.resolve("gym/Pendulum-v1", observe="state"), "fp32"),
        (presets.with_changes(CARTPOLE, {"frame_stack": 6}), "fp32"),
        (presets.with_changes(CARTPOLE, {"encoder": "own_encoders:plain"}), "fp32"),
    ],
)
def test_auto_precision_is_the_fast_one_where_it_was_compared(config: Config, fast: str) -> None:
    assert config.resolve_precision(gpu=True).algorithm.precision == fast
    assert config.resolve_precision(gpu=False).algorithm.precision == "fp32"
    # named as before there was a choice
    assert config.run_name() == config.resolve_precision(gpu=False).run_name()
    assert (config.run_name() == config.resolve_precision(gpu=True).run_name()) == (fast == "fp32")


def test_chosen_precision_is_kept() -> None:
    for precision in ("fp32", "tf32", "bf16"):
        config = in_precision(CARTPOLE, precision)
        assert config.resolve_precision(gpu=True) is config.resolve_precision(gpu=False) is config
    grid = presets.resolve("minigrid/DoorKey-6x6")  # nothing to choose
    assert grid.resolve_precision(gpu=True) is grid


@pytest.mark.parametrize(
    ("begun", "gpu", "goes_on"),
    [
        ((), True, "bf16"),
        ((), False, "fp32"),
        (("fp32",), True, "fp32"),  # on a CPU, or before `auto` was known
        (("bf16",), False, "bf16"),
        (("fp32", "bf16"), True, "bf16"),
        (("fp32", "bf16"), False, "fp32"),
    ],
)
def test_run_resumes_in_the_precision_it_began_with(
    tmp_path: Path, begun: tuple[str, ...], gpu: bool, goes_on: str
) -> None:
    for precision in begun:
        (tmp_path / in_precision(CARTPOLE, precision).run_name()).mkdir(parents=True)
    asked = [CARTPOLE, presets.resolve("dmc/cartpole-swingup", "cclf", seed=2)]
    found = presets.resolve_precision(asked, tmp_path, gpu)
    assert [config.algorithm.precision for config in found] == [goes_on] * 2


def test_bf16_run_does_not_start_again_on_a_cpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / in_precision(CARTPOLE, "bf16").run_name()
    folder.mkdir(parents=True)
    words = ["dmc/cartpole-swingup", "--method", "cclf", "--device", "cpu", "--out", str(tmp_path)]
    assert cli.main(["train", *words]) == 2
    assert "precision=bf16 conflicts with device=cpu" in capsys.readouterr().err
    assert list(folder.parent.iterdir()) == [folder]
    assert not list(folder.iterdir())


def test_sweep_passes_the_precision_to_each_run(tmp_path: Path) -> None:
    named = in_precision(CARTPOLE, "tf32")
    grid = presets.resolve("minigrid/DoorKey-6x6")
    calls = [make_run_spec(config, tmp_path) for config in (CARTPOLE, named, grid)]
    found = resolve_precision(calls, gpus=True)
    assert [call.options[len(old.options) :] for call, old in zip(found, calls, strict=True)] == [
        ("--precision", "bf16"),
        (),
        (),
    ]
    assert found[0].folder == tmp_path / in_precision(CARTPOLE, "bf16").run_name()
    assert resolve_precision(calls, gpus=False)[0].options[-1] == "fp32"
    on_cpu = make_run_spec(presets.with_changes(CARTPOLE, {"device": "cpu"}), tmp_path)
    assert resolve_precision([on_cpu], gpus=True)[0].options[-1] == "fp32"


def test_sweep_resumes_in_one_precision(tmp_path: Path) -> None:
    """Claims compare runs of one precision."""
    seeds = [presets.resolve("dmc/cartpole-swingup", "cclf", seed=seed) for seed in (1, 2)]
    (tmp_path / in_precision(seeds[1], "fp32").run_name()).mkdir(parents=True)
    found = resolve_precision([make_run_spec(config, tmp_path) for config in seeds], gpus=True)
    assert [call.config.algorithm.precision for call in found] == ["fp32", "fp32"]


@pytest.mark.parametrize("changes", [{"frame_stack": 6}, {"crop_pixels": 82}])
def test_bf16_is_refused_for_shapes_its_kernels_do_not_support(changes: dict[str, int]) -> None:
    (name,) = changes
    with pytest.raises(ConfigError, match=f"precision=bf16 conflicts with {name}="):
        presets.with_changes(CARTPOLE, {"precision": "bf16", **changes})
    presets.with_changes(CARTPOLE, {"precision": "tf32", **changes})


def test_packed_channels_of_config_and_kernels_agree() -> None:
    assert PACKED_CHANNELS == CHANNELS
