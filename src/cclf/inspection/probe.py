"""`cclf inspect --curiosity`: rank correlations of several measures of curiosity with other quantities,
each the mean over batches with its interval."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from cclf.analysis import statistics
from cclf.inspection import correlation

Batches = Mapping[str, list[np.ndarray]]  # by name, an array (B,) for each batch


class RankCorrelation(NamedTuple):
    """Rank correlation of two quantities; nan if in every batch one of them is constant."""

    rank: float  # the mean over batches of Spearman's correlation
    low: float  # its 95 % interval, by the bootstrap over batches
    high: float
    batches: int


def rank_correlations(
    curiosity: Batches, quantities: Batches
) -> dict[str, dict[str, RankCorrelation]]:
    """The rank correlations by measure and quantity.

    >>> first = second = np.arange(8.0)
    >>> rank_correlations({"rnd": [first, second]}, {"rarity": [first, -second]})["rnd"]["rarity"].rank
    0.0
    """
    return {
        measure: {name: _over_batches(values, others) for name, others in quantities.items()}
        for measure, values in curiosity.items()
    }


def _over_batches(one: list[np.ndarray], other: list[np.ndarray]) -> RankCorrelation:
    ranks = np.array([correlation.correlate(*pair).rank for pair in zip(one, other, strict=True)])
    known = ranks[np.isfinite(ranks)]
    if not len(known):
        return RankCorrelation(np.nan, np.nan, np.nan, 0)
    rank, low, high = (float(value[0]) for value in statistics.mean_interval(known[:, None]))
    return RankCorrelation(rank, low, high, len(known))
