"""What worlds on a grid check of the seeds, actions and states they are given."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cclf.envs.minigrid_rules import Ints

# environment i gets seed + 10,000 i, as the published A2C and RE3 code seeds its processes
SEED_STRIDE = 10_000


def spaced_seeds(seed: int, num_envs: int) -> list[int]:
    return checked_seeds([seed + SEED_STRIDE * index for index in range(num_envs)], num_envs)


def checked_seeds(seeds: Sequence[int], num_envs: int) -> list[int]:
    if len(seeds) != num_envs or not all(
        isinstance(seed, int | np.integer) and seed >= 0 for seed in seeds
    ):
        raise ValueError(
            f"seeds: need one non-negative integer for each of {num_envs} environments, got {seeds}"
        )
    return [int(seed) for seed in seeds]


def checked_actions(actions: ArrayLike, num_envs: int, num_actions: int) -> Ints:
    action = np.asarray(actions)
    if action.shape != (num_envs,) or action.dtype.kind not in "iu":
        raise ValueError(
            f"actions: need integers of shape ({num_envs},), got {action.dtype} of shape "
            f"{action.shape}; "
            "pass one action per environment"
        )
    action = action.astype(np.int64, copy=False)
    # negatives are huge as unsigned: one test
    if np.count_nonzero(action.view(np.uint64) >= num_actions):
        raise ValueError(
            f"actions: need values in 0..{num_actions - 1}, got {action.min()}..{action.max()}"
        )
    return action


def check_positive(what: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{what}: need 1 or more, got {value}")


def check_started(started: bool) -> None:
    if not started:
        raise RuntimeError("these environments have not begun an episode; call reset() first")


def check_same_worlds(state: dict[str, Any], name: str, num_envs: int) -> None:
    if (state["name"], state["num_envs"]) != (name, num_envs):
        raise ValueError(
            f"state of {state['num_envs']} x {state['name']} cannot be loaded into {num_envs} x "
            f"{name}; "
            "build the same environments first"
        )
