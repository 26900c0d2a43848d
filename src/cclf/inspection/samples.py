"""What galleries of several base algorithms share: which samples are shown, appraising without
leaving a trace, and all that can be told of a transition out of replay whoever learns from it."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from cclf.config import MethodConfig
from cclf.data.augmentations import PixelViews, Views
from cclf.framework import Appraisal, Encode, Framework
from cclf.inspection import correlation
from cclf.inspection.records import About, Gallery, Measure, ShownObservation, ShownSample, View
from cclf.types import Batch, GameBatch

SIDES = ("", "next_")  # what was seen and what came next, as they begin the names of columns
NEIGHBOURS = 5
THUMBNAIL_PIXELS = 21  # frames are averaged down to this side before their distance is taken
SHOWN = 6  # samples at each end
RUNGS = 12  # pictures from the least to the most curious

Pair = tuple[PixelViews, PixelViews]  # of what was seen and of what came next
Row = dict[str, Any]  # of a table of samples, by column
Frames = list[np.ndarray]  # pictures (H, W, 3), the newest last
# what was seen and what came next, by slot in replay
Stacks = Callable[[int], tuple[Frames, Frames]]
# of a side's views, with corners
Pictures = Callable[[str, Row, Frames], Sequence[tuple[np.ndarray, tuple[int, int] | None]]]

# Every piece off: plain replay.
_OFF = MethodConfig(
    views=1,
    selection="all",
    contrastive=False,
    prioritisation=False,
    regularisation=False,
    reward=False,
)


class Memory(NamedTuple):
    """What replay tells of its slots, whoever learns from it."""

    live: np.ndarray  # (M,)  slots that can be drawn
    priorities: np.ndarray  # (M,)  of those
    ages: Callable[[np.ndarray], np.ndarray]  # of slots: agent steps since it happened
    steps: np.ndarray  # (slots,)  agent steps since its episode began
    stacks: Stacks


@contextmanager
def kept_maxima(framework: Framework) -> Iterator[None]:
    """Appraising moves the running maxima of Eq. (9); here every batch is to meet those of the
    checkpoint."""
    before = framework.reward_max.clone(), framework.bonus_max.clone()
    yield
    framework.reward_max.copy_(before[0])
    framework.bonus_max.copy_(before[1])


def ends(rank: np.ndarray, identity: np.ndarray) -> tuple[list[int], list[int]]:
    """Rows of the samples of highest and of lowest rank, outermost first; no identity is shown
    twice.

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
    return [
        int(row)
        for row in order[np.linspace(0, len(order) - 1, min(RUNGS, len(order))).round().astype(int)]
    ]


def table_of(
    samples: int, batch_size: int, read: Callable[[int], dict[str, Tensor]]
) -> dict[str, np.ndarray]:
    """`samples` transitions or a few more, in whole batches that `read` tells about by number."""
    parts = [read(number) for number in range(math.ceil(samples / batch_size))]
    return {name: torch.cat([part[name] for part in parts]).cpu().numpy() for name in parts[0]}


def without_curiosity(
    observation: Tensor, next_observation: Tensor, reward: Tensor
) -> Appraisal[Tensor]:
    """What a base algorithm alone would learn from: one view of weight 1 of each observation
    (B, ...), and no bonus."""

    def never(_: Tensor) -> Tensor:
        raise AssertionError("without curiosity nothing is encoded")

    pair = (Views(observation[None]), Views(next_observation[None]))
    return Framework(1, _OFF).appraise(*pair, reward, torch.zeros(()), never, never)


def transition_curiosity(appraisal: Appraisal[Tensor]) -> Tensor:
    """(c + c') / 2, as Eq. (6) and (9) take it."""
    return (appraisal.curiosity + appraisal.next_curiosity) / 2.0


def common_columns(
    framework: Framework,
    batch: Batch | GameBatch,
    pair: Pair,
    appraisal: Appraisal[Tensor],
    encode_query: Encode[Tensor],
    encode_key: Encode[Tensor],
) -> dict[str, Tensor]:
    """What can be said of a batch out of any replay, samples first."""
    priority = framework.priority(batch.priority, appraisal)
    found = {
        "slot": batch.slot,
        "action": batch.action,
        "reward": batch.reward,
        "priority": batch.priority,
        "new_priority": batch.priority if priority is None else priority,
        "curiosity": transition_curiosity(appraisal),
        "bonus": appraisal.bonus,
        "rarity": rarity(batch.observation),
    }
    for side, views in zip(SIDES, pair, strict=True):
        chosen = getattr(appraisal, f"{side}selected_view")
        believed = beliefs(
            framework.match_probabilities(views, encode_query, encode_key), chosen, batch.slot
        )
        found |= {f"{side}{name}": values for name, values in believed.items()} | {
            f"{side}chosen": chosen,
            f"{side}c": getattr(appraisal, f"{side}curiosity"),
            f"{side}second_weight": getattr(appraisal, f"{side}weights")[-1],
        }
    return found


def of_chosen(values: Tensor, chosen: Tensor) -> Tensor:
    """Of values (K-1, B, ...) for every view but the anchor, those of the chosen ones: (B, ...)."""
    return values[chosen - 1, torch.arange(len(chosen), device=chosen.device)]


