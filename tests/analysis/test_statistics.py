"""Estimators equal those of rliable on shared inputs; the doctests of the module compute them by
hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from cclf.analysis import statistics
from cclf.analysis.statistics import mean_interval

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "rliable.json").read_text())
X, Y = np.array(GOLDEN["x"]), np.array(GOLDEN["y"])
MONTE_CARLO = 0.006  # two bootstraps of 50,000 resamples each: intervals here are 0.28 to 0.46 wide


def assert_interval_equals(
    ours: statistics.Interval, theirs: dict[str, object], ends: float = MONTE_CARLO
) -> None:
    np.testing.assert_allclose(ours.estimate, np.asarray(theirs["estimate"]), rtol=0, atol=1e-12)
    np.testing.assert_allclose(ours.low, np.asarray(theirs["low"]), rtol=0, atol=ends)
    np.testing.assert_allclose(ours.high, np.asarray(theirs["high"]), rtol=0, atol=ends)


@pytest.mark.parametrize("name", ["mean", "median", "iqm", "optimality_gap"])
def test_estimates_and_intervals_equal_rliables(name: str) -> None:
    assert_interval_equals(
        statistics.interval(X, getattr(statistics, name), resamples=50_000), GOLDEN[name]
    )


def test_probability_of_improvement_equals_rliables() -> None:
    assert_interval_equals(
        statistics.bootstrap_statistic(
            [X, Y], statistics.probability_of_improvement, resamples=50_000
        ),
        GOLDEN["probability_of_improvement"],
    )


def test_performance_profile_equals_rliables() -> None:
    """Fractions of 30 runs are multiples of 1/30, so the edges of the band from two bootstraps are
    equal or differ by one run."""
    ours = statistics.performance_profile(X, np.array(GOLDEN["thresholds"]), resamples=50_000)
    assert_interval_equals(ours, GOLDEN["performance_profile"], ends=1 / 30 + 1e-9)


def test_runs_are_resampled_within_their_task() -> None:
    """With joint resampling the mean of the second task would be ten times that of the first."""
    scores = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
    drawn = []
    statistics.interval(scores, lambda part: drawn.append(part) or statistics.mean(part))
    draws = drawn[0]
    assert draws.shape == (statistics.RESAMPLES, 3, 2)
    assert set(draws[..., 0].ravel()) == {1.0, 2.0, 3.0}
    assert set(draws[..., 1].ravel()) == {10.0, 20.0, 30.0}
    assert (draws[..., 1] != 10 * draws[..., 0]).any(), "tasks must not be resampled jointly"


def ratio_of_means(x: np.ndarray, y: np.ndarray) -> statistics.Interval:
    return statistics.bootstrap_statistic(
        [x, y], lambda parts: statistics.mean(parts[0]) / statistics.mean(parts[1])
    )


def test_methods_are_resampled_independently() -> None:
    x = np.array([[1.0], [3.0]])
    ratio = ratio_of_means(x, x)
    assert (float(ratio.estimate), float(ratio.low), float(ratio.high)) == pytest.approx(
        (1.0, 1 / 3, 3.0)
    )


def test_undefined_ratio_makes_the_interval_infinite() -> None:
    """Some resamples give 0 / 0, where the ratio could be anything. Two methods that never reach a
    return are such a case."""
    zero_or_one = np.array([[0.0], [1.0]])
    ratio = ratio_of_means(zero_or_one, zero_or_one)
    assert (float(ratio.low), float(ratio.high)) == (-np.inf, np.inf)


def test_interval_covers_the_mean_of_many_samples_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(1)
    hits = 0
    for trial in range(200):
        interval = mean_interval(random.normal(3.0, 1.0, (30, 1)), resamples=400, seed=trial)
        hits += bool(interval.low[0] <= 3.0 <= interval.high[0])
    assert 0.88 <= hits / 200 <= 0.99


def test_one_run_on_several_tasks_has_an_interval_over_tasks_that_methods_share() -> None:
    x, y = np.array([[0.0, 1.0, 100.0]]), np.array([[0.5, 1.5, 100.5]])
    alone = statistics.interval(x, statistics.mean)
    assert (float(alone.low), float(alone.high)) == (0.0, 100.0), (
        "all three draws may be the same task: 1 in 27 each"
    )
    gap = statistics.bootstrap_statistic(
        [x, y], lambda parts: statistics.mean(parts[1]) - statistics.mean(parts[0])
    )
    assert (float(gap.low), float(gap.high)) == pytest.approx((0.5, 0.5)), "the same tasks for both"
    better = statistics.bootstrap_statistic([y, x], statistics.probability_of_improvement)
    assert (float(better.low), float(better.high)) == (1.0, 1.0)
    band = statistics.performance_profile(x, np.array([0.5]))
    assert (float(band.low[0]), float(band.high[0])) == (0.0, 1.0)
