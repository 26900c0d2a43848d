"""The update of `cclf.algorithms.sac`, number for number, with each pair of weights and image encoded once.

`Sac.update` is the one to read; this is the one to run. It knows which features stay valid across steps: the anchor's
serve belief and critic loss, the keys serve belief, target and contrastive loss, the next anchor's convolutions serve
belief and policy. Encoder passes over a batch fall from 18 and 20 (odd and even updates of the released code) to 14
and 15. A test holds both to the same parameters for every method.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from cclf.algorithms.sac import Sac, SacNoise
from cclf.augment import Crops, Views
from cclf.framework import Appraisal
from cclf.types import Batch, Metrics, UpdateResult


class Looks(NamedTuple):
    """Features of views before any step. Rows: v B + b is view v of o_t in sample b, K B rows further that of o_(t+1)."""

    crops: Crops  # (2 K B)
    first: Tensor  # (F B, D)  views that are learned from whatever is chosen, under the critic's encoder, with gradient
    next_first_conv: Tensor  # (F B, H)  their successors, under the critic's convolutions
    next_first_target: Tensor  # (F B, D)  and under the target's encoder
    keys: Tensor | None  # (2 K B, D)  all views under the target's encoder, where curiosity asks; the anchors' rows are unused


Appraised = tuple[Appraisal, Tensor | None, Metrics]  # with new priorities
Appraise = Callable[[Sac, Looks, Batch, SacNoise, Tensor], Appraised]


def lean_update(sac: Sac, batch: Batch, noise: SacNoise, env_steps: Tensor, appraise: Appraise | None = None) -> UpdateResult:
    """`Sac.update`, without encoding anything twice. `appraise` may be a compiled one."""
    looks = _look(sac, batch, noise)
    appraisal, priority, metrics = (appraise or appraise_looks)(sac, looks, batch, noise, env_steps)
    chosen_key = None if looks.keys is None else looks.keys[appraisal.key_view]
    metrics |= _critic_step(sac, looks, appraisal, batch, noise.target)

    acts = sac.updates % sac.actor_every_updates == 0
    moves_target = sac.updates % sac.target_every_updates == 0
    if moves_target:  # the actor step neither reads nor moves the target, so this may come first
        sac.target_step()
    if sac.contrastive or acts:
        batch_size = batch.reward.shape[0]
        with torch.set_grad_enabled(sac.contrastive):
            conv_features = sac.critic.encoder.convolutions(looks.crops.rows(slice(batch_size)))
            query = sac.critic.encoder.head(conv_features)
        if acts:
            metrics |= sac.actor_step(conv_features.detach(), query.detach(), noise.actor)
        if sac.contrastive:
            with torch.no_grad():
                moved = moves_target or chosen_key is None
                key = sac.target.encoder(looks.crops.rows(appraisal.key_view)) if moved else chosen_key
            assert key is not None, "a key is either kept from the appraisal or encoded now"
            metrics |= sac.contrastive_step(query, key, appraisal.curiosity)
    sac.updates += 1
    return UpdateResult(metrics, priority)


def _look(sac: Sac, batch: Batch, noise: SacNoise) -> Looks:
    views, batch_size = noise.origins.shape[:2]
    frames = sac.join_frames(batch.observation, batch.next_observation)
    sample = torch.arange(2 * batch_size, device=frames.device).view(2, 1, batch_size).expand(2, views, batch_size)
    origins = torch.cat([noise.origins, noise.next_origins]).flatten(0, 1)
    crops = Crops(frames, sample.flatten(), origins, sac.crop_pixels)
    known = batch_size * (sac.framework.learned_views if sac.framework.selection == "all" else 1)
    next_known = slice(views * batch_size, views * batch_size + known)
    first = sac.critic.encoder(crops.rows(slice(known)))
    with torch.no_grad():
        next_conv = sac.critic.encoder.convolutions(crops.rows(next_known))
        if not sac.framework.needs_curiosity:
            return Looks(crops, first, next_conv, sac.target.encoder(crops.rows(next_known)), None)
        # One pass over all views but the anchors: a large batch fills a GPU better than several.
        keys = torch.cat([first[:batch_size].detach(), sac.target.encoder(crops.rows(slice(batch_size, None)))])
        return Looks(crops, first, next_conv, keys[next_known], keys)


def appraise_looks(sac: Sac, looks: Looks, batch: Batch, noise: SacNoise, env_steps: Tensor) -> Appraised:
    """The framework's appraisal over row numbers in place of images: it chooses rows, and their features are looked up."""
    views, batch_size = noise.origins.shape[:2]
    rows = torch.arange(2 * views * batch_size, device=batch.reward.device).view(2, views, batch_size)
    query = next_query = None  # nobody asks for them without curiosity
    if looks.keys is not None:
        query = looks.first[:batch_size].detach()
        next_query = sac.critic.encoder.head(looks.next_first_conv[:batch_size]).detach()

    def look_up(key_rows: Tensor) -> Tensor:
        assert looks.keys is not None, "features are looked up where curiosity asks"
        return looks.keys[key_rows]

    appraisal = sac.framework.appraise(
        Views(rows[0], noise.origins, crop_pixels=sac.crop_pixels, query=query),
        Views(rows[1], noise.next_origins, crop_pixels=sac.crop_pixels, query=next_query),
        batch.reward,
        env_steps,
        look_up,
        look_up,
    )
    priority = sac.framework.priority(batch.priority, appraisal)
    return appraisal, priority, sac.appraisal_metrics(appraisal, batch.reward, priority)


def _critic_step(sac: Sac, looks: Looks, appraisal: Appraisal, batch: Batch, noise: Tensor) -> Metrics:
    views, batch_size = appraisal.views.shape
    first = len(looks.first) // batch_size
    with torch.no_grad():
        conv_features, target_features = looks.next_first_conv, looks.next_first_target
        if first < views:  # the chosen view comes after the anchor
            chosen = appraisal.next_views[1]
            crops = looks.crops.rows(chosen)
            conv_features = torch.cat([conv_features, sac.critic.encoder.convolutions(crops)])
            chosen_target = sac.target.encoder(crops) if looks.keys is None else looks.keys[chosen]
            target_features = torch.cat([target_features, chosen_target])
        target = sac.q_target(appraisal, batch, conv_features, target_features, noise)
    features = looks.first
    if first < views:
        features = torch.cat([features, sac.critic.encoder(looks.crops.rows(appraisal.views[1]))])
    return sac.critic_step(features, target, appraisal.weights, batch.action)
