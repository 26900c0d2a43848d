import numpy as np

from cclf.analysis.statistics import mean_interval, steps_to_threshold


def test_interval_covers_the_mean_of_many_samples_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(1)
    hits = 0
    for trial in range(200):
        interval = mean_interval(random.normal(3.0, 1.0, (30, 1)), resamples=400, seed=trial)
        hits += bool(interval.low[0] <= 3.0 <= interval.high[0])
    assert 0.88 <= hits / 200 <= 0.99


def test_interval_is_per_column_and_narrows_with_runs() -> None:
    random = np.random.default_rng(2)
    few, many = (mean_interval(random.normal(0.0, 1.0, (runs, 2))) for runs in (5, 500))
    assert few.estimate.shape == (2,)
    assert (many.high - many.low < few.high - few.low).all()


def test_steps_to_threshold_is_the_first_reading_or_never() -> None:
    steps = np.array([100, 200, 300])
    assert steps_to_threshold(steps, np.array([0.0, 0.9, 0.5]), 0.9) == 200
    assert steps_to_threshold(steps, np.array([0.0, 0.1, 0.5]), 0.9) == float("inf")
