"""RE3 (Seo et al., ICML 2021): a bonus for observations that are rare among the last 10,000, by
distance to nearest neighbours in the features of a fixed random encoder.

MiniGrid observations repeat exactly, so neighbours are counted, not searched: an observation held
five times or more has distance 0, and only the few rarer ones are compared, with distinct
observations and their counts. The result is the published one but for the order in which a rollout
enters the window (docs/deviations.md).
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from cclf.algorithms.a2c.networks import GridEncoder, grid_windows
from cclf.storage.safe_loading import check_data, check_lengths, check_same_structure
from cclf.types import Metrics

# the published code averages the five nearest, the observation itself among them; its k = 3 is
# never used
NUM_NEIGHBORS = 5


class RunningVariance:
    """The running variance by which RE3 scales its distances, with the published code's bug: it
    moves the mean by delta + n/N where delta * n/N is meant, which inflates the variance of the
    first updates."""

    def __init__(self, bug: bool):
        self.bug = bug
        self.mean, self.variance, self.count = 0.0, 1.0, 1e-4

    def update(self, values: np.ndarray) -> None:
        n = len(values)
        delta, total = float(values.mean()) - self.mean, self.count + n
        moved = delta + n / total if self.bug else delta * n / total
        spread = (
            self.variance * self.count
            + float(values.var(ddof=1)) * n
            + delta**2 * self.count * n / total
        )
        self.mean, self.variance, self.count = self.mean + moved, spread / total, total

    @property
    def std(self) -> float:
        return float(np.sqrt(self.variance))


class StateEntropyBonus:
    """The random encoder, the window of the last observations, and the running spread."""

    def __init__(
        self, window_observations: int, running_mean_bug: bool, batch_observations: int = 256
    ):
        self.encoder = GridEncoder().requires_grad_(False)
        self.spread = RunningVariance(running_mean_bug)
        # ring of table rows, oldest overwritten first
        self.window = np.full(window_observations, -1)
        self.next = 0
        self.rows: dict[bytes, int] = {}  # observation -> its row in the tables below
        # One row per distinct observation in the window, and a batch to spare: rows are freed after
        # the new batch came in.
        self.keys: list[bytes | None] = [None] * (
            window_observations + max(256, batch_observations)
        )
        self.counts = np.zeros(len(self.keys), dtype=np.int64)
        self.features = np.zeros((len(self.keys), 64))
        self.free = list(range(len(self.keys) - 1, -1, -1))
        self.used = 0  # rows at or beyond this one were never used

    def bonus(self, observation: np.ndarray) -> tuple[Tensor, Metrics]:
        """log(1 + s / std) for a batch of flat observations (B, 147), which enter the window first,
        as published."""
        rows = self._enter(observation)
        distances = self._distances(rows)
        self.spread.update(distances)
        bonus = torch.from_numpy(np.log1p(distances / self.spread.std).astype(np.float32))
        return bonus, {
            "re3_bonus_mean": bonus.mean(),
            "re3_bonus_share_above_0": (bonus > 0.0).float().mean(),
            "re3_distance_std": torch.tensor(self.spread.std),
        }

    def _enter(self, observation: np.ndarray) -> np.ndarray:
        """Put a batch into the window, drop what it pushes out, and return the batch's table
        rows."""
        keys = np.ascontiguousarray(observation).view("V147").ravel().tolist()
        fresh = [key for key in dict.fromkeys(keys) if key not in self.rows]
        for key in fresh:
            self.rows[key] = row = self.free.pop()
            self.keys[row] = key
            self.used = max(self.used, row + 1)
        if fresh:
            grids = np.frombuffer(b"".join(fresh), np.uint8).reshape(-1, 7, 7, 3)
            encoded = self.encoder(torch.from_numpy(grid_windows(grids)))
            self.features[[self.rows[key] for key in fresh]] = encoded.numpy()
        rows = np.array([self.rows[key] for key in keys])
        places = np.arange(self.next, self.next + len(rows)) % len(self.window)
        leaving = self.window[places]
        self.window[places] = rows
        self.next = int(places[-1] + 1) % len(self.window)
        np.add.at(self.counts, rows, 1)
        leaving = leaving[leaving >= 0]
        np.subtract.at(self.counts, leaving, 1)
        for row in np.unique(leaving[self.counts[leaving] == 0]).tolist():
            key = self.keys[row]
            assert key is not None, "a row in the window has a key"
            del self.rows[key]
            self.keys[row] = None
            self.free.append(row)
        return rows

    def _distances(self, rows: np.ndarray) -> np.ndarray:
        """Mean distance of each row to its five nearest in the window, itself and its copies at
        distance 0."""
        result = np.zeros(len(rows))
        rare = np.unique(rows[self.counts[rows] < NUM_NEIGHBORS])
        if len(rare) == 0:
            return result
        live = np.flatnonzero(self.counts[: self.used])
        table = self.features[live]
        # Matrix products find the nearest; their distances are then taken by difference, which
        # keeps an exact 0 exact.
        rough = (table**2).sum(1)[None] - 2.0 * self.features[rare] @ table.T
        candidates = min(2 * NUM_NEIGHBORS, len(live))
        nearest = live[np.argpartition(rough, candidates - 1, axis=1)[:, :candidates]]
        exact = np.linalg.norm(self.features[rare][:, None] - self.features[nearest], axis=2)
        for row, found, distance in zip(rare, nearest, exact, strict=True):
            order = np.argsort(distance)
            repeated = np.repeat(distance[order], self.counts[found[order]])[:NUM_NEIGHBORS]
            result[rows == row] = repeated.mean()
        return result

    def state_dict(self) -> dict[str, Any]:
        grids = b"".join(key or bytes(147) for key in self.keys[: self.used])
        return {
            "encoder": self.encoder.state_dict(),
            "spread": {name: getattr(self.spread, name) for name in ("mean", "variance", "count")},
            "window": self.window.copy(),
            "next": self.next,
            "used": self.used,
            "free": np.array(self.free),
            "counts": self.counts[: self.used].copy(),
            "features": self.features[: self.used].copy(),
            "observations": np.frombuffer(grids, np.uint8).reshape(-1, 147).copy(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._refuse_other_window(state)
        self.encoder.load_state_dict(state["encoder"])
        for name, value in state["spread"].items():
            setattr(self.spread, name, value)
        self.window[:], self.next, self.used = state["window"], state["next"], state["used"]
        self.free = state["free"].tolist()
        self.counts[:], self.features[:] = 0, 0.0
        self.counts[: self.used], self.features[: self.used] = state["counts"], state["features"]
        self.keys = [None] * len(self.keys)
        for row in np.flatnonzero(self.counts).tolist():
            self.keys[row] = state["observations"][row].tobytes()
        self.rows = {key: row for row, key in enumerate(self.keys) if key is not None}

    def _refuse_other_window(self, state: dict[str, Any]) -> None:
        """Rows, counts and the window must tell the same story: each row is in use or free."""
        used = state["used"]
        check_data(
            type(used) is int and 0 <= used <= len(self.keys), f"state_entropy: used is {used}"
        )
        own = self.state_dict()
        own |= {name: own[name][:0] for name in ("free", "counts", "features", "observations")}
        if len(state["free"]) == 0:
            own["free"] = state["free"][:0]  # an empty list is saved as floats
        check_same_structure(own, state, "state_entropy of the window")
        check_lengths(state, ("counts", "features", "observations"), used, "state_entropy")
        window, counts = state["window"], np.zeros(len(self.keys), np.int64)
        counts[:used] = state["counts"]
        check_data(
            window.min() >= -1 and window.max() < used,
            "state_entropy: the window names unknown rows",
        )
        seen = np.bincount(window[window >= 0], minlength=len(counts))
        check_data(
            np.array_equal(seen, counts), "state_entropy: counts are not those of the window"
        )
        unused = np.flatnonzero(counts == 0).tolist()
        check_data(
            sorted(state["free"].tolist()) == unused,
            "state_entropy: free rows are not those out of use",
        )
        keys = {row.tobytes() for row in state["observations"][counts[:used] > 0]}
        check_data(
            len(keys) == np.count_nonzero(counts),
            "state_entropy: an observation stands in two rows",
        )
        spread = state["spread"]
        check_data(0 <= state["next"] < len(window), f"state_entropy: next is {state['next']}")
        check_data(
            spread["variance"] > 0.0 and spread["count"] > 0.0,
            f"state_entropy: the spread is {spread}",
        )
