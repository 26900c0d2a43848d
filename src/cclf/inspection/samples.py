"""What inspections of several base algorithms share: which samples are shown, appraisals that leave
the running maxima unchanged, and the columns of transitions from replay."""

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

SIDES = ("", "next_")  # prefixes of columns: the observation and the next one
NUM_NEIGHBORS = 5
THUMBNAIL_PIXELS = 21  # side to which frames are downsampled before their distance is computed
SHOWN = 6  # samples at each end
RUNGS = 12  # frames from the least to the most curious

Pair = tuple[PixelViews, PixelViews]  # of the observation and of the next one
Row = dict[str, Any]  # of a table of samples, by column
Frames = list[np.ndarray]  # pictures (H, W, 3), the newest last
# frames of the observation and of the next one, by slot in replay
Stacks = Callable[[int], tuple[Frames, Frames]]
# of the views of one side, with their corners
Pictures = Callable[[str, Row, Frames], Sequence[tuple[np.ndarray, tuple[int, int] | None]]]

# every piece disabled: plain replay
_OFF = MethodConfig(
    views=1,
    selection="all",
    contrastive=False,
    prioritisation=False,
    regularisation=False,
    reward=False,
)


class Memory(NamedTuple):
    """What is known of the slots of a replay buffer."""

    live: np.ndarray  # (M,)  slots that can be sampled
    priorities: np.ndarray  # (M,)  of those
    ages: Callable[[np.ndarray], np.ndarray]  # of slots, in agent steps
    steps: np.ndarray  # (slots,)  agent steps since its episode began
    stacks: Stacks


@contextmanager
def kept_maxima(framework: Framework) -> Iterator[None]:
    """Restore the running maxima of Eq. (9) afterwards, so that every batch is appraised with those
    of the checkpoint."""
    before = framework.reward_max.clone(), framework.bonus_max.clone()
    yield
    framework.reward_max.copy_(before[0])
    framework.bonus_max.copy_(before[1])


def ends(rank: np.ndarray, identity: np.ndarray) -> tuple[list[int], list[int]]:
    """Rows of the samples of highest and of lowest rank, the extremes first; each identity once.

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
    """Columns of at least `samples` transitions, in whole batches, which `read` returns by
    number."""
    parts = [read(number) for number in range(math.ceil(samples / batch_size))]
    return {name: torch.cat([part[name] for part in parts]).cpu().numpy() for name in parts[0]}


def without_curiosity(
    observation: Tensor, next_observation: Tensor, reward: Tensor
) -> Appraisal[Tensor]:
    """The appraisal of a base algorithm without CCLF: one view of weight 1 of each observation
    (B, ...), and no bonus."""

    def never(_: Tensor) -> Tensor:
        raise AssertionError("no observation is encoded without curiosity")

    pair = (Views(observation[None]), Views(next_observation[None]))
    return Framework(1, _OFF).appraise(*pair, reward, torch.zeros(()), never, never)


def transition_curiosity(appraisal: Appraisal[Tensor]) -> Tensor:
    """(c + c') / 2, as in Eq. (6) and (9)."""
    return (appraisal.curiosity + appraisal.next_curiosity) / 2.0


def common_columns(
    framework: Framework,
    batch: Batch | GameBatch,
    pair: Pair,
    appraisal: Appraisal[Tensor],
    encode_query: Encode[Tensor],
    encode_key: Encode[Tensor],
) -> dict[str, Tensor]:
    """Columns of a batch from any replay buffer, samples first."""
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
    """Of values (K-1, B, ...) of every view except the anchor, those of the selected views:
    (B, ...)."""
    return values[chosen - 1, torch.arange(len(chosen), device=chosen.device)]


def beliefs(matches: Tensor, chosen: Tensor, slot: Tensor) -> dict[str, Tensor]:
    """Of match probabilities (K-1, B, B), samples first: the belief in each pair and in the selected
    one, and the slot and the probability of the other observation of the batch that matches
    best."""
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
    return distances.topk(min(NUM_NEIGHBORS, len(small) - 1), largest=False).values.mean(1)


def again_remark(table: dict[str, np.ndarray], luck: str) -> list[str]:
    """Correlation of curiosity between two appraisals of the same batch with different augmentations,
    which `luck` names."""
    again = correlation.correlate(table["again"], table["curiosity"]).rank
    if not math.isfinite(again):
        return []
    return [
        f"With other {luck} in the same batch, curiosity of the same transitions has a rank "
        f"correlation of {again:.2f}: the rest is due to the random {luck}."
    ]


def of_transitions(
    about: About,
    framework: Framework,
    table: dict[str, np.ndarray],
    memory: Memory,
    pictures: Pictures,
    facts: Callable[[Row], Row],
    rewards: str,
    td_errors: str,
    measures: Sequence[Measure],
    **own: Any,
) -> Gallery:
    """The report on transitions from replay. The base algorithm adds `facts` of each row, what
    `rewards` and `td_errors` mean, further `measures`, and the remaining fields of the report."""
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

    # Sorted by belief: 1 - belief rounds to 1 for every tiny belief.
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
    distance = f"distance in pixels to the {NUM_NEIGHBORS} nearest observations of its batch"
    age, step = memory.ages(slot), memory.steps[slot]
    return [
        Measure("rarity", table["rarity"], distance, novelty=1),
        Measure("age", age.astype(float), "in agent steps", novelty=-1),
        Measure("step in the episode", step.astype(float), "agent steps since its episode began"),
        Measure("reward", table["reward"], rewards),
        Measure("TD error", table["td_error"], td_errors),
        *more,
        Measure(
            "priority",
            table["priority"],
            "before this batch; depends on curiosity when it was sampled before",
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
        new_episode=False,  # replay stores the last frame of an episode
        copies=None,
        **facts,
    )
