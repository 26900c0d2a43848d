"""What galleries of all base algorithms share: which samples are shown, and appraising without leaving a trace."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from cclf.framework import Framework

SHOWN = 6  # samples at each end
RUNGS = 12  # pictures from the least to the most curious


@contextmanager
def kept_maxima(framework: Framework) -> Iterator[None]:
    """Appraising moves the running maxima of Eq. (9); here every batch is to meet those of the checkpoint."""
    before = framework.reward_max.clone(), framework.bonus_max.clone()
    yield
    framework.reward_max.copy_(before[0])
    framework.bonus_max.copy_(before[1])


def ends(rank: np.ndarray, identity: np.ndarray) -> tuple[list[int], list[int]]:
    """Rows of the samples of highest and of lowest rank, outermost first; no identity is shown twice.

    >>> ends(np.array([0.1, 0.9, 0.8, 0.5]), np.array([7, 8, 8, 9]))  # of four, rows 1 and 2 are the same
    ([1], [0])
    """
    firsts: dict[int, int] = {}
    for row in np.argsort(-rank, kind="stable").tolist():
        firsts.setdefault(int(identity[row]), row)
    order = list(firsts.values())
    count = min(SHOWN, len(order) // 2)
    return order[:count], order[::-1][:count]


def rungs(curiosity: np.ndarray) -> list[int]:
    """Rows from the least to the most curious, evenly spaced in rank.

    >>> rungs(np.array([0.3, 0.1, 0.2]))
    [1, 2, 0]
    """
    order = np.argsort(curiosity, kind="stable")
    return [int(row) for row in order[np.linspace(0, len(order) - 1, min(RUNGS, len(order))).round().astype(int)]]
