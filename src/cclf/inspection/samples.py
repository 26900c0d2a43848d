"""Code that the inspections of several base algorithms share: the choice of the samples that are
shown, appraisals that leave the running maxima unchanged, and the columns of transitions from
replay."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from cclf.config import MethodConfig
from cclf.data.augmentations import TensorViews, Views
from cclf.framework import Appraisal, Encode, Framework
from cclf.inspection import correlation
from cclf.inspection.records import About, Gallery, Measure, ShownObservation, ShownSample, View
from cclf.types import Batch, GameBatch

SIDES = ("", "next_")  # prefixes of columns: the observation and the next one
NUM_NEIGHBORS = 5
THUMBNAIL_PIXELS = 21  # side to which frames are downsampled before their distance is computed
NUM_EXTREMES = 6  # most curious samples, and as many least curious ones
NUM_RANKED_FRAMES = 12  # from the least to the most curious

Pair = tuple[TensorViews, TensorViews]  # of the observation and of the next one
Row = dict[str, np.ndarray]  # values of one sample, by column
Frames = list[np.ndarray]  # pictures (H, W, 3), the newest last
# frames of the observation and of the next one, by slot in replay
Stacks = Callable[[int], tuple[Frames, Frames]]
# the views of one side as pictures, each with the top-left corner of its crop, if it is one
Pictures = Callable[[str, Row, Frames], Sequence[tuple[np.ndarray, tuple[int, int] | None]]]

# CCLF with every piece disabled: plain replay
_ALL_PIECES_DISABLED = MethodConfig(
    views=1,
    selection="all",
    contrastive=False,
    prioritisation=False,
    regularisation=False,
    reward=False,
)


class Memory(NamedTuple):
    """A replay buffer as far as inspections need it."""

    live: np.ndarray  # (M,)  slots that can be sampled
    priorities: np.ndarray  # (M,)  of the live slots
    ages: Callable[[np.ndarray], np.ndarray]  # the ages of slots in agent steps
    steps: np.ndarray  # (slots,)  agent steps since its episode began
    stacks: Stacks


@contextmanager
def restored_maxima(framework: Framework) -> Iterator[None]:
    """Restore the running maxima of Eq. (9) afterwards, so that every batch is appraised with those
    of the checkpoint."""
    before = framework.reward_max.clone(), framework.bonus_max.clone()
    yield
    framework.reward_max.copy_(before[0])
    framework.bonus_max.copy_(before[1])


def extreme_rows(score: np.ndarray, identity: np.ndarray) -> tuple[list[int], list[int]]:
    """Rows of the samples with the highest and the lowest scores, the extremes first; of samples
    with equal identity only the one with the highest score.

    >>> extreme_rows(np.array([0.1, 0.9, 0.8, 0.5]), np.array([7, 8, 8, 9]))  # rows 1 and 2 are the same sample
    ([1], [0])
    """
    firsts: dict[int, int] = {}
    for row in np.argsort(-score, kind="stable").tolist():
        firsts.setdefault(int(identity[row]), row)
    order = list(firsts.values())
    count = min(NUM_EXTREMES, len(order) // 2)
    return order[:count], order[::-1][:count]


def evenly_ranked_rows(curiosity: np.ndarray) -> list[int]:
    """Rows from the least to the most curious, evenly spaced in rank.

    >>> evenly_ranked_rows(np.array([0.3, 0.1, 0.2]))
    [1, 2, 0]
    """
    order = np.argsort(curiosity, kind="stable")
    places = np.linspace(0, len(order) - 1, min(NUM_RANKED_FRAMES, len(order)))
    return [int(row) for row in order[places.round().astype(int)]]


def collect_columns(
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
    return Framework(1, _ALL_PIECES_DISABLED).appraise(*pair, reward, torch.zeros(()), never, never)


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
    columns = {
        "slot": batch.slot,
        "action": batch.action,
        "reward": batch.reward,
        "priority": batch.priority,
        "new_priority": batch.priority if priority is None else priority,
        "curiosity": transition_curiosity(appraisal),
        "bonus": appraisal.bonus,
        "rarity": rarity(batch.observation),
    }
    appraised = (
        (appraisal.selected_view, appraisal.curiosity, appraisal.weights),
        (appraisal.next_selected_view, appraisal.next_curiosity, appraisal.next_weights),
    )
    for side, views, (selected, curiosity, weights) in zip(SIDES, pair, appraised, strict=True):
        matches = framework.match_probabilities(views, encode_query, encode_key)
        of_side = beliefs(matches, selected, batch.slot)
        of_side |= {"chosen": selected, "c": curiosity, "second_weight": weights[-1]}
        columns |= {f"{side}{name}": values for name, values in of_side.items()}
    return columns


def of_selected_view(values: Tensor, chosen: Tensor) -> Tensor:
    """Of values (K-1, B, ...) of every view except the anchor, those of the selected views:
    (B, ...)."""
    return values[chosen - 1, torch.arange(len(chosen), device=chosen.device)]


def beliefs(matches: Tensor, chosen: Tensor, slot: Tensor) -> dict[str, Tensor]:
    """Of match probabilities (K-1, B, B), samples first: the belief in each pair and in the selected
    one, and the slot and the probability of the other observation of the batch that matches
    best."""
    pairs = matches.diagonal(dim1=1, dim2=2)  # (K-1, B)
    probability, other = of_selected_view(matches, chosen).fill_diagonal_(0.0).max(1)
    return {
        "beliefs": pairs.T,
        "belief": of_selected_view(pairs, chosen),
        "other_match_slot": slot[other],
        "other_match": probability,
    }


def rarity(observation: Tensor) -> Tensor:
    """Mean distance of each stack of frames (B, C, H, W) to the nearest others of the batch, per
    pixel in [0, 1]: (B,)."""
    small = F.adaptive_avg_pool2d(observation.float() / 255.0, THUMBNAIL_PIXELS).flatten(1)
    distances = torch.cdist(small, small).fill_diagonal_(torch.inf) / math.sqrt(small.shape[1])
    return distances.topk(min(NUM_NEIGHBORS, len(small) - 1), largest=False).values.mean(1)


def augmentation_remark(table: dict[str, np.ndarray], augmentations: str) -> list[str]:
    """A sentence on the correlation of curiosity between two appraisals of the same batch with
    different augmentations, which `augmentations` names; empty if the correlation is undefined."""
    rank = correlation.correlate(table["again"], table["curiosity"]).rank
    if not math.isfinite(rank):
        return []
    return [
        f"With other {augmentations} in the same batch, curiosity of the same transitions has a rank "
        f"correlation of {rank:.2f}: the rest is due to the random {augmentations}."
    ]


def gallery_of_transitions(
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
    """The report on transitions from replay. The base algorithm adds `facts` of each row, what
    `rewards` and `td_errors` mean, further `measures`, and the remaining fields of the report."""
    curiosity, method = table["curiosity"], framework.method
    mean_priority = float(memory.priorities.mean())
    has_weights = method.regularisation and framework.num_loss_views == 2

    def sample(number: int) -> ShownSample:
        row = {name: values[number] for name, values in table.items()}
        slot, priority = int(row["slot"]), float(row["priority"])
        now, following = (_observation(side, row, memory.stacks, pictures) for side in SIDES)
        return ShownSample(
            now,
            following,
            curiosity=float(row["curiosity"]),
            reward=float(row["reward"]),
            bonus=float(row["bonus"]) if method.reward else None,
            second_weight=float(row["second_weight"]) if has_weights else None,
            next_second_weight=float(row["next_second_weight"]) if has_weights else None,
            priority=(priority, float(row["new_priority"])) if method.prioritisation else None,
            draws=priority / mean_priority if method.prioritisation else None,
            step=int(memory.steps[slot]),
            age=int(memory.ages(row["slot"])),
            new_episode=False,  # replay stores the last frame of an episode
            copies=None,
            **facts(row),
        )

    # Sorted by belief: 1 - belief rounds to 1 for every tiny belief.
    most, least = extreme_rows(-table["belief"] - table["next_belief"], table["slot"])
    return Gallery(
        about,
        curiosity_name="(c + c′)/2",
        curiosity=curiosity,
        measures=_measures(table, memory, rewards, td_errors, measures),
        most=[sample(number) for number in most],
        least=[sample(number) for number in least],
        ranked_frames=[
            (memory.stacks(table["slot"][number])[0][-1], float(curiosity[number]))
            for number in evenly_ranked_rows(curiosity)
        ],
        priorities=memory.priorities if method.prioritisation else None,
        ages=memory.ages(memory.live) if method.prioritisation else None,
        **own,
    )


def _measures(
    table: dict[str, np.ndarray],
    memory: Memory,
    rewards: str,
    td_errors: str,
    further: Sequence[Measure],
) -> list[Measure]:
    slot = table["slot"]
    distance = f"distance in pixels to the {NUM_NEIGHBORS} nearest observations of its batch"
    age, step = memory.ages(slot), memory.steps[slot]
    priority = "before this batch; depends on curiosity when it was sampled before"
    return [
        Measure("rarity", table["rarity"], distance, novelty=1),
        Measure("age", age.astype(float), "in agent steps", novelty=-1),
        Measure("step in the episode", step.astype(float), "agent steps since its episode began"),
        Measure("reward", table["reward"], rewards),
        Measure("TD error", table["td_error"], td_errors),
        *further,
        Measure("priority", table["priority"], priority),
    ]


def _observation(side: str, row: Row, stacks: Stacks, pictures: Pictures) -> ShownObservation:
    frames, other = (
        stacks(int(row[slot]))[SIDES.index(side)] for slot in ("slot", f"{side}other_match_slot")
    )
    # The first view is the anchor, which has no belief.
    view_beliefs = [None, *map(float, row[f"{side}beliefs"])]
    views = [
        View(picture, corner, belief)
        for (picture, corner), belief in zip(pictures(side, row, frames), view_beliefs, strict=True)
    ]
    belief, curiosity = float(row[f"{side}belief"]), float(row[f"{side}c"])
    best_other_match = (other[-1], float(row[f"{side}other_match"]))
    selected = int(row[f"{side}chosen"])
    return ShownObservation(frames, views, selected, belief, curiosity, best_other_match)
