"""`cclf compare`: paired differences by hand, the plan of its runs, and a comparison of tiny runs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cclf import cli
from cclf.analysis import paired
from cclf.analysis.paired import Arm, detectable_difference, holm, sign_flip_p
from cclf.commands.compare import CompareOptions, plan_pairs
from cclf.commands.sweep import MachineOptions
from cclf.errors import ConfigError

TASK, OTHER = "minigrid/DoorKey-5x5", "minigrid/Empty-5x5"
TINY = [
    *("--env-steps", "256", "--eval-every-env-steps", "128", "--eval-episodes", "2"),
    *("--no-tensorboard", "--no-video", "--threads", "1"),
]


def options(out: Path, **changes: Any) -> CompareOptions:
    return replace(
        CompareOptions((TASK, OTHER), MachineOptions(), "a2c+rnd", seeds=3, out=out), **changes
    )


def write_run(folder: Path, seed: int, returns: list[float], method: str = "a2c") -> Path:
    """A run that was evaluated every 100 env steps of 300."""
    folder.mkdir(parents=True)
    config = {
        "task": TASK, "base": "a2c", "method_name": method, "seed": seed, "profile": "released",
        "env": {"action_repeat": 1}, "method": {}, "algorithm": {}, "run": {"env_steps": 300},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    columns = "env_steps,agent_steps,updates,return_mean,return_std,episodes,wall_seconds"
    steps = range(100, 100 * len(returns) + 1, 100)
    lines = [f"{n},{n},{n},{value},0.0,2,1.0" for n, value in zip(steps, returns, strict=True)]
    (folder / "eval.csv").write_text("\n".join([columns, *lines, ""]))
    return folder


def arms(tmp_path: Path, ours: dict[int, list[float]], theirs: dict[int, list[float]]) -> Any:
    return {
        TASK: tuple(
            Arm(name, {seed: write_run(tmp_path / name / str(seed), seed, returns)
                       for seed, returns in runs.items()})
            for name, runs in (("ours", ours), ("theirs", theirs))
        )
    }  # fmt: skip


def test_paired_difference_by_hand(tmp_path: Path) -> None:
    # Means over training 0.3 and 0.6 against 0.2 and 0.3: differences 0.1 and 0.3, mean 0.2,
    # s = 0.1414; 2.8016 s / sqrt(2) = 0.28016. Of the four ways to flip the signs, two are as far.
    ours = {1: [0.0, 0.3, 0.6], 2: [0.6, 0.6, 0.6]}
    theirs = {1: [0.1, 0.2, 0.3], 2: [0.0, 0.0, 0.9]}
    (found,) = paired.compare(arms(tmp_path, ours, theirs), {TASK: 300})
    assert found.seeds == (1, 2)
    assert found.method_returns == pytest.approx((0.3, 0.6))
    assert found.against_returns == pytest.approx((0.2, 0.3))
    assert found.difference == pytest.approx(0.2)
    assert (found.low, found.high) == pytest.approx((0.1, 0.3))
    assert found.detectable == pytest.approx(0.28016, abs=1e-4)
    assert found.p == found.p_holm == 0.5


def test_a_pair_counts_when_both_have_finished_and_a_failed_run_has_the_lowest_return(
    tmp_path: Path,
) -> None:
    ours = {1: [0.5] * 3, 2: [0.5] * 3, 3: [0.5] * 3, 4: [0.5] * 2}
    theirs = {1: [0.1] * 3, 2: [0.2] * 3, 3: [0.4], 4: [0.1] * 3}
    given = arms(tmp_path, ours, theirs)
    (tmp_path / "theirs" / "3" / "failed.json").write_text("{}")
    (found,) = paired.compare(given, {TASK: 300})
    assert found.seeds == (1, 2, 3)
    assert found.against_returns == pytest.approx((0.1, 0.2, 0.1))


def test_evaluations_beyond_the_budget_do_not_count(tmp_path: Path) -> None:
    given = arms(tmp_path, {1: [0.5] * 3, 2: [0.5] * 3}, {1: [0.1, 0.1, 0.1, 0.9], 2: [0.1] * 3})
    (found,) = paired.compare(given, {TASK: 300})
    assert found.against_returns == pytest.approx((0.1, 0.1))


def test_one_pair_is_no_comparison_and_other_steps_are_refused(tmp_path: Path) -> None:
    assert paired.compare(arms(tmp_path / "a", {1: [0.5] * 3}, {1: [0.1] * 3}), {TASK: 300}) == []
    given = arms(tmp_path / "b", {1: [0.5] * 3, 2: [0.5] * 3}, {1: [0.1] * 3, 2: [0.1] * 3})
    other = given[TASK][1].folders[2] / "eval.csv"
    other.write_text(other.read_text().replace("\n100,100", "\n50,50"))
    with pytest.raises(ConfigError, match="evaluated at different steps"):
        paired.compare(given, {TASK: 300})


def test_p_value_is_small_for_a_clear_difference_and_large_for_none() -> None:
    random = np.random.default_rng(0)
    noise = random.normal(size=20)
    assert sign_flip_p(noise + 3.0) < 1e-4
    assert sign_flip_p(noise - noise.mean()) == 1.0
    assert 0.02 < np.mean([sign_flip_p(random.normal(size=8)) <= 0.05 for _ in range(400)]) < 0.08


def test_eighty_percent_of_experiments_detect_the_detectable_difference() -> None:
    random = np.random.default_rng(0)
    effect = detectable_difference(random.normal(size=100_000)) * np.sqrt(100_000 / 12)
    found = [sign_flip_p(random.normal(size=12) + effect) <= 0.05 for _ in range(200)]
    assert 0.65 < np.mean(found) < 0.88


def test_holm_multiplies_the_smallest_most() -> None:
    assert holm([0.2, 0.01, 0.02]) == pytest.approx([0.2, 0.03, 0.04])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


# The plan


def test_arms_are_interleaved_seed_by_seed(tmp_path: Path) -> None:
    planned = plan_pairs(options(tmp_path, first_seed=7), [])
    assert [(spec.config.seed, spec.config.method_name) for spec in planned[::2]] == [
        (seed, "a2c+rnd") for seed in (7, 7, 8, 8, 9, 9)
    ]
    assert [spec.config.method_name for spec in planned[1::2]] == ["a2c+rnd-shuffled"] * 6
    for one, other in zip(planned[::2], planned[1::2], strict=True):
        assert (one.config.task, one.config.seed) == (other.config.task, other.config.seed)
    assert {spec.config.task for spec in planned} == {TASK, OTHER}


@pytest.mark.parametrize(
    ("method", "against", "extra", "name", "curiosity"),
    [
        ("a2c+rnd", "shuffled", [], "a2c+rnd-shuffled", "rnd-shuffled"),
        ("cclf", "even", [], "cclf-even", "even"),
        ("a2c+forward", "even", [], "a2c+forward", "forward-even"),
        ("a2c+rnd", "re3", [], "re3", "belief"),
        ("cclf", "shuffled", ["--curiosity", "a:B"], "cclf", "a:B-shuffled"),
        ("cclf", "shuffled", ["--curiosity=absolute"], "cclf", "absolute-shuffled"),
    ],
)
def test_against_is_a_control_of_the_own_curiosity_or_another_method(
    tmp_path: Path, method: str, against: str, extra: list[str], name: str, curiosity: str
) -> None:
    planned = plan_pairs(options(tmp_path, method=method, against=against), extra)
    ours, theirs = planned[::2], planned[1::2]
    assert {spec.config.method_name for spec in ours} == {method}
    assert {spec.config.method_name for spec in theirs} == {name}
    assert {spec.config.method.curiosity for spec in theirs} == {curiosity}


@pytest.mark.parametrize(
    ("method", "against", "message"),
    [
        ("a2c", "shuffled", "--against shuffled conflicts with a2c, which has no curiosity"),
        ("cclf-shuffled", "even", "--against even conflicts with cclf-shuffled"),
        ("re3", "re3", "re3 is compared with itself"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    tmp_path: Path, method: str, against: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_pairs(options(tmp_path, method=method, against=against), [])


def test_compare_prints_and_draws_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", TASK, "--method", "a2c+rnd", "--seeds", "2", "--out", str(tmp_path)]
    for method in ("a2c+rnd", "a2c+rnd-shuffled"):  # trained in this process
        for seed in ("1", "2"):
            run = [TASK, "--method", method, "--seed", seed, "--out", str(tmp_path)]
            assert cli.main(["train", *run, *TINY]) == 0
    capsys.readouterr()
    assert cli.main([*words, "--json", "--", *TINY]) == 0
    shown = json.loads(capsys.readouterr().out)
    (comparison,) = shown["comparisons"]
    assert comparison["seeds"] == [1, 2]
    assert comparison["against"] == "a2c+rnd-shuffled"
    figure = tmp_path / "compare-a2c+rnd-shuffled.svg"
    assert shown["figure"] == str(figure)
    drawing = figure.read_text()
    assert cli.main([*words, "--", *TINY]) == 0  # the second command trains nothing
    out = capsys.readouterr().out
    assert "a2c+rnd − a2c+rnd-shuffled" in out
    assert "DoorKey-5x5" in out
    assert figure.read_text() == drawing
