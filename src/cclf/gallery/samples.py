"""What galleries of all base algorithms share: which samples are shown, and appraising without leaving a trace."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from cclf.analysis import correlation
from cclf.analysis.gallery import Glance, Look, View
from cclf.augment import Views
from cclf.framework import Appraisal, Encode, Framework

SIDES = ("", "next_")  # what was seen and what came next, as they begin the names of columns
NEIGHBOURS = 5
THUMBNAIL_PIXELS = 21  # frames are averaged down to this side before their distance is taken
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


def transition_curiosity(appraisal: Appraisal) -> Tensor:
    """(c + c') / 2, as Eq. (6) and (9) take it."""
    return (appraisal.curiosity + appraisal.next_curiosity) / 2.0


def beliefs(
    framework: Framework, views: Views, chosen: Tensor, slot: Tensor, encode_query: Encode, encode_key: Encode
) -> dict[str, Tensor]:
    """Of a batch of views of one side, samples first: the belief in each pair and in the chosen one, and the other observation
    of the batch, by its slot in replay, that drew the largest share of belief to itself."""
    everyone = torch.arange(len(slot), device=slot.device)
    matches = framework.matches(views, encode_query, encode_key)  # (K-1, B, B)
    pairs = matches.diagonal(dim1=1, dim2=2)  # (K-1, B)
    share, taken = matches[chosen - 1, everyone].fill_diagonal_(0.0).max(1)
    return {"beliefs": pairs.T, "belief": pairs[chosen - 1, everyone], "taken_slot": slot[taken], "taken_share": share}


def rarity(observation: Tensor) -> Tensor:
    """Mean distance of each stack of frames (B, C, H, W) to the nearest others of the batch, per pixel in [0, 1]: (B,)."""
    small = F.adaptive_avg_pool2d(observation.float() / 255.0, THUMBNAIL_PIXELS).flatten(1)
    distances = torch.cdist(small, small).fill_diagonal_(torch.inf) / math.sqrt(small.shape[1])
    return distances.topk(min(NEIGHBOURS, len(small) - 1), largest=False).values.mean(1)


def again_remark(table: dict[str, np.ndarray], luck: str) -> list[str]:
    """How alike two readings of one batch are, with other views; `luck` is what the views differ in."""
    again = correlation.correlate(table["again"], table["curiosity"]).rank
    if not math.isfinite(again):
        return []
    return [
        f"Read twice with other {luck} in the same batch, curiosity about a transition correlates with {again:.2f} (by "
        f"rank): what is missing to 1 is the luck of the {luck}, not the transition."
    ]


def glance(side: str, found: dict[str, Any], frames: Sequence[np.ndarray], views: Sequence[View], other: np.ndarray) -> Glance:
    """One side of a row of the table; `other` is what its observation was taken for."""
    chosen, belief, c, share = (found[f"{side}{name}"] for name in ("chosen", "belief", "c", "taken_share"))
    return Glance(frames, views, int(chosen), float(belief), float(c), (other, float(share)))


def look(framework: Framework, found: dict[str, Any], sides: Sequence[Glance], mean_priority: float, **own: Any) -> Look:
    """A row of the table; `own` is what base algorithms know of it in ways of their own."""
    weighted = framework.regularisation and framework.learned_views == 2
    now, following = sides
    return Look(
        now,
        following,
        curiosity=float(found["curiosity"]),
        reward=float(found["reward"]),
        bonus=float(found["bonus"]) if framework.reward else None,
        second_weight=float(found["second_weight"]) if weighted else None,
        next_second_weight=float(found["next_second_weight"]) if weighted else None,
        priority=(float(found["priority"]), float(found["new_priority"])) if framework.prioritisation else None,
        draws=float(found["priority"]) / mean_priority if framework.prioritisation else None,
        new_episode=False,  # replay keeps the true last frame
        copies=None,
        **own,
    )
