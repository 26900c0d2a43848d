"""RE3's bonus: by hand, and compared with the published computation, which keeps duplicate
observations."""

import numpy as np
import pytest
import torch

from cclf.algorithms.a2c.networks import GridEncoder, grid_windows
from cclf.algorithms.a2c.re3 import RunningVariance, StateEntropyBonus


def grids(*values: int) -> np.ndarray:
    """Flat observations that differ in one number each."""
    observation = np.zeros((len(values), 147), np.uint8)
    observation[:, 73] = values
    return observation


class Published:
    """The published computation: add the batch to the window, then average the five smallest distances
    to all observations in it."""

    def __init__(self, encoder: GridEncoder, capacity: int):
        self.encoder, self.capacity, self.window = encoder, capacity, np.zeros((0, 64))

    def distances(self, observation: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            features = (
                self.encoder(torch.from_numpy(grid_windows(observation.reshape(-1, 7, 7, 3))))
                .numpy()
                .astype(np.float64)
            )
        self.window = np.concatenate([self.window, features])[-self.capacity :]
        all_distances = np.linalg.norm(features[:, None] - self.window[None], axis=2)
        return np.sort(all_distances, axis=1)[:, :5].mean(axis=1)


def test_observation_that_is_in_the_window_five_times_has_distance_zero_exactly() -> None:
    entropy = StateEntropyBonus(window_observations=100, running_mean_bug=True)
    rows = entropy._insert(grids(7, 7, 7, 7, 7, 9))
    distances = entropy._distances(rows)
    assert (distances[:5] == 0.0).all()
    assert distances[5] > 0.0


@pytest.mark.parametrize("window", [40, 1_000])
def test_distances_are_the_published_ones_before_and_after_the_window_is_full(window: int) -> None:
    random = np.random.default_rng(3)
    torch.manual_seed(3)
    entropy = StateEntropyBonus(window, running_mean_bug=True)
    published = Published(entropy.encoder, window)
    for _ in range(25):
        batch = grids(*random.geometric(0.15, size=16).clip(max=40))
        batch[:, 10] = random.integers(0, 2, 16)
        np.testing.assert_allclose(
            entropy._distances(entropy._insert(batch)), published.distances(batch), atol=1e-6
        )
    assert len(entropy.rows) <= window
    assert entropy.counts.sum() == min(window, 25 * 16)


def test_running_variance_by_hand() -> None:
    # Start: mean 0, variance 1, count 1e-4. Values 1, 3: mean 2, unbiased variance 2, n = 2; delta
    # = 2, N = 2.0001. M2 = 1 * 1e-4 + 2 * 2 + 4 * 1e-4 * 2 / 2.0001 = 4.0001 + 0.00039998 =
    # 4.00049998; variance = M2 / N = 2.0001499... The mean moves by delta * n / N = 4 / 2.0001, or
    # with the bug by delta + n / N = 2 + 2 / 2.0001.
    for bug, mean in ((False, 4 / 2.0001), (True, 2 + 2 / 2.0001)):
        running = RunningVariance(bug)
        running.update(np.array([1.0, 3.0]))
        assert running.variance == pytest.approx(4.00049998 / 2.0001, rel=1e-7)
        assert running.mean == pytest.approx(mean)
        assert running.count == pytest.approx(2.0001)


def test_bonus_is_log_of_one_plus_distance_over_the_updated_std() -> None:
    entropy = StateEntropyBonus(window_observations=100, running_mean_bug=True)
    twin = StateEntropyBonus(window_observations=100, running_mean_bug=True)
    twin.encoder.load_state_dict(entropy.encoder.state_dict())
    batch = grids(1, 2, 3, 3, 3, 3, 3, 8)
    bonus, metrics = entropy.bonus(batch)
    distances = twin._distances(twin._insert(batch))
    twin.running_variance.update(distances)
    np.testing.assert_allclose(
        bonus.numpy(), np.log(1.0 + distances / twin.running_variance.std), rtol=1e-6
    )
    assert metrics["re3_bonus_share_above_0"] == pytest.approx(3 / 8)


def test_loaded_state_continues_exactly() -> None:
    random = np.random.default_rng(0)
    one = StateEntropyBonus(window_observations=60, running_mean_bug=True)
    for _ in range(10):
        one.bonus(grids(*random.integers(0, 30, 16)))
    other = StateEntropyBonus(window_observations=60, running_mean_bug=True)
    other.load_state_dict(one.state_dict())
    for _ in range(10):
        batch = grids(*random.integers(0, 30, 16))
        assert torch.equal(one.bonus(batch)[0], other.bonus(batch)[0])


def test_every_observation_of_a_batch_as_large_as_the_window_may_be_new() -> None:
    random = np.random.default_rng(0)
    entropy = StateEntropyBonus(
        window_observations=400, running_mean_bug=True, batch_observations=400
    )
    for _ in range(3):
        bonus, _ = entropy.bonus(random.integers(0, 6, (400, 147), dtype=np.uint8))
        assert bonus.isfinite().all()
