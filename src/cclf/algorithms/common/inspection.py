"""What `cclf inspect` shows of SAC and DrQ-v2 on pixels: transitions sampled from the replay as in
training, with views that are made as in training."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cclf import equations
from cclf.algorithms.common.off_policy_base import OffPolicySettings
from cclf.algorithms.common.pixel_actor_critic import PixelActorCritic, UpdateNoise
from cclf.config import Config
from cclf.data.augmentations import PixelViews, crop
from cclf.data.replay import Replay
from cclf.errors import ConfigError
from cclf.framework import Appraisal, Encode
from cclf.inspection.records import About, Gallery, Measure
from cclf.inspection.samples import (
    SIDES,
    Frames,
    Memory,
    Pair,
    Row,
    again_remark,
    collect_columns,
    common_columns,
    gallery_of_transitions,
    of_selected_view,
    restored_maxima,
    transition_curiosity,
)
from cclf.storage.safe_loading import load_state
from cclf.training.seeding import Generators, derive
from cclf.types import Batch, StateDict


@dataclass(frozen=True)
class InspectionAdapter:
    """How an algorithm makes views, features and TD errors."""

    algorithm: PixelActorCritic[Any]
    frames: Callable[[Tensor], Tensor]
    """The frames that views are cut out of, from observations of the replay."""
    encode_query: Encode[Tensor]
    encode_key: Encode[Tensor]
    views_name: str
    """crops or shifts."""
    td_error: Callable[[Batch, Tensor, Tensor], Tensor]
    """|target - Q| (B,) of a batch, standard normal noise (B, A) of actions, and env_steps."""


def gallery(
    about: About,
    config: Config[OffPolicySettings],
    adapter: InspectionAdapter,
    replay: Replay,
    samples: int,
    env_steps: Tensor,
) -> Gallery:
    batch_size, device = config.algorithm.batch_size, env_steps.device
    generators = Generators(derive(config.seed, "inspect"), device, replay.device)
    # A separate stream, so that TD errors do not depend on what the curiosity measure draws.
    actions = torch.Generator(device).manual_seed(derive(config.seed, "inspect", "td-error"))

    def read(_: int) -> dict[str, Tensor]:
        batch = replay.sample(batch_size, generators["replay"]).to(device)
        views, appraisal = appraise(adapter, batch, generators, env_steps)
        again = appraise(adapter, batch, generators, env_steps)[1]
        noise = torch.randn(batch.action.shape, generator=actions, device=device)
        with torch.no_grad():
            error = {"td_error": adapter.td_error(batch, noise, env_steps)}
        return (
            columns(adapter, batch, views, appraisal)
            | {"again": transition_curiosity(again)}
            | error
        )

    table = collect_columns(samples, batch_size, read)
    overlap = (table["overlap"] + table["next_overlap"]) / 2.0
    overlaps = "share of the anchor that the chosen view shows too, mean of both observations"
    return gallery_of_transitions(
        about,
        adapter.algorithm.framework,
        table,
        _memory(adapter, replay),
        pictures=partial(_cut, adapter.algorithm.env.crop_pixels),
        facts=_facts,
        rewards="what the environment paid",
        td_errors="distance of Q from its target, |y − Q| on whole views, without the bonus",
        measures=[Measure("overlap", overlap, overlaps)],
        drawn=f"{len(table['slot']):,} transitions, drawn from replay by priority as training draws "
        f"them, in batches of {batch_size}.",
        remarks=_remarks(adapter, table),
    )


def load_replay(config: Config[OffPolicySettings], state: StateDict, n_steps: int) -> Replay:
    """The replay of a checkpoint, in main memory."""
    slots, action_dim = state["actions"].shape
    if not state["live"].any():
        raise ConfigError("the replay of this run is still empty: train it first")
    shape, stack = tuple(state["frames"].shape[1:]), config.env.frame_stack
    returns = (n_steps, config.algorithm.discount)
    replay = Replay(slots, shape, action_dim, stack, None, torch.device("cpu"), *returns)
    load_state(replay, state, "learner/replay")
    return replay


def appraise(
    adapter: InspectionAdapter, batch: Batch, generators: Generators, env_steps: Tensor
) -> tuple[Pair, Appraisal[Tensor]]:
    """Views of o_t and o_(t+1) drawn as an update draws them, and their appraisal."""
    algorithm = adapter.algorithm
    noise = algorithm.draw_noise(len(batch.reward), generators["augment"], generators["policy"])
    views = _views(adapter, batch.observation, noise.augmentation, noise)
    next_views = _views(adapter, batch.next_observation, noise.next_augmentation, noise)
    with restored_maxima(algorithm.framework):
        appraisal = algorithm.framework.appraise(
            views,
            next_views,
            batch.reward,
            env_steps,
            adapter.encode_query,
            adapter.encode_key,
            noise.permutation,
        )
    return (views, next_views), appraisal


def _views(
    adapter: InspectionAdapter, observation: Tensor, corners: Tensor, noise: UpdateNoise
) -> PixelViews:
    views = crop(adapter.frames(observation), corners, adapter.algorithm.env.crop_pixels)
    if adapter.algorithm.augment is None or noise.generator is None:
        return views
    images = adapter.algorithm.augment(views.inputs.flatten(0, 1), noise.generator)
    return views._replace(inputs=images.view_as(views.inputs))


def mean_distance(target: Tensor, values: tuple[Tensor, Tensor]) -> Tensor:
    """|target - Q|, mean of both critics: (B,).

    >>> mean_distance(torch.tensor([1.0]), (torch.tensor([0.0]), torch.tensor([4.0])))
    tensor([2.])
    """
    return torch.stack([(q - target).abs() for q in values]).mean(0)


def columns(
    adapter: InspectionAdapter, batch: Batch, pair: Pair, appraisal: Appraisal[Tensor]
) -> dict[str, Tensor]:
    """All values of a batch, one row per sample. Pictures are cut later, for the samples shown."""
    encoders = (adapter.encode_query, adapter.encode_key)
    found = common_columns(adapter.algorithm.framework, batch, pair, appraisal, *encoders)
    for side, views in zip(SIDES, pair, strict=True):
        assert views.crop_corners is not None, "views have corners"
        # (K-1, B)
        overlaps = equations.overlap(
            views.crop_corners[:1], views.crop_corners[1:], adapter.algorithm.env.crop_pixels
        )
        overlap = of_selected_view(overlaps, found[f"{side}chosen"])
        found |= {
            f"{side}origins": views.crop_corners.transpose(0, 1),
            f"{side}overlap": overlap / adapter.algorithm.env.crop_pixels**2,
            f"{side}overlaps_least": overlap == overlaps.min(0).values,
        }
    return found


def _remarks(adapter: InspectionAdapter, table: dict[str, np.ndarray]) -> list[str]:
    remarks = again_remark(table, adapter.views_name)
    if adapter.algorithm.framework.selection == "curiosity":
        least = np.concatenate([table["overlaps_least"], table["next_overlaps_least"]]).mean()
        remarks.append(
            f"The chosen view overlaps least with its anchor in {100 * least:.0f} % of cases; a "
            "blind choice would do so in about "
            f" {100 / (adapter.algorithm.framework.method.num_augmented_views - 1):.0f} %."
        )
    return remarks


def _memory(adapter: InspectionAdapter, replay: Replay) -> Memory:
    live = np.flatnonzero(replay.valid)
    return Memory(
        live,
        replay.priorities.numpy()[live],
        lambda slots: np.asarray((replay.head - slots) % replay.slots),
        replay.ages.numpy(),
        partial(_stacks, adapter, replay),
    )


def _facts(found: Row) -> dict[str, Any]:
    action = ", ".join(f"{value:.2f}" for value in found["action"])
    return {"action": f"({action})".replace("-", "−")}


def _cut(
    pixels: int, side: str, found: Row, frames: Frames
) -> list[tuple[np.ndarray, tuple[int, int]]]:
    corners = [(int(y), int(x)) for y, x in found[f"{side}origins"]]
    return [(frames[-1][y : y + pixels, x : x + pixels], (y, x)) for y, x in corners]


def _stacks(adapter: InspectionAdapter, replay: Replay, slot: int) -> tuple[Frames, Frames]:
    """The frames of o_t and of o_(t+1) as pictures (H, W, 3), the newest last."""
    batch = replay.gather(torch.tensor([int(slot)]))
    now, following = (
        list(
            stack.view(replay.frame_stack, -1, *stack.shape[2:])
            .permute(0, 2, 3, 1)
            .contiguous()
            .numpy()
        )
        for stack in map(adapter.frames, (batch.observation, batch.next_observation))
    )
    return now, following
