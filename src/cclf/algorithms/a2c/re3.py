"""RE3 (Seo et al., ICML 2021): an intrinsic reward for observations that are rare among the last
10,000, by the distance to their nearest neighbors in the features of a fixed random encoder.

MiniGrid observations repeat exactly, so neighbors are counted rather than searched: an observation
that is in the window five times or more has distance 0, and only rarer ones are compared with the
distinct observations and their counts. The result equals the published one except for the order in
which a rollout enters the window (docs/method.md).
"""

import numpy as np
import torch
from torch import Tensor

from cclf.algorithms.a2c.networks import GridEncoder, grid_windows
from cclf.storage.safe_loading import check_data
from cclf.types import Metrics, StateDict

# The published code averages the five nearest, including the observation itself; its k = 3 is unused.
NUM_NEIGHBORS = 5
SPARE_ROWS = 256  # least number of table rows beyond the window


class RunningVariance:
    """The running variance by whose square root RE3 divides distances. With `bug`, as in the published
    code, the mean changes by delta + n/N instead of delta * n/N, for n new of N values in total, which
    increases the variance of the first updates."""

    def __init__(self, bug: bool):
        self.bug = bug
        self.mean, self.variance, self.count = 0.0, 1.0, 1e-4

    def update(self, values: np.ndarray) -> None:
        n = len(values)
        delta, total = float(values.mean()) - self.mean, self.count + n
        change_of_mean = delta + n / total if self.bug else delta * n / total
        sum_of_squares = (
            self.variance * self.count
            + float(values.var(ddof=1)) * n
            + delta**2 * self.count * n / total
        )
        self.mean += change_of_mean
        self.variance, self.count = sum_of_squares / total, total

    @property
    def std(self) -> float:
        return float(np.sqrt(self.variance))

    def state_dict(self) -> StateDict:
        return {"mean": self.mean, "variance": self.variance, "count": self.count}

    def load_state_dict(self, state: StateDict) -> None:
        self.mean, self.variance, self.count = state["mean"], state["variance"], state["count"]


