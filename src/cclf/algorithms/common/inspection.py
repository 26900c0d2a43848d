"""The gallery of `cclf inspect` for SAC and DrQ-v2 on pixels: transitions and their views, sampled as in
training."""

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cclf import equations
from cclf.algorithms.common.observations import PixelObservations, UpdateNoise, concatenate
from cclf.algorithms.common.off_policy_base import OffPolicySettings
from cclf.algorithms.common.pixel_actor_critic import PixelActorCritic
from cclf.config import Config
from cclf.data.augmentations import TensorViews, crop
from cclf.data.replay import Replay
from cclf.framework import Appraisal
from cclf.inspection.records import About, Gallery, Measure
from cclf.inspection.samples import (
    SIDES,
    Frames,
    Memory,
    Pair,
    Row,
    augmentation_remark,
    collect_columns,
    common_columns,
    gallery_of_transitions,
    of_selected_view,
    restored_maxima,
    transition_curiosity,
)
from cclf.training.seeding import Generators, derive
from cclf.types import Batch

Algorithm = PixelActorCritic[OffPolicySettings]


def gallery(
    about: About,
    config: Config[OffPolicySettings],
    algorithm: Algorithm,
    replay: Replay,
    samples: int,
    env_steps: Tensor,
) -> Gallery:
    batch_size, device = config.algorithm.batch_size, env_steps.device
    generators = Generators(derive(config.seed, "inspect"), device, replay.device)
    # A separate generator, so that TD errors do not depend on the numbers that curiosity samples.
    policy_generator = torch.Generator(device)
    policy_generator.manual_seed(derive(config.seed, "inspect", "td-error"))

    def sample_columns(_: int) -> dict[str, Tensor]:
        """The columns of one batch, which is appraised twice with different views."""
        batch = replay.sample(batch_size, generators["replay"]).to(device)
        views, appraisal = appraise(algorithm, batch, generators, env_steps)
        other_appraisal = appraise(algorithm, batch, generators, env_steps)[1]
        noise = algorithm.policy_noise(batch_size, generator=policy_generator)
        return columns(algorithm, batch, views, appraisal) | {
            "again": transition_curiosity(other_appraisal),
            "td_error": algorithm.td_errors(batch, noise, env_steps).mean(0),
        }

    table = collect_columns(samples, batch_size, sample_columns)
    live = np.flatnonzero(replay.valid)
    memory = Memory(
        live,
        replay.priorities.numpy()[live],
        lambda slots: np.asarray((replay.head - slots) % replay.slots),
        replay.ages.numpy(),
        partial(_stacks, algorithm, replay),
    )
    overlap = (table["overlap"] + table["next_overlap"]) / 2.0
    overlaps = "share of the anchor's pixels in the selected view, mean of both observations"
    return gallery_of_transitions(
        about,
        algorithm.framework,
        table,
        memory,
        pictures=partial(_crops, algorithm.env.crop_pixels),
        facts=_facts,
        rewards="reward of the environment",
        td_errors="|y − Q|, the distance of Q from its target, without augmentation and bonus",
        measures=[Measure("overlap", overlap, overlaps)],
        sampling=f"{len(table['slot']):,} transitions, sampled from the replay by priority as in "
        f"training, in batches of {batch_size}.",
        remarks=_remarks(algorithm, table),
    )


def appraise(
    algorithm: Algorithm, batch: Batch, generators: Generators, env_steps: Tensor
) -> tuple[Pair, Appraisal[Tensor]]:
    """Views of o_t and o_(t+1), sampled as in an update, and their appraisal."""
    noise = algorithm.draw_noise(len(batch.reward), generators["augment"], generators["policy"])
    views = _views(algorithm, batch.observation, noise.augmentation, noise)
    next_views = _views(algorithm, batch.next_observation, noise.next_augmentation, noise)
    with restored_maxima(algorithm.framework):
        appraisal = algorithm.framework.appraise(
            views,
            next_views,
            batch.reward,
            env_steps,
            algorithm.encode_query,
            algorithm.encode_key,
            noise.permutation,
        )
    return (views, next_views), appraisal


def _views(
    algorithm: Algorithm, observation: Tensor, corners: Tensor, noise: UpdateNoise
) -> TensorViews:
    observations = _pixels(algorithm)
    views = crop(_frames(algorithm, observation), corners, observations.crop_pixels)
    if observations.augment is None or noise.generator is None:
        return views
    images = observations.augment(views.inputs.flatten(0, 1), noise.generator)
    return views._replace(inputs=images.view_as(views.inputs))


def _frames(algorithm: Algorithm, observation: Tensor) -> Tensor:
    """The frames that views are cropped from."""
    return concatenate(observation, border=_pixels(algorithm).border)


def _pixels(algorithm: Algorithm) -> PixelObservations:
    assert isinstance(algorithm.observations, PixelObservations), "inspect needs pixels"
    return algorithm.observations


def columns(
    algorithm: Algorithm, batch: Batch, pair: Pair, appraisal: Appraisal[Tensor]
) -> dict[str, Tensor]:
    """The columns of a batch, one row per sample. Crops are made later, for the shown samples only."""
    encoders = (algorithm.encode_query, algorithm.encode_key)
    values = common_columns(algorithm.framework, batch, pair, appraisal, *encoders)
    for side, views in zip(SIDES, pair, strict=True):
        assert views.crop_corners is not None, "views have corners"
        # (K-1, B)
        overlaps = equations.overlap(
            views.crop_corners[:1], views.crop_corners[1:], algorithm.env.crop_pixels
        )
        overlap = of_selected_view(overlaps, values[f"{side}chosen"])
        values |= {
            f"{side}origins": views.crop_corners.transpose(0, 1),
            f"{side}overlap": overlap / algorithm.env.crop_pixels**2,
            f"{side}overlaps_least": overlap == overlaps.min(0).values,
        }
    return values


def _remarks(algorithm: Algorithm, table: dict[str, np.ndarray]) -> list[str]:
    remarks = augmentation_remark(table, "shifts" if _pixels(algorithm).border else "crops")
    if algorithm.framework.selection == "curiosity":
        least = np.concatenate([table["overlaps_least"], table["next_overlaps_least"]]).mean()
        remarks.append(
            "The selected view is the one with the least overlap with its anchor in "
            f"{100 * least:.0f} % of cases; with a random selection it would be in about "
            f"{100 / (algorithm.framework.method.num_augmented_views - 1):.0f} %."
        )
    return remarks


def _facts(row: Row) -> dict[str, Any]:
    action = ", ".join(f"{value:.2f}" for value in row["action"])
    return {"action": f"({action})".replace("-", "−")}


def _crops(
    pixels: int, side: str, row: Row, frames: Frames
) -> list[tuple[np.ndarray, tuple[int, int]]]:
    corners = [(int(y), int(x)) for y, x in row[f"{side}origins"]]
    return [(frames[-1][y : y + pixels, x : x + pixels], (y, x)) for y, x in corners]


def _stacks(algorithm: Algorithm, replay: Replay, slot: int) -> tuple[Frames, Frames]:
    """The frames of o_t and of o_(t+1) as pictures (H, W, 3), the newest last."""
    batch = replay.gather(torch.tensor([int(slot)]))
    now, following = (
        list(
            frames.view(replay.frame_stack, -1, *frames.shape[2:])
            .permute(0, 2, 3, 1)
            .contiguous()
            .numpy()
        )
        for frames in (
            _frames(algorithm, batch.observation),
            _frames(algorithm, batch.next_observation),
        )
    )
    return now, following