def beliefs(matches: Tensor, chosen: Tensor, slot: Tensor) -> dict[str, Tensor]:
    """Of matches (K-1, B, B), samples first: the belief in each pair and in the chosen one, and the
    other observation of the batch, by its slot in replay, that drew the largest share of belief
    to itself."""
    pairs = matches.diagonal(dim1=1, dim2=2)  # (K-1, B)
    share, taken = of_chosen(matches, chosen).fill_diagonal_(0.0).max(1)
    return {
        "beliefs": pairs.T,
        "belief": of_chosen(pairs, chosen),
        "taken_slot": slot[taken],
        "taken_share": share,
    }


def rarity(observation: Tensor) -> Tensor:
    """Mean distance of each stack of frames (B, C, H, W) to the nearest others of the batch, per
    pixel in [0, 1]: (B,)."""
    small = F.adaptive_avg_pool2d(observation.float() / 255.0, THUMBNAIL_PIXELS).flatten(1)
    distances = torch.cdist(small, small).fill_diagonal_(torch.inf) / math.sqrt(small.shape[1])
    return distances.topk(min(NEIGHBOURS, len(small) - 1), largest=False).values.mean(1)


def again_remark(table: dict[str, np.ndarray], luck: str) -> list[str]:
    """How alike two readings of one batch are, with other views; `luck` is what the views differ
    in."""
    again = correlation.correlate(table["again"], table["curiosity"]).rank
    if not math.isfinite(again):
        return []
    return [
        f"Read twice with other {luck} in the same batch, curiosity about a transition correlates "
        f"with {again:.2f} (by "
        f"rank): what is missing to 1 is the luck of the {luck}, not the transition."
    ]


def of_transitions(
    about: About,
    framework: Framework,
    table: dict[str, np.ndarray],
    memory: Memory,
    pictures: Pictures,
    facts: Callable[[Row], dict[str, Any]],
    rewards: str,
    td_errors: str,
    measures: Sequence[Measure],
    **own: Any,
) -> Gallery:
    """The gallery of a table of transitions out of replay. What a base algorithm alone can tell:
    `facts` of a row; what `rewards` and `td_errors` are; more `measures`; `own` of all."""
    curiosity = table["curiosity"]
    mean_priority = float(memory.priorities.mean())

    def show(row: int) -> ShownSample:
        found = {name: values[row] for name, values in table.items()}
        now, following = (_glance(side, found, memory.stacks, pictures) for side in SIDES)
        when = {
            "step": int(memory.steps[found["slot"]]),
            "age": int(memory.ages(found["slot"])),
        }
        return _look(framework, found, now, following, mean_priority, **when, **facts(found))

    # Beliefs rank finer than curiosity: 1 - belief rounds to 1 for every tiny belief.
    most, least = ends(-table["belief"] - table["next_belief"], table["slot"])
    by_priority = framework.method.prioritisation
    return Gallery(
        about,
        curiosity_name="(c + c′)/2",
        curiosity=curiosity,
        measures=_measures(table, memory, rewards, td_errors, measures),
        most=[show(row) for row in most],
        least=[show(row) for row in least],
        ladder=[
            (memory.stacks(table["slot"][row])[0][-1], float(curiosity[row]))
            for row in rungs(curiosity)
        ],
        priorities=memory.priorities if by_priority else None,
        ages=memory.ages(memory.live) if by_priority else None,
        **own,
    )


def _measures(
    table: dict[str, np.ndarray],
    memory: Memory,
    rewards: str,
    td_errors: str,
    more: Sequence[Measure],
) -> list[Measure]:
    slot = table["slot"]
    distance = f"distance in pixels to the {NEIGHBOURS} nearest observations of its batch"
    age, step = memory.ages(slot), memory.steps[slot]
    return [
        Measure("rarity", table["rarity"], distance, novelty=1),
        Measure("age", age.astype(float), "agent steps since it happened", novelty=-1),
        Measure("step in the episode", step.astype(float), "agent steps since its episode began"),
        Measure("reward", table["reward"], rewards),
        Measure("TD error", table["td_error"], td_errors),
        *more,
        Measure(
            "priority",
            table["priority"],
            "before this batch: a long memory of curiosity when it was drawn before",
        ),
    ]


def _glance(side: str, found: Row, stacks: Stacks, pictures: Pictures) -> ShownObservation:
    frames, other = (
        stacks(found[slot])[SIDES.index(side)] for slot in ("slot", f"{side}taken_slot")
    )
    chosen, belief, c, share = (
        found[f"{side}{name}"] for name in ("chosen", "belief", "c", "taken_share")
    )
    pairs = [None, *(float(belief) for belief in found[f"{side}beliefs"])]
    views = [
        View(*shown, belief)
        for shown, belief in zip(pictures(side, found, frames), pairs, strict=True)
    ]
    return ShownObservation(
        frames, views, int(chosen), float(belief), float(c), (other[-1], float(share))
    )


def _look(
    framework: Framework,
    found: Row,
    now: ShownObservation,
    following: ShownObservation,
    mean_priority: float,
    **facts: Any,
) -> ShownSample:
    weighted = framework.method.regularisation and framework.num_loss_views == 2
    return ShownSample(
        now,
        following,
        curiosity=float(found["curiosity"]),
        reward=float(found["reward"]),
        bonus=float(found["bonus"]) if framework.method.reward else None,
        second_weight=float(found["second_weight"]) if weighted else None,
        next_second_weight=float(found["next_second_weight"]) if weighted else None,
        priority=(float(found["priority"]), float(found["new_priority"]))
        if framework.method.prioritisation
        else None,
        draws=float(found["priority"]) / mean_priority if framework.method.prioritisation else None,
        new_episode=False,  # replay keeps the true last frame
        copies=None,
        **facts,
    )