class StateEntropyBonus:
    """The random encoder, and a table of the distinct observations among the latest ones (the window).

    The window is a ring buffer of table row indices. Each distinct observation has one row in the table,
    with its features and its count; a row that is no longer in the window is reused.
    """

    def __init__(
        self,
        window_observations: int,
        running_mean_bug: bool,
        batch_observations: int = SPARE_ROWS,
    ):
        self.encoder = GridEncoder().requires_grad_(False)
        self.running_variance = RunningVariance(running_mean_bug)
        self.window = np.full(window_observations, -1)  # -1: not filled yet
        self.next = 0  # position in the window that is overwritten next
        # A batch is added before the observations that it replaces are removed, so the table needs rows
        # for one additional batch.
        num_rows = window_observations + max(SPARE_ROWS, batch_observations)
        self.rows: dict[bytes, int] = {}  # observation -> table row
        self.keys: list[bytes | None] = [None] * num_rows  # table row -> observation
        self.counts = np.zeros(num_rows, dtype=np.int64)
        self.features = np.zeros((num_rows, 64))
        self.free = list(range(num_rows - 1, -1, -1))  # table rows that hold no observation
        self.used = 0  # table rows from this index on have never been used

    def bonus(self, observation: np.ndarray) -> tuple[Tensor, Metrics]:
        """log(1 + distance / std) (B,) of flat observations (B, 147). As in the published code, the
        window and the running variance are updated with them before."""
        rows = self._insert(observation)
        distances = self._distances(rows)
        self.running_variance.update(distances)
        std = self.running_variance.std
        bonus = torch.from_numpy(np.log1p(distances / std).astype(np.float32))
        return bonus, {
            "re3_bonus_mean": bonus.mean(),
            "re3_bonus_share_above_0": (bonus > 0.0).float().mean(),
            "re3_distance_std": torch.tensor(std),
        }

    def _insert(self, observation: np.ndarray) -> np.ndarray:
        """Add a batch to the window, remove the observations that it replaces, and return the table
        rows (B,) of the batch."""
        keys = np.ascontiguousarray(observation).view("V147").ravel().tolist()
        new_keys = [key for key in dict.fromkeys(keys) if key not in self.rows]
        for key in new_keys:
            self.rows[key] = row = self.free.pop()
            self.keys[row] = key
            self.used = max(self.used, row + 1)
        if new_keys:
            grids = np.frombuffer(b"".join(new_keys), np.uint8).reshape(-1, 7, 7, 3)
            encoded = self.encoder(torch.from_numpy(grid_windows(grids)))
            self.features[[self.rows[key] for key in new_keys]] = encoded.numpy()
        rows = np.array([self.rows[key] for key in keys])
        slots = np.arange(self.next, self.next + len(rows)) % len(self.window)
        replaced = self.window[slots]
        self.window[slots] = rows
        self.next = int(slots[-1] + 1) % len(self.window)
        np.add.at(self.counts, rows, 1)
        replaced = replaced[replaced >= 0]
        np.subtract.at(self.counts, replaced, 1)
        for row in np.unique(replaced[self.counts[replaced] == 0]).tolist():
            key = self.keys[row]
            assert key is not None, "a row in the window has a key"
            del self.rows[key]
            self.keys[row] = None
            self.free.append(row)
        return rows

    def _distances(self, rows: np.ndarray) -> np.ndarray:
        """Mean distance (B,) of each observation to its five nearest neighbors in the window. The
        observation itself and its copies count as neighbors with distance 0."""
        distances = np.zeros(len(rows))
        rare = np.unique(rows[self.counts[rows] < NUM_NEIGHBORS])
        if len(rare) == 0:
            return distances
        in_window = np.flatnonzero(self.counts[: self.used])
        table = self.features[in_window]
        # A matrix product finds the candidates. Their distances are then computed from differences,
        # so that equal features have distance exactly 0.
        approximate = (table**2).sum(1)[None] - 2.0 * self.features[rare] @ table.T
        num_candidates = min(2 * NUM_NEIGHBORS, len(in_window))
        nearest = np.argpartition(approximate, num_candidates - 1, axis=1)[:, :num_candidates]
        candidates = in_window[nearest]
        exact = np.linalg.norm(self.features[rare][:, None] - self.features[candidates], axis=2)
        for row, neighbors, distance in zip(rare, candidates, exact, strict=True):
            order = np.argsort(distance)
            repeated = np.repeat(distance[order], self.counts[neighbors[order]])[:NUM_NEIGHBORS]
            distances[rows == row] = repeated.mean()
        return distances

    def state_dict(self) -> StateDict:
        grids = b"".join(key or bytes(147) for key in self.keys[: self.used])
        return {
            "encoder": self.encoder.state_dict(),
            "spread": self.running_variance.state_dict(),
            "window": self.window.copy(),
            "next": self.next,
            "used": self.used,
            "free": np.array(self.free),
            "counts": self.counts[: self.used].copy(),
            "features": self.features[: self.used].copy(),
            "observations": np.frombuffer(grids, np.uint8).reshape(-1, 147).copy(),
        }

    def load_state_dict(self, state: StateDict) -> None:
        window, used = state["window"], state["used"]
        counts = np.bincount(window[window >= 0], minlength=len(self.keys))
        check_data(
            0 <= state["next"] < len(self.window)
            and np.array_equal(counts[:used], state["counts"])
            and np.array_equal(np.flatnonzero(counts == 0), np.sort(state["free"])),
            "state_entropy: the table of observations does not match the window",
        )
        self.encoder.load_state_dict(state["encoder"])
        self.running_variance.load_state_dict(state["spread"])
        self.window[:], self.next, self.used = window, state["next"], used
        self.free = state["free"].astype(np.int64).tolist()  # an empty array is saved as float64
        self.counts, self.features[:] = counts, 0.0
        self.features[:used] = state["features"]
        self.keys = [None] * len(self.keys)
        for row in np.flatnonzero(counts).tolist():
            self.keys[row] = state["observations"][row].tobytes()
        self.rows = {key: row for row, key in enumerate(self.keys) if key is not None}
