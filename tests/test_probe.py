"""`cclf inspect --curiosity`: rank correlations by hand, and measures that a run was and was not trained
with."""

import json
from pathlib import Path

import numpy as np
import pytest

from cclf import cli
from cclf.algorithms.a2c import inspect as a2c_inspect
from cclf.algorithms.a2c.inspect import episode_steps, probe
from cclf.algorithms.registry import make_learner
from cclf.errors import ConfigError
from cclf.inspection.probe import rank_correlations
from cclf.types import Rollout
from test_absolute_curiosity import ENV_STEPS
from tiny_runs import CPU, tiny_config, tiny_options

TASK = "minigrid/DoorKey-5x5"


@pytest.fixture(autouse=True)
def short_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(a2c_inspect, "TRAINING_ROLLOUTS", 10)


def test_rank_correlations_are_means_over_batches() -> None:
    # Of ranks 0..4: with (0, 1, 2, 4, 3) 1 - 6 * 2 / (5 * 24) = 0.9, reversed -0.9; a constant has none.
    up, nearly = np.arange(5.0), np.array([0.0, 1.0, 2.0, 4.0, 3.0])
    curiosity = {"c": [up, up, up]}
    quantities = {"q": [nearly, nearly, np.zeros(5)], "r": [nearly, -nearly, up]}
    found = rank_correlations(curiosity, quantities)["c"]
    assert found["q"] == pytest.approx((0.9, 0.9, 0.9, 2))
    assert found["r"].rank == pytest.approx(1.0 / 3.0)
    assert found["r"].low == pytest.approx(-0.9)
    assert found["r"].high == pytest.approx(1.0)
    assert rank_correlations({"c": [np.zeros(5)]}, {"q": [up]})["c"]["q"].batches == 0


def test_episode_steps_are_unknown_until_an_episode_ends() -> None:
    ended = np.array([[False, True], [False, False], [True, False], [False, False]])
    unused = np.zeros(0)
    rollouts = [Rollout(unused, unused, unused, part) for part in (ended[:2], ended[2:])]
    expected = [[np.nan, np.nan], [np.nan, 0], [np.nan, 1], [0, 2]]
    np.testing.assert_array_equal(episode_steps(rollouts), np.ravel(expected))


def test_forward_ranks_as_its_error_and_rarity_as_the_number_of_sightings() -> None:
    config = tiny_config(TASK, "a2c+rnd")
    learner = make_learner(config, CPU)
    for number in range(5):
        learner.step(number * 16)
    curiosity, found = probe(
        config, learner, ["rnd", "forward"], ["rarity", "error", "td", "step"], 6, ENV_STEPS
    )
    assert {name: len(values) for name, values in found.items()} == dict.fromkeys(found, 6)
    assert rank_correlations(curiosity, found)["forward"]["error"].rank > 0.999
    sightings = -np.concatenate(found["rarity"])
    assert sightings.min() >= 1.0
    assert (1.0 / sightings).sum() == pytest.approx(round((1.0 / sightings).sum()))
    rnd = np.concatenate(curiosity["rnd"])
    assert 0.0 <= rnd.min() < rnd.max() <= 1.0


def test_measures_of_the_contrastive_loss_need_a_run_with_one() -> None:
    config = tiny_config(TASK, "cclf-shuffled")
    learner = make_learner(config, CPU)
    curiosity, _ = probe(config, learner, ["belief", "absolute", "rnd"], ["rarity"], 2, ENV_STEPS)
    assert list(curiosity) == ["belief", "absolute", "rnd"]
    plain = tiny_config(TASK, "a2c")
    with pytest.raises(ConfigError, match="--curiosity belief conflicts with a2c"):
        probe(plain, make_learner(plain, CPU), ["belief"], ["rarity"], 2, ENV_STEPS)


def test_the_command_prints_a_table_of_any_run_of_a2c(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--env-steps", "256", "--eval-every-env-steps", "128", "--eval-episodes", "2"]
    words += ["--no-video", "--no-tensorboard", "--threads", "1", "--out", str(tmp_path)]
    assert cli.main(["train", TASK, "--method", "a2c", *words]) == 0
    capsys.readouterr()
    run = ["inspect", str(tmp_path), "--samples", "512", "--curiosity", "rnd", "forward"]
    assert cli.main([*run, "--follow", "rarity", "step", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {name: list(line) for name, line in found.items()} == {
        name: ["rarity", "step"] for name in ("rnd", "forward")
    }
    assert found["rnd"]["rarity"]["batches"] == 4
    assert cli.main(run) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("rnd", "forward", "rarity", "error", "td"))
    assert cli.main([*run[:-2], "shuffled"]) == 2
    assert "--curiosity shuffled is unknown" in capsys.readouterr().err


def test_other_algorithms_refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tiny_config("toy/reach-1d", "cclf")
    words = ["--env-steps", "30", "--eval-every-env-steps", "30", "--out", str(tmp_path)]
    assert cli.main(["train", *tiny_options(config), *words]) == 0
    capsys.readouterr()
    assert cli.main(["inspect", str(tmp_path), "--curiosity", "rnd"]) == 2
    assert "--curiosity conflicts with sac" in capsys.readouterr().err
